"""JSON Schema: validation, defaults, coercion, messages."""
