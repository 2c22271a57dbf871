"""From documents to a snapshot: each kind is checked against the others."""
