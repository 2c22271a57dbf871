"""The process that writes outcomes of calls: confirmed calls are durable, others are neither lost nor doubled."""

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import pytest

from gateway.audit.content_hash import ContentKey
from gateway.audit.entries import AuditCaller, AuditOrigin
from gateway.errors import RecordConflict
from gateway.policy import TurnStateWrite
from gateway.policy.rules.turn_state import TurnState, load_turn_state
from gateway.storage.call_store import CallFilter
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from gateway.storage.sql.sqlite.single_call_conversion import to_single_call_values
from gateway.storage.sql.sqlite.writer_client import ANSWER_SECONDS, WriterClient
from gateway.storage.sql.sqlite.writer_process import LARGEST_GROUP
from tests.storage.sample_records import ADA, NOON, settled, small, turn

pytestmark = pytest.mark.anyio

PLACE = ("node", None, None, "key")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    recording = WriterClient(tmp_path / "calls.db", place=PLACE, shard="shard")
    await recording.start()
    store.engine.writer_process = recording
    yield store
    await store.close()


def recording_of(store: SqliteStore) -> WriterClient:
    assert store.engine.writer_process is not None
    return store.engine.writer_process


def pid_of(store: SqliteStore) -> int:
    process = recording_of(store)._process
    assert process is not None
    return process.pid


async def settle(store: SqliteStore, number: int) -> None:
    of_turn = turn(f"turn{number}")
    await store.record_single_call(
        replace(settled(f"call{number}"), turn_id=of_turn.id), of_turn, audit=[(number, b'{"n":%d}' % number)]
    )


async def numbers(store: SqliteStore, count: int) -> list[int]:
    return [number for number in range(count) if await store.find_call(f"call{number}", ADA)]


def count_entries(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        [found] = database.execute("SELECT count(*) FROM audit WHERE instr(body, '\"n\":')").fetchone()
    return int(found)


async def test_what_it_confirmed_is_there_with_its_entry_in_the_log(store: SqliteStore, tmp_path: Path) -> None:
    await asyncio.gather(*(settle(store, number) for number in range(50)))

    assert await numbers(store, 50) == list(range(50))
    assert count_entries(tmp_path / "calls.db") == 50
    head = recording_of(store).head
    assert head is not None
    assert (head.shard, head.seq) == ("shard.1.1", 51)


async def test_entries_are_hashed_and_encoded_as_they_are_without_it(tmp_path: Path) -> None:
    key = ContentKey(bytes(range(32)))
    place, caller = AuditOrigin(*PLACE), AuditCaller("user:ada", "acme", ["role:agent"])
    message = (
        *("call-settled", place.encoded, caller.encoded, ("pay", "desk", "shop/pay", None, "open")),
        *(("call1", "turn1", "once", "5e" * 32, True), ("allow", "permitted", ("rule",), "rules.yaml:1", (), ())),
        *(("ok", None, 5, "key", b"hello", "untrusted"), b'{"approval":"a"}'),
    )
    store = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    recording = WriterClient(tmp_path / "calls.db", place=PLACE, shard="shard", key=key)
    await recording.start()
    store.engine.writer_process = recording
    store.use_audit_log(AuditLog(lambda: "thread", place, clock=lambda: 0, key=key))
    await store.record_single_call(settled("call1", "turn1"), turn("turn1"), audit=[(7, message)])
    await store.note([(7, message)])
    await store.close()

    with closing(sqlite3.connect(tmp_path / "calls.db")) as database:
        found = database.execute("SELECT shard, body FROM audit WHERE seq = 2 ORDER BY shard").fetchall()
    assert [shard for shard, _ in found] == ["shard.1.1", "thread"]
    assert found[0][1] == found[1][1]
    assert json.loads(found[0][1])["outcome"]["result"] == key.result(b"hello")


async def test_more_than_its_pipe_takes_at_once_arrives_whole(store: SqliteStore, tmp_path: Path) -> None:
    await asyncio.gather(*(settle(store, number) for number in range(3000)))

    assert await numbers(store, 3000) == list(range(3000))
    assert count_entries(tmp_path / "calls.db") == 3000


async def test_calls_are_written_once_when_it_is_killed(store: SqliteStore, tmp_path: Path) -> None:
    await settle(store, 0)
    first = pid_of(store)

    writing = asyncio.gather(*(settle(store, number) for number in range(1, 200)))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    await writing
    while recording_of(store)._process is None:
        await asyncio.sleep(0.05)
    await settle(store, 200)

    assert await numbers(store, 201) == list(range(201))
    assert pid_of(store) != first


async def test_call_that_is_there_already_counts_once_and_stays_as_it_was(store: SqliteStore) -> None:
    await store.record_single_call(settled("call1", turn_id="turn1"), turn("turn1"))
    await store.record_single_call(settled("call1", turn_id="turn1", is_error=True), turn("turn1"))

    [found], _ = await store.list_calls(CallFilter(), limit=10)
    assert found.is_error is False


async def test_call_that_was_written_elsewhere_meanwhile_is_not_there_twice(store: SqliteStore) -> None:
    """For example, because its client disconnected while it was in flight."""
    await store.record_call(settled("call1", turn_id="turn1"), turn=turn("turn1"))
    fresh = to_single_call_values(settled("call1", turn_id="turn1", is_error=True), turn("turn1"), process="p")
    assert fresh is not None

    assert not await recording_of(store).write(fresh, [])

    [found], _ = await store.list_calls(CallFilter(), limit=10)
    assert found.is_error is False


async def test_calls_that_cannot_be_sent_to_the_process_are_written_without_it(store: SqliteStore) -> None:
    class Name(str):
        __slots__ = ()

    of_turn = turn("turn1")
    await asyncio.gather(
        settle(store, 0),
        store.record_single_call(settled("call1", "turn1", decision=Name("allow")), of_turn),
        settle(store, 2),
    )
    await settle(store, 3)

    assert await numbers(store, 4) == [0, 1, 2, 3]


async def test_nothing_is_left_when_it_is_closed_with_work_to_do(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    recording = WriterClient(tmp_path / "calls.db", place=None, shard="shard")
    await recording.start()
    store.engine.writer_process = recording
    writing = [asyncio.create_task(settle(store, number)) for number in range(600)]
    await asyncio.sleep(0)

    await store.close()
    await asyncio.gather(*writing)

    again = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    assert len(await numbers(again, 600)) == 600
    await again.close()


async def test_calls_are_written_where_no_process_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    recording = WriterClient(tmp_path / "calls.db", place=PLACE, shard="shard")
    store.engine.writer_process = recording
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))

    await recording.start()
    await settle(store, 0)

    assert await numbers(store, 1) == [0]
    assert "a thread writes them" in caplog.text
    await store.close()


async def test_signals_to_the_whole_group_do_not_end_it(store: SqliteStore) -> None:
    await settle(store, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid_of(store), number)

    await settle(store, 1)

    assert await numbers(store, 2) == [0, 1]


async def test_database_that_is_locked_is_waited_for(store: SqliteStore, tmp_path: Path) -> None:
    await settle(store, 0)
    with closing(sqlite3.connect(tmp_path / "calls.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(settle(store, 1))
        await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        await writing

    assert await numbers(store, 2) == [0, 1]


async def test_it_begins_with_the_first_calls_which_wait_for_it(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    recording = WriterClient(tmp_path / "calls.db", place=PLACE, shard="shard", drain=store.engine.drain)
    store.engine.writer_process = recording
    assert recording._process is None
    await asyncio.gather(*(settle(store, number) for number in range(40)))

    assert recording.head is not None
    assert recording.head.seq == 41  # with the entry that opens the log: no call was written by the thread
    assert await numbers(store, 41) == list(range(40))
    await store.close()


async def test_it_is_not_held_up_by_a_database_that_is_locked(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    is_waiting = asyncio.Event()

    async def never() -> None:
        is_waiting.set()
        await asyncio.Event().wait()

    recording = WriterClient(tmp_path / "calls.db", place=PLACE, shard="shard", drain=never)
    store.engine.writer_process = recording
    with anyio.fail_after(30):
        await settle(store, 0)

    assert is_waiting.is_set()
    assert await numbers(store, 1) == [0]
    await store.close()


async def test_state_and_entries_of_a_note_are_both_written(store: SqliteStore, tmp_path: Path) -> None:
    of_turn = turn("session")
    await store.open_turn(of_turn)
    store.use_audit_log(AuditLog(lambda: "thread", AuditOrigin(*PLACE), clock=lambda: 0))
    state = TurnState()
    state.reserve_call("0" * 16)
    memory, knowing = state.begin_write()

    await store.note([(1, b'{"n":1}')], turn_id=of_turn.id, memory=memory, knowing=knowing)

    assert await store.read_turn_state(of_turn.id) == memory
    assert count_entries(tmp_path / "calls.db") == 1


async def settle_in_turn(store: SqliteStore, number: int, **more: Any) -> None:
    call = settled(f"call{number}", results=[small(number)], completed=number)
    await store.record_call(call, audit=[(number, b'{"n":%d}' % number)], **more)


async def test_outcomes_of_a_turn_are_written_with_pieces_and_state(store: SqliteStore, tmp_path: Path) -> None:
    await settle(store, 0)  # a single-call row, which the next call of its turn expands
    await store.record_call(settled("next", "turn0"), turn=turn("turn0"))
    await store.open_turn(turn())
    state = None
    for number in range(1, 30):
        memory = b'{"number":%d}' % number
        await settle_in_turn(store, number, memory=memory, knowing=state)
        state = memory

    assert [each.id for each in await store.list_turn_calls("turn0")] == ["call0", "next"]
    assert [each.id for each in await store.list_turn_calls("turn")] == [f"call{number}" for number in range(1, 30)]
    assert await store.read_turn_state("turn") == state
    assert count_entries(tmp_path / "calls.db") == 30
    assert recording_of(store).replacements == 0


async def test_state_that_another_process_changed_is_merged(store: SqliteStore) -> None:
    ours, theirs = TurnState(), TurnState()
    ours.reserve_call("a" * 64)
    theirs.reserve_call("b" * 64)
    await store.open_turn(turn())
    await store.note((), turn_id="turn", memory=theirs.to_json())
    await settle_in_turn(store, 1, memory=ours.to_json())
    implicit = TurnStateWrite("turn", ours.to_json(), None)
    await store.record_single_call(settled("single", "other"), turn("other"), implicit=implicit)

    found = load_turn_state(await store.read_turn_state("turn"))
    assert (found.calls, found.count_calls("a" * 64), found.count_calls("b" * 64)) == (3, 2, 1)


async def test_second_outcome_is_refused_and_costs_others_nothing(store: SqliteStore) -> None:
    await store.open_turn(turn())
    await settle_in_turn(store, 1)
    again = store.record_call(settled("call1", results=[small(1)], completed=99))
    done = await asyncio.gather(again, *(settle_in_turn(store, number) for number in (2, 3)), return_exceptions=True)

    assert isinstance(done[0], RecordConflict)
    assert done[1:] == [None, None]
    assert [each.id for each in await store.list_turn_calls("turn")] == ["call1", "call2", "call3"]


async def test_outcomes_are_written_once_when_it_is_killed(store: SqliteStore, tmp_path: Path) -> None:
    store.use_audit_log(AuditLog(lambda: "thread", AuditOrigin(*PLACE), clock=lambda: 0))
    await store.open_turn(turn())
    writing = [asyncio.create_task(settle_in_turn(store, number)) for number in range(200)]
    await asyncio.sleep(0.005)
    os.kill(pid_of(store), signal.SIGKILL)
    await asyncio.gather(*writing)

    assert len(await store.list_turn_calls("turn")) == 200
    assert count_entries(tmp_path / "calls.db") == 200


async def test_process_that_hangs_is_replaced_and_its_calls_are_written(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await settle(store, 0)
    hung = pid_of(store)
    os.kill(hung, signal.SIGSTOP)
    began = monotonic()
    await store.open_turn(turn())
    await asyncio.gather(settle(store, 1), settle_in_turn(store, 2))
    took = monotonic() - began
    while recording_of(store)._process is None or pid_of(store) == hung:
        await asyncio.sleep(0.01)
    await settle(store, 3)

    assert await numbers(store, 4) == [0, 1, 2, 3]
    assert took < 10 * ANSWER_SECONDS
    assert recording_of(store).replacements == 1
    assert "did not answer" in caplog.text


async def test_it_is_not_left_behind_by_a_store_that_closes_while_it_begins(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "calls.db", clock=lambda: NOON)
    recording = WriterClient(tmp_path / "calls.db", place=PLACE, shard="shard")
    store.engine.writer_process = recording
    beginning = asyncio.create_task(recording.start())
    await asyncio.sleep(0)

    await store.close()
    await beginning
    await recording.close()

    assert recording._process is None


async def _made(path: Path) -> None:
    await (await open_sqlite_store(path)).close()


async def test_states_of_a_turn_are_written_in_the_order_they_were_made(store: SqliteStore) -> None:
    implicit = turn("implicit")
    await store.extend_turn(implicit)
    state = TurnState()

    async def call(number: int) -> None:
        state.reserve_call(f"{number:016x}")
        write = TurnStateWrite(implicit.id, *state.begin_write())
        if number % 3:
            await store.note((), turn_id=write.turn_id, memory=write.memory, knowing=write.knowing)
        else:
            of_turn = turn(f"turn{number}")
            outcome = replace(settled(f"call{number}"), turn_id=of_turn.id)
            await store.record_single_call(outcome, of_turn, audit=(), implicit=write)

    await asyncio.gather(*(call(number) for number in range(60)))

    assert await store.read_turn_state(implicit.id) == state.to_json()
    assert state.calls == 60


async def test_more_calls_than_fit_into_one_message_are_written_with_their_states(store: SqliteStore) -> None:
    of_turn = turn("session")
    await store.open_turn(of_turn)
    state = TurnState()

    async def call(number: int) -> None:
        state.reserve_call(f"{number:016x}")
        memory, knowing = state.begin_write()
        outcome = replace(settled(f"call{number}"), turn_id=of_turn.id)
        await store.record_call(outcome, memory=memory, knowing=knowing, audit=[(number, b'{"n":%d}' % number)])

    await asyncio.gather(*(call(number) for number in range(LARGEST_GROUP * 2 + 50)))

    assert await store.read_turn_state(of_turn.id) == state.to_json()
    calls, _ = await store.list_calls(CallFilter(turn_id=of_turn.id), limit=1000)
    assert len(calls) == 1000


async def test_state_that_the_process_did_not_confirm_is_written_without_it(store: SqliteStore) -> None:
    of_turn = turn("session")
    await store.open_turn(of_turn)
    state = TurnState()
    state.reserve_call("0" * 16)
    memory, knowing = state.begin_write()
    os.kill(pid_of(store), signal.SIGKILL)

    await store.note((), turn_id=of_turn.id, memory=memory, knowing=knowing)

    assert await store.read_turn_state(of_turn.id) == state.to_json()
    assert recording_of(store).replacements == 1
