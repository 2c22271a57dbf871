"""Lost and damaged stores: an empty file is not a new database, and damaged pages are found."""

import json
import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from gateway.app.stores.databases import SqliteDatabase
from gateway.cli.main import app
from gateway.errors import StoreUnavailable
from gateway.model.primitives.deadline import to_microseconds
from gateway.storage.blobs.blob_store import BlobKey, parse_key
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.call_store import StoredResult
from gateway.storage.sql.postgres.database_setup import postgres_findings
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.sqlite import integrity
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.sqlite.integrity import check_quickly, iter_named_results, result_findings, sqlite_findings
from tests.storage.sample_records import ADA, NOON, call, settled, spooled, turn

pytestmark = pytest.mark.anyio

PAGE = 4096
LATER = to_microseconds(NOON + timedelta(seconds=1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


async def fill_database(path: Path, calls: int = 300) -> None:
    store = await open_sqlite_store(path, clock=lambda: NOON)
    for number in range(calls):
        await store.record_call(settled(f"c{number}", f"t{number}"), turn=turn(f"t{number}"))
    await store.close()


def overwrite(path: Path, page: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(content)


def pages_of(path: Path, table: str) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        try:
            return [row[0] for row in connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (table,))]
        except sqlite3.OperationalError:
            [root] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
            return [root]


# Lost files


async def test_missing_file_is_a_new_database(path: Path) -> None:
    await (await SqliteDatabase.open(path)).close()

    assert path.stat().st_size > 0
    assert sqlite_findings(path) == []


async def test_new_database_never_has_its_name_without_its_header(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr(Path, "rename", fails)  # where a process may die
    with pytest.raises(StoreUnavailable, match="broken"):
        await open_sqlite_store(path)
    monkeypatch.undo()

    assert not path.exists()
    await (await open_sqlite_store(path)).close()


@pytest.mark.parametrize("opened", [SqliteDatabase.open, open_sqlite_store])
async def test_empty_file_is_a_lost_database(path: Path, opened: Callable[..., Any]) -> None:
    await fill_database(path, calls=1)
    os.truncate(path, 0)

    with pytest.raises(StoreUnavailable, match=r"gateway\.db is an empty file") as refusal:
        await opened(path)
    assert refusal.value.help == "restore a backup, or remove the file to begin with a new database"
    assert path.stat().st_size == 0
    path.unlink()
    await (await opened(path)).close()


async def test_log_without_its_database_is_a_lost_database(path: Path) -> None:
    wal = path.with_name("gateway.db-wal")
    wal.write_bytes(b"what was written last")

    with pytest.raises(StoreUnavailable, match=r"is gone, but its log gateway\.db-wal is there"):
        await SqliteDatabase.open(path)
    assert wal.read_bytes() == b"what was written last"


async def test_leftovers_without_content_do_not_matter(path: Path) -> None:
    path.with_name("gateway.db-wal").touch()
    path.with_name("gateway.db-shm").write_bytes(b"\0" * 32768)

    await (await SqliteDatabase.open(path)).close()


@pytest.mark.parametrize("by", ["an empty file", "another program", "another version"])
async def test_file_that_is_replaced_while_it_is_served_is_refused(path: Path, by: str) -> None:
    store = await open_sqlite_store(path, clock=lambda: NOON)
    await store.open_turn(turn())
    other = path.with_name("other")
    if by == "an empty file":
        other.touch()
    else:
        with closing(sqlite3.connect(other)) as connection:
            connection.execute("CREATE TABLE things (a)")
            if by == "another version":
                connection.execute(f"PRAGMA application_id = {0x67772E31}")
    for suffix in ("-wal", "-shm"):
        path.with_name(f"gateway.db{suffix}").unlink()
    before = other.read_bytes()
    other.rename(path)

    for _ in range(2):
        with pytest.raises(StoreUnavailable) as refusal:
            await store.open_turn(turn("new"))
        with pytest.raises(StoreUnavailable):
            await store.find_turn("turn", ADA)
    assert ("empty file" if by == "an empty file" else "replaced") in refusal.value.message
    if by == "an empty file":
        assert path.read_bytes() == before
    await store.close()


# Damaged pages


@pytest.mark.parametrize("damage", ["zeros", "noise", "a table's page in an index"])
@pytest.mark.parametrize("part", ["calls", "turns", "pieces_by_call"])
async def test_start_refuses_a_database_with_a_damaged_page(path: Path, part: str, damage: str) -> None:
    await fill_database(path)
    copied = path.read_bytes()[(pages_of(path, "calls")[-1] - 1) * PAGE :][:PAGE]
    noise = random.Random(7).randbytes(PAGE)
    content = {"zeros": b"\0" * PAGE, "noise": noise}.get(damage, copied)
    overwrite(path, pages_of(path, part if content != copied else "turns_by_expiry")[-1], content)

    with pytest.raises(StoreUnavailable, match="damaged"):
        await SqliteDatabase.open(path)
    findings = sqlite_findings(path)
    assert findings
    shown = CliRunner().invoke(app, ["storage", "check", "--database", str(path), "--output", "json"])
    assert shown.exit_code == 1
    message = json.loads(shown.stdout)
    assert message["is_good"] is False
    assert message["findings"] == [{"where": each.where, "message": each.message} for each in findings]


async def test_index_that_differs_from_its_table_is_found(path: Path) -> None:
    await fill_database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'expires_at', 'id') WHERE name = 'turns_by_expiry'"
        )

    with pytest.raises(StoreUnavailable, match="damaged"):
        check_quickly(path)
    assert {each.where for each in sqlite_findings(path)} == {"turns"}


async def test_damaged_schema_is_reported(path: Path) -> None:
    await fill_database(path, calls=1)
    overwrite(path, 1, path.read_bytes()[:100] + b"\xff" * (PAGE - 100))

    with pytest.raises(StoreUnavailable, match="damaged"):
        await SqliteDatabase.open(path)
    assert [each.where for each in sqlite_findings(path)] == ["schema"]


async def test_file_that_is_no_database_is_reported(path: Path) -> None:
    path.write_bytes(b"\x01" * 8192)

    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        sqlite_findings(path)
    shown = CliRunner().invoke(app, ["storage", "check", "--database", str(path)])
    assert (shown.exit_code, "not an SQLite database" in shown.output) == (1, True)


async def test_check_at_start_ends_in_time_and_reports_that(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fill_database(path)

    assert check_quickly(path) is True
    monkeypatch.setattr(
        "gateway.app.stores.databases.check_quickly", lambda path: integrity.check_quickly(path, seconds=0.01)
    )
    with closing(sqlite3.connect(path)) as connection:  # enough to take longer than that
        connection.execute(
            "CREATE TABLE much AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 400000) "
            "SELECT i, randomblob(40) AS b FROM n"
        )
        connection.commit()
    caplog.set_level("INFO")
    await (await SqliteDatabase.open(path)).close()

    assert "run gateway storage check to check all" in caplog.text


async def test_only_the_first_process_checks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Path] = []

    def check(path: Path) -> bool:
        checked.append(path)
        return True

    monkeypatch.setattr("gateway.app.stores.databases.check_quickly", check)
    await fill_database(path, calls=1)
    first = await SqliteDatabase.open(path)
    second = await SqliteDatabase.open(path)
    await second.close()
    await first.close()

    assert checked == [path]


async def test_orphans_and_other_versions_are_found(path: Path) -> None:
    await fill_database(path, calls=2)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM turns WHERE id = 't1'")
        found = sqlite_findings(path)
        connection.execute("UPDATE schema_version SET version_num = '0001'")
        older = sqlite_findings(path)
        connection.execute("PRAGMA application_id = 1")
        foreign = sqlite_findings(path)

    assert [(each.where, each.message) for each in found] == [
        ("foreign keys", "rows without the row they name: calls → turns")
    ]
    assert older[0].message.startswith("the version is 0001, and this program needs ")
    assert foreign[0].message == "the file is a database of another program"


# Results


def key_of(number: int) -> str:
    key = parse_key(f"f.{'a' * 32}.{'b' * 32}.{'c' * 32}.{number:032x}")
    assert key is not None, "the shape of keys has changed"
    return str(key)


async def test_results_that_records_name_are_looked_for(tmp_path: Path, path: Path) -> None:
    spool = await DiskSpool.open(tmp_path / "spool")
    for number in range(3):
        writing = await spool.large.start_write(_parts(number))
        await writing.append(b"x" * 10)
        await writing.publish()
    store = await open_sqlite_store(path, clock=lambda: NOON)
    for number in range(4):
        piece = spooled(key_of(number))
        made = settled(f"c{number}", f"t{number}", results=[_sized(piece, 11 if number == 1 else 10)])
        if number % 2:
            await store.record_call(made, turn=turn(f"t{number}"))
        else:
            await store.record_single_call(made, turn(f"t{number}"))
    await store.close()

    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        count, found = await result_findings(iter_named_results(connection, at=LATER, is_sqlite=True), spool.large)
        expired = list(iter_named_results(connection, at=1 << 60, is_sqlite=True))
    await spool.close()

    assert count == 4
    assert sorted(each.message for each in found) == [
        f"{key_of(1)} has 10 bytes, and its record says 11",
        f"{key_of(3)} is gone",
    ]
    assert expired == []


def _parts(number: int) -> BlobKey:
    key = parse_key(key_of(number))
    assert key is not None
    return key


def _sized(piece: StoredResult, size: int) -> StoredResult:
    return replace(piece, byte_length=size)


# PostgreSQL


async def test_postgres_is_read_row_by_row(new_database: Callable[[], str]) -> None:
    address = new_database()
    store = await open_postgres_store(address)
    await store.record_call(settled(), turn=turn())
    await store.start_call(call("other"))
    await store.close()
    parts: list[str] = []
    assert postgres_findings(address, told=lambda part, done: parts.append(part)) == []
    assert {"schema", "calls", "audit"} <= set(parts)

    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("DELETE FROM turns")
        connection.execute("DROP TABLE quotas")
        connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'turns_by_expiry'::regclass")
    found = postgres_findings(address)

    assert {each.where for each in found} == {"schema", "quotas", "foreign keys"}
    assert any("is not valid" in each.message for each in found)
    assert "rows without the row they name: calls → turns" in [each.message for each in found]


async def test_postgres_that_goes_away_is_no_finding(new_database: Callable[[], str]) -> None:
    address = new_database()
    await (await open_postgres_store(address)).close()

    def message(part: str, done: float) -> None:
        if part == "calls":
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-gateway' "
                    "AND datname = current_database()"
                )

    with pytest.raises(StoreUnavailable):
        postgres_findings(address, told=message)
