"""Gate rules: conditions in CEL, checks, and what a turn remembers."""
