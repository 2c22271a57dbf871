"""Run migrations with Alembic, up or down to one version of the schema.

No `env.py` is run, so Alembic does not change the logging configuration.
"""

import sqlite3
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import StaticPool

from gateway.errors import ForeignStore
from gateway.storage.sql.sqlite.database_setup import SCRIPTS, VERSION_TABLE, list_schema_versions


def run_sqlite_steps(connection: sqlite3.Connection, to: str) -> None:
    """Run steps in the open transaction."""
    # A borrowed connection: SQLAlchemy must neither begin nor end its transaction.
    run_steps(create_engine("sqlite://", creator=lambda: BorrowedConnection(connection), poolclass=StaticPool), to)


def run_steps(engine: Engine, to: str, *, scripts: Path = SCRIPTS) -> None:
    """Run the missing steps up to a version, or undo those after it.

    Raises `ForeignStore` if the database is newer than this program.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    script = ScriptDirectory(str(scripts))
    known = list_schema_versions(scripts)

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
        raise ForeignStore(
            f"the database has version {', '.join(heads)}, which is newer than this program",
            help="start the newer program again, or restore a backup that was taken before it ran",
        )


class BorrowedConnection:
    """A connection that its user cannot commit, roll back or close."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...
