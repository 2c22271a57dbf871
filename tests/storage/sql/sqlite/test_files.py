"""The SQLite file itself: its permissions, its migrations, and what happens when it is missing."""

import asyncio
import logging
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from gateway.errors import ForeignStore, RecordConflict, StoreUnavailable
from gateway.storage.call_store import CallFilter, StoredResult
from gateway.storage.sql import migrations
from gateway.storage.sql.sqlite import engine
from gateway.storage.sql.sqlite.connection import SqliteConnection
from gateway.storage.sql.sqlite.database_setup import APPLICATION_ID, VERSION_TABLE, migrate_sqlite
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from gateway.storage.sql.sqlite.single_call_conversion import to_single_call_values
from gateway.storage.sql.sqlite.single_call_table import to_single_call_row
from gateway.storage.sql.tables import METADATA
from tests.storage.sample_records import ADA, NOON, call, piece_key, settled, small, turn, turn_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "gateway.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite_store(path, clock=lambda: NOON)
    yield store
    await store.close()


@contextmanager
def inspect_database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


# Files


async def test_files_are_readable_by_their_owner_only(path: Path) -> None:
    before = os.umask(0)
    try:
        store = await open_sqlite_store(path)
        await store.open_turn(turn())
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (path.parent, *path.parent.iterdir())}
        await store.close()
    finally:
        os.umask(before)

    assert modes == {
        "data": 0o700,
        "gateway.db": 0o600,
        "gateway.db-wal": 0o600,
        "gateway.db-shm": 0o600,
        "gateway.db-processes": 0o700,
    }


async def test_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    await (await open_sqlite_store(path)).close()
    path.chmod(0o644)

    await (await open_sqlite_store(path)).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_closing_again_does_nothing(path: Path) -> None:
    store = await open_sqlite_store(path)

    await store.close()
    await store.close()

    assert [file.name for file in path.parent.iterdir() if file.is_file()] == ["gateway.db"]


async def test_closing_removes_its_own_lock_only(store: SqliteStore, path: Path) -> None:
    await store.record_call(settled(), turn=turn())
    again = await open_sqlite_store(path)
    await again.close()

    assert len(list((path.parent / "gateway.db-processes").iterdir())) == 1


async def test_store_that_cannot_be_opened_leaves_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(engine, "GroupCommit", fail)

    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await open_sqlite_store(path)

    assert list((path.parent / "gateway.db-processes").iterdir()) == []


@pytest.mark.parametrize("name", ["a b?mode=memory#x%41.db", "é\u202e.db"], ids=["uri", "unicode"])
async def test_path_is_taken_literally(tmp_path: Path, name: str) -> None:
    store = await open_sqlite_store(tmp_path / name)
    await store.open_turn(turn())
    await store.close()

    assert (tmp_path / name).stat().st_size > 0


async def test_database_is_durable_by_its_settings(path: Path, store: SqliteStore) -> None:
    link = SqliteConnection(path)

    settings = {
        name: link.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    }
    link.close()

    assert settings == {"journal_mode": "wal", "synchronous": 2}


async def test_no_argument_or_secret_shows_in_the_text_of_records() -> None:
    shown = repr(turn()) + repr(StoredResult("artifact", key="k", content=b"secret"))

    assert "secret" not in shown


# Migrations


async def test_new_database_has_the_tables_of_the_schema(path: Path, store: SqliteStore) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})

        assert context.get_current_revision() == ScriptDirectory(migrations.__path__[0]).get_current_head()
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


async def test_database_of_the_first_version_is_upgraded_with_what_is_in_it(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    link = SqliteConnection(path)
    migrate_sqlite(link.connection, to="0001")
    link.connection.execute(
        "INSERT INTO turns VALUES ('turn', '[\"acme\",\"user:ada\"]', 'acme', 'user:ada', '[]', 'c', 'r', x'00',"
        " 0, 9000000000000000, '{}', NULL, NULL)"
    )
    link.close()

    store = await open_sqlite_store(path)

    found = await store.find_turn("turn", ADA)
    assert found is not None
    assert found.principal.tenant == "acme"
    await store.close()


async def test_calls_that_waited_to_be_put_away_are_where_the_others_are_after_an_upgrade(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    link = SqliteConnection(path)
    migrate_sqlite(link.connection, to="0008")
    written = [column.name for column in METADATA.tables["fresh"].c if column.name != "number"]
    known = {name for _, name, *_ in link.connection.execute("PRAGMA table_info(fresh)")}
    names = [name for name in written if name in known]
    assert known == {"number", *names}
    into = f"INSERT INTO fresh ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    for number in range(3):
        of = turn(turn_id(number))
        fresh = to_single_call_values(settled(f"c{number}", of.id, results=(small(number),)), of, process="p")
        assert fresh is not None
        row = dict(zip(written, to_single_call_row(fresh), strict=True))
        link.connection.execute(into, [row[name] for name in names])

    migrate_sqlite(link.connection)
    assert list(link.connection.execute("SELECT number, id FROM calls")) == [(1, "c0"), (2, "c1"), (3, "c2")]
    assert list(link.connection.execute("SELECT * FROM fresh")) == []
    migrate_sqlite(link.connection, to="0008")
    migrate_sqlite(link.connection)
    link.close()

    store = await open_sqlite_store(path, clock=lambda: NOON)
    found, _ = await store.list_calls(CallFilter(), limit=10)
    assert [each.id for each in found] == ["c2", "c1", "c0"]
    assert await store.find_blob(piece_key("s", 1)) == b"abc"
    await store.close()


async def test_database_is_not_upgraded_under_a_gateway_that_serves_it(path: Path) -> None:
    older = await open_sqlite_store(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate_sqlite(connection, to="0008")

    with pytest.raises(StoreUnavailable, match="earlier version runs on it"):
        await open_sqlite_store(path)
    await older.close()

    await (await open_sqlite_store(path)).close()


async def test_opening_again_changes_nothing(path: Path) -> None:
    await (await open_sqlite_store(path)).close()
    with inspect_database(path) as connection:
        before = list(connection.execute("SELECT * FROM sqlite_schema ORDER BY name"))

    await (await open_sqlite_store(path)).close()

    with inspect_database(path) as connection:
        assert list(connection.execute("SELECT * FROM sqlite_schema ORDER BY name")) == before


async def test_newer_database_is_refused_and_left_alone(path: Path) -> None:
    await (await open_sqlite_store(path)).close()
    with inspect_database(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        before = "\n".join(connection.iterdump())

    with pytest.raises(ForeignStore, match="newer than this program") as refused:
        await open_sqlite_store(path)

    assert refused.value.help
    with inspect_database(path) as connection:
        assert "\n".join(connection.iterdump()) == before


async def test_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with inspect_database(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")

    with pytest.raises(ForeignStore, match="another program"):
        await open_sqlite_store(path)

    with inspect_database(path) as connection:
        assert [name for [name] in connection.execute("SELECT name FROM sqlite_schema")] == ["theirs"]


async def test_upgrade_that_fails_leaves_nothing(path: Path) -> None:
    path.parent.mkdir()
    with inspect_database(path) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE claims (in_the_way)")

    with pytest.raises(Exception, match="claims"):
        await open_sqlite_store(path)

    with inspect_database(path) as connection:
        assert [name for [name] in connection.execute("SELECT name FROM sqlite_schema")] == ["claims"]


async def test_processes_that_open_a_new_database_at_once_all_succeed(path: Path) -> None:
    stores = await asyncio.gather(*(open_sqlite_store(path) for _ in range(8)))

    await stores[0].open_turn(turn())
    for store in stores:
        await store.close()


async def test_upgrading_leaves_logging_alone(path: Path) -> None:
    ours = logging.getLogger("somebody.else")
    before = (logging.root.level, list(logging.root.handlers), ours.disabled)

    await (await open_sqlite_store(path)).close()

    assert (logging.root.level, list(logging.root.handlers), ours.disabled) == before


async def test_file_that_is_no_database_is_refused_and_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"notes of somebody\n" * 100)

    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        await open_sqlite_store(path)

    assert path.read_bytes() == b"notes of somebody\n" * 100


async def test_folder_in_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir(parents=True)

    with pytest.raises(StoreUnavailable):
        await open_sqlite_store(path)


# Failures and recovery


async def test_locked_database_is_unavailable_until_it_is_not(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    with inspect_database(path) as holder:
        holder.execute("BEGIN IMMEDIATE")

        refused = await asyncio.gather(
            *(store.record_call(settled(f"c{n}")) for n in range(20)), return_exceptions=True
        )

        assert {type(error) for error in refused} == {StoreUnavailable}
        assert "locked" in str(refused[0])
        assert await store.find_turn("turn", ADA) is not None
        holder.execute("ROLLBACK")

    await store.record_call(settled("after"))
    assert [found.id for found in await store.list_turn_calls("turn")] == ["after"]


async def test_short_lock_is_waited_out(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    with inspect_database(path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.record_call(settled()))
        await store.find_turn("turn", ADA)
        holder.execute("COMMIT")

    await writing


async def test_deleted_database_is_unavailable_and_not_replaced_by_an_empty_one(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    assert await store.find_turn("turn", ADA) == turn()
    away = path.with_name("away")
    away.mkdir()
    files = [path.with_name(f"gateway.db{suffix}") for suffix in ("", "-wal", "-shm")]
    for file in files:
        file.rename(away / file.name)

    with pytest.raises(StoreUnavailable):
        await store.record_call(settled("lost"))
    with pytest.raises(StoreUnavailable):
        await store.find_turn("turn", ADA)
    with pytest.raises(StoreUnavailable):
        await store.record_call(settled("lost"))
    assert not path.exists()

    for file in files:
        (away / file.name).rename(file)
    await store.record_call(settled("back"))
    assert await store.find_turn("turn", ADA) == turn()


async def test_replaced_database_is_noticed(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    assert await store.find_turn("turn", ADA) == turn()
    elsewhere = path.with_name("other.db")
    other = await open_sqlite_store(elsewhere)
    await other.open_turn(turn("restored"))
    await other.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(f"gateway.db{suffix}").unlink()
    elsewhere.rename(path)

    with pytest.raises(RecordConflict):  # its turn is not in the current file
        await store.record_call(settled())

    await store.record_call(settled("c", "restored"))
    assert [found.id for found in await store.list_turn_calls("restored")] == ["c"]


async def test_damaged_database_is_reported_by_reading_and_writing(path: Path) -> None:
    store = await open_sqlite_store(path)
    await store.record_call(settled(), turn=turn())
    await store.close()
    with inspect_database(path) as connection:
        [page] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'calls'").fetchone()
        [size] = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    store = await open_sqlite_store(path)

    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.list_turn_calls("turn")
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.record_call(settled("another"))
    await store.close()


async def test_full_queue_is_refused_and_drains(path: Path) -> None:
    store = await open_sqlite_store(path, waiting=4)
    await store.open_turn(turn())
    with inspect_database(path) as holder:
        holder.execute("BEGIN IMMEDIATE")

        refused = await asyncio.gather(
            *(store.record_call(settled(f"c{n}")) for n in range(20)), return_exceptions=True
        )

        holder.execute("ROLLBACK")
    assert {type(error) for error in refused} == {StoreUnavailable}
    assert any("4 writes are waiting" in str(error) for error in refused)

    await asyncio.gather(*(store.record_call(settled(f"c{n}")) for n in range(20)))
    assert len(await store.list_turn_calls("turn")) == 20
    await store.close()


READ_ONLY = """
import asyncio, os, sys
from gateway.errors import StoreUnavailable
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store

if os.geteuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(open_sqlite_store(sys.argv[1]))
except StoreUnavailable as error:
    print(error.message)
"""


async def test_read_only_database_is_unavailable() -> None:
    with TemporaryDirectory() as folder:  # the usual one is inaccessible to the user that root becomes
        path = Path(folder) / "gateway.db"
        await (await open_sqlite_store(path)).close()
        path.chmod(0o444)
        path.parent.chmod(0o555)

        run = subprocess.run([sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True)

        path.parent.chmod(0o755)
    if "ModuleNotFoundError" in run.stderr:
        pytest.skip("the program is closed to other users")
    assert run.stderr == ""
    assert "Permission denied" in run.stdout


async def test_start_is_refused_where_it_cannot_be_durable(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    with inspect_database(path) as holder:
        holder.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable):
            await store.start_call(call())

        holder.execute("ROLLBACK")
    assert await store.find_call("call", ADA) is None
