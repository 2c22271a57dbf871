"""The life of an approval: who decides, how often it is used, and when it ends."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.approvals import lifecycle as deciding
from gateway.approvals.approval_store import ApprovalSubject, ApprovalVote
from gateway.approvals.errors import (
    AlreadyDecided,
    ApprovalClosed,
    ApprovalMismatch,
    DisplayChanged,
    InvalidResolution,
    SelfApprovalRefused,
    StaleApproval,
    TooManyPending,
    UnknownApproval,
)
from gateway.approvals.service import ApprovalEventRecord, outcome_error
from gateway.errors import NotPermitted
from gateway.model.caller import Principal
from tests.approvals.held_calls import (
    ADA,
    LEA,
    LEAD,
    LEO,
    LIV,
    MAX,
    NOON,
    STRANGER,
    ApprovalFixture,
    Directory,
    action,
    make_approval_fixture,
    refund,
)

pytestmark = pytest.mark.anyio

APPROVED = {
    "type": "object",
    "required": ["approved"],
    "properties": {"approved": {"const": True}, "note": {"type": "string"}, "limit": {"type": "integer"}},
}


# Picking up and withdrawing


async def test_approval_is_picked_up_once(desk: ApprovalFixture) -> None:
    id = await desk.granted()

    first = await desk.approvals.resume([id], action(), rules=["refunds-over-500"])
    second = await desk.approvals.resume([id], action(), rules=["refunds-over-500"])

    assert (first.state, second.state) == ("taken", "used")
    assert desk.kinds.count("taken") == 1


async def test_picking_up_asks_for_nothing_new(desk: ApprovalFixture) -> None:
    id = await desk.pending()

    waiting = await desk.approvals.resume([id], action(), rules=["refunds-over-500"])
    desk.clock.advance(hours=1)
    late = await desk.approvals.resume([id], action(), rules=["refunds-over-500"])
    forgotten = await desk.approvals.resume(["never-was"], action(), rules=[])

    assert (waiting.state, late.state, forgotten.state) == ("pending", "expired", "expired")
    assert desk.kinds == ["requested", "expired"]


async def test_what_is_picked_up_is_for_this_very_call(desk: ApprovalFixture) -> None:
    id = await desk.granted()

    with pytest.raises(ApprovalMismatch, match="arguments changed"):
        await desk.approvals.resume([id], action(arguments={"amount": 701, "order": "A-1"}), rules=[])
    with pytest.raises(ApprovalMismatch, match="rules changed"):
        await desk.approvals.resume([id], action(), rules=["refunds-over-500", "another"])

    assert (await desk.again()).state == "taken"


async def test_requester_finds_their_own_approvals_of_one_call(desk: ApprovalFixture) -> None:
    one, other = refund(), refund(rule="another")
    standing = await desk.approvals.ask([one, other])
    ids = [each.id for each in standing.approvals]
    elsewhere = await desk.pending(refund(action(arguments={})))
    promoted = replace(ADA, roles=frozenset({"role:agent", LEAD}))

    found = await desk.approvals.find_requested(ADA, ids)

    assert [each.id for each in found] == ids
    for who, wanted in ((LEA, ids), (promoted, ids), (ADA, [*ids, elsewhere]), (ADA, [ids[0], "x"]), (ADA, [])):
        with pytest.raises(UnknownApproval):
            await desk.approvals.find_requested(who, wanted)


async def test_call_that_is_taken_back_is_over(desk: ApprovalFixture) -> None:
    id = await desk.pending()

    with pytest.raises(UnknownApproval):
        await desk.approvals.withdraw(LEA, [id])
    await desk.approvals.withdraw(ADA, [id])
    await desk.approvals.withdraw(ADA, [id])

    assert desk.kinds == ["requested", "withdrawn"]
    assert (await desk.approvals.resume([id], action(), rules=[])).state == "withdrawn"
    with pytest.raises(ApprovalClosed, match="withdrawn already"):
        await desk.approvals.decide(id, LEA, "grant")
    with pytest.raises(ApprovalClosed, match="withdrawn already"):
        await desk.again(named=id)
    anew = await desk.again()
    assert (anew.state, anew.approvals[0].id != id) == ("pending", True)


async def test_used_approval_cannot_be_taken_back(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    await desk.again()

    await desk.approvals.withdraw(ADA, [id])

    assert (await desk.approvals.find(id, ADA)).state == "used"


async def test_webhooks_are_sent_for_withdrawn_approvals(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers={"decided": ["desk"]}) as desk:
        id = await desk.pending()
        await desk.approvals.withdraw(ADA, [id])
        at = desk.clock()
        leased = await desk.store.lease_deliveries("desk", at=at, until=at + timedelta(minutes=1), limit=5)

    assert [(notice.event, notice.state) for notice, _ in leased] == [("decided", "withdrawn")]


# Asking


async def test_asking_again_for_the_same_action_is_the_same_approval(desk: ApprovalFixture) -> None:
    first, second = await desk.again(), await desk.again()

    assert first.approvals == second.approvals
    assert (len(first.requested), len(second.requested)) == (1, 0)
    assert desk.kinds == ["requested"]


async def test_racing_requests_ask_once(desk: ApprovalFixture) -> None:
    standings = await asyncio.gather(*(desk.again() for _ in range(50)))

    assert len({standing.approvals[0].id for standing in standings}) == 1


async def test_approved_call_runs_once(desk: ApprovalFixture) -> None:
    id = await desk.granted()

    first, second = await desk.again(), await desk.again()

    assert (first.state, first.approvals[0].id) == ("taken", id)
    assert second.state == "pending"
    assert second.approvals[0].id != id
    assert (await desk.approvals.find(id, LEA)).used_at == NOON


async def test_hundred_racing_retries_run_once(desk: ApprovalFixture) -> None:
    await desk.granted()

    standings = await asyncio.gather(*(desk.again() for _ in range(100)))

    assert [standing.state for standing in standings].count("taken") == 1


async def test_hundred_waiting_calls_run_once(desk: ApprovalFixture) -> None:
    id = await desk.pending()
    waiting = [asyncio.create_task(desk.again(hold_for=timedelta(seconds=30))) for _ in range(100)]
    await asyncio.sleep(0)

    await desk.approvals.decide(id, LEA, "grant")

    states = [(await each).state for each in waiting]
    assert sorted(set(states)) == ["taken", "used"]
    assert states.count("taken") == 1


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        pytest.param({"arguments": {"amount": 9000, "order": "A-1"}}, "arguments", id="argument"),
        pytest.param({"definition": "d2"}, "definition", id="definition"),
        pytest.param({"revision": "r2"}, "revision", id="policy"),
        pytest.param({"catalogue": "other"}, "catalogue", id="catalogue"),
        pytest.param({"principal": Principal("user:ada", frozenset(), "acme")}, "principal", id="principal"),
    ],
)
async def test_changed_call_is_not_the_approved_one(desk: ApprovalFixture, changes: dict[str, Any], part: str) -> None:
    id = await desk.granted()
    changed = refund(action(**changes))

    standing = await desk.again(changed)
    with pytest.raises(ApprovalMismatch) as refusal:
        await desk.again(changed, named=id)

    assert standing.state == "pending"
    assert standing.resembling is not None
    assert (standing.resembling.id, standing.resembling.differs) == (id, (part,))
    assert refusal.value.differs == (part,)
    assert (await desk.approvals.find(id, LEA)).state == "granted"


async def test_call_of_another_turn_with_other_arguments_resembles_nothing(desk: ApprovalFixture) -> None:
    await desk.granted()

    standing = await desk.again(refund(action(arguments={"amount": 1}), turn_id="another"))
    unrelated = await desk.again(refund(action(arguments={"amount": 2}), turn_id=None))

    assert standing.resembling is None
    assert unrelated.resembling is None


async def test_named_approval_of_the_call_is_taken(desk: ApprovalFixture) -> None:
    id = await desk.granted()

    assert (await desk.again(named=id)).state == "taken"


async def test_named_approval_past_its_time_is_a_mismatch(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    desk.clock.advance(minutes=30)

    with pytest.raises(ApprovalMismatch, match="expiry"):
        await desk.again(named=id)


async def test_named_approval_that_was_used_is_closed(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    await desk.again()

    with pytest.raises(ApprovalClosed):
        await desk.again(named=id)


@pytest.mark.parametrize(
    "principal", [LEA, MAX, Principal("user:ada", tenant="umbrella")], ids=lambda each: each.subject
)
async def test_named_approval_of_another_caller_is_unknown(desk: ApprovalFixture, principal: Principal) -> None:
    id = await desk.granted()

    with pytest.raises(UnknownApproval):
        await desk.again(refund(action(principal)), named=id)


async def test_requester_waits_for_so_many_and_no_more(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", most_pending=2) as desk:
        for amount in (1, 2):
            await desk.pending(refund(action(arguments={"amount": amount})))

        with pytest.raises(TooManyPending):
            await desk.again()
        others = await desk.again(refund(action(MAX)))
        desk.clock.advance(minutes=30)
        later = await desk.again()

    assert (others.state, later.state) == ("pending", "pending")


async def test_asking_and_taking_back_has_the_same_bound(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", most_pending=2) as desk:
        for amount in (1, 2):
            asked = await desk.pending(refund(action(arguments={"amount": amount})))
            await desk.approvals.withdraw(ADA, [asked])

        with pytest.raises(TooManyPending):
            await desk.again()
        desk.clock.advance(minutes=30)
        later = await desk.again()

    assert later.state == "pending"


async def test_call_held_by_two_rules_needs_both(desk: ApprovalFixture) -> None:
    requests = [refund(), refund(rule="large-sums", approvers=("user:liv",))]
    standing = await desk.approvals.ask(requests)
    first, second = (each.id for each in standing.approvals)

    await desk.approvals.decide(first, LEA, "grant")
    between = await desk.approvals.ask(requests)
    await desk.approvals.decide(second, LIV, "grant")
    after = await desk.approvals.ask(requests)

    assert between.state == "pending"
    assert after.state == "taken"
    assert {each.id for each in after.approvals} == {first, second}


async def test_call_is_one_action(desk: ApprovalFixture) -> None:
    with pytest.raises(ValueError, match="one action"):
        await desk.approvals.ask([refund(), refund(action(catalogue="other"))])
    with pytest.raises(ValueError, match="one action"):
        await desk.approvals.ask([])


# Deciding


async def test_enough_approvers_agree(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))

    first = await desk.approvals.decide(id, LEA, "grant", note="fine")
    second = await desk.approvals.decide(id, LEO, "grant")

    assert (first.state, second.state) == ("pending", "granted")
    assert [(each.approver, each.decision, each.note) for each in second.entries] == [
        (LEA, "grant", "fine"),
        (LEO, "grant", None),
    ]
    assert desk.kinds == ["requested", "voted", "decided"]


async def test_approver_counts_once(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))
    await desk.approvals.decide(id, LEA, "grant")

    with pytest.raises(AlreadyDecided):
        await desk.approvals.decide(id, Principal("user:lea", frozenset({LEAD}), "acme"), "grant")

    assert (await desk.approvals.find(id, LEA)).state == "pending"


async def test_racing_votes_of_one_approver_count_once(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))

    votes = await asyncio.gather(*(desk.approvals.decide(id, LEA, "grant") for _ in range(20)), return_exceptions=True)

    assert sum(isinstance(vote, AlreadyDecided) for vote in votes) == 19
    assert len((await desk.approvals.find(id, LEA)).entries) == 1


@pytest.mark.parametrize("roles", [frozenset[str](), frozenset({LEAD}), frozenset({"role:security"})], ids=str)
async def test_requester_cannot_decide_whatever_roles_they_hold(desk: ApprovalFixture, roles: frozenset[str]) -> None:
    desk.directory.roles["user:ada"] = {LEAD}
    id = await desk.pending(refund(approvers=(LEAD, "user:ada")))

    with pytest.raises(SelfApprovalRefused):
        await desk.approvals.decide(id, Principal("user:ada", roles, "acme"), "grant")


@pytest.mark.parametrize(
    "principal",
    [
        pytest.param(MAX, id="no-approver"),
        pytest.param(STRANGER, id="another-tenant"),
        pytest.param(Principal("user:lea"), id="no-tenant"),
        pytest.param(Principal("user:eve", frozenset({"user:lea"}), "acme"), id="role-that-is-a-name"),
    ],
)
async def test_others_do_not_learn_that_it_exists(desk: ApprovalFixture, principal: Principal) -> None:
    desk.directory.roles["user:eve"] = set()
    id = await desk.pending(refund(approvers=(LEAD, "user:lea")))

    for asked in (id, "unknown", "\ud800"):
        with pytest.raises(UnknownApproval):
            await desk.approvals.decide(asked, principal, "grant")
        with pytest.raises(UnknownApproval):
            await desk.approvals.find(asked, principal)


async def test_approver_who_lost_the_role_is_refused(desk: ApprovalFixture) -> None:
    id = await desk.pending()
    del desk.directory.roles["user:lea"]

    with pytest.raises(UnknownApproval):
        await desk.approvals.decide(id, LEA, "grant")


class Fickle(Directory):
    """All callers hold the role `lead` until the directory was read once."""

    def __call__(self, principal: Principal) -> frozenset[str]:
        held, self.roles = self.roles.get(principal.subject, set()), {}
        return frozenset(held)


async def test_role_lost_while_a_vote_is_on_its_way_is_noticed(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", directory=Fickle()) as desk:
        id = await desk.pending()

        with pytest.raises(UnknownApproval):
            await desk.approvals.decide(id, LEA, "grant")

        record = await desk.store.find(id)
        assert record is not None
        assert record.entries == ()


@pytest.mark.parametrize(
    ("approver", "refusal"),
    [
        pytest.param(ADA, SelfApprovalRefused, id="requester"),
        pytest.param(MAX, UnknownApproval, id="no-approver"),
        pytest.param(LEO, ApprovalClosed, id="too-late"),
    ],
)
async def test_vote_itself_refuses_what_it_must(
    desk: ApprovalFixture, approver: Principal, refusal: type[Exception]
) -> None:
    id = await desk.granted()
    entry = ApprovalVote(approver, "grant", NOON, "shown")

    answer = await desk.store.transact(
        lambda table: deciding.decide(table, id, entry, shown_digest="shown", holds=desk.approvals.holds)
    )

    assert type(answer) is refusal


async def test_vote_itself_refuses_a_second_one(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))
    await desk.approvals.decide(id, LEA, "grant")
    entry = ApprovalVote(LEA, "refuse", NOON, "shown")

    answer = await desk.store.transact(
        lambda table: deciding.decide(table, id, entry, shown_digest="shown", holds=desk.approvals.holds)
    )

    assert type(answer) is AlreadyDecided


async def test_one_refusal_ends_it(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))
    await desk.approvals.decide(id, LEA, "grant")

    refused = await desk.approvals.decide(id, LEO, "refuse", note="wrong order")

    assert refused.state == "refused"
    with pytest.raises(ApprovalClosed, match="refused already"):
        await desk.approvals.decide(id, LIV, "grant")


async def test_refusal_stands_as_long_as_the_request_would_have(desk: ApprovalFixture) -> None:
    id = await desk.pending()
    await desk.approvals.decide(id, LEA, "refuse")

    desk.clock.advance(minutes=29)
    standing = await desk.again()
    desk.clock.advance(minutes=1)
    later = await desk.again()

    assert (standing.state, standing.approvals[0].id) == ("refused", id)
    assert (later.state, later.approvals[0].id != id) == ("pending", True)


async def test_decision_keeps_the_digest_of_what_was_shown(desk: ApprovalFixture) -> None:
    id = await desk.pending()

    with pytest.raises(DisplayChanged):
        await desk.approvals.decide(id, LEA, "grant", shown_digest="0" * 64)
    record = await desk.approvals.decide(id, LEA, "grant")

    assert len(record.entries[0].shown_digest) == 64


async def test_wrong_resolution_leaves_it_open_and_explains_why(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(resolution=APPROVED))

    with pytest.raises(InvalidResolution) as missing:
        await desk.approvals.decide(id, LEA, "grant")
    with pytest.raises(InvalidResolution) as wrong:
        await desk.approvals.decide(id, LEA, "grant", resolution={"approved": True, "limit": "many"})
    record = await desk.approvals.decide(
        id, LEA, "grant", resolution={"approved": True, "limit": "1152921504606846976"}
    )

    assert missing.value.message == '"approved" is a required property; the approval stays open'
    assert wrong.value.errors[0]["at"] == "/limit"
    assert record.entries[0].resolution == '{"approved":true,"limit":1152921504606846976}'


@pytest.mark.parametrize(
    ("schema", "resolution", "help"),
    [
        pytest.param(None, {"approved": True}, "leave the resolution out", id="none-is-asked-for"),
        pytest.param(
            *({"type": "object", "additionalProperties": True}, {"a": "x" * 70_000}, "send a smaller one"),
            id="too-large",
        ),
    ],
)
async def test_resolution_that_is_not_asked_for_is_refused(
    desk: ApprovalFixture, schema: Any, resolution: Any, help: str
) -> None:
    id = await desk.pending(refund(resolution=schema))

    with pytest.raises(InvalidResolution) as refused:
        await desk.approvals.decide(id, LEA, "grant", resolution=resolution)

    assert refused.value.help == help
    assert (await desk.approvals.find(id, LEA)).state == "pending"


async def test_refusing_needs_no_resolution(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(resolution=APPROVED))

    assert (await desk.approvals.decide(id, LEA, "refuse")).state == "refused"


async def test_only_possible_voters_may_decide(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))
    record = await desk.approvals.decide(id, LEA, "grant")

    assert [desk.approvals.may_decide(record, each) for each in (LEA, LEO, MAX, ADA)] == [False, True, False, False]


# Revisions


async def test_approval_requested_under_another_revision_cannot_be_granted(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))
    await desk.approvals.decide(id, LEO, "grant")
    desk.served = "r2"

    with pytest.raises(StaleApproval, match="under revision r1, but r2 is served here"):
        await desk.approvals.decide(id, LEA, "grant")
    refused = await desk.approvals.decide(id, LEA, "refuse")

    assert refused.state == "refused"


async def test_stale_is_what_could_be_used_were_it_not_for_the_revision(desk: ApprovalFixture) -> None:
    request = refund(reuse_for=timedelta(minutes=10))
    id = await desk.granted(request)
    granted = await desk.approvals.find(id, ADA)
    await desk.again(request)
    used = await desk.approvals.find(id, ADA)

    before = [desk.approvals.is_stale(each) for each in (granted, used)]
    desk.served = "r2"
    found = [desk.approvals.is_stale(each) for each in (granted, used)]
    desk.clock.advance(minutes=10)

    assert (before, found) == ([False, False], [True, True])
    assert not desk.approvals.is_stale(used)


async def test_changed_revision_is_reported_before_its_changed_policy(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=lambda approver, about: False) as desk:
        id = await desk.pending()
        desk.served = "r2"

        with pytest.raises(StaleApproval):
            await desk.approvals.decide(id, LEA, "grant")


# Using


async def test_approver_who_lost_the_role_since_voids_it(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))
    await desk.approvals.decide(id, LEA, "grant")
    await desk.approvals.decide(id, LEO, "grant")
    del desk.directory.roles["user:leo"]

    standing = await desk.again(refund(needed=2))
    again = await desk.again(refund(needed=2))

    assert (standing.state, standing.approvals[0].id) == ("void", id)
    assert (again.state, again.approvals[0].id != id) == ("pending", True)
    assert desk.kinds[-2:] == ["void", "requested"]


async def test_grant_of_an_approver_who_lost_the_role_does_not_count(desk: ApprovalFixture) -> None:
    id = await desk.pending(refund(needed=2))
    await desk.approvals.decide(id, LEA, "grant")
    del desk.directory.roles["user:lea"]

    second = await desk.approvals.decide(id, LEO, "grant")
    third = await desk.approvals.decide(id, LIV, "grant")

    assert (second.state, third.state) == ("pending", "granted")


async def test_named_approval_that_is_void_is_closed(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    del desk.directory.roles["user:lea"]

    with pytest.raises(ApprovalClosed, match="void already"):
        await desk.again(named=id)


async def test_grant_counts_again_only_for_as_long_as_the_rule_allows(desk: ApprovalFixture) -> None:
    request = refund(reuse_for=timedelta(minutes=10))
    await desk.granted(request)

    states = [(await desk.again(request)).state for _ in range(3)]
    desk.clock.advance(minutes=9, seconds=59)
    last = await desk.again(request)
    desk.clock.advance(seconds=1)
    late = await desk.again(request)

    assert states == ["taken"] * 3
    assert (last.state, late.state) == ("taken", "pending")


async def test_reuse_is_for_the_same_arguments_alone(desk: ApprovalFixture) -> None:
    await desk.granted(refund(reuse_for=timedelta(minutes=10)))

    changed = refund(action(arguments={"amount": 701}), reuse_for=timedelta(minutes=10))

    assert (await desk.again(changed)).state == "pending"


async def test_reuse_ends_with_the_role_of_the_approver(desk: ApprovalFixture) -> None:
    request = refund(reuse_for=timedelta(minutes=10))
    id = await desk.granted(request)
    await desk.again(request)
    del desk.directory.roles["user:lea"]

    standing = await desk.again(request)

    assert (standing.state, standing.approvals[0].id) == ("void", id)


# Time


@pytest.mark.parametrize("vote", ["grant", "refuse"])
async def test_expired_approval_cannot_be_decided(desk: ApprovalFixture, vote: Any) -> None:
    id = await desk.pending()
    desk.clock.advance(minutes=30)

    with pytest.raises(ApprovalClosed, match="expired already"):
        await desk.approvals.decide(id, LEA, vote)


async def test_unused_grant_expires(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    desk.clock.advance(minutes=30)

    standing = await desk.again()

    assert (standing.state, [each.id for each in standing.ended]) == ("pending", [id])
    assert (await desk.approvals.find(id, LEA)).state == "expired"


async def test_what_was_seen_as_over_stays_so_when_the_clock_goes_back(desk: ApprovalFixture) -> None:
    id = await desk.granted()
    desk.clock.advance(minutes=30)
    await desk.approvals.sweep()
    desk.clock.advance(hours=-1)

    standing = await desk.again()

    assert standing.state == "pending"
    assert standing.approvals[0].id != id


async def test_clock_that_jumps_ahead_ends_everything(desk: ApprovalFixture) -> None:
    await desk.pending()
    desk.clock.advance(days=365)

    assert await desk.approvals.sweep() == 1
    assert await desk.approvals.sweep() == 0
    assert desk.kinds == ["requested", "expired"]


async def test_sweeping_ends_all_that_ran_out_of_time(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db", most_pending=1000) as desk:
        requests = [refund(action(arguments={"n": n})) for n in range(250)]
        for some in range(0, len(requests), 25):  # on a busy disk, all of them must fit into the time
            await asyncio.gather(*(desk.pending(each) for each in requests[some : some + 25]))
        desk.clock.advance(minutes=30)

        assert await desk.approvals.sweep() == 250


async def test_what_is_long_over_is_forgotten(desk: ApprovalFixture) -> None:
    await desk.granted()
    await desk.again()
    await desk.pending(refund(action(arguments={"newest": True})))

    desk.clock.advance(days=2)

    assert await desk.approvals.prune(timedelta(days=3)) == 0
    assert await desk.approvals.prune(timedelta(days=1)) == 1


async def test_observer_that_fails_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(announcement: ApprovalEventRecord) -> None:
        raise LookupError

    async with make_approval_fixture(tmp_path / "gateway.db", announce=failing) as desk:
        await desk.granted()
        standing = await desk.again()

    assert standing.state == "taken"
    assert caplog.text.count("an observer of approvals failed") == 3


# Answers to callers


async def test_pending_call_is_asked_to_retry(desk: ApprovalFixture) -> None:
    standing = await desk.again(refund(needed=2))
    await desk.approvals.decide(standing.approvals[0].id, LEA, "grant")

    error = outcome_error(await desk.again(refund(needed=2)), desk.clock())

    assert error is not None
    assert error.code == "E_APPROVAL_PENDING"
    assert error.message == (
        "this call waits for approval (A refund above the limit: 1 of 2 by role:finance-lead); "
        "call again with the same arguments, in 60 s or later: once approved, it runs"
    )


async def test_refused_call_gets_the_approver_s_comment(desk: ApprovalFixture) -> None:
    id = await desk.pending()
    await desk.approvals.decide(id, LEA, "refuse", note="wrong\u202eorder")

    error = outcome_error(await desk.again(), desk.clock())

    assert error is not None
    assert error.message.startswith(r"an approver refused this call: 'wrong\u202eorder'; do not try it again")


async def test_each_outcome_has_its_own_code(desk: ApprovalFixture) -> None:
    await desk.granted()
    taken = await desk.again()
    states: dict[Any, str] = {
        "refused": "E_APPROVAL_REFUSED",
        "expired": "E_APPROVAL_EXPIRED",
        "void": "E_APPROVAL_VOID",
        "used": "E_APPROVAL_USED",
        "withdrawn": "E_APPROVAL_WITHDRAWN",
    }

    errors = {state: outcome_error(replace(taken, state=state), desk.clock()) for state in states}

    assert outcome_error(taken, desk.clock()) is None
    assert {state: error.code for state, error in errors.items() if error} == states


# Policies


async def test_policy_is_asked_before_a_vote_counts(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def may_approve(approver: Principal, about: ApprovalSubject) -> bool:
        asked.append((approver.subject, about.tool))
        return approver == LEO

    async with make_approval_fixture(tmp_path / "gateway.db", may_approve=may_approve) as desk:
        id = await desk.pending()
        record = await desk.approvals.find(id, LEA)
        may = [desk.approvals.may_decide(record, each) for each in (LEA, LEO)]
        with pytest.raises(NotPermitted):
            await desk.approvals.decide(id, LEA, "grant")
        decided = await desk.approvals.decide(id, LEO, "grant")

    assert may == [False, True]
    assert [each.approver for each in decided.entries] == [LEO]
    assert set(asked) == {("user:lea", "payments/refund"), ("user:leo", "payments/refund")}
