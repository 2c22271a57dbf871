"""What another policy would have decided about recorded calls."""
