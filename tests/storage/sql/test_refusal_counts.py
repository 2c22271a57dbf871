"""Refusals are stored individually up to a limit, and counted above it, on every engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.audit.entries import AuditOrigin
from gateway.errors import StoreUnavailable
from gateway.model.caller import Principal
from gateway.model.primitives.deadline import to_microseconds
from gateway.storage.call_store import ArgumentExcerpt, CallFilter
from gateway.storage.refusal_store import KEPT_FOR, WINDOW, Refusal
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.postgres.dialect import PostgresAuditLog
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.refusal_counts import count_by_reason
from gateway.storage.sql.sqlite.database_setup import migrate_sqlite
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.storage import simultaneous as steps
from tests.storage.sample_records import ADA, BOB, NOON, Clock, call, settled, turn
from tests.storage.simultaneous import Pair, summed

pytestmark = pytest.mark.anyio

Opening = Callable[[], Awaitable[Any]]

EXCERPT = ArgumentExcerpt('note="aaa…"', 4_000_000, "ab" * 32)
AT = to_microseconds(NOON)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def opening(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Opening:
    names = count(1)
    address = request.getfixturevalue("new_database")() if request.param == "postgres" else ""

    async def opened() -> Any:
        store: Any
        if address:
            store = await open_postgres_store(address, clock=clock)
        else:
            store = await open_sqlite_store(tmp_path / "gateway.db", clock=clock)
        kind = PostgresAuditLog if address else AuditLog
        log = kind(lambda: f"shard-{next(names)}", AuditOrigin("gw"), clock=lambda: to_microseconds(clock.now))
        store.use_audit_log(log, summed=summed)
        return store

    return opened


@pytest.fixture
async def store(opening: Opening) -> AsyncIterator[Any]:
    store = await opening()
    yield store
    await store.close()


def refusal(
    id: str, principal: Principal = ADA, *, reason: str = "not-permitted", most: int = 3, **more: Any
) -> Refusal:
    record = settled(id, f"turn-{id}", principal, args={}, decision="deny", is_error=True, excerpt=EXCERPT)
    audit = [(AT, json.dumps({"event": "call-decided", "id": id}).encode())]
    return Refusal(principal, reason, most, audit, record, turn=turn(f"turn-{id}", principal), **more)


async def ids(store: Any) -> list[str]:
    found, _ = await store.list_calls(CallFilter(), limit=500)
    return sorted(each.id for each in found)


async def entries(store: Any, event: str) -> list[dict[str, Any]]:
    rows = await store.reader.run(lambda it: it.execute("SELECT body FROM audit ORDER BY shard, seq").fetchall())
    found = [json.loads(bytes(body)) for [body] in rows]
    return [each for each in found if each["event"] == event]


async def rows_of(store: Any, table: str) -> int:
    [found] = await store.reader.run(lambda it: it.execute(f"SELECT count(*) FROM {table}").fetchone())
    return int(found)


async def test_refusals_above_the_number_are_counted(store: Any) -> None:
    kept = [await store.refuse(refusal(f"c{number}")) for number in range(10)]

    assert kept == [True] * 3 + [False] * 7
    assert await ids(store) == ["c0", "c1", "c2"]
    assert [each["id"] for each in await entries(store, "call-decided")] == ["c0", "c1", "c2"]
    assert await rows_of(store, "turns") == 3
    assert await store.refusals_by_reason() == {"not-permitted": (3, 7)}


async def test_excerpt_is_read_as_it_was_written(store: Any) -> None:
    await store.refuse(refusal("c"))

    found = await store.find_call("c", ADA)

    assert (found.args, found.excerpt) == ({}, EXCERPT)
    assert found.checksum == refusal("c").call.checksum  # type: ignore[union-attr] # it has one


async def test_callers_reasons_and_minutes_are_counted_apart(store: Any, clock: Clock) -> None:
    assert await store.refuse(refusal("a", most=1))
    assert await store.refuse(refusal("b", BOB, most=1))
    assert await store.refuse(refusal("c", reason="rule-denied", most=1))
    assert not await store.refuse(refusal("d", most=1))

    clock.advance(minutes=1)

    assert await store.refuse(refusal("e", most=1))
    assert not await store.refuse(refusal("f", BOB, most=0))


async def test_past_minute_is_logged_once_with_its_number(store: Any) -> None:
    for number in range(9):
        await store.refuse(refusal(f"c{number}"))

    assert await store.audit_refusal_counts(AT + WINDOW - 1) == 0
    assert [await store.audit_refusal_counts(AT + WINDOW) for _ in range(2)] == [1, 0]

    [entry] = await entries(store, "refusals-counted")
    assert entry["counted"] == {"number": 6, "since": AT, "until": AT + WINDOW}
    assert entry["caller"] == {"subject": "user:ada", "tenant": "acme"}
    assert entry["decision"] == {"effect": "deny", "reason": "not-permitted"}


async def test_late_counts_are_logged_in_an_entry_of_their_own(store: Any) -> None:
    await store.refuse(refusal("a", most=0))
    await store.audit_refusal_counts(AT + WINDOW)
    await store.refuse(refusal("b", most=0))
    await store.refuse(refusal("c", most=0))

    assert await store.audit_refusal_counts(AT + WINDOW) == 1

    assert [each["counted"]["number"] for each in await entries(store, "refusals-counted")] == [1, 2]


async def test_call_with_a_key_leaves_no_more_than_its_excerpt(store: Any, clock: Clock) -> None:
    started = call("a", "turn-a", args={"note": "a" * 1000}, idempotency_key="k")
    await store.claim_idempotency_key(
        "k", ADA, digest="d", call=started, until=NOON + timedelta(days=1), turn=turn("turn-a")
    )

    assert await store.refuse(replace(refusal("a", is_started=True, is_alone=True), turn=None))

    found = await store.find_call("a", ADA)
    assert (found.status, found.args, found.excerpt) == ("settled", {}, EXCERPT)


async def test_call_with_a_key_that_is_counted_leaves_nothing(store: Any) -> None:
    for id in ("a", "b"):
        started = call(id, f"turn-{id}", args={"note": "a" * 1000}, idempotency_key=id)
        await store.claim_idempotency_key(
            id, ADA, digest="d", call=started, until=NOON + timedelta(days=1), turn=turn(f"turn-{id}")
        )

    assert not await store.refuse(refusal("a", most=0, is_started=True, is_alone=True))
    assert not await store.refuse(refusal("b", most=0, is_started=True))  # other processes may have its turn, too

    assert [await rows_of(store, table) for table in ("calls", "claims", "turns")] == [0, 0, 1]
    again = call("c", "turn-c", idempotency_key="a")
    claim = await store.claim_idempotency_key(
        "a", ADA, digest="e", call=again, until=NOON + timedelta(days=1), turn=turn("turn-c")
    )
    assert claim.state == "fresh"


async def test_turn_remembers_a_refusal_that_is_counted(store: Any) -> None:
    await store.open_turn(turn("turn-a"))

    assert not await store.refuse(refusal("a", most=0, memory=b"{}"))

    assert await store.read_turn_state("turn-a") == b"{}"


async def test_what_is_not_there_is_counted_without_a_record(store: Any) -> None:
    def asked(number: int) -> Refusal:
        return Refusal(ADA, "unknown-tool", 2, [(AT, json.dumps({"event": "call-decided", "n": number}).encode())])

    kept = [await store.refuse(asked(number)) for number in range(5)]

    assert kept == [True, True, False, False, False]
    assert len(await entries(store, "call-decided")) == 2
    assert await ids(store) == []


async def test_counts_are_deleted_after_a_day_if_they_were_logged(store: Any, clock: Clock) -> None:
    await store.refuse(refusal("a", most=0))
    after = NOON + timedelta(microseconds=KEPT_FOR)

    await store.prune(after)
    assert await rows_of(store, "refusals") == 1

    await store.audit_refusal_counts(to_microseconds(after))
    await store.prune(after)
    assert await rows_of(store, "refusals") == 0


async def test_without_a_log_counts_go_untold(opening: Opening) -> None:
    store = await opening()
    store._summed = None
    await store.refuse(refusal("a", most=0))

    assert await store.audit_refusal_counts(AT + WINDOW) == 0
    await store.prune(NOON + timedelta(microseconds=KEPT_FOR))

    assert await rows_of(store, "refusals") == 0
    await store.close()


async def test_nothing_is_counted_of_what_is_not_written(store: Any) -> None:
    """The turn belongs to another principal: neither record nor count is stored."""
    await store.open_turn(turn("turn-a", BOB))

    with pytest.raises(Exception, match="another principal"):
        await store.refuse(replace(refusal("a"), turn=None))

    assert await store.refusals_by_reason() == {}


# Several processes


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as pair:
        yield pair


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    address: str = str(tmp_path / "gateway.db")
    return request.getfixturevalue("new_database")() if request.param == "postgres" else address


def test_two_processes_count_together_and_exactly(pair: Pair, where: str) -> None:
    kept = pair.both(steps.refuse_many, where, 200, 50)

    async def found() -> tuple[int, Any]:
        store = await steps.opened(where)
        counts = await store.refusals_by_reason()
        calls = len(await ids(store))
        await store.close()
        return calls, counts

    calls, counts = asyncio.run(found())
    assert sum(kept) == calls
    minutes = len(counts) and calls // 50  # a minute may end meanwhile
    assert calls == 50 * minutes
    assert sum(counts["not-permitted"]) == 400


def test_two_processes_log_each_minute_once(pair: Pair, where: str) -> None:
    async def refuse() -> None:
        store = await steps.opened(where)
        for number in range(30):
            await store.refuse(refusal(f"{number}", reason=f"reason-{number % 10}", most=1))
        await store.close()

    asyncio.run(refuse())

    assert sum(pair.both(steps.audit_refusal_counts, where)) == 10

    async def logged() -> list[int]:
        store = await steps.opened(where)
        found = await entries(store, "refusals-counted")
        await store.close()
        return [each["counted"]["number"] for each in found]

    assert asyncio.run(logged()) == [2] * 10


# Earlier versions


async def test_earlier_program_finds_arguments_that_it_can_read(tmp_path: Path, clock: Clock) -> None:
    store = await open_sqlite_store(tmp_path / "gateway.db", clock=clock)
    await store.refuse(refusal("a"))
    await store.record_single_call(replace(settled("b", "turn-b"), args={"id": 1}), turn("turn-b"))
    await store.close()
    from gateway.storage.sql.sqlite.connection import SqliteConnection

    link = SqliteConnection(tmp_path / "gateway.db")
    migrate_sqlite(link.connection, to="0009")

    found = dict(link.connection.execute("SELECT id, args FROM calls UNION SELECT id, args FROM fresh").fetchall())
    assert found == {"a": "{}", "b": '{"id":1}'}
    link.close()


# --- refusals that are certainly only counted ---


async def test_refusals_that_are_certainly_only_counted_need_no_transaction(store: Any, clock: Clock) -> None:
    assert not store.count_refusal(ADA, "not-permitted")
    for number in range(4):
        assert not store.count_refusal(ADA, "not-permitted")
        await store.refuse(refusal(f"c{number}"))

    assert [store.count_refusal(ADA, "not-permitted") for _ in range(5)] == [True] * 5
    assert not store.count_refusal(BOB, "not-permitted")
    assert not store.count_refusal(ADA, "unknown-tool")
    assert await store.refusals_by_reason() == {"not-permitted": (3, 6)}


async def test_table_decides_again_in_the_next_minute(store: Any, clock: Clock) -> None:
    await store.refuse(refusal("c1", most=0))
    assert store.count_refusal(ADA, "not-permitted")
    clock.now += timedelta(minutes=1)

    assert not store.count_refusal(ADA, "not-permitted")
    await store.refuse(refusal("c2", most=1))
    assert not store.count_refusal(ADA, "not-permitted")
    assert await store.refusals_by_reason() == {"not-permitted": (1, 2)}


async def test_counts_in_memory_are_written_when_the_store_closes(opening: Opening) -> None:
    first = await opening()
    await first.refuse(refusal("c1", most=0))
    assert first.count_refusal(ADA, "not-permitted")
    await first.close()
    second = await opening()

    assert await second.refusals_by_reason() == {"not-permitted": (0, 2)}
    await second.close()


async def test_counts_in_memory_are_written_soon(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.storage.sql.refusal_counts.WRITE_EVERY", 0.001)
    await store.refuse(refusal("c1", most=0))
    assert store.count_refusal(ADA, "not-permitted")
    async with asyncio.timeout(20):
        while await store.reader.run(count_by_reason) != {"not-permitted": (0, 2)}:
            await asyncio.sleep(0.01)
    while not store.count_refusal(ADA, "not-permitted"):
        await asyncio.sleep(0)


async def test_counts_that_cannot_be_written_stay_in_memory(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.storage.sql.refusal_counts.WRITE_EVERY", 0.001)
    await store.refuse(refusal("c1", most=0))
    run, failures = store.writer.run, 0

    async def fail(work: Any, **options: Any) -> Any:
        nonlocal failures
        failures += 1
        raise StoreUnavailable("the disk is full")

    store.writer.run = fail  # a disk that is full for a while
    assert store.count_refusal(ADA, "not-permitted")
    async with asyncio.timeout(20):
        while failures < 2:
            await asyncio.sleep(0.01)
    assert not store.count_refusal(ADA, "not-permitted")
    store.writer.run = run

    assert await store.refusals_by_reason() == {"not-permitted": (0, 2)}
    assert store.count_refusal(ADA, "not-permitted")
