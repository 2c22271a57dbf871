"""Integrity checks of a store: pages of an SQLite file, foreign keys, and large results that records name.

A gateway that starts checks as much of the file as fits into `QUICK_SECONDS`; `gateway storage check` checks all.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import and_, bindparam, literal_column, select

from gateway.errors import StoreUnavailable
from gateway.storage.blobs.blob_store import BlobStore, parse_key
from gateway.storage.call_store import StoredResult
from gateway.storage.sql.call_rows import results_from_json
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.sqlite.connection import SqliteConnection, to_store_error
from gateway.storage.sql.sqlite.database_setup import (
    APPLICATION_ID,
    list_schema_versions,
    read_schema_version,
    require_not_lost,
)
from gateway.storage.sql.tables import calls, fresh, pieces, turns

QUICK_SECONDS: Final = 2.0
MOST_FINDINGS: Final = 100
"""Largest number of findings of each kind: a badly damaged file has thousands."""

_AT_ONCE: Final = 500
_PIECES: Final = CompiledStatement(
    select(pieces.c.key, pieces.c.position, calls.c.results)
    .join(calls, and_(calls.c.turn_id == pieces.c.turn_id, calls.c.id == pieces.c.call_id))
    .join(turns, turns.c.id == calls.c.turn_id)
    .where(pieces.c.content.is_(None), turns.c.expires_at > bindparam("at"), pieces.c.key > bindparam("after"))
    .order_by(pieces.c.key)
    .limit(bindparam("limit"))
)
_FRESH: Final = CompiledStatement(
    select(fresh.c.piece_key.label("key"), literal_column("0").label("position"), fresh.c.results)
    .where(
        fresh.c.piece_content.is_(None),
        fresh.c.turn_expires_at > bindparam("at"),
        fresh.c.piece_key > bindparam("after"),
    )
    .order_by(fresh.c.piece_key)
    .limit(bindparam("limit"))
)

Told = Callable[[str, float], None]
"""Called with the part that is checked next, and the fraction that is done."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem. `where` is a table, `pages`, `schema`, `foreign keys` or `results`."""

    where: str
    message: str


def check_quickly(path: Path, *, seconds: float = QUICK_SECONDS) -> bool:
    """Check pages, then rows and indexes. Return whether there was time for all of them.

    Raises `StoreUnavailable` if the file is damaged.
    """
    link = SqliteConnection(path)
    timer = Timer(seconds, link.connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        rows = link.connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return False
        raise (to_store_error(error) or error) from error
    finally:
        timer.cancel()
        timer.join()
        link.close()
    if rows != [("ok",)]:
        raise StoreUnavailable(
            f"the database {path.name} is damaged: {_line(rows[0][0])}",
            help="run: gateway storage check; restore a backup",
        )
    return True


def sqlite_findings(path: Path, *, told: Told = lambda part, done: None) -> list[Finding]:
    """Check a whole file: every page, table, index and foreign key. A gateway may serve from it meanwhile.

    Raises `StoreUnavailable` if the file cannot be opened.
    """
    require_not_lost(path)
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=2.0)) as connection:
            connection.execute("PRAGMA query_only = ON")
            return _all_findings(connection, told)
    except sqlite3.Error as error:
        raise (to_store_error(error) or error) from error


def _all_findings(connection: sqlite3.Connection, told: Told) -> list[Finding]:
    told("schema", 0.0)
    try:
        found = _check_schema(connection)
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return [Finding("schema", _line(str(error)))]
    steps = [("pages", f"PRAGMA quick_check({MOST_FINDINGS})")]
    steps += [(name, f"PRAGMA integrity_check({_quote(name)})") for name in sorted(names)]
    for number, (part, statement) in enumerate(steps):
        told(part, number / (len(steps) + 1))
        for message in _lines_of(connection, statement):
            if message != "ok" and not any(message == each.message for each in found):
                found.append(Finding(part, message))
    told("foreign keys", len(steps) / (len(steps) + 1))
    for message in _lines_of(connection, "SELECT DISTINCT \"table\" || ' → ' || parent FROM pragma_foreign_key_check"):
        found.append(Finding("foreign keys", f"rows without the row they name: {message}"))
    return found


def _check_schema(connection: sqlite3.Connection) -> list[Finding]:
    [application] = connection.execute("PRAGMA application_id").fetchone()
    version = read_schema_version(connection)
    if application != APPLICATION_ID:
        return [Finding("schema", "the file is a database of another program")]
    if version != list_schema_versions()[-1]:
        return [
            Finding(
                "schema", f"the version is {version or 'none'}, and this program needs {list_schema_versions()[-1]}"
            )
        ]
    return []


def _lines_of(connection: sqlite3.Connection, statement: str) -> list[str]:
    """Return the lines of a check, or the error if a damaged page stops it."""
    try:
        return [_line(str(row[0])) for row in connection.execute(statement).fetchmany(MOST_FINDINGS)]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
            raise
        return [_line(str(error))]


def iter_named_results(connection: Any, *, at: int, is_sqlite: bool) -> Iterator[StoredResult]:
    """Iterate over large results of records that have not expired at `at`, in microseconds."""
    for statement in (_PIECES, _FRESH) if is_sqlite else (_PIECES,):
        after = ""
        while rows := statement.rows(connection, {"at": at, "after": after, "limit": _AT_ONCE}):
            for row in rows:
                yield results_from_json(row["results"])[row["position"]]
            after = rows[-1]["key"]


async def result_findings(named: Iterator[StoredResult], large: BlobStore) -> tuple[int, list[Finding]]:
    """Return how many results were checked, and which of them are gone or have another size."""
    count = 0
    found: list[Finding] = []
    for piece in named:
        count += 1
        key = parse_key(piece.key or "")
        reader = None if key is None else await large.open(key)
        if reader is None:
            message = f"{piece.key} is gone"
        elif piece.byte_length is not None and reader.byte_length() != piece.byte_length:
            message = f"{piece.key} has {reader.byte_length()} bytes, and its record says {piece.byte_length}"
        else:
            continue
        if len(found) < MOST_FINDINGS:
            found.append(Finding("results", message))
    return count, found


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
