"""SQLite: connection, migration, integrity, single-call rows, writer process."""
