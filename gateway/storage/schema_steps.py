"""The steps from one version of the schema to another, run by Alembic.

Its files are only read for their steps: no `env.py` is run, so nobody's logging is configured.
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

from gateway.errors import StoreNotOurs
from gateway.storage.migrating import SCRIPTS, VERSION_TABLE, versions


def change_file(connection: sqlite3.Connection, to: str) -> None:
    """In the transaction that is open."""
    # One borrowed connection: its transaction is ours to begin and to end, not SQLAlchemy's.
    change_schema(create_engine("sqlite://", creator=lambda: Borrowed(connection), poolclass=StaticPool), to)


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
