"""MCP over streamable HTTP, with sessions and without."""
