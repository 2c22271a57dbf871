"""Canonical JSON, identifiers, clock, containers, concurrency."""
