"""A process learns at once that another process changed the store, and reads it again."""

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.storage.cache_invalidation import REFRESH_INTERVAL, TRUST_SECONDS, FileCachedValue, FileChangeSignal
from gateway.storage.sql.sqlite.engine import open_sqlite_store

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Path]:
    store = await open_sqlite_store(tmp_path / "gateway.db")
    yield tmp_path / "gateway.db"
    await store.close()


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def targets(connection: sqlite3.Connection) -> list[str]:
    return [target for (target,) in connection.execute("SELECT target FROM quarantines")]


def write(database: Path, target: str) -> None:
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("INSERT INTO quarantines VALUES (?, 'because', 'somebody', 0, NULL)", (target,))
    connection.close()


async def test_number_changes_with_every_announcement(database: Path) -> None:
    here, there = FileChangeSignal(database), FileChangeSignal(database)
    first = there.number()
    assert there.is_still(first)

    await here.publish()

    assert not there.is_still(first)
    assert there.number() == here.number() != first


async def test_unannounced_change_is_read_after_a_while(database: Path) -> None:
    clock = Seconds()
    noticed: FileCachedValue[list[str]] = FileCachedValue(FileChangeSignal(database), targets, at_first=[], clock=clock)
    assert noticed.current() == []
    write(database, "tool:search")

    clock.now += REFRESH_INTERVAL / 2
    assert noticed.current() == []
    clock.now += REFRESH_INTERVAL / 2
    assert noticed.current() == ["tool:search"]
    noticed.close()


async def test_database_that_was_replaced_is_opened_anew(database: Path, tmp_path: Path) -> None:
    notices = FileChangeSignal(database)
    noticed: FileCachedValue[list[str]] = FileCachedValue(notices, targets, at_first=[])
    assert noticed.current() == []
    copy = tmp_path / "copy.db"
    with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    write(copy, "tool:search")
    shutil.move(copy, database)

    await notices.publish()

    assert noticed.current() == ["tool:search"]
    noticed.close()


async def test_database_that_was_removed_is_reported(database: Path) -> None:
    clock = Seconds()
    noticed: FileCachedValue[list[str]] = FileCachedValue(FileChangeSignal(database), targets, at_first=[], clock=clock)
    noticed.current()
    database.rename(database.with_name("moved.db"))
    clock.now += REFRESH_INTERVAL

    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        noticed.current()

    assert "cannot be opened" in (noticed.problem or "")
    database.with_name("moved.db").rename(database)
    assert (noticed.current(), noticed.problem) == ([], None)
    noticed.close()


async def test_nothing_is_known_after_closing(database: Path) -> None:
    notices = FileChangeSignal(database)
    clock = Seconds()
    noticed: FileCachedValue[list[str]] = FileCachedValue(notices, targets, at_first=[], clock=clock)
    noticed.close()
    noticed.current()
    notices.close()
    clock.now += TRUST_SECONDS

    assert not notices.is_still(b"")
    with pytest.raises(StoreUnavailable, match="the store is closed"):
        noticed.current()
    noticed.close()


async def test_disk_that_fails_is_reported(database: Path) -> None:
    notices = FileChangeSignal(database)
    write_only = os.open(database.with_name("gateway.db-notices"), os.O_WRONLY)
    os.dup2(write_only, notices._file.last)
    os.close(write_only)

    with pytest.raises(StoreUnavailable, match="-notices beside the database cannot be used"):
        notices.number()


async def test_database_that_is_locked_is_reported(database: Path) -> None:
    def locked(connection: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    noticed = FileCachedValue(FileChangeSignal(database), locked, at_first=None)

    with pytest.raises(StoreUnavailable, match="locked by another process"):
        noticed.current()

    assert noticed.problem == "the database is locked by another process"


async def test_file_belongs_to_its_owner_alone(database: Path) -> None:
    FileChangeSignal(database)

    assert database.with_name("gateway.db-notices").stat().st_mode & 0o777 == 0o600
