"""Backends: what runs when a tool of our own is called.

Each takes a frozen dataclass of its own and an authorised call, and gives text, bytes, media or what was kept in the
spool. None of them knows YAML, policies or who decided.
"""
