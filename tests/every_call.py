"""The calls in an SQLite file, for tests that look into it: those that are alone in their turn are in a table apart."""


def every_call(columns: str) -> str:
    """The statement that reads these columns of all of them."""
    return f"SELECT {columns} FROM calls UNION ALL SELECT {columns} FROM fresh"
