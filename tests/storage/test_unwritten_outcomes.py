"""Outcomes that could not be written: held in bounded memory, readable meanwhile, written on recovery."""

import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.audit.entries import AuditOrigin
from gateway.errors import StoreUnavailable
from gateway.model.primitives.deadline import to_microseconds
from gateway.policy.rules.turn_state import TurnState
from gateway.storage.call_store import HeldKey, StoredCall, StoredResult
from gateway.storage.refusal_store import Refusal
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.postgres.dialect import PostgresAuditLog
from gateway.storage.sql.postgres.engine import PostgresEngine, open_postgres_store
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.unwritten_outcomes import LateOutcome, OutcomeBacklog
from tests.storage.sample_records import ADA, BOB, NOON, Clock, call, settled, small, turn

pytestmark = pytest.mark.anyio

UNTIL = NOON + timedelta(days=1)
KEY = HeldKey("k", "d", to_microseconds(UNTIL))


def abandoned(found: StoredCall) -> tuple[int, bytes]:
    return to_microseconds(NOON), json.dumps({"event": "call-unknown", "id": found.id}).encode()


class Kept:
    """A store of either engine, and a way to break it: without its decision log it cannot write."""

    def __init__(self, store: Any, place: str) -> None:
        self.store = store
        self._place = place
        self._is_closed = False

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self.store.close()

    def execute(self, *statements: str) -> list[Any]:
        connect: Any = psycopg.connect if isinstance(self.store.engine, PostgresEngine) else sqlite3.connect
        with connect(self._place) as connection:
            done = [connection.execute(each) for each in statements][-1]
            found = done.fetchall() if done.description else []
            connection.commit()
        return list(found)

    @contextmanager
    def broken(self) -> Iterator[None]:
        self.execute("ALTER TABLE audit RENAME TO away")
        try:
            yield
        finally:
            self.execute("ALTER TABLE away RENAME TO audit")

    def bound(self, **bounds: int) -> None:
        self.store._backlog = OutcomeBacklog(self.store, **bounds)

    async def started(self, *ids: str, key: str | None = None) -> None:
        for id in ids:
            if key is None:
                await self.store.start_call(call(id, f"turn-{id}"), turn=turn(f"turn-{id}"), audit=body(id))
            else:
                started = call(id, f"turn-{id}", idempotency_key=key)
                await self.store.claim_idempotency_key(
                    key, ADA, digest="d", call=started, until=UNTIL, turn=turn(f"turn-{id}")
                )

    async def claimed(self, key: str = "k", digest: str = "d") -> str:
        again = call("again", "turn-again", idempotency_key=key)
        found = await self.store.claim_idempotency_key(
            key, ADA, digest=digest, call=again, until=UNTIL, turn=turn("turn-again")
        )
        return str(found.state)

    def statuses(self) -> dict[str, str]:
        return dict(self.execute("SELECT id, status FROM calls UNION SELECT id, status FROM fresh ORDER BY 1"))

    def logged(self, event: str) -> list[str]:
        bodies = [json.loads(bytes(each)) for (each,) in self.execute("SELECT body FROM audit ORDER BY shard, seq")]
        return [each["id"] for each in bodies if each.get("event") == event]


class OnPostgres(Kept):
    def statuses(self) -> dict[str, str]:
        return dict(self.execute("SELECT id, status FROM calls ORDER BY 1"))


@pytest.fixture(params=["sqlite", "postgres"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kept]:
    names, clock = count(1), Clock()
    is_postgres = request.param == "postgres"
    place = request.getfixturevalue("new_database")() if is_postgres else str(tmp_path / "gateway.db")
    store: Any = await (open_postgres_store if is_postgres else open_sqlite_store)(place, clock=clock)
    log = (PostgresAuditLog if is_postgres else AuditLog)(
        lambda: f"shard-{next(names)}", AuditOrigin("gw"), clock=lambda: to_microseconds(NOON)
    )
    store.use_audit_log(log, abandoned=abandoned)
    made = (OnPostgres if is_postgres else Kept)(store, place)
    yield made
    await made.close()


def body(id: str, event: str = "call-started") -> Sequence[tuple[int, bytes]]:
    return [(to_microseconds(NOON), json.dumps({"event": event, "id": id}).encode())]


def late(id: str, *, results: Sequence[StoredResult] = (), **more: Any) -> LateOutcome:
    done = settled(id, f"turn-{id}", because="it ran", results=results)
    return LateOutcome(done, turn(f"turn-{id}"), audit=body(id, "call-settled"), **more)


async def fail(kept: Kept) -> None:
    with pytest.raises(StoreUnavailable):
        await kept.store.close_interrupted_calls(NOON)


async def test_outcome_is_kept_while_the_store_fails_and_written_when_it_recovers(kept: Kept) -> None:
    store, memory = kept.store, TurnState().to_json()
    await kept.started("a", key="k")
    with kept.broken():
        with pytest.raises(StoreUnavailable):
            await store.record_call(settled("a", "turn-a"), audit=body("a"))
        store.postpone(late("a", results=[small(1)], held=KEY, memory=memory))
        store.leave("turn-a", "a")
        await fail(kept)
        found = await store.find_call("a", ADA, turn_id="turn-a")
        others = [await store.find_call("a", BOB), await store.find_call("a", ADA, turn_id="turn-b")]
        piece = await store.find_blob(small(1).key)
        claims = [await kept.claimed(), await kept.claimed(digest="other")]
    assert kept.statuses() == {"a": "started"}

    assert await store.close_interrupted_calls(NOON) == 0

    assert (found.status, found.because, others) == ("settled", "it ran", [None, None])
    assert (piece, claims) == (b"abc", ["settled", "taken"])
    assert kept.statuses() == {"a": "settled"}
    assert kept.logged("call-settled") == ["a"]
    assert await store.find_blob(small(1).key) == b"abc"
    assert await kept.claimed() == "settled"
    assert await store.read_turn_state("turn-a") == memory


async def test_outcome_of_a_call_without_a_start_is_written_with_its_turn(kept: Kept) -> None:
    kept.store.postpone(late("a", is_started=False))

    await kept.store.close_interrupted_calls(NOON)

    assert kept.statuses() == {"a": "settled"}
    assert (await kept.store.find_turn("turn-a", ADA)).id == "turn-a"


async def test_abandoned_call_is_unknown_on_recovery_and_others_run_on(kept: Kept) -> None:
    await kept.started("left", "runs")
    await kept.started("keyed", key="k")
    with kept.broken():
        for id in ("left", "keyed"):
            kept.store.leave(f"turn-{id}", id)
        await fail(kept)

    assert await kept.store.close_interrupted_calls(NOON) == 2

    assert kept.statuses() == {"keyed": "unknown", "left": "unknown", "runs": "started"}
    assert sorted(kept.logged("call-unknown")) == ["keyed", "left"]
    assert await kept.claimed() == "unknown"
    await kept.store.record_call(settled("runs", "turn-runs"))
    kept.store.leave("turn-runs", "runs")
    assert await kept.store.close_interrupted_calls(NOON) == 0


async def test_given_up_and_refused_calls_are_not_looked_for(kept: Kept) -> None:
    await kept.started("a", "b")
    await kept.store.abandon_call("a", turn_id="turn-a", at=NOON)
    denied = replace(settled("b", "turn-b"), decision="deny")
    await kept.store.refuse(Refusal(ADA, "not-permitted", 9, (), denied, is_started=True))
    for id in ("a", "b"):
        kept.store.leave(f"turn-{id}", id)

    assert await kept.store.close_interrupted_calls(NOON) == 0
    assert kept.statuses() == {"a": "unknown", "b": "settled"}


async def test_second_request_with_the_id_of_a_running_call_does_not_end_it(kept: Kept) -> None:
    await kept.started("a", key="k")
    await kept.started("a", key="k")
    with pytest.raises(Exception, match="started before"):
        await kept.started("a")
    await kept.started("other")
    kept.store.leave("turn-other", "other")

    await kept.store.close_interrupted_calls(NOON)

    assert kept.statuses() == {"a": "started", "other": "unknown"}


async def test_start_that_was_not_written_is_no_running_call(kept: Kept) -> None:
    with kept.broken(), pytest.raises(StoreUnavailable):
        await kept.started("a")

    kept.store.leave("turn-a", "a")

    assert await kept.store.close_interrupted_calls(NOON) == 0
    assert kept.statuses() == {}


async def test_outcomes_above_the_number_are_dropped(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.bound(most=2)
    await kept.started("a", key="k")
    await kept.started("b", "c")
    dropped: list[str] = []
    with kept.broken():
        for outcome in (late("a", held=KEY), late("read", is_started=False), late("b"), late("c")):
            outcome.on_drop = partial(dropped.append, outcome.call.id)
            kept.store.postpone(outcome)
            kept.store.leave(outcome.call.turn_id, outcome.call.id)
        claims = [await kept.claimed(), await kept.claimed(digest="other")]

    assert dropped == ["read", "a"]
    assert claims == ["unknown", "taken"]
    assert "that of call a is dropped" in caplog.text
    assert await kept.store.close_interrupted_calls(NOON) == 1
    assert kept.statuses() == {"a": "unknown", "b": "settled", "c": "settled"}
    assert await kept.claimed() == "unknown"


async def test_results_above_the_bytes_are_dropped_and_their_keys_are_forgotten_in_time(kept: Kept) -> None:
    kept.bound(most=1, most_bytes=100_000)
    large = StoredResult("text", text="x" * 100_000)
    for number in range(3):
        key = HeldKey(f"k{number}", "d", to_microseconds(UNTIL))
        await kept.started(f"c{number}", key=key.key)
        kept.store.postpone(late(f"c{number}", results=[large], held=key))
        kept.store.leave(f"turn-c{number}", f"c{number}")
        assert len(kept.store._backlog) == 0

    assert [await kept.claimed(f"k{number}") for number in range(3)] == ["running", "running", "unknown"]
    assert await kept.store.close_interrupted_calls(NOON) == 3
    assert set(kept.statuses().values()) == {"unknown"}


async def test_refusal_of_a_started_call_frees_its_key_on_recovery(kept: Kept) -> None:
    await kept.started("a", key="k")
    denied = replace(settled("a", "turn-a"), decision="deny", is_error=True)
    refusal = Refusal(ADA, "not-permitted", 9, body("a", "call-decided"), denied, is_started=True)
    with kept.broken():
        with pytest.raises(StoreUnavailable):
            await kept.store.refuse(refusal)
        for _ in range(2):  # the first one wins
            kept.store.postpone(LateOutcome(denied, turn("turn-a"), held=KEY, refusal=refusal))
        kept.store.leave("turn-a", "a")
        await fail(kept)

    assert await kept.store.close_interrupted_calls(NOON) == 0

    assert kept.logged("call-decided") == ["a"]
    assert await kept.store.refusals_by_reason() == {"not-permitted": (1, 0)}
    assert await kept.claimed() == "fresh"


async def test_dropped_refusal_leaves_no_word_about_its_key(kept: Kept) -> None:
    kept.bound(most=0)
    denied = replace(settled("a", "turn-a"), decision="deny")
    refusal = Refusal(ADA, "not-permitted", 9, (), denied, is_started=True)

    kept.store.postpone(LateOutcome(denied, turn("turn-a"), held=KEY, refusal=refusal))

    assert await kept.claimed() == "fresh"


async def test_replaced_store_gets_the_turn_the_outcome_and_the_key(kept: Kept) -> None:
    await kept.started("a", key="k")
    memory = TurnState().to_json()
    kept.execute("DELETE FROM claims", "DELETE FROM calls", "DELETE FROM turns")
    kept.store.postpone(late("a", held=KEY, memory=memory))

    await kept.store.close_interrupted_calls(NOON)

    assert kept.statuses() == {"a": "settled"}
    assert await kept.claimed() == "settled"
    assert await kept.store.read_turn_state("turn-a") == memory


async def test_outcome_that_others_gave_up_stays_unknown(kept: Kept) -> None:
    await kept.started("a")
    kept.execute("UPDATE calls SET status = 'unknown'")
    kept.store.postpone(late("a"))

    assert await kept.store.close_interrupted_calls(NOON) == 0
    assert kept.statuses() == {"a": "unknown"}


async def test_outcome_that_cannot_be_written_at_all_keeps_no_other_one_back(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    await kept.started("a", "b")
    bad = late("a")
    broken: Any = None
    bad.turn = broken
    for each in (bad, late("b")):
        kept.store.postpone(each)
        kept.store.leave(each.call.turn_id, each.call.id)

    assert await kept.store.close_interrupted_calls(NOON) == 1

    assert kept.statuses() == {"a": "unknown", "b": "settled"}
    assert "an outcome cannot be recorded" in caplog.text


async def test_entries_of_the_decision_log_are_written_on_recovery(kept: Kept) -> None:
    with kept.broken():
        for number in range(100):
            kept.store.postpone_audit(body(f"{number:02}", "call-replayed"))
        await fail(kept)

    await kept.store.close_interrupted_calls(NOON)

    assert kept.logged("call-replayed") == [f"{number:02}" for number in range(100)]


async def test_closing_writes_what_can_be_written(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    await kept.started("a")
    kept.store.postpone(late("a"))
    await kept.close()

    assert kept.statuses() == {"a": "settled"}
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_closing_logs_what_could_not_be_written(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    await kept.started("a")
    kept.store.postpone(late("a"))
    with kept.broken():
        await kept.close()

    assert "1 outcomes of calls could not be recorded" in caplog.text
    assert kept.statuses() == {"a": "started"}
