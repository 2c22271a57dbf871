"""A PostgreSQL store for commands that look at it or change it from outside, whether or not a gateway runs on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from gateway.audit.chain import SHARD_NAME, Row
from gateway.audit.lines import NotAnEntry
from gateway.errors import StoreUnavailable
from gateway.storage.postgres.faults import unavailable
from gateway.storage.postgres.sessions import Session

_COLUMNS: Final = "SELECT shard, seq, prev, hash, body, at FROM audit"
_STATEMENTS: Final = f"{_COLUMNS} WHERE position(convert_to('\"log\":{{', 'UTF8') IN body) > 0 ORDER BY shard, seq"
_AT_ONCE: Final = 2000


@contextmanager
def looking_at(address: str) -> Iterator[Session]:
    """As of one moment, read-only, for as long as it takes."""
    session = Session(address, patience=None, is_reader=True)
    try:
        session.execute("SET idle_in_transaction_session_timeout = 0")
        session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield session
    finally:
        session.close()


class PostgresAuditRows:
    """Implements `gateway.audit.verifying.Rows`. Both readings see the log as it was when it was opened."""

    def __init__(self, address: str) -> None:
        """Raises `StoreUnavailable` for what cannot be read as a store with a decision log."""
        self._looking = looking_at(address)
        self._session = self._looking.__enter__()
        self._read = 0
        try:
            [self._count] = self._session.execute("SELECT count(*) FROM audit").fetchone()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "PostgresAuditRows":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Row]:
        self._read = 0
        for row in self._rows(f"{_COLUMNS} ORDER BY shard, seq", "entries"):
            self._read += 1
            if not _is_entry(row):
                raise NotAnEntry(self._read, f"row {self._read} of the table is no entry of a decision log")
            yield row

    def statements(self) -> Iterator[Row]:
        return filter(_is_entry, self._rows(_STATEMENTS, "statements"))

    def fraction(self) -> float:
        return self._read / self._count if self._count else 0.0

    def close(self) -> None:
        self._looking.__exit__(None, None, None)

    def _rows(self, statement: str, name: str) -> Iterator[Row]:
        """Some at a time, by a cursor of the server: a log may be larger than memory."""
        try:
            with self._session.raw.cursor(name=name) as cursor:
                cursor.itersize = _AT_ONCE
                for values in cursor.execute(statement):
                    yield Row(*values)
        except psycopg.Error as error:
            raise (unavailable(error) or StoreUnavailable("the decision log cannot be read", cause=error)) from error


def _is_entry(row: Row) -> bool:
    return bool(SHARD_NAME.fullmatch(row.shard)) and row.seq >= 1 and len(row.prev) == 32 and len(row.hash) == 32
