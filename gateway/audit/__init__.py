"""The decision log: entries in hash chains, anchors that are kept elsewhere, offline verification, export.

A pure library. Who stores rows, and in which transaction, is decided by whoever calls.
"""
