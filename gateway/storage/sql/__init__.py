"""The SQL store: schema, rows, statements, group commit."""
