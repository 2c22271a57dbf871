"""The calls in an SQLite file, for tests that read it: single-call turns are in a separate table."""


def read_all_calls(columns: str) -> str:
    """Return a statement that reads these columns of all calls."""
    return f"SELECT {columns} FROM calls UNION ALL SELECT {columns} FROM fresh"
