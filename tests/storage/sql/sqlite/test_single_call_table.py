"""Single-call turns: many calls written at once give the same rows as each on its own."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gateway.errors import RecordConflict
from gateway.model.caller import Principal
from gateway.storage.call_store import CallFilter, StoredCall, StoredResult, StoredTurn
from gateway.storage.sql import tables
from gateway.storage.sql.read_only.read_only_store import find_calls, list_calls
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from gateway.storage.sql.sqlite.single_call_conversion import EXPANSION, SINGLE_CALL_INSERT, to_single_call_values
from gateway.storage.sql.sqlite.single_call_table import insert_single_calls, to_single_call_row
from gateway.storage.sql.sqlite.writer_client import WriterClient
from tests.storage.sample_records import ADA, BOB, NOON, piece_key, settled, small, spooled, turn, turn_id
from tests.support.ready_databases import put_ready_database

pytestmark = pytest.mark.anyio

BOT = Principal("agent:bot")
TABLES = ("turns", "calls", "pieces", "fresh")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite_store(put_ready_database(tmp_path / "gateway.db"), clock=lambda: NOON)
    yield store
    await store.close()


def rows(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Everything except what differs from process to process."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        database.row_factory = sqlite3.Row
        found = {table: [dict(row) for row in database.execute(f"SELECT * FROM {table}")] for table in TABLES}
    database.close()
    return {
        table: [{name: value for name, value in row.items() if name != "process"} for row in some]
        for table, some in found.items()
    }


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
    "of media": (
        settled(
            turn_id=turn_id(2),
            because=None,
            results=(replace(spooled(piece_key("f", 2)), details={"stash": {"n": 12345678901234567890}}),),
        ),
        turn(turn_id(2)),
    ),
    "with a small piece": (settled(turn_id=turn_id(3), results=(small(3),)), turn(turn_id(3))),
    "with a large piece": (settled(turn_id=turn_id(4), results=(spooled(piece_key("f", 4)),)), turn(turn_id(4))),
    "with a piece of another place": (settled(results=(spooled("files/acme/2"),)), turn()),
    "refused": (
        settled(tool="t\ud800", identity="s/t\ud800", is_error=True, results=(StoredResult("text", text="n\ud800"),)),
        turn(),
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
    merged = await open_sqlite_store(put_ready_database(tmp_path / "merged.db"), clock=lambda: NOON)
    apart = await open_sqlite_store(put_ready_database(tmp_path / "apart.db"), clock=lambda: NOON)
    await merged.record_single_call(call, of, memory=memory)
    await apart.record_call(call, turn=of, memory=memory)
    await merged.close()
    await apart.close()

    assert rows(tmp_path / "merged.db") == rows(tmp_path / "apart.db")


@pytest.mark.parametrize(("call", "of"), CALLS.values(), ids=CALLS)
async def test_rows_are_the_same_where_another_process_writes_them(
    call: StoredCall, of: StoredTurn, tmp_path: Path
) -> None:
    through = await open_sqlite_store(put_ready_database(tmp_path / "through.db"), clock=lambda: NOON)
    recording = WriterClient(tmp_path / "through.db", place=None, shard="shard")
    await recording.start()
    through.engine.writer_process = recording
    apart = await open_sqlite_store(put_ready_database(tmp_path / "apart.db"), clock=lambda: NOON)
    await through.record_single_call(call, of, memory=b"remembered")
    await through.engine.expand_single_calls()
    await apart.record_call(call, turn=of, memory=b"remembered")
    await through.close()
    await apart.close()

    assert rows(tmp_path / "through.db") == rows(tmp_path / "apart.db")


async def test_many_are_written_at_once_and_each_is_found(store: SqliteStore) -> None:
    await asyncio.gather(*(store.record_single_call(settled(f"c{n}", f"t{n}"), turn(f"t{n}")) for n in range(300)))

    found = [await store.find_call(f"c{n}", ADA) for n in range(300)]
    assert [each.turn_id for each in found if each is not None] == [f"t{n}" for n in range(300)]


async def test_one_that_contradicts_what_is_stored_is_reported_and_the_others_are_written(store: SqliteStore) -> None:
    await store.record_single_call(settled("c0", "t0"), turn("t0"))
    go_on, begun = Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()

    waiting = asyncio.ensure_future(store.writer.run(wait))
    await begun.wait()
    asked = asyncio.gather(
        store.record_single_call(settled("c1", "t1"), turn("t1")),
        store.record_single_call(settled("c0", "t0"), turn("t0")),
        store.record_single_call(settled("c2", "t0", BOB), turn("t0", BOB)),
        store.record_single_call(settled("c3", "t3"), turn("t3")),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    go_on.set()
    await waiting

    assert [type(each) for each in await asked] == [type(None), RecordConflict, RecordConflict, type(None)]
    assert [call and call.id for call in [await store.find_call(f"c{n}", ADA) for n in range(4)]] == [
        *("c0", "c1", None, "c3"),
    ]


async def test_alone_in_its_group_it_is_reported_all_the_same(store: SqliteStore) -> None:
    await store.record_single_call(settled(), turn())
    with pytest.raises(RecordConflict, match="outcome already"):
        await store.record_single_call(settled(), turn())


async def test_small_piece_is_kept_with_its_call(store: SqliteStore) -> None:
    await store.record_single_call(settled(turn_id=turn_id(1), results=(small(1),)), turn(turn_id(1)))

    assert await store.find_blob(piece_key("s", 1)) == b"abc"
    found = await store.find_call("call", ADA)
    assert found is not None
    assert [each.key for each in found.results] == [piece_key("s", 1)]


async def test_id_that_cannot_be_stored_is_refused_before_anything_is_written(
    store: SqliteStore, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="id"):
        await store.record_single_call(settled("\ud800"), turn())

    assert rows(tmp_path / "gateway.db") == {table: [] for table in TABLES}


def test_row_of_a_fresh_call_has_room_for_all_of_its_call_and_its_turn() -> None:
    of_a_call = {column.name for column in tables.calls.c}
    of_a_turn = {f"turn_{column.name}" for column in tables.turns.c}
    shared_columns = {"turn_ended_at", "turn_ending"}
    theirs = {f"turn_{name}" for name in of_a_call}  # the columns that call and turn share
    kept = {column.name for column in tables.fresh.c}

    assert of_a_call <= kept
    assert of_a_turn - theirs - shared_columns - {"turn_id"} <= kept
    for table in (tables.turns, tables.calls, tables.pieces):
        [move] = [each for each in EXPANSION if each.startswith(f"INSERT INTO {table.name} ")]
        missing = {column.name for column in table.c if f'"{column.name}"' not in move}
        assert missing <= {"ended_at", "ending"}


async def test_fresh_call_is_found_by_every_lookup(tmp_path: Path) -> None:
    """Each lookup begins with a call that is known only by its row in one tree."""
    path = tmp_path / "gateway.db"
    store = await open_sqlite_store(path, clock=lambda: NOON)
    other = await open_sqlite_store(path, clock=lambda: NOON)

    async def put(number: int) -> StoredCall:
        call = settled(f"call{number}", turn_id=turn_id(number), results=(small(number),))
        of = turn(turn_id(number))
        values = to_single_call_values(call, of, process="p")
        assert values is not None
        await store.writer.run(
            lambda connection: (
                insert_single_calls(connection, SINGLE_CALL_INSERT, [to_single_call_row(values)]) and None
            )
        )
        return call

    looks: dict[str, Callable[[StoredCall], Awaitable[object]]] = {
        "turn": lambda call: other.find_turn(call.turn_id, ADA),
        "call": lambda call: other.find_call(call.id, ADA),
        "call of a turn": lambda call: other.find_call(call.id, ADA, turn_id=call.turn_id),
        "calls of a turn": lambda call: other.list_turn_calls(call.turn_id),
        "piece": lambda call: other.find_blob(call.results[0].key or ""),
        "last piece": lambda call: other.find_last_blob((call.results[0].key or "")[:-3]),
        "known": lambda call: other.filter_known_results([call.results[0].key or ""]),
        "from outside": lambda call: asyncio.to_thread(find_calls, path, call.id, turn_id=None),
        "listed from outside": lambda call: asyncio.to_thread(
            list_calls, path, CallFilter(turn_id=call.turn_id), since=None, limit=1
        ),
        "listed": lambda call: other.list_calls(CallFilter(turn_id=call.turn_id), limit=1),
    }
    for number, (name, look) in enumerate(looks.items()):
        assert await look(await put(number)), name
    await put(90)
    await other.end_turn(turn_id(90), "ack", NOON, stash={})
    await put(91)
    with pytest.raises(RecordConflict):
        await other.record_call(settled("call91", turn_id=turn_id(91)))
    await put(92)
    await other.record_call(settled("another", turn_id=turn_id(92)))
    assert [each.id for each in await store.list_turn_calls(turn_id(92))] == ["call92", "another"]
    await put(93)
    await other.close_interrupted_calls(NOON)
    assert "call93" in [each["id"] for each in rows(path)["fresh"]]  # settled: not interrupted by a dead process
    await other.prune(NOON)
    assert "call93" in [each["id"] for each in rows(path)["fresh"]]
    await other.engine.expand_single_calls()
    assert rows(path)["fresh"] == []
    await store.close()
    await other.close()


def test_small_piece_without_its_bytes_is_refused() -> None:
    without = replace(small(1), content=None)

    with pytest.raises(ValueError, match="without content"):
        to_single_call_values(settled(results=(without,)), turn(), process="p")
