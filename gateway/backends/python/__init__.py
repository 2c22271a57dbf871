"""A Python function as a tool, in the event loop, a thread or a process."""
