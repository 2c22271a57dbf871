"""Definitions of upstreams, looked at: what in their texts deserves a person's look, and what changed in them."""
