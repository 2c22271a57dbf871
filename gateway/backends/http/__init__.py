"""An HTTP request as a tool: addresses, connections, credentials, content encoding."""
