"""Several processes that serve one project: workers of a host, peers of a database."""
