"""Turns of the served gateway: open, find, share between processes, end."""
