"""Whether a PostgreSQL database is undamaged, as far as a client can tell: rows, indexes, constraints, foreign keys."""

from typing import Final

import psycopg
from sqlalchemy import ForeignKeyConstraint, Table

from gateway.errors import GatewayError
from gateway.storage.integrity import Finding, Told
from gateway.storage.postgres.sessions import Session
from gateway.storage.schema import METADATA

_HERE: Final = "(SELECT relnamespace FROM pg_class WHERE oid = to_regclass('turns'))"
_UNUSABLE: Final = (
    f"SELECT 'the index ' || c.relname || ' is not valid' FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "  # noqa: S608 - no value in it
    f"WHERE c.relnamespace = {_HERE} AND NOT (i.indisvalid AND i.indisready)",
    "SELECT 'the constraint ' || conname || ' was never validated' FROM pg_constraint "  # noqa: S608 - likewise
    f"WHERE connamespace = {_HERE} AND NOT convalidated",
)
_ONLY_SQLITE: Final = frozenset({"fresh", "fresh_ids"})


def postgres_findings(address: str, *, told: Told = lambda part, done: None) -> list[Finding]:
    """Read every row of every table, and look for rows without the row they name.

    A server with data checksums reports each damaged page that is read; indexes are not compared with their tables.
    Raises `StoreUnavailable` for a database that cannot be reached.
    """
    session = Session(address, patience=None, is_reader=True)
    try:
        told("schema", 0.0)
        found = [each for statement in _UNUSABLE for each in _asked(session, "schema", statement)]
        tables = [table for name, table in sorted(METADATA.tables.items()) if name not in _ONLY_SQLITE]
        for number, table in enumerate(tables):
            told(table.name, number / len(tables))
            # Text of whole rows: values that are stored apart are read only where they are used.
            found += _asked(session, table.name, f"SELECT sum(length(t::text)) FROM {table.name} t", is_read=True)  # noqa: S608 - names of ours; likewise below
            found += [each for statement in _orphans(table) for each in _asked(session, "foreign keys", statement)]
        return found
    finally:
        session.close()


def _orphans(table: Table) -> list[str]:
    """For each foreign key, a statement that tells if a row names one that is not there."""
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


def _asked(session: Session, where: str, statement: str, *, is_read: bool = False) -> list[Finding]:
    """What a statement tells. One that the server cannot carry out is a finding of its own."""
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
