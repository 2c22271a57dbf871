"""Checkpoints run beside the writer, and their failures affect no caller."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.storage.sql.sqlite.connection import SqliteConnection
from gateway.storage.sql.sqlite.writer_process import CHECKPOINT_CALLS, WalCheckpointer

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "calls.db"
    _create(path)
    return path


@pytest.fixture
def writing_back(path: Path) -> Iterator[WalCheckpointer]:
    writing_back = WalCheckpointer(path)
    yield writing_back
    writing_back.close()


def _create(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE rows (content)")
        database.commit()


def _grow(link: SqliteConnection) -> None:
    link.connection.execute("INSERT INTO rows VALUES (?)", (os.urandom(20 * PAGE),))


def _soon_larger_than(path: Path, size: int) -> bool:
    until = time.monotonic() + 10
    while path.stat().st_size <= size and time.monotonic() < until:
        time.sleep(0.01)
    return path.stat().st_size > size


def test_what_was_written_reaches_the_file_while_its_writer_goes_on(path: Path, writing_back: WalCheckpointer) -> None:
    link = SqliteConnection(path)
    before = path.stat().st_size

    _grow(link)
    assert path.stat().st_size == before
    writing_back.on_write(CHECKPOINT_CALLS)

    assert _soon_larger_than(path, before)
    _grow(link)
    link.close()


def test_little_is_left_in_the_log(path: Path, writing_back: WalCheckpointer) -> None:
    link = SqliteConnection(path)
    before = path.stat().st_size

    _grow(link)
    writing_back.on_write(CHECKPOINT_CALLS - 1)
    time.sleep(0.05)

    assert path.stat().st_size == before
    link.close()


def test_file_that_is_replaced_is_opened_anew(path: Path, writing_back: WalCheckpointer) -> None:
    link = SqliteConnection(path)
    _grow(link)
    writing_back.on_write(CHECKPOINT_CALLS)
    assert _soon_larger_than(path, 20 * PAGE)
    link.close()
    for each in path.parent.iterdir():
        each.unlink()

    writing_back.on_write(CHECKPOINT_CALLS)  # there is nothing to open
    time.sleep(0.05)
    _create(path)
    link = SqliteConnection(path)
    _grow(link)
    before = path.stat().st_size
    writing_back.on_write(CHECKPOINT_CALLS)

    assert _soon_larger_than(path, before)
    link.close()
