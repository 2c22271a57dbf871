"""Upgrades of a PostgreSQL schema, all steps or none, one program at a time, and the import of an SQLite file.

A gateway that starts changes no schema: it refuses one that is older or newer than its own.

The import fills an empty database while no gateway runs on either. All tables are copied unchanged, so the decision log
verifies as before. The bytes of large results stay where they are.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import Boolean, ForeignKeyConstraint, Table, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from gateway.errors import ForeignStore, GatewayError, StoreUnavailable
from gateway.model import now
from gateway.storage.sql import tables
from gateway.storage.sql.lock_keys import NOTHING_SHARED
from gateway.storage.sql.postgres.connection import PostgresConnection, to_postgres_store_error
from gateway.storage.sql.postgres.dialect import replace_nul
from gateway.storage.sql.read_only.read_only_store import open_read_only
from gateway.storage.sql.sqlite.database_setup import (
    MIGRATION_LOCK,
    SCRIPTS,
    VERSION_TABLE,
    is_served,
    list_schema_versions,
)
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.sqlite.integrity import Finding, Told
from gateway.storage.sql.tables import METADATA

_HERE: Final = "(SELECT relnamespace FROM pg_class WHERE oid = to_regclass('turns'))"
_UNUSABLE: Final = (
    f"SELECT 'the index ' || c.relname || ' is not valid' FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "  # noqa: S608 - no value in it
    f"WHERE c.relnamespace = {_HERE} AND NOT (i.indisvalid AND i.indisready)",
    "SELECT 'the constraint ' || conname || ' was never validated' FROM pg_constraint "  # noqa: S608 - likewise
    f"WHERE connamespace = {_HERE} AND NOT convalidated",
)
_ONLY_SQLITE: Final = frozenset({"fresh", "fresh_ids"})


def postgres_findings(address: str, *, told: Told = lambda part, done: None) -> list[Finding]:
    """Read every row of every table, and find rows that name a missing row.

    A server with data checksums reports each damaged page that is read; indexes are not compared with their tables.
    Raises `StoreUnavailable` if the database cannot be reached.
    """
    session = PostgresConnection(address, patience=None, is_reader=True)
    try:
        told("schema", 0.0)
        found = [each for statement in _UNUSABLE for each in _run_check(session, "schema", statement)]
        tables = [table for name, table in sorted(METADATA.tables.items()) if name not in _ONLY_SQLITE]
        for number, table in enumerate(tables):
            told(table.name, number / len(tables))
            # The text of whole rows: values that are stored out of line are read only if they are used.
            found += _run_check(session, table.name, f"SELECT sum(length(t::text)) FROM {table.name} t", is_read=True)  # noqa: S608 - names of ours; likewise below
            found += [each for statement in _orphans(table) for each in _run_check(session, "foreign keys", statement)]
        return found
    finally:
        session.close()


def _orphans(table: Table) -> list[str]:
    """Return a statement for each foreign key that returns a row if one names a missing row."""
    statements = []
    for key in (each for each in table.constraints if isinstance(each, ForeignKeyConstraint)):
        parent = key.referred_table.name
        same = " AND ".join(f"p.{each.column.name} = c.{each.parent.name}" for each in key.elements)
        given = " AND ".join(f"c.{each.parent.name} IS NOT NULL" for each in key.elements)
        statements.append(
            f"SELECT 'rows without the row they name: {table.name} → {parent}' WHERE EXISTS "  # noqa: S608
            f"(SELECT 1 FROM {table.name} c WHERE {given} AND NOT EXISTS (SELECT 1 FROM {parent} p WHERE {same}))"
        )
    return statements


def _run_check(session: PostgresConnection, where: str, statement: str, *, is_read: bool = False) -> list[Finding]:
    """Return the findings of a statement. A statement that fails is a finding, too."""
    try:
        rows = session.execute(statement).fetchall()
    except (GatewayError, psycopg.Error) as error:
        if session.is_lost():
            raise
        return [Finding(where, f"cannot be read: {_first_line(error)}")]
    return [] if is_read else [Finding(where, row[0]) for row in rows]


def _first_line(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error
    return str(cause).partition("\n")[0][:300]


_OURS: Final = ("turns", "calls", "claims", "approvals", "audit")
_LOCK: Final = 0x67772E32
FIRST: Final = "0007"
"""The first version with PostgreSQL."""

_COUNTS: Final = (
    "SELECT count(*) FROM leases WHERE until > clock_timestamp()",
    "SELECT count(*) FROM calls WHERE status = 'started'",
    "SELECT count(*) FROM approvals WHERE state = 'pending'",
)


def migrate_postgres(address: str, *, to: str | None = None, scripts: Path = SCRIPTS) -> tuple[str | None, str]:
    """Migrate to the newest version, or to an earlier one, which loses the data that it does not know.

    Return the versions before and after. Raises `ForeignStore` if the database is another program's or newer.
    """
    if to is not None and to not in list_postgres_versions(scripts):
        raise ForeignStore(
            f"there is no version {to[:40]!r} to go to",
            help=f"name one of {', '.join(list_postgres_versions(scripts))}",
        )
    session = PostgresConnection(address, patience=None)
    try:
        with MIGRATION_LOCK:
            return _migrate(session, to, scripts)
    finally:
        session.close()


def list_postgres_versions(scripts: Path = SCRIPTS) -> list[str]:
    """Return the versions that a PostgreSQL database can have, the newest last."""
    known = list_schema_versions(scripts)
    return known[known.index(FIRST) :]


def version_of(session: PostgresConnection) -> str | None:
    """Return `None` for a database that is not set up."""
    if not _has(session, VERSION_TABLE):
        return None
    found = session.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - a name of ours
    return None if found is None else str(found[0])


@dataclass(frozen=True, slots=True)
class SchemaState:
    """State for `gateway storage check`. With another version, the counts are not known."""

    server: str
    version: str | None
    needed: str
    gateways: int | None = None
    running_calls: int | None = None
    pending_approvals: int | None = None

    @property
    def is_good(self) -> bool:
        return self.version == self.needed


def read_schema_state(address: str) -> SchemaState:
    """Raises `StoreUnavailable` if the database cannot be reached or written to."""
    session = PostgresConnection(address)
    try:
        [server] = session.execute("SHOW server_version").fetchone()
        version, needed = version_of(session), list_schema_versions()[-1]
        if version != needed:
            return SchemaState(server, version, needed)
        session.begin(NOTHING_SHARED)  # to check the right to write
        session.execute("UPDATE changes SET number = number")
        session.execute("ROLLBACK")
        counts = [int(session.execute(statement).fetchone()[0]) for statement in _COUNTS]
        return SchemaState(server, version, needed, *counts)
    finally:
        session.close()


def require_schema_version(session: PostgresConnection) -> None:
    """Raise `ForeignStore` unless the schema is exactly the one of this program."""
    version, known = version_of(session), list_schema_versions()
    if version == known[-1]:
        return
    if version is not None and version not in known:
        raise _newer_version_error(version)
    old = "is not set up" if version is None else f"has version {version}, and this program needs {known[-1]}"
    raise ForeignStore(f"the database {old}", help="run: gateway storage migrate")


def _migrate(session: PostgresConnection, to: str | None, scripts: Path) -> tuple[str | None, str]:
    from gateway.storage.sql.migrations.runner import (  # a serving gateway loads no Alembic
        BorrowedConnection,
        run_steps,
    )

    session.execute("SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0")
    session.begin(NOTHING_SHARED)
    try:
        session.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        before = version_of(session)
        if before is None and (taken := [name for name in _OURS if _has(session, name)]):
            raise ForeignStore(
                f"the database has a table {taken[0]!r} of another program",
                help="give the gateway a database, or a schema in its search_path, of its own",
            )
        if before is not None and before not in list_schema_versions(scripts):
            raise _newer_version_error(before)
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: BorrowedConnection(session.raw),
            poolclass=StaticPool,
            use_native_hstore=False,
        )
        run_steps(engine, to or "head", scripts=scripts)
        after = version_of(session)
        session.execute("COMMIT")
    except DBAPIError as error:
        raise StoreUnavailable(
            "the schema cannot be changed", help="let the role of the connection create tables", cause=error
        ) from error
    return before, str(after)


def _has(session: PostgresConnection, table: str) -> bool:
    found = session.execute("SELECT to_regclass(?) IS NOT NULL", (table,)).fetchone()
    return bool(found and found[0])


def _newer_version_error(version: str) -> ForeignStore:
    return ForeignStore(
        f"the database has version {version}, which is newer than this program",
        help="start the newer program again, or have it go back first: gateway storage migrate --to VERSION",
    )


_TABLES: Final = (
    *(tables.turns, tables.calls, tables.pieces, tables.claims),
    *(tables.approvals, tables.approval_entries, tables.approval_notices),
    *(tables.quotas, tables.sightings, tables.quarantines, tables.revocations, tables.grants, tables.audit),
)
_COUNTED: Final = ("calls", "approvals", "approval_notices")


def import_sqlite(path: Path, address: str, *, told: Callable[[str, int], None] = lambda table, rows: None) -> None:
    """Copy all tables or none. `told` is called with each table and its number of rows.

    Raises `StoreUnavailable` if a gateway runs on the file, `ForeignStore` for a database that is not empty.
    """
    _refuse_served(path)
    asyncio.run(_tidy(path))
    session = PostgresConnection(address, patience=None)
    try:
        require_schema_version(session)
        session.execute("SET idle_in_transaction_session_timeout = 0")
        session.begin()
        _refuse_filled(session)
        with open_read_only(path) as source:
            for table in _TABLES:
                told(table.name, _copy_table(source, session, table))
        for name in _COUNTED:
            session.execute(
                f"SELECT setval(pg_get_serial_sequence('{name}', 'number'), max(number)) FROM {name}"  # noqa: S608 - ours
            )
        session.execute("COMMIT")
    except psycopg.Error as error:
        raise (
            to_postgres_store_error(error) or StoreUnavailable("the records cannot be copied", cause=error)
        ) from error
    finally:
        session.close()


async def _tidy(path: Path) -> None:
    """Upgrade the file, expand single-call rows, and mark calls of dead processes as `unknown`."""
    store = await open_sqlite_store(path)
    try:
        await store.close_interrupted_calls(now())
        await store.engine.expand_single_calls()
    finally:
        await store.close()


def _refuse_served(path: Path) -> None:
    if not path.is_file():
        raise StoreUnavailable(f"there is no database {path}", help="name the file of the Storage that is replaced")
    if is_served(path):
        raise StoreUnavailable(f"a gateway runs on {path}", help="stop it first: what it writes would be lost")


def _refuse_filled(session: PostgresConnection) -> None:
    for table in _TABLES:
        found = session.execute(f"SELECT 1 FROM {table.name} LIMIT 1").fetchone()  # noqa: S608 - a name of ours
        if found is not None:
            raise ForeignStore(
                f"the PostgreSQL database has records already, in {table.name}", help="copy into a new one"
            )


def _copy_table(source: sqlite3.Connection, session: PostgresConnection, table: Table) -> int:
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
        yield [bool(value) if index in flags else replace_nul(value) for index, value in enumerate(row)]
