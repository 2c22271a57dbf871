"""What a gateway remembers across restarts: turns and calls in a database, the bytes of results in files beside it."""
