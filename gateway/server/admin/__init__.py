"""Endpoints of the admin listener: status, metrics, reload."""
