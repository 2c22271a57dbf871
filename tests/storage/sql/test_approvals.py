"""The contract of every approval store, whatever its engine."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.approvals.approval_store import (
    ApprovalFilter,
    ApprovalRecord,
    ApprovalRequest,
    ApprovalStore,
    ApprovalSubject,
    ApprovalTransaction,
    ApprovalVote,
    WebhookDelivery,
)
from gateway.errors import StoreUnavailable
from gateway.model.caller import Principal
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.postgres.engine import PostgresStore, open_postgres_store
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.storage.sample_records import ADA, BOB, NOON, OTHER_ADA
from tests.support.ready_databases import put_ready_database

pytestmark = pytest.mark.anyio

LEAD = "role:lead"
LEA = Principal("user:lea", tenant="acme")
HOUR = timedelta(hours=1)


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ApprovalStore]:
    opened: SqliteStore | PostgresStore
    if request.param == "postgres":
        opened = await open_postgres_store(request.getfixturevalue("new_database")())
    else:
        opened = await open_sqlite_store(put_ready_database(tmp_path / "gateway.db"))
    yield SqlApprovalStore(opened.writer, opened.reader)
    await opened.close()


def approval(id: str = "a", principal: Principal = ADA, **changes: Any) -> ApprovalRecord:
    action = ApprovalSubject(
        principal, "support", "payments/refund", "d1", "r1", '{"amount":700}', changes.pop("digest", id)
    )
    request = ApprovalRequest(action, "refund", "rule", "gates.yaml:1:1", "because", (LEAD,), HOUR)
    request = replace(request, **{name: changes.pop(name) for name in list(changes) if hasattr(request, name)})
    return replace(ApprovalRecord(id, request, NOON, NOON + HOUR), **changes)


async def added(store: ApprovalStore, *records: ApprovalRecord) -> list[ApprovalRecord]:
    return await store.transact(lambda table: [table.add(each) for each in records])


async def list_ids(store: ApprovalStore, viewer: Principal = LEA, **wanted: Any) -> list[str]:
    names = frozenset({viewer.subject, LEAD}) if viewer == LEA else viewer.names
    filter = ApprovalFilter(viewer, names, wanted.pop("at", NOON), **wanted)
    found, _ = await store.list_page(filter, limit=100)
    return [each.id for each in found]


async def test_approval_is_found_as_it_was_added(store: ApprovalStore) -> None:
    whole = approval(
        needed=2,
        show=("amount", "é"),
        resolution={"type": "object", "properties": {"b": {}, "a": {}}},
        reuse_for=timedelta(minutes=10),
        turn_id="turn",
        call_id="call",
        state="granted",
        decided_at=NOON + timedelta(microseconds=1),
        reuse_until=NOON + HOUR,
        used_at=NOON,
        used_by="token",
        entries=(
            ApprovalVote(LEA, "grant", NOON, "shown", "a note", '{"n":12345678901234567890}'),
            ApprovalVote(BOB, "refuse", NOON, "shown"),
        ),
    )

    [given] = await added(store, whole)
    found = await store.find("a")

    assert found == given == whole
    assert found is not None
    assert found.changed == given.changed == 1


@pytest.mark.parametrize("id", ["unknown", "\ud800", ""], ids=["unknown", "half-a-pair", "empty"])
async def test_what_is_not_there_is_not_found(store: ApprovalStore, id: str) -> None:
    assert await store.find(id) is None


async def test_only_what_may_change_is_changed(store: ApprovalStore) -> None:
    [record] = await added(store, approval())
    other = approval(
        reason="another", expires_at=NOON, state="granted", entries=(ApprovalVote(LEA, "grant", NOON, "s"),)
    )

    await store.transact(lambda table: table.update(other, "decided"))

    assert await store.find("a") == replace(record, state="granted", entries=other.entries)


async def test_approver_has_one_entry_whatever_the_program_does(store: ApprovalStore) -> None:
    await added(store, approval())
    twice = (ApprovalVote(LEA, "grant", NOON, "s"), ApprovalVote(LEA, "grant", NOON, "s"))

    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        await store.transact(lambda table: table.update(approval(entries=twice), "voted"))


async def test_action_has_one_open_approval_for_a_rule_whatever_the_program_does(store: ApprovalStore) -> None:
    await added(store, approval("a", digest="d"))
    await added(store, approval("b", digest="d", rule="another"), approval("c", digest="d", state="used"))

    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError)):
        await added(store, approval("e", digest="d", state="granted"))


async def test_work_that_fails_leaves_nothing_behind(store: ApprovalStore) -> None:
    def failing(table: ApprovalTransaction) -> None:
        table.add(approval())
        raise LookupError

    with pytest.raises(LookupError):
        await store.transact(failing)

    assert await store.find("a") is None


async def test_what_can_still_matter_to_an_action_is_found(store: ApprovalStore) -> None:
    later = NOON + timedelta(minutes=5)
    await added(
        store,
        approval("pending", digest="d"),
        approval("other", digest="e"),
        approval("reusable", digest="d", state="used", reuse_until=later + HOUR),
        approval("used", digest="d", state="used"),
        approval("used-up", digest="d", state="used", reuse_until=later),
        approval("refused", digest="d", state="refused"),
        approval("refused-before", digest="d", state="refused", expires_at=later),
        approval("void", digest="d", state="void"),
        approval("expired", digest="d", state="expired"),
    )

    found = await store.transact(lambda table: [each.id for each in table.find_by_digest("d", later)])

    assert found == ["refused", "reusable", "pending"]


async def test_pending_ones_are_counted_for_each_requester(store: ApprovalStore) -> None:
    await added(
        store,
        approval("a"),
        approval("b", state="granted"),
        approval("c", expires_at=NOON),
        approval("d", principal=BOB),
        approval("e", principal=OTHER_ADA),
    )

    assert await store.transact(lambda table: table.count_pending(ADA, NOON)) == 1


async def test_what_a_request_resembles_is_found(store: ApprovalStore) -> None:
    await added(
        store,
        approval("same-arguments"),
        approval("used", state="used"),
        approval("of-somebody-else", principal=BOB),
    )
    request = approval("new").request
    elsewhere = replace(request, action=replace(request.action, arguments="{}"))

    found = await store.transact(lambda table: (table.find_similar(request), table.find_similar(elsewhere)))

    assert [each and each.id for each in found] == ["same-arguments", None]


async def test_overdue_ones_are_found_in_the_order_of_their_end(store: ApprovalStore) -> None:
    minutes = {"b": 2, "a": 1, "c": 3, "d": 61}
    await added(store, *(approval(id, expires_at=NOON + timedelta(minutes=m)) for id, m in minutes.items()))

    found = await store.transact(lambda table: [each.id for each in table.find_overdue(NOON + HOUR, limit=2)])

    assert found == ["a", "b"]


# Lists


async def test_approvers_and_requesters_see_their_own(store: ApprovalStore) -> None:
    await added(
        store,
        approval("a"),
        approval("b", approvers=("role:other", "user:lea")),
        approval("c", approvers=("role:other",)),
        approval("d", principal=LEA, approvers=(LEAD,)),
        approval("e", principal=OTHER_ADA),
        approval("f", approvers=("user:lea'] or 1=1 --", "*")),
    )

    assert await list_ids(store) == ["d", "b", "a"]
    assert await list_ids(store, role="approver") == ["b", "a"]
    assert await list_ids(store, role="requester") == ["d"]
    assert await list_ids(store, ADA) == ["f", "c", "b", "a"]
    assert await list_ids(store, ADA, role="approver") == []
    assert await list_ids(store, OTHER_ADA) == ["e"]
    assert await list_ids(store, BOB) == []


async def test_lists_are_narrowed_by_state_as_of_now(store: ApprovalStore) -> None:
    past = NOON - HOUR
    await added(
        store,
        approval("pending"),
        approval("overdue", expires_at=past),
        approval("granted", state="granted"),
        approval("unused", state="granted", expires_at=past),
        approval("refused", state="refused", expires_at=past),
        approval("expired", state="expired"),
        approval("used", state="used", expires_at=past),
        approval("void", state="void"),
    )

    assert await list_ids(store, state="pending") == ["pending"]
    assert await list_ids(store, state="granted") == ["granted"]
    assert await list_ids(store, state="expired") == ["expired", "unused", "overdue"]
    assert await list_ids(store, state="refused") == ["refused"]
    assert await list_ids(store, state="used") == ["used"]
    assert await list_ids(store, state="void") == ["void"]


async def test_lists_are_narrowed_by_tool(store: ApprovalStore) -> None:
    await added(store, approval("a"), approval("b", advertised="deploy"))

    assert await list_ids(store, tool="deploy", state="pending") == ["b"]
    assert await list_ids(store, tool="\ud800") == []


async def test_pages_follow_each_other_whatever_is_added(store: ApprovalStore) -> None:
    await added(store, *(approval(f"a{n}") for n in range(5)))
    filter = ApprovalFilter(ADA, ADA.names, NOON)

    first, cursor = await store.list_page(filter, limit=2)
    await added(store, approval("newer"))
    second, further = await store.list_page(filter, limit=2, before=cursor)
    third, end = await store.list_page(filter, limit=2, before=further)

    assert [each.id for each in [*first, *second, *third]] == ["a4", "a3", "a2", "a1", "a0"]
    assert end is None


@pytest.mark.parametrize("cursor", ["", "-1", "1.5", "x", "9" * 19, "\u0661"])
async def test_text_that_is_no_cursor_is_refused(store: ApprovalStore, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor is not valid"):
        await store.list_page(ApprovalFilter(ADA, ADA.names, NOON), limit=1, before=cursor)


@pytest.mark.parametrize("limit", [0, 201])
async def test_pages_have_a_size(store: ApprovalStore, limit: int) -> None:
    with pytest.raises(ValueError, match="a page has 1 to 200 approvals"):
        await store.list_page(ApprovalFilter(ADA, ADA.names, NOON), limit=limit)


# Changes


async def test_changes_are_read_in_order_and_once(store: ApprovalStore) -> None:
    assert await store.list_changes(0) == []
    [first, _] = await added(store, approval("a"), approval("b"))
    assert await store.list_changes(0) == [("a", 1), ("b", 2)]

    await store.transact(lambda table: table.update(replace(first, state="granted"), "decided"))

    assert await store.list_changes(0) == [("b", 2), ("a", 3)]
    assert await store.list_changes(2) == [("a", 3)]
    assert await store.list_changes(3) == []
    assert await store.transact(lambda table: table.latest_change()) == 3


async def test_numbers_of_changes_never_go_back(store: ApprovalStore) -> None:
    await added(store, *(approval(f"a{n}", state="used") for n in range(450)))

    assert await store.prune(NOON + timedelta(days=90), kept=HOUR) == 449
    [after] = await added(store, approval("new"))

    assert after.changed == 451


async def test_pruning_keeps_what_is_open_reusable_or_young(store: ApprovalStore) -> None:
    after = NOON + HOUR
    await added(
        store,
        approval("gone", state="expired", entries=(ApprovalVote(LEA, "grant", NOON, "s"),)),
        approval("pending"),
        approval("granted", state="granted"),
        approval("young", state="expired", expires_at=after + HOUR),
        approval("reusable", state="used", reuse_until=after + HOUR),
        approval("newest"),
    )

    assert await store.prune(after + timedelta(seconds=1), kept=timedelta()) == 1
    assert await list_ids(store) == ["newest", "reusable", "young", "granted", "pending"]


async def test_retention_counts_from_the_decision(store: ApprovalStore) -> None:
    day = timedelta(days=1)
    long: dict[str, Any] = {"expires_at": NOON + 10 * day}
    await added(
        store,
        approval("used", state="used", decided_at=NOON + day, used_at=NOON + 3 * day, **long),
        approval("late", state="refused", decided_at=NOON + 9 * day, **long),
        approval("granted then over", state="expired", decided_at=NOON + day, **long),
        approval("void", state="void", decided_at=NOON + day, **long),
        approval("undecided", state="expired", **long),
        approval("taken back", state="withdrawn", **long),
        approval("newest", **long),
    )
    kept = 5 * day

    assert await store.prune(NOON + 10 * day, kept=kept) == 0, "none has lost its effect"
    assert await store.prune(NOON + 10 * day + HOUR, kept=kept) == 3
    assert await list_ids(store) == ["newest", "taken back", "undecided", "late"]
    assert await store.prune(NOON + 14 * day, kept=kept) == 0
    assert await store.prune(NOON + 14 * day + HOUR, kept=kept) == 1
    assert await list_ids(store) == ["newest", "taken back", "undecided"]
    assert await store.prune(NOON + 15 * day, kept=kept) == 0
    assert await store.prune(NOON + 15 * day + HOUR, kept=kept) == 2


async def test_refusal_stands_until_it_ends_however_short_the_retention(store: ApprovalStore) -> None:
    await added(store, approval("no", state="refused", decided_at=NOON), approval("newest"))

    assert await store.prune(NOON + HOUR / 2, kept=timedelta(milliseconds=1)) == 0
    found = await store.transact(lambda table: table.find_by_digest("no", NOON + HOUR / 2))
    assert [each.id for each in found] == ["no"]


# Notices


def notice(id: str, approval_id: str = "a", **changes: Any) -> WebhookDelivery:
    return replace(WebhookDelivery(id, "chat", "requested", approval_id, "pending", NOON), **changes)


async def test_notice_is_leased_to_one_until_it_is_dropped(store: ApprovalStore) -> None:
    [record] = await added(store, approval())
    await store.transact(lambda table: table.add_delivery(notice("n"), most=10))
    until, later = NOON + timedelta(minutes=1), NOON + timedelta(minutes=2)

    first = await store.lease_deliveries("chat", at=NOON, until=until, limit=5)
    meanwhile = await store.lease_deliveries("chat", at=NOON, until=until, limit=5)
    again = await store.lease_deliveries("chat", at=until, until=later, limit=5)
    await store.delete_delivery("n")

    assert first == [(notice("n", attempts=1), record)]
    assert meanwhile == []
    assert [each.attempts for each, _ in again] == [2]
    assert await store.lease_deliveries("chat", at=later, until=later, limit=5) == []
    assert await store.lease_deliveries("other", at=later, until=later, limit=5) == []


async def test_notice_waits_as_long_as_it_is_delayed(store: ApprovalStore) -> None:
    await added(store, approval())
    await store.transact(lambda table: table.add_delivery(notice("n"), most=10))

    await store.postpone_delivery("n", until=NOON + HOUR)

    assert await store.lease_deliveries("chat", at=NOON, until=NOON, limit=5) == []
    assert len(await store.lease_deliveries("chat", at=NOON + HOUR, until=NOON, limit=5)) == 1


async def test_so_many_notices_wait_and_no_more(store: ApprovalStore) -> None:
    await added(store, approval())

    kept = await store.transact(
        lambda table: (
            [table.add_delivery(notice(f"n{n}"), most=2) for n in range(3)]
            + [table.add_delivery(notice("other", webhook="mail"), most=2)]
        )
    )

    assert kept == [True, True, False, True]


async def test_approval_is_pruned_after_its_notices(store: ApprovalStore) -> None:
    await added(store, approval("a", state="used"), approval("newest"))
    await store.transact(lambda table: table.add_delivery(notice("n", at=NOON + 2 * HOUR), most=1))

    assert await store.prune(NOON + 2 * HOUR, kept=timedelta()) == 0
    assert await store.prune(NOON + 3 * HOUR, kept=timedelta()) == 1


async def test_closed_store_is_reported_as_closed(tmp_path: Path) -> None:
    opened = await open_sqlite_store(put_ready_database(tmp_path / "gateway.db"))
    store = SqlApprovalStore(opened.writer, opened.reader)
    await opened.close()

    with pytest.raises(StoreUnavailable):
        await store.find("a")
    with pytest.raises(StoreUnavailable):
        await added(store, approval())
