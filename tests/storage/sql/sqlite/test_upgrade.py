"""A serving gateway has no upgrade code in memory, whether or not an upgrade was due."""

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.app.stores.databases import SqliteDatabase
from gateway.errors import StoreUnavailable
from gateway.storage.sql.sqlite.database_setup import (
    SCRIPTS,
    list_schema_versions,
    migrate_sqlite,
    read_schema_version,
    upgrade_in_child,
)

pytestmark = pytest.mark.anyio

OPENING = """
import asyncio, sys
from pathlib import Path
from gateway.app.stores.databases import SqliteDatabase

async def opened():
    engine = await SqliteDatabase.open(Path(sys.argv[1]))
    await engine.store.note([])
    await engine.close()

asyncio.run(opened())
print(sorted({"alembic", "mako"} & sys.modules.keys()))
"""


def open_in_process(path: Path) -> subprocess.CompletedProcess[str]:
    """Open the database in a new process, as gateways do."""
    return subprocess.run([sys.executable, "-c", OPENING, str(path)], capture_output=True, text=True, timeout=60)


def version(path: Path) -> str | None:
    with closing(sqlite3.connect(path)) as connection:
        return read_schema_version(connection)


@pytest.mark.parametrize("before", [None, "0008", "0009", "0010", "0011", "0012", "0013"])
def test_database_is_brought_up_to_date_elsewhere(tmp_path: Path, before: str | None) -> None:
    path = tmp_path / "a folder" / "gateway ?#.db"
    if before is not None:
        path.parent.mkdir()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            migrate_sqlite(connection, to=before)

    ended = open_in_process(path)

    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
    assert version(path) == list_schema_versions()[-1]


async def test_failed_upgrade_is_reported_by_the_opening_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "alembic", raising=False)  # as if it had not been imported yet
    (tmp_path / "gateway.db").mkdir()

    with pytest.raises(StoreUnavailable):
        await SqliteDatabase.open(tmp_path / "gateway.db")


async def test_process_that_upgrades_ends_with_the_process_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "alembic", raising=False)
    holder = sqlite3.connect(tmp_path / "gateway.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")  # so that it has to wait

    waiting = asyncio.create_task(upgrade_in_child(tmp_path / "gateway.db"))
    await asyncio.sleep(0.2)
    waiting.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(waiting, return_exceptions=True)

    assert waiting.cancelled()
    holder.close()


async def test_where_no_process_can_be_started_this_one_upgrades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "alembic", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))

    engine = await SqliteDatabase.open(tmp_path / "gateway.db")
    await engine.close()

    assert version(tmp_path / "gateway.db") == list_schema_versions()[-1]


def test_versions_are_those_of_the_steps() -> None:
    from alembic.script import ScriptDirectory

    assert list_schema_versions() == [step.revision for step in ScriptDirectory(str(SCRIPTS)).walk_revisions()][::-1]
