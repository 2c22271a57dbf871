"""MCP over streamable HTTP: the revision without sessions and the three before it, on one address."""
