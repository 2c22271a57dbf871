"""Requests, approvals, refusals and revocations of grants, and what of them is in force."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.errors import GatewayError, StoreUnavailable
from gateway.model import Principal
from gateway.policy.forward_clock import ForwardClock
from gateway.policy.grants.grant import (
    Grant,
    GrantClosed,
    GrantLedger,
    GrantRefused,
    InvalidGrant,
    UnknownGrant,
    require_duration,
    require_reason,
    require_role,
    require_subject,
)
from gateway.policy.grants.grant_limits import measure_spans, why_not_in_force
from gateway.policy.grants.granted_roles import GrantedRoles
from gateway.policy.grants.lifecycle import (
    MAX_GRANTS,
    MAX_OF_REQUESTER,
    MAX_PENDING,
    approve_grant,
    find_grant,
    may_see,
    refuse_grant,
    request_grant,
    revoke_grant,
)
from gateway.registries import GrantPolicy, Position

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
KIM = Principal("user:kim", frozenset({"role:engineer"}))
LEA = Principal("user:lea", frozenset({"role:lead"}))
LEO = Principal("user:leo", frozenset({"role:lead", "role:engineer"}))
OPS = Principal("user:ops")
POLICY = GrantPolicy(
    *("incidents", ("role:oncall", "role:admin"), ("role:engineer",), ("role:lead",)),
    max_duration=2 * HOUR,
    max_total=4 * HOUR,
    period=24 * HOUR,
    max_active=2,
    position=Position("a.yaml", 1),
)
POLICIES = {"incidents": POLICY}


def roles_of(names: frozenset[str]) -> frozenset[str]:
    return names


def make_request(id: str = "g1", requester: Principal = KIM, **changes: Any) -> Grant:
    of = Grant(
        id,
        requester.subject,
        requester.tenant,
        "role:oncall",
        "incidents",
        HOUR,
        "INC-42",
        requester,
        NOON,
        NOON + HOUR,
    )
    return replace(of, **changes)


def make_grant(id: str = "g1", since: datetime = NOON, **changes: Any) -> Grant:
    made = make_request(id, state="approved", decider=LEA, decided_at=since, since=since, until=since + HOUR)
    return replace(made, **changes)


def request(new: Grant, grants: Sequence[Grant] = (), *, operator: bool = False, **policy: Any) -> Grant:
    policies = {"incidents": replace(POLICY, **policy)}
    return request_grant(grants, replace(new, policy=""), policies, may_ask_for_others=operator, roles_of=roles_of)


def approve(grants: Sequence[Grant], decider: Principal = LEA, at: datetime = NOON, **policy: Any) -> Grant:
    return approve_grant(grants, "g1", decider, {"incidents": replace(POLICY, **policy)}, at, roles_of)


def why(grant: Grant, at: datetime = NOON, others: Sequence[Grant] = (), who: Principal = KIM, **policy: Any) -> Any:
    return why_not_in_force(grant, who, replace(POLICY, **policy), [*others, grant], at, roles_of)


# Requests


def test_request_takes_the_first_policy_that_fits() -> None:
    short = replace(POLICY, name="brief", max_duration=timedelta(minutes=1))

    found = request_grant(
        (), make_request(), {"incidents": POLICY, "brief": short}, may_ask_for_others=False, roles_of=roles_of
    )

    assert found.policy == "incidents"


REFUSED: dict[str, tuple[Grant, dict[str, Any], str]] = {
    "a role of no policy": (make_request(role="role:root"), {}, "no grant policy allows role:root for user:kim"),
    "a requester who is no recipient": (make_request(requester=LEA), {}, "no grant policy"),
    "too long": (make_request(duration=3 * HOUR), {}, "is granted for 2:00:00 at most"),
    "for another": (make_request(subject="user:eve"), {}, "only operators request grants for others"),
    "for the same name in another tenant": (make_request(tenant="acme"), {}, "only operators"),
    "a policy for others": (make_request(), {"recipients": ("user:ana",)}, "no grant policy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_request_that_no_policy_allows_is_refused(name: str) -> None:
    new, policy, words = REFUSED[name]
    with pytest.raises(GrantRefused, match=words):
        request(new, **policy)


def test_operator_requests_for_another() -> None:
    found = request(make_request(requester=OPS, subject="user:kim"), operator=True)

    assert (found.subject, found.requester) == ("user:kim", OPS)


def test_requests_of_one_caller_are_bounded() -> None:
    pending = [make_request(f"g{number}", role=f"role:r{number}") for number in range(MAX_PENDING)]
    lapsed = [replace(each, lapses_at=NOON) for each in pending]

    with pytest.raises(GrantRefused, match="too many"):
        request(make_request("new"), pending)
    assert request(make_request("new"), lapsed).id == "new"


def test_stored_grants_are_bounded() -> None:
    others = [make_grant(requester=OPS)] * (MAX_GRANTS - 1)

    assert request(make_request("new"), others).id == "new"
    with pytest.raises(GrantRefused, match="too many"):
        request(make_request("new"), [*others, *others[:1]])
    with pytest.raises(GrantRefused, match="too many"):
        request(make_request("new"), [make_request(state="revoked")] * MAX_OF_REQUESTER)


def test_same_role_is_requested_once_at_a_time() -> None:
    with pytest.raises(GrantRefused, match="is requested for user:kim already"):
        request(make_request("g2"), [make_request()])


# Decisions


def test_approved_grant_begins_at_the_approval() -> None:
    found = approve([make_request()], at=NOON + HOUR / 2)

    assert (found.state, found.decider, found.since) == ("approved", LEA, NOON + HOUR / 2)
    assert found.until == NOON + HOUR * 1.5
    assert found.status(NOON + HOUR) == "in-force"
    assert found.status(NOON + HOUR * 1.5) == "ended"


def test_refused_grant_is_closed() -> None:
    refused = refuse_grant([make_request()], "g1", LEA, POLICIES, NOON, roles_of)

    assert (refused.status(NOON), refused.decider) == ("refused", LEA)
    with pytest.raises(GrantClosed, match="refused already"):
        approve([refused])


NOT_APPROVED: dict[str, tuple[Grant, Principal, dict[str, Any], type[GatewayError]]] = {
    "the recipient": (make_request(requester=LEO), LEO, {}, GrantRefused),
    "the requester": (make_request(requester=LEO, subject="user:kim"), LEO, {}, GrantRefused),
    "no approver": (make_request(), OPS, {}, UnknownGrant),
    "an approver of another tenant": (make_request(), replace(LEA, tenant="acme"), {}, UnknownGrant),
    "too late": (make_request(lapses_at=NOON), LEA, {}, GrantClosed),
    "approved already": (make_grant(), LEA, {}, GrantClosed),
    "revoked": (make_request(state="revoked"), LEA, {}, GrantClosed),
    "a shorter policy": (make_request(), LEA, {"max_duration": HOUR / 2}, GrantRefused),
    "a policy without the role": (make_request(), LEA, {"roles": ("role:admin",)}, GrantRefused),
    "a policy that is gone": (make_request(policy="gone"), KIM, {}, GrantRefused),
    "less in total": (make_request(), LEA, {"max_total": HOUR - timedelta(seconds=1)}, GrantRefused),
    "unknown": (make_request("g2"), LEA, {}, UnknownGrant),
}


@pytest.mark.parametrize("name", NOT_APPROVED)
def test_grant_is_not_approved(name: str) -> None:
    grant, decider, policy, error = NOT_APPROVED[name]
    with pytest.raises(error):
        approve([grant], decider, **policy)


def test_approved_grants_do_not_exceed_the_number_in_force() -> None:
    others = [make_grant(f"o{number}", subject=f"user:{number}") for number in range(2)]

    with pytest.raises(GrantRefused, match="allows 2 grants at once"):
        approve([make_request(), *others])
    assert approve([make_request(), *(replace(each, until=NOON) for each in others)]).state == "approved"


def test_total_counts_earlier_and_running_grants_once() -> None:
    earlier = make_grant("g0", NOON - 2 * HOUR, until=NOON)
    running = make_grant("g2", NOON - HOUR / 2, until=NOON + HOUR / 2)

    approve([make_request(), earlier, running], max_total=3 * HOUR)
    with pytest.raises(GrantRefused, match="for longer than incidents allows"):
        approve([make_request(), earlier, running], max_total=3 * HOUR - timedelta(seconds=1))


def test_revoked_grant_is_over() -> None:
    revoked = revoke_grant([make_grant()], "g1", "user:ops", NOON + HOUR / 2)

    assert (revoked.status(NOON), revoked.revoked_by, revoked.ends_at) == ("revoked", "user:ops", NOON + HOUR / 2)
    assert not revoked.is_running(NOON)
    with pytest.raises(GrantClosed, match="revoked already"):
        revoke_grant([revoked], "g1", "user:ops", NOON)
    with pytest.raises(GrantClosed, match="ended already"):
        revoke_grant([make_grant()], "g1", "user:ops", NOON + HOUR)


def test_parties_approvers_and_operators_see_a_grant() -> None:
    grant = make_request(requester=OPS, subject="user:kim")

    def seen(viewer: Principal, *, operator: bool = False, policies: Any = POLICIES) -> bool:
        return may_see(grant, viewer, policies, roles_of, is_operator=operator)

    eve = Principal("user:eve")
    assert [seen(each) for each in (KIM, OPS, LEA, eve, replace(LEA, tenant="acme"))] == [
        *(True, True, True, False, False)
    ]
    assert (seen(eve, operator=True), seen(LEA, policies={})) == (True, False)
    assert find_grant([grant], "g1") is grant


# What is in force


def test_grant_is_in_force_from_its_approval_to_its_end() -> None:
    grant = make_grant()

    assert why(grant) is None
    assert why(grant, NOON + HOUR - timedelta(microseconds=1)) is None
    assert (
        why(grant, NOON - timedelta(microseconds=1)) == why(grant, NOON + HOUR) == "it is not approved, or it is over"
    )
    assert why(make_request()) == "it is not approved, or it is over"


NOT_IN_FORCE: dict[str, tuple[dict[str, Any], Principal, dict[str, Any], str]] = {
    "for another caller": ({}, LEO, {}, "another caller"),
    "in another tenant": ({}, replace(KIM, tenant="acme"), {}, "another caller"),
    "of another role": ({}, KIM, {"roles": ("role:admin",)}, "no policy 'incidents' allows role:oncall"),
    "of a shorter policy": ({}, KIM, {"max_duration": timedelta(0)}, "shorter time"),
    "of a caller who left": ({}, Principal("user:kim"), {}, "does not allow grants to user:kim"),
    "by its recipient": ({"decider": replace(LEO, subject="user:kim")}, KIM, {}, "its approver may not"),
    "by its requester": ({"requester": LEA}, KIM, {}, "its approver may not"),
    "by no approver": ({"decider": OPS}, KIM, {}, "its approver may not"),
    "by no one": ({"decider": None}, KIM, {}, "its approver may not"),
    "beyond the total": ({}, KIM, {"max_total": timedelta(0)}, "allows less time"),
    "beyond the number": ({}, KIM, {"max_active": 0}, "allows 0 grants at once"),
}


@pytest.mark.parametrize("name", NOT_IN_FORCE)
def test_grant_that_the_served_policy_does_not_allow_adds_nothing(name: str) -> None:
    changes, who, policy, words = NOT_IN_FORCE[name]

    assert words in why(make_grant(**changes), who=who, **policy)


def test_grant_of_a_policy_that_is_gone_adds_nothing() -> None:
    grant = make_grant()

    assert why_not_in_force(grant, KIM, None, [grant], NOON, roles_of) == "no policy 'incidents' allows role:oncall"


def test_oldest_grants_keep_their_place() -> None:
    first, second, third = (
        make_grant(f"g{number}", NOON + number * timedelta(minutes=1), subject=f"user:{number}", role="role:admin")
        for number in range(3)
    )
    of = [replace(KIM, subject=f"user:{number}") for number in range(3)]
    at = NOON + timedelta(minutes=5)

    found = [why(each, at, [first, second, third], who) for each, who in zip((first, second, third), of, strict=True)]

    assert found == [None, None, "incidents allows 2 grants at once"]


def test_time_is_measured_once_where_spans_overlap() -> None:
    minutes = [NOON + number * timedelta(minutes=1) for number in range(20)]
    spans = [(minutes[0], minutes[5]), (minutes[3], minutes[8]), (minutes[4], minutes[6]), (minutes[10], minutes[19])]

    assert measure_spans(spans, minutes[2], minutes[12]) == timedelta(minutes=8)
    assert measure_spans(spans, minutes[8], minutes[10]) == timedelta(0)


class Source:
    def __init__(self, *grants: Grant, error: Exception | None = None) -> None:
        self.ledger, self.error = GrantLedger.of(grants), error

    def current(self) -> GrantLedger:
        if self.error is not None:
            raise self.error
        return self.ledger


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (Source(make_grant(), make_grant("g2", role="role:admin")), ["g1", "g2"]),
        (Source(make_grant(subject="user:ana")), []),
        (Source(), []),
        (Source(error=StoreUnavailable()), []),
        (Source(error=KeyError()), []),
    ],
)
def test_grants_that_cannot_be_known_add_nothing(source: Source, expected: list[str]) -> None:
    granted = GrantedRoles(POLICIES, source, roles_of, clock=lambda: NOON)

    assert [each.id for each in granted.find(KIM)] == expected


def test_ledger_is_a_source_of_itself() -> None:
    ledger = GrantLedger.of([make_grant()])

    assert ledger.current() is ledger


# Values


@pytest.mark.parametrize(
    "check",
    [
        lambda: require_subject("role:lead"),
        lambda: require_subject("user:"),
        lambda: require_subject("user:kim\n"),
        lambda: require_role("user:kim"),
        lambda: require_role("role:*"),
        lambda: require_reason(" "),
        lambda: require_reason("a\nb"),
        lambda: require_reason("\u202e"),
        lambda: require_reason("x" * 1001),
        lambda: require_duration(timedelta(0)),
        lambda: require_duration(timedelta(days=7, seconds=1)),
        lambda: require_duration(timedelta.max),
    ],
)
def test_invalid_values_are_refused(check: Any) -> None:
    with pytest.raises(InvalidGrant):
        check()


def test_grant_as_data_names_everything() -> None:
    pending, approved = make_request().to_dict(NOON), make_grant().to_dict(NOON)

    assert (pending["status"], pending["since"], pending["decidedBy"]) == ("pending", None, None)
    assert make_request().to_dict(NOON + HOUR)["status"] == "lapsed"
    assert approved["since"] == "2026-11-19T12:00:00Z"
    assert (approved["status"], approved["decidedBy"], approved["seconds"]) == ("in-force", "user:lea", 3600)


def test_clock_goes_forward_only() -> None:
    moments = iter([NOON, NOON + HOUR, NOON, NOON + 2 * HOUR])
    clock = ForwardClock(lambda: next(moments))

    assert [clock(), clock(), clock()] == [NOON + HOUR, NOON + HOUR, NOON + 2 * HOUR]
