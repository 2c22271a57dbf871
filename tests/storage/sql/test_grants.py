"""Grants in a store: durable, and seen by every process from the moment a change returns."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import StoreUnavailable
from gateway.model import Principal
from gateway.policy.grants.grant import Grant, GrantClosed, GrantLedger, UnknownGrant
from gateway.policy.grants.grant_service import GrantChange, GrantRights, GrantService
from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.sql.grants import RETAINED_FOR, SqlGrantStore
from gateway.storage.sql.postgres.database_setup import migrate_postgres
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.postgres.heartbeat import PostgresChangeSignal
from gateway.storage.sql.read_only_store import list_grants
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.policy.grants.test_lifecycle import HOUR, KIM, LEA, OPS, POLICIES, make_grant, make_request, roles_of
from tests.storage.sample_records import Clock

pytestmark = pytest.mark.anyio

Stores = tuple[SqlGrantStore, SqlGrantStore]


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = make_request().requested_at
    return clock


@pytest.fixture(params=["sqlite", "postgres"])
async def two(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Stores]:
    """Two openings of one store, like those of two processes."""
    stores: list[Any]
    notices: list[Any]
    if request.param == "sqlite":
        stores = [await open_sqlite_store(tmp_path / "gateway.db") for _ in range(2)]
        notices = [FileChangeSignal(tmp_path / "gateway.db") for _ in range(2)]
    else:
        address = request.getfixturevalue("new_database")()
        migrate_postgres(address)
        stores = [await open_postgres_store(address) for _ in range(2)]
        notices = [PostgresChangeSignal(each.engine.pulse, each.writer) for each in stores]
    made = [SqlGrantStore(store.writer, each, clock=clock) for store, each in zip(stores, notices, strict=True)]
    yield made[0], made[1]
    for grants, board, store in zip(made, notices, stores, strict=True):
        grants.close()
        board.close()
        await store.close()


@pytest.fixture
def database(tmp_path: Path, two: Stores) -> Path:
    return tmp_path / "gateway.db"


async def put(store: SqlGrantStore, grant: Grant) -> Grant:
    return await store.change(lambda found: GrantChange("approve", grant, LEA, "reason", grant.requested_at))


def service(store: SqlGrantStore, clock: Clock) -> GrantService:
    rights = GrantRights(lambda: POLICIES, roles_of, lambda principal: principal.subject == OPS.subject)
    return GrantService(store, rights, clock=clock)


async def test_stored_grant_is_the_same_in_every_process(two: Stores) -> None:
    here, there = two
    tenant: dict[str, Any] = {
        "tenant": "acme",
        "requester": replace(KIM, tenant="acme"),
        "decider": replace(LEA, tenant="acme"),
    }
    grants = [make_request("a"), make_grant("b"), make_grant("c", **tenant), make_request("d", state="refused")]
    assert there.current() == GrantLedger()

    for each in grants:
        await put(here, each)

    assert sorted(await there.list_grants(), key=lambda each: each.id) == grants
    assert [each.id for each in there.current().grants] == ["b", "c"]
    assert there.current().by_recipient[None, "user:kim"] == [grants[1]]
    assert there.problem is None


async def test_change_of_one_process_is_seen_by_the_next_decision_of_another(two: Stores, clock: Clock) -> None:
    here, there = service(two[0], clock), service(two[1], clock)

    asked = await here.request(KIM, subject="user:kim", role="role:oncall", duration=HOUR, reason="INC-42")
    nothing = two[1].current().grants
    approved = await there.approve(asked.id, LEA)
    seen = two[0].current().grants
    revoked = await here.revoke(asked.id, KIM)

    assert (asked.status(clock()), approved.status(clock()), nothing, seen) == ("pending", "in-force", (), (approved,))
    assert [each.state for each in two[1].current().grants] == ["revoked"]
    assert revoked.revoked_by == "user:kim"
    assert [each.id for each in await there.list_visible(LEA)] == [asked.id]
    assert await there.list_visible(Principal("user:eve")) == []
    assert there.now() == clock()


async def test_refused_changes_leave_nothing(two: Stores, clock: Clock) -> None:
    grants = service(two[0], clock)
    asked = await grants.request(KIM, subject="user:kim", role="role:oncall", duration=HOUR, reason="INC-42")
    refused = await grants.refuse(asked.id, LEA)

    with pytest.raises(GrantClosed):
        await grants.approve(asked.id, LEA)
    with pytest.raises(UnknownGrant):
        await grants.revoke(asked.id, Principal("user:eve"))
    with pytest.raises(UnknownGrant):
        await grants.revoke("another", OPS)

    assert await two[1].list_grants() == [refused]


async def test_one_of_two_decisions_at_once_counts(two: Stores, clock: Clock) -> None:
    here, there = service(two[0], clock), service(two[1], clock)
    asked = await here.request(KIM, subject="user:kim", role="role:oncall", duration=HOUR, reason="INC-42")
    found: list[Any] = []

    async def decide(change: Callable[[str, Principal], Any]) -> None:
        try:
            found.append((await change(asked.id, LEA)).state)
        except GrantClosed:
            found.append(None)

    async with anyio.create_task_group() as group:
        for change in (here.approve, there.refuse, there.approve, here.refuse):
            group.start_soon(decide, change)

    [state] = [each for each in found if each is not None]
    assert [each.state for each in await two[0].list_grants()] == [state]


async def test_what_is_over_for_long_is_deleted(two: Stores, clock: Clock) -> None:
    here, there = two
    await put(here, make_grant("over"))
    await put(here, make_request("lapsed"))
    clock.advance(days=RETAINED_FOR.days + 1)
    await put(here, make_grant("new", clock()))

    assert [each.id for each in await there.list_grants()] == ["new"]


async def test_hook_writes_in_the_same_transaction(two: Stores, tmp_path: Path, clock: Clock) -> None:
    changes: list[GrantChange] = []

    def fail(connection: Any, change: GrantChange) -> None:
        changes.append(change)
        raise ValueError("no entry")

    two[0]._also = fail
    with pytest.raises(ValueError, match="no entry"):
        await put(two[0], make_grant())

    assert len(changes) == 1
    assert await two[1].list_grants() == []


@pytest.mark.parametrize("two", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "damage",
    ["DROP TABLE grants", "UPDATE grants SET decider = 'nobody'", "UPDATE grants SET requester_roles = '5'"],
)
async def test_grants_that_cannot_be_read_are_unknown(two: Stores, database: Path, damage: str) -> None:
    await put(two[0], make_grant())
    with sqlite3.connect(database) as connection:
        connection.execute(damage)
    connection.close()
    await FileChangeSignal(database).publish()

    with pytest.raises(StoreUnavailable):
        two[1].current()

    assert two[1].problem is not None


@pytest.mark.parametrize("two", ["sqlite"], indirect=True)
async def test_commands_read_grants_of_a_store(two: Stores, database: Path) -> None:
    await put(two[0], make_grant())

    assert list_grants(database) == [make_grant()]
    with pytest.raises(StoreUnavailable):
        list_grants(database.with_name("none.db"))
