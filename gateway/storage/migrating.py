"""Bringing a database to the schema of this program, all steps or none.

Alembic's files are only read for their steps: no `env.py` is run, so nobody's logging is configured.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, Final

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from gateway.errors import StoreNotOurs, StoreUnavailable

APPLICATION_ID: Final = 0x67772E31
"""In the header of every database of ours; `file` and SQLite show it."""

VERSION_TABLE: Final = "schema_version"

SCRIPTS: Final = Path(__file__).parent / "migrations"
ONE_AT_A_TIME: Final = Lock()  # Alembic's `op` is one per process


def migrate(connection: sqlite3.Connection, *, to: str = "head", is_served: Callable[[], bool] = lambda: False) -> None:
    """Upgrade a database no transaction is open on. Raises `StoreNotOurs` for one that must be left alone.

    Raises `StoreUnavailable` for one of an earlier version that is served: what that writes is not what we read.
    """
    with ONE_AT_A_TIME:
        connection.execute("BEGIN IMMEDIATE")
        try:
            _refuse_foreign(connection)
            if _is_older(connection) and is_served():
                raise StoreUnavailable(
                    "the database has to be upgraded, and a gateway of an earlier version runs on it",
                    help="stop that one, then start this one again",
                )
            # One borrowed connection: its transaction is ours to begin and to end, not SQLAlchemy's.
            change_schema(create_engine("sqlite://", creator=lambda: Borrowed(connection), poolclass=StaticPool), to)
            if _application_of(connection) != APPLICATION_ID:  # a full disk is opened, if it is not written to
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, DBAPIError) and error.orig is not None:
                raise error.orig from error
            raise


def _refuse_foreign(connection: sqlite3.Connection) -> None:
    [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and _application_of(connection) != APPLICATION_ID:
        raise StoreNotOurs(
            "the file is a database of another program",
            help="name a file of the gateway's own, or one that does not exist yet",
        )


def _is_older(connection: sqlite3.Connection) -> bool:
    """Whether it has a version, which is not the newest that we know."""
    [is_set_up] = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = ?", (VERSION_TABLE,)).fetchone()
    if not is_set_up:
        return False
    found = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()  # noqa: S608 - our own name
    return any(version in versions()[:-1] for [version] in found)


def _application_of(connection: sqlite3.Connection) -> int:
    [id] = connection.execute("PRAGMA application_id").fetchone()
    return int(id)


def versions(scripts: Path = SCRIPTS) -> list[str]:
    """Of the schema, as this program knows them, the newest last."""
    return [step.revision for step in ScriptDirectory(str(scripts)).walk_revisions()][::-1]


def change_schema(engine: Engine, to: str, *, scripts: Path = SCRIPTS) -> None:
    """Run the steps that are missing, or take back those after an earlier version.

    Raises `StoreNotOurs` for a database that is newer than this program.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    script = ScriptDirectory(str(scripts))
    known = versions(scripts)

    def steps(revision: Any, context: MigrationContext) -> Any:
        _refuse_newer(context.get_current_heads(), script)
        [current] = context.get_current_heads() or (None,)
        if current in known and to in known[: known.index(current)]:
            return script._downgrade_revs(to, revision)
        return script._upgrade_revs(to, revision)

    with engine.connect() as borrowed, EnvironmentContext(config, script, fn=steps) as environment:
        environment.configure(connection=borrowed, version_table=VERSION_TABLE)
        environment.run_migrations()


def _refuse_newer(heads: tuple[str, ...], script: ScriptDirectory) -> None:
    known = {step.revision for step in script.walk_revisions()}
    if not known.issuperset(heads):
        raise StoreNotOurs(
            f"the database has version {', '.join(heads)}, which is newer than this program",
            help="start the newer program again, or restore a backup that was taken before it ran",
        )


class Borrowed:
    """A connection that whoever gets it cannot commit, roll back or close."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...
