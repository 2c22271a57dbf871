"""The same records in a PostgreSQL database, for gateways on several hosts: what differs from SQLite, and no more."""
