"""Tools, prompts and resources of other MCP servers."""
