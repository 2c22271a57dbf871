"""Connections to upstream MCP servers, and the backend that calls their tools. Nothing they say sets trust."""
