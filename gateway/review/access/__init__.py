"""Access review: who has what by which row, who uses it, and the attestations of owners who looked at it."""
