"""Calls that settle in a turn of their own: many at once are what each would have been on its own."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from stored_records import ADA, BOB, NOON, settled, spooled, turn

from gateway.errors import RecordConflict
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall, StoredResult, StoredTurn
from gateway.storage.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

BOT = Principal("agent:bot")
TABLES = ("turns", "calls", "pieces")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "gateway.db", clock=lambda: NOON)
    yield store
    await store.close()


def rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Everything but what differs from process to process."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        database.row_factory = sqlite3.Row
        found = {table: [dict(row) for row in database.execute(f"SELECT * FROM {table}")] for table in TABLES}
    database.close()
    return {
        table: [{name: value for name, value in row.items() if name != "process"} for row in some]
        for table, some in found.items()
    }


SMALL = StoredResult("artifact", key="inline/acme/abc", type="json", byte_length=3, content=b"abc")

CALLS: dict[str, tuple[StoredCall, StoredTurn]] = {
    "plain": (settled(), turn()),
    "with everything": (
        settled(
            decision="deny",
            because="x at y:1 \ud800",
            is_error=True,
            inline=True,
            trusted=True,
            definition="e" * 64,
            idempotency_key="key",
            results=(StoredResult("text", text="no"), spooled("files/acme/1")),
            args={"é": [1, None, {"a": "\x00"}]},
        ),
        turn(stash={"seen": [1]}),
    ),
    "of a query tool": (settled(from_artifact_tool=True, because=None), turn()),
    "of somebody without tenant or roles": (
        settled(principal=BOT),
        turn(principal=BOT),
    ),
    "without an end": (settled(completed_at=None), turn()),
}


@pytest.mark.parametrize(("call", "of"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("memory", [None, b"\x01remembered"], ids=["nothing remembered", "something remembered"])
async def test_rows_are_those_of_a_call_that_is_written_on_its_own(
    call: StoredCall, of: StoredTurn, memory: bytes | None, tmp_path: Path
) -> None:
    merged = await SqliteStore.open(tmp_path / "merged.db", clock=lambda: NOON)
    apart = await SqliteStore.open(tmp_path / "apart.db", clock=lambda: NOON)
    await merged.settle_alone(call, of, memory=memory)
    await apart.settle_call(call, turn=of, memory=memory)
    await merged.close()
    await apart.close()

    assert rows(tmp_path / "merged.db") == rows(tmp_path / "apart.db")


async def test_many_are_written_at_once_and_each_is_found(store: SqliteStore) -> None:
    await asyncio.gather(*(store.settle_alone(settled(f"c{n}", f"t{n}"), turn(f"t{n}")) for n in range(300)))

    found = [await store.find_call(f"c{n}", ADA) for n in range(300)]
    assert [each.turn_id for each in found if each is not None] == [f"t{n}" for n in range(300)]


async def test_one_that_contradicts_what_is_stored_is_told_and_the_others_are_written(store: SqliteStore) -> None:
    await store.settle_alone(settled("c0", "t0"), turn("t0"))
    go_on, begun = Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()

    waiting = asyncio.ensure_future(store.writer.run(wait))
    await begun.wait()
    asked = asyncio.gather(
        store.settle_alone(settled("c1", "t1"), turn("t1")),
        store.settle_alone(settled("c0", "t0"), turn("t0")),
        store.settle_alone(settled("c2", "t0", BOB), turn("t0", BOB)),
        store.settle_alone(settled("c3", "t3"), turn("t3")),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    go_on.set()
    await waiting

    assert [type(each) for each in await asked] == [type(None), RecordConflict, RecordConflict, type(None)]
    assert [call and call.id for call in [await store.find_call(f"c{n}", ADA) for n in range(4)]] == [
        *("c0", "c1", None, "c3"),
    ]


async def test_alone_in_its_group_it_is_told_all_the_same(store: SqliteStore) -> None:
    await store.settle_alone(settled(), turn())
    with pytest.raises(RecordConflict, match="outcome already"):
        await store.settle_alone(settled(), turn())


async def test_small_piece_is_kept_with_its_call(store: SqliteStore) -> None:
    await store.settle_alone(settled(results=(SMALL,)), turn())

    assert SMALL.key is not None
    assert await store.find_piece(SMALL.key) == b"abc"
    found = await store.find_call("call", ADA)
    assert found is not None
    assert [each.key for each in found.results] == [SMALL.key]


async def test_id_that_cannot_be_stored_is_refused_before_anything_is_written(
    store: SqliteStore, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="id"):
        await store.settle_alone(settled("\ud800"), turn())

    assert rows(tmp_path / "gateway.db") == {"turns": [], "calls": [], "pieces": []}
