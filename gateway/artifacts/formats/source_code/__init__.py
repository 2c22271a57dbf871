"""Source code as an artifact, parsed in a process of its own."""
