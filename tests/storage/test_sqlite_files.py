"""The SQLite file itself: who may read it, how it is upgraded, and what happens when it is not there."""

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
from stored_records import ADA, NOON, call, piece_key, settled, small, turn, turn_id

from gateway.errors import RecordConflict, StoreNotOurs, StoreUnavailable
from gateway.governance.records import CallFilter, StoredResult
from gateway.storage import migrations
from gateway.storage.fresh_calls import fresh_values
from gateway.storage.fresh_rows import fresh_row
from gateway.storage.links import Link
from gateway.storage.migrating import APPLICATION_ID, VERSION_TABLE, migrate
from gateway.storage.schema import METADATA
from gateway.storage.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "gateway.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, clock=lambda: NOON)
    yield store
    await store.close()


@contextmanager
def looking_into(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


# Files


async def test_files_are_readable_by_their_owner_only(path: Path) -> None:
    before = os.umask(0)
    try:
        store = await SqliteStore.open(path)
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
    await (await SqliteStore.open(path)).close()
    path.chmod(0o644)

    await (await SqliteStore.open(path)).close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_closing_again_does_nothing(path: Path) -> None:
    store = await SqliteStore.open(path)

    await store.close()
    await store.close()

    assert [file.name for file in path.parent.iterdir() if file.is_file()] == ["gateway.db"]


async def test_closing_removes_its_own_lock_only(store: SqliteStore, path: Path) -> None:
    await store.settle_call(settled(), turn=turn())
    again = await SqliteStore.open(path)
    await again.close()

    assert len(list((path.parent / "gateway.db-processes").iterdir())) == 1


@pytest.mark.parametrize("name", ["a b?mode=memory#x%41.db", "é\u202e.db"], ids=["uri", "unicode"])
async def test_path_is_taken_literally(tmp_path: Path, name: str) -> None:
    store = await SqliteStore.open(tmp_path / name)
    await store.open_turn(turn())
    await store.close()

    assert (tmp_path / name).stat().st_size > 0


async def test_database_is_durable_by_its_settings(path: Path, store: SqliteStore) -> None:
    link = Link(path)

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
    link = Link(path)
    migrate(link.connection, to="0001")
    link.connection.execute(
        "INSERT INTO turns VALUES ('turn', '[\"acme\",\"user:ada\"]', 'acme', 'user:ada', '[]', 'c', 'r', x'00',"
        " 0, 9000000000000000, '{}', NULL, NULL)"
    )
    link.close()

    store = await SqliteStore.open(path)

    found = await store.find_turn("turn", ADA)
    assert found is not None
    assert found.principal.tenant == "acme"
    await store.close()


async def test_calls_that_waited_to_be_put_away_are_where_the_others_are_after_an_upgrade(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    link = Link(path)
    migrate(link.connection, to="0008")
    names = [column.name for column in METADATA.tables["fresh"].c if column.name != "number"]
    into = f"INSERT INTO fresh ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    for number in range(3):
        of = turn(turn_id(number))
        fresh = fresh_values(settled(f"c{number}", of.id, results=(small(number),)), of, process="p")
        assert fresh is not None
        link.connection.execute(into, fresh_row(fresh))

    migrate(link.connection)
    assert list(link.connection.execute("SELECT number, id FROM calls")) == [(1, "c0"), (2, "c1"), (3, "c2")]
    assert list(link.connection.execute("SELECT * FROM fresh")) == []
    migrate(link.connection, to="0008")
    migrate(link.connection)
    link.close()

    store = await SqliteStore.open(path, clock=lambda: NOON)
    found, _ = await store.list_calls(CallFilter(), limit=10)
    assert [each.id for each in found] == ["c2", "c1", "c0"]
    assert await store.find_piece(piece_key("s", 1)) == b"abc"
    await store.close()


async def test_database_is_not_upgraded_under_a_gateway_that_serves_it(path: Path) -> None:
    older = await SqliteStore.open(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, to="0008")

    with pytest.raises(StoreUnavailable, match="earlier version runs on it"):
        await SqliteStore.open(path)
    await older.close()

    await (await SqliteStore.open(path)).close()


async def test_opening_again_changes_nothing(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    with looking_into(path) as connection:
        before = list(connection.execute("SELECT * FROM sqlite_schema ORDER BY name"))

    await (await SqliteStore.open(path)).close()

    with looking_into(path) as connection:
        assert list(connection.execute("SELECT * FROM sqlite_schema ORDER BY name")) == before


async def test_newer_database_is_refused_and_left_alone(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    with looking_into(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        before = "\n".join(connection.iterdump())

    with pytest.raises(StoreNotOurs, match="newer than this program") as refused:
        await SqliteStore.open(path)

    assert refused.value.help
    with looking_into(path) as connection:
        assert "\n".join(connection.iterdump()) == before


async def test_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with looking_into(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")

    with pytest.raises(StoreNotOurs, match="another program"):
        await SqliteStore.open(path)

    with looking_into(path) as connection:
        assert [name for [name] in connection.execute("SELECT name FROM sqlite_schema")] == ["theirs"]


async def test_upgrade_that_fails_leaves_nothing(path: Path) -> None:
    path.parent.mkdir()
    with looking_into(path) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("CREATE TABLE claims (in_the_way)")

    with pytest.raises(Exception, match="claims"):
        await SqliteStore.open(path)

    with looking_into(path) as connection:
        assert [name for [name] in connection.execute("SELECT name FROM sqlite_schema")] == ["claims"]


async def test_processes_that_open_a_new_database_at_once_all_succeed(path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(path) for _ in range(8)))

    await stores[0].open_turn(turn())
    for store in stores:
        await store.close()


async def test_upgrading_leaves_logging_alone(path: Path) -> None:
    ours = logging.getLogger("somebody.else")
    before = (logging.root.level, list(logging.root.handlers), ours.disabled)

    await (await SqliteStore.open(path)).close()

    assert (logging.root.level, list(logging.root.handlers), ours.disabled) == before


async def test_file_that_is_no_database_is_refused_and_kept(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"notes of somebody\n" * 100)

    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        await SqliteStore.open(path)

    assert path.read_bytes() == b"notes of somebody\n" * 100


async def test_folder_in_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir(parents=True)

    with pytest.raises(StoreUnavailable):
        await SqliteStore.open(path)


# Failures and their end


async def test_locked_database_is_unavailable_until_it_is_not(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    with looking_into(path) as holder:
        holder.execute("BEGIN IMMEDIATE")

        refused = await asyncio.gather(
            *(store.settle_call(settled(f"c{n}")) for n in range(20)), return_exceptions=True
        )

        assert {type(error) for error in refused} == {StoreUnavailable}
        assert "locked" in str(refused[0])
        assert await store.find_turn("turn", ADA) is not None
        holder.execute("ROLLBACK")

    await store.settle_call(settled("after"))
    assert [found.id for found in await store.calls_of("turn")] == ["after"]


async def test_short_lock_is_waited_out(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    with looking_into(path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(store.settle_call(settled()))
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
        await store.settle_call(settled("lost"))
    with pytest.raises(StoreUnavailable):
        await store.find_turn("turn", ADA)
    with pytest.raises(StoreUnavailable):
        await store.settle_call(settled("lost"))
    assert not path.exists()

    for file in files:
        (away / file.name).rename(file)
    await store.settle_call(settled("back"))
    assert await store.find_turn("turn", ADA) == turn()


async def test_replaced_database_is_noticed(store: SqliteStore, path: Path) -> None:
    await store.open_turn(turn())
    assert await store.find_turn("turn", ADA) == turn()
    elsewhere = path.with_name("other.db")
    other = await SqliteStore.open(elsewhere)
    await other.open_turn(turn("restored"))
    await other.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(f"gateway.db{suffix}").unlink()
    elsewhere.rename(path)

    with pytest.raises(RecordConflict):  # its turn is not in the file that is there now
        await store.settle_call(settled())

    await store.settle_call(settled("c", "restored"))
    assert [found.id for found in await store.calls_of("restored")] == ["c"]


async def test_damaged_database_is_told_by_reading_and_writing(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.settle_call(settled(), turn=turn())
    await store.close()
    with looking_into(path) as connection:
        [page] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'calls'").fetchone()
        [size] = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    store = await SqliteStore.open(path)

    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.calls_of("turn")
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.settle_call(settled("another"))
    await store.close()


async def test_full_queue_is_refused_and_drains(path: Path) -> None:
    store = await SqliteStore.open(path, waiting=4)
    await store.open_turn(turn())
    with looking_into(path) as holder:
        holder.execute("BEGIN IMMEDIATE")

        refused = await asyncio.gather(
            *(store.settle_call(settled(f"c{n}")) for n in range(20)), return_exceptions=True
        )

        holder.execute("ROLLBACK")
    assert {type(error) for error in refused} == {StoreUnavailable}
    assert any("4 writes are waiting" in str(error) for error in refused)

    await asyncio.gather(*(store.settle_call(settled(f"c{n}")) for n in range(20)))
    assert len(await store.calls_of("turn")) == 20
    await store.close()


READ_ONLY = """
import asyncio, os, sys
from gateway.errors import StoreUnavailable
from gateway.storage.sqlite import SqliteStore

if os.geteuid() == 0:
    os.setuid(65534)
try:
    asyncio.run(SqliteStore.open(sys.argv[1]))
except StoreUnavailable as error:
    print(error.message)
"""


async def test_read_only_database_is_unavailable() -> None:
    with TemporaryDirectory() as folder:  # the usual one is closed to the user that root becomes
        path = Path(folder) / "gateway.db"
        await (await SqliteStore.open(path)).close()
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
    with looking_into(path) as holder:
        holder.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable):
            await store.start_call(call())

        holder.execute("ROLLBACK")
    assert await store.find_call("call", ADA) is None
