"""Sums of calls and approvals in an open SQLite store, with single-call rows, and in an open PostgreSQL store."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from gateway.approvals.approval_store import ApprovalVote
from gateway.errors import StoreUnavailable
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.call_usage import StoredUsage, StoredUse, count_usage
from gateway.storage.sql.postgres.connection import open_read_only_session
from gateway.storage.sql.postgres.engine import PostgresStore, open_postgres_store
from gateway.storage.sql.read_only_store import RemoteStore, StoreLocation
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.storage.sample_records import ADA, BOB, NOON, OTHER_ADA, call, settled, turn
from tests.storage.sql.test_approvals import LEA, added, approval
from tests.support.ready_databases import put_ready_database

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)


@dataclass
class OpenStore:
    store: SqliteStore | PostgresStore
    location: StoreLocation


@pytest.fixture(params=["sqlite", "postgres"])
async def opened(
    request: pytest.FixtureRequest, tmp_path: Path, new_database: Callable[[], str]
) -> AsyncIterator[OpenStore]:
    if request.param == "postgres":
        address = new_database()
        remote = await open_postgres_store(address)
        yield OpenStore(remote, RemoteStore(partial(open_read_only_session, address)))
        await remote.close()
    else:
        path = put_ready_database(tmp_path / "gateway.db")
        local = await open_sqlite_store(path)
        yield OpenStore(local, path)
        await local.close()


def uses_of(found: StoredUsage) -> set[StoredUse]:
    return set(found.uses)


async def test_empty_store_shows_no_use(opened: OpenStore) -> None:
    assert count_usage(opened.location, since=NOON) == StoredUsage((), None)


async def test_calls_are_summed_by_principal_and_tool(opened: OpenStore) -> None:
    store = opened.store
    await store.open_turn(turn())
    await store.record_call(settled("old", created_at=NOON - 40 * DAY))
    await store.record_call(settled("held", decision="hold", created_at=NOON + timedelta(minutes=1)))
    await store.record_call(settled("undecided", decision=None, created_at=NOON + timedelta(minutes=2)))
    await store.record_call(settled("failed", is_error=True))
    await store.record_call(settled("denied", decision="deny", created_at=NOON + DAY))
    await store.record_call(settled("query", identity="artifact_grep", from_artifact_tool=True))
    await store.start_call(call("running", decision="allow", identity="tickets/other"))
    for number, principal in enumerate([BOB, BOB, OTHER_ADA]):
        id = f"turn-{number}"
        await store.record_single_call(settled(f"single-{number}", id, principal), turn(id, principal))
    await store.record_single_call(settled("again", "turn-3"), turn("turn-3"))

    found = count_usage(opened.location, since=NOON - 30 * DAY)

    newest, identity = NOON + timedelta(minutes=2), "tickets/ticket_create"
    assert uses_of(found) == {
        StoredUse("call", ADA, "support", identity, 4, newest),
        StoredUse("call", ADA, "support", "tickets/other", 1, NOON),
        StoredUse("call", BOB, "support", identity, 2, NOON),
        StoredUse("call", OTHER_ADA, "support", identity, 1, NOON),
    }
    assert found.oldest == NOON - 40 * DAY


async def test_use_before_the_period_counts_zero_with_its_time(opened: OpenStore) -> None:
    await opened.store.record_single_call(settled(), turn())

    found = count_usage(opened.location, since=NOON + DAY)

    assert uses_of(found) == {StoredUse("call", ADA, "support", "tickets/ticket_create", 0, NOON)}


async def test_decisions_of_approvers_are_summed(opened: OpenStore) -> None:
    approvals = SqlApprovalStore(opened.store.writer, opened.store.reader)
    votes = (ApprovalVote(LEA, "grant", NOON, "shown"), ApprovalVote(BOB, "refuse", NOON - 40 * DAY, "shown"))
    await added(approvals, approval("one", entries=votes), approval("two", entries=votes[:1]))

    found = count_usage(opened.location, since=NOON - 30 * DAY)

    assert uses_of(found) == {
        StoredUse("approve", LEA, "support", "payments/refund", 2, NOON),
        StoredUse("approve", BOB, "support", "payments/refund", 0, NOON - 40 * DAY),
    }


def test_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    path.write_bytes(b"")

    with pytest.raises(StoreUnavailable):
        count_usage(path, since=NOON)
