"""The REST API, described as operations."""
