"""Tools, their registry, calls, and the contract of a backend."""
