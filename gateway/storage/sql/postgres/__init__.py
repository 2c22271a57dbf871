"""PostgreSQL: connection, leases, heartbeat, writer. psycopg is imported here alone."""
