"""Revoked tokens: refused by every process on the next request, and after a restart."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from stored_records import NOON, Clock

from gateway.errors import StoreUnavailable
from gateway.governance.revocations import (
    InvalidRevocation,
    NotRevoked,
    Revocation,
    RevocationChange,
    Revocations,
)
from gateway.storage.notices import Notices
from gateway.storage.revocations import SqliteRevocations
from gateway.storage.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

STOLEN = Revocation("stolen", "left in a log", "ops", NOON)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite"])
async def two(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> AsyncIterator[tuple[Revocations, Revocations]]:
    assert request.param == "sqlite"
    database = tmp_path / "gateway.db"
    stores = [await SqliteStore.open(database) for _ in range(2)]
    notices = [Notices(database) for _ in range(2)]
    first, second = (
        SqliteRevocations(store.writer, each, clock=clock) for store, each in zip(stores, notices, strict=True)
    )
    yield first, second
    for revocations, board, store in zip((first, second), notices, stores, strict=True):
        revocations.close()
        board.close()
        await store.close()


def is_revoked(revocations: Revocations, *ids: str) -> bool:
    return revocations.has_any(frozenset(ids))


async def test_revoked_token_is_refused_everywhere(two: tuple[Revocations, Revocations]) -> None:
    here, there = two
    assert not is_revoked(there, "stolen")

    await here.revoke(STOLEN)

    assert is_revoked(here, "stolen")
    assert is_revoked(there, "other", "stolen")
    assert not is_revoked(there, "other")
    assert not is_revoked(there)
    assert not is_revoked(there, "\ud800")


@pytest.mark.parametrize(("written", "sent"), [("ABCDEF", "abcdef"), ("abcdef", "ABCDEF")])
async def test_ids_are_compared_without_case(two: tuple[Revocations, Revocations], written: str, sent: str) -> None:
    await two[0].revoke(replace(STOLEN, token_id=written))

    assert is_revoked(two[1], sent)


async def test_restored_token_counts_again(two: tuple[Revocations, Revocations]) -> None:
    here, there = two
    await here.revoke(STOLEN)

    change = await there.restore("Stolen", reason="another one", by="ana")

    assert change == RevocationChange("restore", STOLEN, "another one", "ana", NOON)
    assert not is_revoked(here, "stolen")


@pytest.mark.parametrize("id", ["unknown", "\ud800"])
async def test_token_that_is_not_revoked_cannot_be_restored(two: tuple[Revocations, Revocations], id: str) -> None:
    with pytest.raises(NotRevoked):
        await two[0].restore(id, reason="why not", by="ana")


async def test_revocation_is_forgotten_when_the_token_has_ended(
    two: tuple[Revocations, Revocations], clock: Clock
) -> None:
    here, there = two
    await here.revoke(replace(STOLEN, until=NOON + timedelta(hours=1)))
    assert is_revoked(there, "stolen")

    clock.advance(hours=1)

    assert not is_revoked(there, "stolen")
    assert await there.listed() == []
    with pytest.raises(NotRevoked):
        await there.restore("stolen", reason="over", by="ana")
    await here.revoke(replace(STOLEN, token_id="another"))
    assert [each.token_id for each in await there.listed()] == ["another"]


async def test_change_and_its_audit_are_written_together(two: tuple[Revocations, Revocations]) -> None:
    seen: list[RevocationChange] = []

    def also(connection: sqlite3.Connection, change: RevocationChange) -> None:
        assert connection.in_transaction
        seen.append(change)

    changes = [await two[0].revoke(STOLEN, also=also)]
    changes.append(await two[0].restore("stolen", reason="found", by="ana", also=also))

    assert seen == changes


async def test_unknown_revocations_are_told(two: tuple[Revocations, Revocations], tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "gateway.db") as connection:
        connection.execute("DROP TABLE revocations")

    with pytest.raises(StoreUnavailable):
        is_revoked(two[0], "stolen")
    connection.close()


@pytest.mark.parametrize("words", ["", " ", "two\nlines", "x" * 1001, "\ud800", "\0"])
def test_what_is_no_line_of_text_is_refused(words: str) -> None:
    with pytest.raises(InvalidRevocation, match="no id of a token"):
        replace(STOLEN, token_id=words)
    with pytest.raises(InvalidRevocation, match="not one line of text"):
        replace(STOLEN, reason=words)
    with pytest.raises(InvalidRevocation, match="not one line of text"):
        replace(STOLEN, by=words)


def test_revocation_as_data_for_programs() -> None:
    assert replace(STOLEN, until=NOON + timedelta(days=1)).as_data() == {
        "token": "stolen",
        "reason": "left in a log",
        "by": "ops",
        "since": "2026-05-01T12:00:00Z",
        "until": "2026-05-02T12:00:00Z",
    }
    assert STOLEN.as_data()["until"] is None
