"""Bringing an SQLite file to the schema of this program, all steps or none.

The steps themselves are known to `schema_steps`, which is imported where there are any to take.
"""

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final

from sqlalchemy.exc import DBAPIError

from gateway.errors import StoreNotOurs, StoreUnavailable

APPLICATION_ID: Final = 0x67772E31
"""In the header of every database of ours; `file` and SQLite show it."""

VERSION_TABLE: Final = "schema_version"

SCRIPTS: Final = Path(__file__).parent / "migrations"
ONE_AT_A_TIME: Final = Lock()  # Alembic's `op` is one per process

_REVISION: Final = re.compile(r'^revision = "(\w+)"$', re.MULTILINE)


def migrate(connection: sqlite3.Connection, *, to: str | None = None, is_served: Callable[[], bool] = bool) -> None:
    """Upgrade a database no transaction is open on, or take it to another version.

    Raises `StoreNotOurs` for one that must be left alone, and `StoreUnavailable` for one of an earlier version that is
    served: what that one writes is not what we read.
    """
    with ONE_AT_A_TIME:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _refuse_foreign(connection)
            if version_of(connection) != (to or versions()[-1]):
                _take_steps(connection, to, is_served)
            if _application_of(connection) != APPLICATION_ID:  # a full disk is opened, if it is not written to
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, DBAPIError) and error.orig is not None:
                raise error.orig from error
            raise


def versions(scripts: Path = SCRIPTS) -> list[str]:
    """Of the schema, as this program knows them, the newest last."""
    files = sorted((scripts / "versions").glob("v*.py"))
    return [_REVISION.findall(file.read_text(encoding="utf-8"))[0] for file in files]


def version_of(connection: sqlite3.Connection) -> str | None:
    """`None` for a database that nobody has set up."""
    [is_set_up] = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = ?", (VERSION_TABLE,)).fetchone()
    if not is_set_up:
        return None
    found = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - our own name
    return None if found is None else str(found[0])


def _take_steps(connection: sqlite3.Connection, to: str | None, is_served: Callable[[], bool]) -> None:
    # Alembic and what it brings along take 11 MB, and most starts have nothing to upgrade.
    from gateway.storage.schema_steps import change_file

    if version_of(connection) in versions()[:-1] and is_served():
        raise StoreUnavailable(
            "the database has to be upgraded, and a gateway of an earlier version runs on it",
            help="stop that one, then start this one again",
        )
    change_file(connection, to or "head")


def _refuse_foreign(connection: sqlite3.Connection) -> None:
    [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and _application_of(connection) != APPLICATION_ID:
        raise StoreNotOurs(
            "the file is a database of another program",
            help="name a file of the gateway's own, or one that does not exist yet",
        )


def _application_of(connection: sqlite3.Connection) -> int:
    [id] = connection.execute("PRAGMA application_id").fetchone()
    return int(id)
