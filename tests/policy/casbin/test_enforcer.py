"""The authoriser's answers: verdict, explaining row, and a refusal of everything unusual."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.errors import ProgramError
from gateway.policy.authoriser import AccessDecision, AccessRequest, Authoriser
from gateway.policy.casbin.enforcer import CasbinAuthoriser, explain_decision
from gateway.policy.casbin.lint import KnownNames
from gateway.policy.casbin.policy_files import PolicySet, read_policies
from gateway.registries.diagnostics import Position
from tests.policy.casbin.policy_samples import RANKS, permission, policy_set, request
from tests.support.paths import ROOT

TIERS = {"internal": 0, "partner": 1, "quarantine": 2}
EXAMPLE = policy_set(
    [
        "role:reader,       *,           tool:*,        discover,         quarantine, allow",
        "role:engineer,     engineering, tool:*,        invoke,           partner,    allow",
        "role:engineer,     engineering, class:ticket,  read,             partner,    allow",
        "role:sre,          operations,  tool:deploy_*, invoke|approve,   internal,   allow",
        "role:finance-lead, *,           class:payment, invoke|approve,   internal,   allow",
        "role:security,     *,           tool:*,        discover|approve, quarantine, allow",
        "role:agent,        *,           class:payment, invoke,           quarantine, deny",
    ],
    [
        "role:engineer,     role:reader",
        "role:sre,          role:reader",
        "user:ana,          role:engineer",
        "agent:release-bot, role:agent",
        "agent:release-bot, role:engineer",
    ],
    ["tool:payment_refund, class:payment", "tool:ticket_create, class:ticket"],
)


def make_request(
    *names: str, do: str = "invoke", on: str, at: str = "engineering", tier: str = "internal"
) -> AccessRequest:
    return AccessRequest(frozenset(names), at, on, do, tier)


@pytest.mark.parametrize(
    ("question", "line"),
    [
        (make_request("user:ana", on="tool:ticket_create"), 2),
        (make_request("user:ana", on="tool:ticket_create", tier="partner"), 2),
        (make_request("user:ana", on="tool:ticket_create", do="discover", tier="quarantine"), 1),
        (make_request("user:ana", on="class:ticket", do="read"), 3),
        (make_request("user:ana", on="tool:ticket_create", do="read"), 3),
        (make_request("user:ana", on="tool:payment_refund"), 2),
        (make_request("agent:release-bot", on="tool:ticket_create"), 2),
        (make_request("user:bo", "role:sre", on="tool:deploy_start", at="operations"), 4),
        (make_request("user:kim", "role:finance-lead", on="tool:payment_refund", at="finance"), 5),
    ],
)
def test_allowed_call_names_the_allowing_row(question: AccessRequest, line: int) -> None:
    decision = CasbinAuthoriser(EXAMPLE, ranks=TIERS).decide(question)

    assert decision.allowed
    assert decision.row == Position("policy.csv", line)
    assert decision.subject == EXAMPLE.permissions[line - 1].subject.text
    assert decision.reason == f"allowed to {decision.subject} by policy.csv:{line}"


@pytest.mark.parametrize("subject", ["service:billing", "user:auth0|5f7c", "user:https://login/1~a"])
def test_subject_is_compared_as_a_whole(subject: str) -> None:
    policies = policy_set([f"{subject}, *, tool:*, invoke, internal, allow"], [], [])
    authoriser = CasbinAuthoriser(policies, ranks=TIERS)

    assert authoriser.decide(make_request(subject, on="tool:log")).allowed
    assert not authoriser.decide(make_request(subject[:-1], on="tool:log")).allowed
    assert not authoriser.decide(make_request("user:auth0", on="tool:log")).allowed


@pytest.mark.parametrize(
    "question",
    [
        make_request("user:eve", on="tool:ticket_create", do="discover"),
        make_request("user:ana", on="tool:ticket_create", at="operations"),
        make_request("user:ana", on="tool:ticket_create", tier="quarantine"),
        make_request("user:ana", on="tool:ticket_create", do="approve"),
        make_request("user:ana", on="config", do="administer"),
        make_request("user:ana", on="catalogue:engineering", do="discover"),
        make_request("user:bo", "role:sre", on="tool:redeploy_start", at="operations"),
    ],
    ids=["stranger", "other catalogue", "riskier tier", "other verb", "configuration", "other kind", "anchored glob"],
)
def test_what_no_row_allows_is_denied(question: AccessRequest) -> None:
    decision = CasbinAuthoriser(EXAMPLE, ranks=TIERS).decide(question)

    assert decision == AccessDecision(False, "no row of the policy matches")


def test_denied_call_names_the_denying_row() -> None:
    decision = CasbinAuthoriser(EXAMPLE, ranks=TIERS).decide(
        make_request("agent:release-bot", on="tool:payment_refund")
    )

    assert decision == AccessDecision(
        False, "denied to role:agent by policy.csv:7", Position("policy.csv", 7), "role:agent"
    )


def test_other_roles_cannot_overrule_a_deny() -> None:
    authoriser = CasbinAuthoriser(EXAMPLE, ranks=TIERS)
    alone = make_request("role:engineer", "role:finance-lead", on="tool:payment_refund")
    together = make_request("role:engineer", "role:finance-lead", "role:agent", on="tool:payment_refund")

    assert authoriser.decide(alone).allowed
    assert authoriser.decide(together).row == Position("policy.csv", 7)


def test_first_row_by_file_and_line_is_named() -> None:
    row = "role:a, *, tool:*, invoke, internal, allow"
    rows = [
        permission(row, line=9, file="a.csv"),
        permission(row, line=10, file="a.csv"),
        permission(row, file="b.csv"),
    ]

    decisions = {
        CasbinAuthoriser(PolicySet(tuple(order)), ranks=RANKS).decide(request("role:a"))
        for order in (rows, rows[::-1], [rows[1], rows[2], rows[0]])
    }

    assert {decision.row for decision in decisions} == {Position("a.csv", 9)}


def test_same_question_gets_the_same_answer_from_memory() -> None:
    authoriser = CasbinAuthoriser(EXAMPLE, ranks=TIERS)

    first, again, later = [authoriser.decide(make_request("user:ana", on="tool:ticket_create")) for _ in range(3)]

    assert again == first
    assert later is again
    assert (first.is_cached, again.is_cached) == (False, True)


def test_each_subject_holds_the_same_however_many_ask_in_between() -> None:
    authoriser = CasbinAuthoriser(EXAMPLE, ranks=TIERS)
    ana = frozenset({"user:ana"})

    held = authoriser.roles_of(ana)
    others = [authoriser.roles_of(frozenset({f"user:nobody-{number}"})) for number in range(3_000)]

    assert held == {"user:ana", "role:engineer", "role:reader"}
    assert authoriser.roles_of(ana) == held
    assert others == [{f"user:nobody-{number}"} for number in range(3_000)]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
def test_small_memory_changes_no_answer(size: int) -> None:
    large, small = CasbinAuthoriser(EXAMPLE, ranks=TIERS), CasbinAuthoriser(EXAMPLE, ranks=TIERS, cache_size=size)
    questions = [make_request("user:ana", on=f"tool:t{number % 5}", do="invoke") for number in range(20)]
    questions += [make_request("user:ana", on=f"tool:t{number % 2}", do="read") for number in range(20)]

    assert [small.decide(one) for one in questions] == [large.decide(one) for one in questions]


def test_memory_keeps_what_is_asked_again_and_drops_the_rest() -> None:
    authoriser = CasbinAuthoriser(EXAMPLE, ranks=TIERS, cache_size=4)
    often, once = make_request("user:ana", on="tool:often"), make_request("user:ana", on="tool:once")
    _, _, first, other = [authoriser.decide(each) for each in (often, once, often, once)]

    for number in range(10):
        authoriser.decide(make_request("user:ana", on=f"tool:t{number}"))
        assert authoriser.decide(often) is first

    assert authoriser.decide(once) is not other
    assert authoriser.decide(once) == other


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (request(), "the caller has no name"),
        (request("user:ana", ""), "one of the caller's names is not a legal subject"),
        (request("user:ana", "*"), "one of the caller's names is not a legal subject"),
        (request("role:a\n"), "one of the caller's names is not a legal subject"),
        (request("role:a", catalogue=""), "there is no such catalogue"),
        (request("role:a", catalogue="*"), "there is no such catalogue"),
        (request("role:a", catalogue="eng\n"), "there is no such catalogue"),
        (request("role:a", object="tool:*"), "there is no such object"),
        (request("role:a", object="tool:a/../b"), "there is no such object"),
        (request("role:a", object="tool:log\n"), "there is no such object"),
        (request("role:a", object="x" * 1_000_000), "there is no such object"),
        (request("role:a", action="*"), "there is no such action"),
        (request("role:a", action="invoke|read"), "there is no such action"),
        (request("role:a", tier="unheard"), "there is no such tier"),
        (request("role:a", tier=""), "there is no such tier"),
    ],
)
def test_names_outside_the_alphabet_are_denied(question: AccessRequest, reason: str) -> None:
    policies = policy_set([f"role:a, *, {kind}, invoke, quarantine, allow" for kind in ("tool:*", "class:*", "config")])

    assert CasbinAuthoriser(policies, ranks=RANKS).decide(question) == AccessDecision(False, reason)


@pytest.mark.parametrize(
    ("question", "allowed"),
    [
        (request("role:a"), True),
        (request("role:a", object="class:text"), True),
        (request("role:a", object="prompt:any"), True),
        (request("role:a", catalogue="ghost"), False),
        (request("role:a", object="tool:ghost"), False),
        (request("role:a", object="class:ghost"), False),
        (request("role:a", object="catalogue:ghost"), False),
    ],
)
def test_undeclared_name_is_denied_where_names_are_known(question: AccessRequest, allowed: bool) -> None:
    rows = [f"role:a, *, {kind}:*, invoke, quarantine, allow" for kind in ("tool", "class", "catalogue", "prompt")]
    known = KnownNames(tools=frozenset({"log"}), classes=frozenset({"text"}), catalogues=frozenset({"eng"}))

    assert CasbinAuthoriser(policy_set(rows), ranks=RANKS, known=known).decide(question).allowed is allowed


class Unhashable(str):
    def __hash__(self) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        (None, "AttributeError"),
        (AccessRequest(cast(Any, ["role:a"]), "eng", "tool:log", "invoke", "internal"), "TypeError"),
        (AccessRequest(cast(Any, frozenset({1})), "eng", "tool:log", "invoke", "internal"), "AttributeError"),
        (AccessRequest(frozenset({"role:a"}), cast(Any, 7), "tool:log", "invoke", "internal"), "TypeError"),
        (AccessRequest(frozenset({"role:a"}), "eng", cast(Any, None), "invoke", "internal"), "AttributeError"),
        (AccessRequest(frozenset({"role:a"}), "eng", "tool:log", "invoke", Unhashable("internal")), "RuntimeError"),
    ],
    ids=["nothing", "list of names", "number as name", "number as catalogue", "no object", "raising hash"],
)
def test_any_exception_is_a_denial(question: Any, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    authoriser = CasbinAuthoriser(policy_set(["role:a, *, tool:*, invoke, quarantine, allow"]), ranks=RANKS)

    decision = authoriser.decide(question)

    assert decision == AccessDecision(False, f"authorisation failed ({kind})")
    assert [record.message for record in caplog.records] == ["authorisation failed"]


ALLOW = permission("role:a, *, tool:*, invoke, internal, allow", line=1)
DENY = permission("role:a, *, tool:*, invoke, internal, deny", line=2)


@pytest.mark.parametrize(
    ("verdict", "rows"),
    [(True, []), (True, [DENY]), (True, [ALLOW, DENY]), (False, [ALLOW]), (cast(Any, 1), [ALLOW])],
    ids=["allowed by nothing", "allowed by a deny", "allowed despite a deny", "denied by an allow", "not a boolean"],
)
def test_verdict_that_rows_do_not_explain_is_a_denial(verdict: bool, rows: list[Any]) -> None:
    reason = "the policy engine and the explanation of its verdict disagree"

    assert explain_decision(verdict, rows) == AccessDecision(False, reason)


def test_verdict_that_rows_explain_stands() -> None:
    assert explain_decision(True, [ALLOW]).row == ALLOW.position
    assert explain_decision(False, [ALLOW, DENY]).row == DENY.position
    assert explain_decision(False, []).row is None


@pytest.mark.parametrize(
    ("policies", "code"),
    [
        (policy_set(["role:a, *, tool:*, invoke, internal, dney"]), "policy-effect"),
        (policy_set(["role:a, *, tool:*, invoke, unheard, deny"]), "unknown-tier"),
        (policy_set(["*, *, tool:*, invoke, internal, deny"]), "bad-name"),
        (policy_set([], ["role:a, role:a"]), "role-cycle"),
    ],
)
def test_rows_with_errors_make_no_authoriser(policies: PolicySet, code: str) -> None:
    with pytest.raises(ProgramError, match=f"the first: .*: {code}: "):
        CasbinAuthoriser(policies, ranks=RANKS)


def test_later_change_of_ranks_changes_no_decision() -> None:
    ranks = {"internal": 0, "partner": 1}
    authoriser: Authoriser = CasbinAuthoriser(policy_set(["role:a, *, tool:*, invoke, internal, allow"]), ranks=ranks)

    ranks["partner"] = 0

    assert not authoriser.decide(request("role:a", tier="partner")).allowed


def test_many_threads_get_the_answers_of_one() -> None:
    questions = [
        make_request(who, do=verb, on=f"tool:{tool}", at=where, tier=tier)
        for who in ("user:ana", "agent:release-bot", "user:eve")
        for verb in ("invoke", "discover", "read")
        for tool in ("payment_refund", "ticket_create", "deploy_start")
        for where in ("engineering", "operations")
        for tier in TIERS
    ]
    expected = [CasbinAuthoriser(EXAMPLE, ranks=TIERS).decide(one) for one in questions]
    shared = CasbinAuthoriser(EXAMPLE, ranks=TIERS, cache_size=16)

    with ThreadPoolExecutor(8) as pool:
        rounds = list(pool.map(lambda _: [shared.decide(one) for one in questions], range(8)))

    assert rounds == [expected] * 8


def test_decisions_are_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        CasbinAuthoriser(EXAMPLE, ranks=TIERS).decide(make_request("user:eve", on="tool:x"))

    assert [record for record in caplog.records if record.name.startswith("casbin.enforcer")] == []


def test_folder_is_read_and_decided_upon(tmp_path: Path) -> None:
    model = ROOT / "policies" / "model.conf"
    (tmp_path / "model.conf").write_bytes(model.read_bytes())
    (tmp_path / "policy.csv").write_text("# who\np, role:a, *, tool:*, invoke, partner, allow\n")
    (tmp_path / "roles.csv").write_text("g, user:ana, role:a\n")

    policies, found = read_policies(tmp_path)
    decision = CasbinAuthoriser(policies, ranks=RANKS).decide(request("user:ana"))

    assert found == []
    assert decision.row == Position((tmp_path / "policy.csv").as_posix(), 2)
