"""Bytes of results: on disk, in a bucket."""
