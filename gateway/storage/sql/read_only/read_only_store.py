"""Read-only access to the calls and the decision log of a store, whether or not a gateway runs on it.

Commands see the database as of one moment. Nothing is upgraded.
"""

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Final, Self
from urllib.parse import quote

from sqlalchemy import Table, bindparam, select

from gateway.approvals import ApprovalRecord
from gateway.audit import SHARD_NAME, ChainRow, InvalidEntry
from gateway.errors import StoreUnavailable
from gateway.policy import Grant
from gateway.storage.call_store import CallFilter, StoredCall
from gateway.storage.sql.approvals import find_approvals
from gateway.storage.sql.call_rows import call_from_row, to_microseconds
from gateway.storage.sql.call_statements import call_conditions, call_parameters
from gateway.storage.sql.column_values import is_storable
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.grants import read_all_grants
from gateway.storage.sql.sqlite.connection import to_store_error
from gateway.storage.sql.tables import calls, fresh

_PATIENCE: Final = 2.0
_AUDIT_COLUMNS: Final = "SELECT shard, seq, prev, hash, body, at FROM audit"


class AuditTableReader(ABC):
    """Implements `gateway.audit.LogReader`. All reads see the log as it was when it was opened."""

    _count: int
    _read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[ChainRow]:
        self._read = 0
        for values in self._select(f"{_AUDIT_COLUMNS} ORDER BY shard, seq"):
            self._read += 1
            row = self._to_row(values)
            if row is None:
                raise InvalidEntry(self._read, f"row {self._read} of the table is no entry of a decision log")
            yield row

    def statements(self) -> Iterator[ChainRow]:
        values = self._select(f"{_AUDIT_COLUMNS} WHERE {self._says_log} ORDER BY shard, seq")
        return (row for row in map(self._to_row, values) if row is not None)

    def fraction(self) -> float:
        return self._read / self._count if self._count else 0.0

    @abstractmethod
    def close(self) -> None: ...

    _says_log: ClassVar[str]
    """SQL condition: the entry is about the log itself."""

    @abstractmethod
    def _select(self, statement: str) -> Iterator[tuple[Any, ...]]: ...

    @abstractmethod
    def _to_row(self, values: tuple[Any, ...]) -> ChainRow | None:
        """Return `None` for values that no entry of a decision log has."""


class SqliteAuditReader(AuditTableReader):
    _says_log = "instr(body, CAST('\"log\":{' AS BLOB))"

    def __init__(self, path: Path) -> None:
        """Raise `StoreUnavailable` unless the file is a store with a decision log."""
        self._path = path
        self._names: dict[bytes, str] = {}
        with self._translate_errors():
            uri = f"file:{quote(str(path.absolute()))}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE, isolation_level=None)
            self._connection.text_factory = bytes  # a text column may hold invalid text, which is checked below
            try:
                self._connection.execute("PRAGMA query_only = ON")
                self._connection.execute("PRAGMA trusted_schema = OFF")
                self._connection.execute("BEGIN")
                [self._count] = self._connection.execute("SELECT count(*) FROM audit").fetchone()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        self._connection.close()

    def _select(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with self._translate_errors():
            yield from self._connection.execute(statement)

    def _to_row(self, values: tuple[Any, ...]) -> ChainRow | None:
        """SQLite stores values of any type in any column."""
        name, seq, prev, digest, body, at = values
        shard = self._names.get(name) or self._decode_shard(name)
        if shard is None or type(seq) is not int or seq < 1 or type(at) is not int or type(body) is not bytes:
            return None
        if type(prev) is not bytes or type(digest) is not bytes or len(prev) != 32 or len(digest) != 32:
            return None
        return ChainRow(shard, seq, prev, digest, body, at)

    def _decode_shard(self, name: object) -> str | None:
        shard = name.decode("utf-8", "replace") if isinstance(name, bytes) else ""
        if not SHARD_NAME.fullmatch(shard):
            return None
        return self._names.setdefault(shard.encode(), shard)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise to_store_error(error) or StoreUnavailable(
                f"{self._path} cannot be read as a store with a decision log",
                help="start the gateway on it once, or correct the path",
            ) from error


_ALL: Final = 1 << 31
_ABOUT: Final = "SELECT body FROM audit WHERE instr(body, CAST(? AS BLOB))"
_ELSEWHERE: Final = "SELECT body FROM audit WHERE position(convert_to(?, 'UTF8') IN body) > 0"


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """A store that is not a file. `looking` opens a connection that sees one moment."""

    open_for_reading: Callable[[], AbstractContextManager[Any]] = field(repr=False)

    def __str__(self) -> str:
        return "the database"


StoreLocation = Path | RemoteStore


def list_calls(path: StoreLocation, filter: CallFilter, *, since: datetime | None, limit: int) -> list[StoredCall]:
    """Return the newest calls that match, newest first. Raises `StoreUnavailable`."""
    chosen = call_parameters(filter)
    if chosen is None:
        return []
    if since is not None:
        chosen["since"] = to_microseconds(since)
    return _read(path, {**chosen, "limit": limit})


def find_calls(path: StoreLocation, id: str, *, turn_id: str | None) -> list[StoredCall]:
    """Return the calls of that id, newest first: ids are unique within a turn only."""
    if not is_storable(id) or not is_storable(turn_id or ""):
        return []
    return _read(path, {"id": id, "limit": _ALL, **({} if turn_id is None else {"turn_id": turn_id})})


def _newest(table: Table, wanted: Collection[str]) -> CompiledStatement:
    conditions = call_conditions(table, wanted)
    if "since" in wanted:
        conditions.append(table.c.created_at >= bindparam("since"))
    newest = select(*(table.c[each.name] for each in calls.c)).where(*conditions).order_by(table.c.number.desc())
    return CompiledStatement(newest.limit(bindparam("limit")))


def _read(path: StoreLocation, wanted: dict[str, Any]) -> list[StoredCall]:
    tables = (fresh, calls) if isinstance(path, Path) else (calls,)
    with translate_store_errors(path), open_for_reading(path) as connection:
        found = [row for table in tables for row in _newest(table, wanted).rows(connection, wanted)]
        newest = sorted(found, key=itemgetter("number"), reverse=True)
        return [call_from_row(row) for row in newest[: wanted["limit"]]]


def find_call_approvals(path: StoreLocation, ids: Collection[str]) -> list[ApprovalRecord]:
    """Return those approvals that are still stored, oldest first."""
    with translate_store_errors(path), open_for_reading(path) as connection:
        return sorted(find_approvals(connection, ids), key=lambda each: each.created_at)


def list_grants(path: StoreLocation) -> list[Grant]:
    """Return the requests and grants that are still stored, newest first. Raises `StoreUnavailable`."""
    with translate_store_errors(path), open_for_reading(path) as connection:
        return read_all_grants(connection)


def find_audit_entries(path: StoreLocation, ids: Collection[str]) -> list[Mapping[str, Any]]:
    """Return entries of the decision log about one of these calls or approvals, oldest first."""
    found: dict[bytes, Mapping[str, Any]] = {}
    about = _ABOUT if isinstance(path, Path) else _ELSEWHERE
    with translate_store_errors(path), open_for_reading(path) as connection:
        for id in ids:
            for body, *_ in connection.execute(about, (json.dumps(id, ensure_ascii=False),)):
                entry = _entry(body)
                if entry is not None and id in (_of(entry, "call", "id"), _of(entry, "gate", "approval")):
                    found[body] = entry
    return sorted(found.values(), key=lambda entry: int(entry["at"]))


def open_for_reading(path: StoreLocation) -> AbstractContextManager[Any]:
    return open_read_only(path) if isinstance(path, Path) else path.open_for_reading()


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open one read transaction: otherwise a call that is expanded meanwhile would be in neither table, or in both."""
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=_PATIENCE)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("BEGIN")
        yield connection
    finally:
        connection.close()


def _entry(body: object) -> Mapping[str, Any] | None:
    """Return a decoded entry. Foreign rows are skipped: another command verifies the log."""
    try:
        found = json.loads(body) if isinstance(body, bytes) else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("at")) is int else None


def _of(entry: Mapping[str, Any], part: str, name: str) -> Any:
    found = entry.get(part)
    return found.get(name) if isinstance(found, dict) else None


@contextmanager
def translate_store_errors(path: StoreLocation) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise to_store_error(error) or StoreUnavailable(
            f"{path} cannot be read as a store of this version",
            help="start the gateway on it once, or correct the path",
        ) from error
