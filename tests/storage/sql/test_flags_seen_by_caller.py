"""What callers have seen, in both databases: stored per caller, renewed, visible to other processes, and expired."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.model.caller import Principal
from gateway.policy.rules.expression_analysis import LONGEST_LOOKBACK
from gateway.storage.sql import flags_seen_by_caller as stored
from gateway.storage.sql.call_rows import to_microseconds
from gateway.storage.sql.flags_seen_by_caller import StoredSightings
from gateway.storage.sql.postgres.database_setup import migrate_postgres
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.storage.sample_records import NOON, Clock

pytestmark = pytest.mark.anyio

ANA, ELSEWHERE = Principal("user:ana", tenant="acme"), Principal("user:ana", tenant="other")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Any]:
    if request.param == "sqlite":
        opened: Any = await open_sqlite_store(tmp_path / "gateway.db", clock=clock)
    else:
        address = request.getfixturevalue("new_database")()
        migrate_postgres(address)
        opened = await open_postgres_store(address, clock=clock)
    yield opened
    await opened.close()


async def test_each_caller_has_their_own_and_other_processes_know_them(store: Any, clock: Clock) -> None:
    here, there = (StoredSightings(store.writer, store.reader, clock=clock) for _ in range(2))
    await here.note(ANA, ["egress", "untrusted-output"])
    clock.advance(minutes=5)
    await there.note(ANA, ["egress"])
    await here.note(ELSEWHERE, [])

    noon = to_microseconds(NOON)
    assert await here.of(ANA) == {"egress": noon + 300_000_000, "untrusted-output": noon}
    assert await there.of(ELSEWHERE) == {}


async def test_sighting_is_renewed_but_not_at_every_call(store: Any, clock: Clock, monkeypatch: Any) -> None:
    monkeypatch.setattr(stored, "_REMEMBERED", 1)
    sightings = StoredSightings(store.writer, store.reader, clock=clock)
    await sightings.note(ANA, ["egress"])
    clock.advance(milliseconds=900)
    await sightings.note(ANA, ["egress"])
    first = await sightings.of(ANA)
    clock.advance(milliseconds=200)
    await sightings.note(ANA, ["egress"])
    second = await sightings.of(ANA)
    clock.advance(seconds=-30)  # the clock was set back: the later sighting remains
    await sightings.note(ANA, ["egress", "writes"])
    third = await sightings.of(ANA)

    noon = to_microseconds(NOON)
    assert (first, second) == ({"egress": noon}, {"egress": noon + 1_100_000})
    assert third["egress"] == second["egress"]


async def test_what_no_rule_can_look_back_to_is_forgotten(store: Any, clock: Clock) -> None:
    sightings = StoredSightings(store.writer, store.reader, clock=clock)
    await sightings.note(ANA, ["egress"])
    clock.advance(seconds=LONGEST_LOOKBACK.total_seconds() - 1)
    await sightings.note(ANA, ["writes"])
    await store.prune(clock())
    before = await sightings.of(ANA)
    clock.advance(seconds=timedelta(seconds=2).total_seconds())
    pruned = await store.writer.run(lambda connection: stored.prune(connection, at=to_microseconds(clock())))

    assert set(before) == {"egress", "writes"}
    assert (set(await sightings.of(ANA)), pruned) == ({"writes"}, 1)
