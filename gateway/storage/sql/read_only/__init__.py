"""Stores as commands read them: whether or not a gateway runs on them, and never written."""
