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
        self._names: dict[bytes, str] = {}
        with self._told_plainly():
            uri = f"file:{quote(str(path.absolute()))}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
            self._connection.text_factory = bytes  # what is no text in a column of texts is judged as a name, below
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
            if (found := self._row(row)) is not None:
                yield found

    def fraction(self) -> float:
        return self._read / self._count if self._count else 0.0

    def close(self) -> None:
        self._connection.close()

    def _rows(self, statement: str) -> Iterator[Row]:
        for values in self._found(statement):
            self._read += 1
            row = self._row(values)
            if row is None:
                raise NotAnEntry(self._read, f"row {self._read} of the table is no entry of a decision log")
            yield row

    def _found(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with self._told_plainly():
            yield from self._connection.execute(statement)

    def _row(self, values: tuple[Any, ...]) -> Row | None:
        """The values as a row. SQLite keeps whatever it is given, in columns of any type."""
        name, seq, prev, digest, body, at = values
        shard = self._names.get(name) or self._named(name)
        if shard is None or type(seq) is not int or seq < 1 or type(at) is not int or type(body) is not bytes:
            return None
        if type(prev) is not bytes or type(digest) is not bytes or len(prev) != 32 or len(digest) != 32:
            return None
        return Row(shard, seq, prev, digest, body, at)

    def _named(self, name: object) -> str | None:
        shard = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
        if not SHARD_NAME.fullmatch(shard):
            return None
        return self._names.setdefault(shard.encode(), shard)

    @contextmanager
    def _told_plainly(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise unavailable(error) or StoreUnavailable(
                f"{self._path} cannot be read as a store with a decision log",
                help="start the gateway on it once, or correct the path",
            ) from error
