"""Commands that work on a running gateway or its store."""
