"""Moving a store from an SQLite file into an empty PostgreSQL database, once, with nothing running on either.

Everything is copied as it is written, the decision log to the byte: it verifies as before. The bytes of large results
are no part of it; they stay where they are.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import Boolean, Table

from gateway.core.events import now
from gateway.errors import StoreNotOurs, StoreUnavailable
from gateway.storage import schema
from gateway.storage.history import looking_at
from gateway.storage.postgres.compiling import plain
from gateway.storage.postgres.faults import unavailable
from gateway.storage.postgres.migrating import refuse_other_versions
from gateway.storage.postgres.sessions import Session
from gateway.storage.processes import ProcessLock
from gateway.storage.sqlite import SqliteStore

_TABLES: Final = (
    *(schema.turns, schema.calls, schema.pieces, schema.claims),
    *(schema.approvals, schema.approval_entries, schema.approval_notices),
    *(schema.quotas, schema.sightings, schema.quarantines, schema.revocations, schema.audit),
)
_COUNTED: Final = ("calls", "approvals", "approval_notices")


def copy_sqlite(path: Path, address: str, *, told: Callable[[str, int], None] = lambda table, rows: None) -> None:
    """Copy all tables or none. `told` hears how many rows each had.

    Raises `StoreUnavailable` if a gateway runs on the file, `StoreNotOurs` for a database that is not empty.
    """
    _refuse_served(path)
    asyncio.run(_tidy(path))
    session = Session(address, patience=None)
    try:
        refuse_other_versions(session)
        session.execute("SET idle_in_transaction_session_timeout = 0")
        session.begin()
        _refuse_filled(session)
        with looking_at(path) as source:
            for table in _TABLES:
                told(table.name, _copied(source, session, table))
        for name in _COUNTED:
            session.execute(
                f"SELECT setval(pg_get_serial_sequence('{name}', 'number'), max(number)) FROM {name}"  # noqa: S608 - ours
            )
        session.execute("COMMIT")
    except psycopg.Error as error:
        raise (unavailable(error) or StoreUnavailable("the records cannot be copied", cause=error)) from error
    finally:
        session.close()


async def _tidy(path: Path) -> None:
    """Upgraded, with every call where it belongs; what was running when the last gateway ended is unknown."""
    store = await SqliteStore.open(path)
    try:
        await store.recover(now())
        await store.put_away()
    finally:
        await store.close()


def _refuse_served(path: Path) -> None:
    if not path.is_file():
        raise StoreUnavailable(f"there is no database {path}", help="name the file of the Storage that is replaced")
    folder = path.with_name(f"{path.name}-processes")
    if not folder.is_dir():
        return
    mine = ProcessLock(folder)
    try:
        if not mine.is_alone():
            raise StoreUnavailable(f"a gateway runs on {path}", help="stop it first: what it writes would be lost")
    finally:
        mine.release()


def _refuse_filled(session: Session) -> None:
    for table in _TABLES:
        found = session.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone()  # noqa: S608 - a name of ours
        if found is not None:
            raise StoreNotOurs(
                f"the PostgreSQL database has records already, in {table.name}", help="copy into a new one"
            )


def _copied(source: sqlite3.Connection, session: Session, table: Table) -> int:
    names = [column.name for column in table.c]
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), columns)
    count = 0
    with session.raw.cursor() as cursor, cursor.copy(into) as copy:
        for row in _rows(source, table, names):
            copy.write_row(row)
            count += 1
    return count


def _rows(source: sqlite3.Connection, table: Table, names: list[str]) -> Iterator[list[Any]]:
    flags = {index for index, column in enumerate(table.c) if isinstance(column.type, Boolean)}
    chosen = ", ".join(f'"{name}"' for name in names)
    for row in source.execute(f"SELECT {chosen} FROM {table.name}"):  # noqa: S608 - our own names
        yield [bool(value) if index in flags else plain(value) for index, value in enumerate(row)]
