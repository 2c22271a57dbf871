"""Revoked tokens are refused by every process on the next request, and after a restart."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.policy.stop_list import (
    InvalidRevocation,
    RevocationNotFound,
    Stop,
    StopChange,
    StopList,
    StopTarget,
)
from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.stop_list import SqlStopList
from tests.storage.sample_records import NOON, Clock

pytestmark = pytest.mark.anyio

STOLEN = Stop(StopTarget("token", "stolen"), "left in a log", "ops", NOON)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite"])
async def two(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[tuple[StopList, StopList]]:
    assert request.param == "sqlite"
    database = tmp_path / "gateway.db"
    stores = [await open_sqlite_store(database) for _ in range(2)]
    notices = [FileChangeSignal(database) for _ in range(2)]
    first, second = (SqlStopList(store.writer, each, clock=clock) for store, each in zip(stores, notices, strict=True))
    yield first, second
    for revocations, board, store in zip((first, second), notices, stores, strict=True):
        revocations.close()
        board.close()
        await store.close()


def is_revoked(revocations: StopList, *ids: str) -> bool:
    return revocations.has_revoked(frozenset(ids))


async def test_revoked_token_is_refused_everywhere(two: tuple[StopList, StopList]) -> None:
    here, there = two
    assert not is_revoked(there, "stolen")

    await here.add(STOLEN)

    assert is_revoked(here, "stolen")
    assert is_revoked(there, "other", "stolen")
    assert not is_revoked(there, "other")
    assert not is_revoked(there)
    assert not is_revoked(there, "\ud800")


@pytest.mark.parametrize(("written", "sent"), [("ABCDEF", "abcdef"), ("abcdef", "ABCDEF")])
async def test_ids_are_compared_without_case(two: tuple[StopList, StopList], written: str, sent: str) -> None:
    await two[0].add(replace(STOLEN, target=StopTarget("token", written)))

    assert is_revoked(two[1], sent)


async def test_restored_token_counts_again(two: tuple[StopList, StopList]) -> None:
    here, there = two
    await here.add(STOLEN)

    change = await there.lift(StopTarget("token", "Stolen"), reason="another one", by="ana")

    assert change == StopChange("lift", STOLEN, "another one", "ana", NOON)
    assert not is_revoked(here, "stolen")


@pytest.mark.parametrize("id", ["unknown", "\ud800"])
async def test_token_that_is_not_revoked_cannot_be_restored(two: tuple[StopList, StopList], id: str) -> None:
    with pytest.raises(RevocationNotFound):
        await two[0].lift(StopTarget("token", id), reason="why not", by="ana")


async def test_revocation_is_forgotten_when_the_token_has_ended(two: tuple[StopList, StopList], clock: Clock) -> None:
    here, there = two
    await here.add(replace(STOLEN, until=NOON + timedelta(hours=1)))
    assert is_revoked(there, "stolen")

    clock.advance(hours=1)

    assert not is_revoked(there, "stolen")
    assert await there.list_revoked_tokens() == []
    with pytest.raises(RevocationNotFound):
        await there.lift(StopTarget("token", "stolen"), reason="over", by="ana")
    await here.add(replace(STOLEN, target=StopTarget("token", "another")))
    assert [each.target.name for each in await there.list_revoked_tokens()] == ["another"]


async def test_change_and_its_audit_are_written_together(two: tuple[StopList, StopList]) -> None:
    seen: list[StopChange] = []

    def also(connection: sqlite3.Connection, change: StopChange) -> None:
        assert connection.in_transaction
        seen.append(change)

    changes = [await two[0].add(STOLEN, also=also)]
    changes.append(await two[0].lift(StopTarget("token", "stolen"), reason="found", by="ana", also=also))

    assert seen == changes


async def test_unknown_revocations_are_reported(two: tuple[StopList, StopList], tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "gateway.db") as connection:
        connection.execute("DROP TABLE revocations")

    with pytest.raises(StoreUnavailable):
        is_revoked(two[0], "stolen")
    connection.close()


@pytest.mark.parametrize("words", ["", " ", "two\nlines", "x" * 1001, "\ud800", "\0"])
def test_what_is_no_line_of_text_is_refused(words: str) -> None:
    with pytest.raises(InvalidRevocation, match="not the id of a token"):
        replace(STOLEN, target=StopTarget("token", words))
    with pytest.raises(InvalidRevocation, match="not one line of text"):
        replace(STOLEN, reason=words)
    with pytest.raises(InvalidRevocation, match="not one line of text"):
        replace(STOLEN, by=words)


def test_revocation_as_data_for_programs() -> None:
    assert replace(STOLEN, until=NOON + timedelta(days=1)).to_dict() == {
        "token": "stolen",
        "reason": "left in a log",
        "by": "ops",
        "since": "2026-05-01T12:00:00Z",
        "until": "2026-05-02T12:00:00Z",
    }
    assert STOLEN.to_dict()["until"] is None
