"""The decision log of a store, read from outside: read-only, as of one moment, whether or not a gateway runs on it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from gateway.audit.chain import SHARD_NAME, Row
from gateway.audit.lines import NotAnEntry
from gateway.errors import StoreUnavailable
from gateway.storage.links import unavailable

_PATIENCE: Final = 2.0
_COLUMNS: Final = "SELECT shard, seq, prev, hash, body, at FROM audit"


class AuditRows:
    """Implements `gateway.audit.verifying.Rows`. Both readings see the log as it was when it was opened."""

    def __init__(self, path: Path) -> None:
        """Raises `StoreUnavailable` for what cannot be read as a store with a decision log."""
        self._path = path
        self._read = 0
        with self._told_plainly():
            uri = f"file:{quote(str(path.absolute()))}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
            self._connection.text_factory = lambda text: text.decode("utf-8", "replace")  # judged as a name, below
            try:
                self._connection.execute("PRAGMA query_only = ON")
                self._connection.execute("PRAGMA trusted_schema = OFF")
                self._connection.execute("BEGIN")
                [self._count] = self._connection.execute("SELECT count(*) FROM audit").fetchone()
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> "AuditRows":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Row]:
        self._read = 0
        return self._rows(f"{_COLUMNS} ORDER BY shard, seq")

    def statements(self) -> Iterator[Row]:
        said = "instr(body, CAST('\"log\":{' AS BLOB))"
        for row in self._found(f"{_COLUMNS} WHERE {said} ORDER BY shard, seq"):
            if (found := _row(row)) is not None:
                yield found

    def fraction(self) -> float:
        return self._read / self._count if self._count else 0.0

    def close(self) -> None:
        self._connection.close()

    def _rows(self, statement: str) -> Iterator[Row]:
        for values in self._found(statement):
            self._read += 1
            row = _row(values)
            if row is None:
                raise NotAnEntry(self._read, f"row {self._read} of the table is no entry of a decision log")
            yield row

    def _found(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with self._told_plainly():
            yield from self._connection.execute(statement)

    @contextmanager
    def _told_plainly(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise unavailable(error) or StoreUnavailable(
                f"{self._path} cannot be read as a store with a decision log",
                help="start the gateway on it once, or correct the path",
            ) from error


def _row(values: tuple[Any, ...]) -> Row | None:
    """The values as a row. SQLite keeps whatever it is given, in columns of any type."""
    match values:
        case (str(shard), int(seq), bytes(prev), bytes(digest), bytes(body), int(at)):
            sane = seq > 0 and len(prev) == len(digest) == 32 and SHARD_NAME.fullmatch(shard)
            return Row(shard, seq, prev, digest, body, at) if sane else None
    return None
