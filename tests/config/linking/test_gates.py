"""Gate rules of every type, and policy tests as cases: documents are judged as written."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest

from gateway.model.caller import Principal
from gateway.policy.rules.conditions import ConditionScope
from gateway.policy.rules.gate_checks import (
    ApprovalCheck,
    ArgumentsCheck,
    BudgetCheck,
    GateCheck,
    LoopCheck,
    PermissionCheck,
    QuotaCheck,
    RateCheck,
    WindowCheck,
    WindowInterval,
)
from gateway.policy.rules.gate_rules import GateRule
from gateway.policy.rules.turn_state import TurnState
from gateway.registries.imported_definition import UpstreamDefinition, build_tool_definition
from gateway.registries.policy_cases import ExpectedReason
from tests.config.linking.projects import catalogue, document, linked, list_codes, problem, snapshot_of, tool, upstream

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
APPROVAL = {"type": "approval", "from": ["role:lead"], "timeout": "30m", "reason": "Large"}


def gate(check: dict[str, Any], **spec: Any) -> str:
    given = {"description": "A rule.", "match": {"tools": ["*"]}, "check": check, **spec}
    return document("GateRule", "rule", given)


def rule_of(check: dict[str, Any], **spec: Any) -> GateRule:
    return snapshot_of(linked(gate(check, **spec), tool(), catalogue())).gates["rule"]


def scope(**args: Any) -> ConditionScope:
    return ConditionScope(args, {"subject": "user:ana"}, {"name": "order_read"}, TurnState(), NOON)


def test_approval_is_linked_whole() -> None:
    rule = rule_of(
        {
            **APPROVAL,
            "count": 2,
            "show": ["order"],
            "resolution": {"type": "object", "required": ["approved"]},
            "reuse": {"for": "10m"},
        },
        holdFor="5s",
        mode="observe",
    )

    assert rule.check == ApprovalCheck(
        ("role:lead",),
        "Large",
        2,
        timeout=timedelta(minutes=30),
        show=("order",),
        resolution={"type": "object", "required": ["approved"]},
        reuse_for=timedelta(minutes=10),
    )
    assert (rule.mode, rule.hold_for) == ("observe", timedelta(seconds=5))


def test_permission_is_linked_whole() -> None:
    rule = rule_of({"type": "permission", "action": "read", "object": "class:payment"})

    assert rule.check == PermissionCheck("read", "class:payment")


def test_window_is_linked_whole() -> None:
    rule = rule_of(
        {
            "type": "window",
            "timezone": "Europe/Berlin",
            "open": [{"days": ["mon", "fri"], "from": "08:00", "to": "24:00"}],
            "closed": ["2026-12-24"],
            "outside": "hold",
        }
    )

    assert isinstance(rule.check, WindowCheck)
    assert rule.check.timezone.key == "Europe/Berlin"
    assert rule.check.openings == (WindowInterval(frozenset({"mon", "fri"}), time(8), time.max),)
    assert (rule.check.closed, rule.check.outside) == (frozenset({date(2026, 12, 24)}), "hold")


def test_arguments_are_compiled_and_judged() -> None:
    rule = rule_of({"type": "arguments", "require": 'args.order != ""', "message": "name an order"})

    assert isinstance(rule.check, ArgumentsCheck)
    assert rule.check.judge(scope(order="A1"), lambda *_: True).decision == "allow"
    assert rule.check.judge(scope(order=""), lambda *_: True).decision == "deny"
    assert rule.check.judge(scope(), lambda *_: True).decision == "deny"


@pytest.mark.parametrize(
    ("check", "linked"),
    [
        pytest.param({"type": "rate", "limit": 5, "per": "1m"}, RateCheck(5, timedelta(minutes=1)), id="rate"),
        pytest.param(
            {"type": "rate", "limit": 60, "per": "1m", "burst": 9, "by": ["tool", "tenant"]},
            RateCheck(60, timedelta(minutes=1), 9, ("tool", "tenant")),
            id="rate-with-burst",
        ),
        pytest.param({"type": "quota", "limit": 5, "per": "1d"}, QuotaCheck(5, timedelta(days=1)), id="quota"),
        pytest.param(
            {"type": "quota", "limit": 5, "per": "1d", "by": ["catalogue"], "onExhausted": "hold"},
            QuotaCheck(5, timedelta(days=1), ("catalogue",), "hold"),
            id="quota-that-holds",
        ),
        pytest.param({"type": "loop", "sameCall": 3, "onExceeded": "hold"}, LoopCheck(3, "hold"), id="loop"),
        pytest.param({"type": "budget", "calls": 3}, BudgetCheck(3), id="budget-of-calls"),
        pytest.param(
            {"type": "budget", "bytes": "1KiB", "onExhausted": "hold"},
            BudgetCheck(None, 1024, "hold"),
            id="budget-of-bytes",
        ),
    ],
)
def test_checks_that_count_are_linked_with_their_limits(check: dict[str, Any], linked: GateCheck) -> None:
    assert rule_of(check).check == linked


def test_condition_narrows_a_rule() -> None:
    rule = rule_of(APPROVAL, when='args.order == "A1"')

    assert rule.when is not None
    assert rule.when.evaluate(scope(order="A1")).value
    assert not rule.when.evaluate(scope(order="B2")).value
    assert rule.when.evaluate(scope()).value, "what cannot be told narrows nothing"


@pytest.mark.parametrize(
    ("match", "is_about"),
    [
        ({"tools": ["order_*"]}, True),
        ({"tools": ["order_read"], "catalogues": ["desk"]}, True),
        ({"tools": ["order_read"], "catalogues": ["other"]}, False),
        ({"labels": {"system": "x"}}, True),
        ({"flags": ["writes"]}, True),
        ({"tiers": ["inner"]}, True),
        ({"artifacts": ["text"]}, True),
    ],
)
def test_match_chooses_calls(match: dict[str, Any], is_about: bool) -> None:
    mine = tool(labels={"system": "x"}, trust={"tier": "inner", "flags": ["destructive"]})

    linked_snapshot = snapshot_of(linked(gate(APPROVAL, match=match), mine, catalogue(), catalogue("other")))

    rule, order_read = linked_snapshot.gates["rule"], linked_snapshot.tools["order_read"]
    assert rule.matches(order_read.to_governed, "desk") is is_about


@pytest.mark.parametrize(
    ("match", "codes"),
    [
        ({"tools": ["order_*"]}, []),
        ({"tools": ["refund_*"]}, ["idle-rule"]),
        ({"flags": ["egress"]}, ["idle-rule"]),
        ({"upstreams": ["wiki"]}, []),
        ({"tools": ["wiki.open"]}, []),
        ({"tools": ["order_raed"]}, ["unknown-reference"]),
    ],
)
def test_rule_about_nothing_is_reported(match: dict[str, Any], codes: list[str]) -> None:
    assert list_codes(linked(gate(APPROVAL, match=match), tool(), upstream(), catalogue())) == codes


@pytest.mark.parametrize(
    ("schema", "codes"),
    [
        ({"type": "object", "properties": {"amount": {}}}, []),
        ({"type": "object", "properties": {"amuont": {}}}, ["unknown-argument"]),
        ({"type": "object", "properties": {}, "additionalProperties": True}, []),
        ({"type": "object", "properties": {}, "patternProperties": {"^a": {}}}, []),
        ({"type": "object", "allOf": [{"properties": {"amount": {}}}]}, []),
    ],
    ids=["taken", "not taken", "anything", "by pattern", "together"],
)
def test_shown_arguments_are_ones_that_a_tool_takes(schema: dict[str, Any], codes: list[str]) -> None:
    rule = gate({**APPROVAL, "show": ["amount"]}, match={"tools": ["order_read"]})

    assert list_codes(linked(rule, tool(input={"schema": schema}), catalogue())) == codes


def test_shown_argument_of_one_tool_of_several_is_enough() -> None:
    rule = gate({**APPROVAL, "show": ["amount"]})
    pays = tool("order_pay", input={"schema": {"type": "object", "properties": {"amount": {}}}})

    assert list_codes(linked(rule, tool(), pays, catalogue())) == []


def test_shown_argument_of_a_tool_only_its_server_knows_is_not_judged() -> None:
    rule = gate({**APPROVAL, "show": ["amount"]})
    open_schema = {"type": "object"}

    found = linked(
        rule, tool(), upstream(), catalogue(), imports=[build_tool_definition("wiki", "open", input_schema=open_schema)]
    )

    assert list_codes(found) == []


def test_unknown_argument_suggests_the_near_one() -> None:
    found = linked(gate({**APPROVAL, "show": ["oder"]}), tool(), catalogue())

    assert problem(found, "unknown-argument").help == "did you mean 'order'?"


def policy_test(*cases: dict[str, Any], **given: Any) -> str:
    return document("PolicyTest", "desk", {"given": given, "cases": list(cases)} if given else {"cases": list(cases)})


CASE = {"name": "reads", "as": {"subject": "user:ana"}, "call": "order_read", "expect": {"decision": "allow"}}
MOMENT = "2026-11-16T10:00:00+01:00"


def test_case_takes_the_given_values_unless_it_overrides_them() -> None:
    own = {**CASE, "name": "own", "in": "other", "at": "2026-12-01T00:00:00Z"}

    found = linked(policy_test(CASE, own, catalogue="desk", at=MOMENT), tool(), catalogue(), catalogue("other"))

    first, second = snapshot_of(found).cases
    assert (first.catalogue, first.at) == ("desk", datetime(2026, 11, 16, 9, tzinfo=UTC))
    assert (second.catalogue, second.at) == ("other", datetime(2026, 12, 1, tzinfo=UTC))


def test_case_is_linked_whole() -> None:
    case = {
        **CASE,
        "as": {"subject": "user:ana", "roles": ["role:lead"], "tenant": "acme"},
        "with": {"order": "A1"},
        "turn": {"saw": ["egress"]},
        "expect": {"decision": "deny", "because": {"tier": "inner"}},
    }

    (linked_case,) = snapshot_of(linked(policy_test(case, catalogue="desk", at=MOMENT), tool(), catalogue())).cases

    assert linked_case.principal == Principal("user:ana", frozenset({"role:lead"}), "acme")
    assert (linked_case.suite, linked_case.name, linked_case.tool) == ("desk", "reads", "order_read")
    assert (linked_case.args, linked_case.saw) == ({"order": "A1"}, frozenset({"egress"}))
    assert (linked_case.expected, linked_case.because) == ("deny", ExpectedReason("tier", "inner"))


@pytest.mark.parametrize(
    ("call", "imports", "codes"),
    [
        ("order_read", [], []),
        ("order_raed", [], ["unknown-reference"]),
        ("wiki_open", [], []),
        ("wiki_open", [build_tool_definition("wiki", "open")], []),
        ("wiki_opne", [build_tool_definition("wiki", "open")], ["unknown-reference"]),
        ("wiki.open", [build_tool_definition("wiki", "open")], ["unknown-reference"]),
        ("draft_tool", [], []),
    ],
    ids=["declared", "typo", "may be imported", "imported", "typo in an import", "identity", "in no catalogue"],
)
def test_case_calls_a_tool_by_the_name_that_is_advertised(
    call: str, imports: list[UpstreamDefinition], codes: list[str]
) -> None:
    case = policy_test({**CASE, "call": call}, catalogue="desk", at=MOMENT)
    tools = (tool(), tool("draft_tool", lifecycle="draft"), upstream())

    assert list_codes(linked(case, *tools, catalogue(exclude=[{"tools": ["draft_*"]}]), imports=imports)) == codes


@pytest.mark.parametrize("tools", [[], ["order_read"]], ids=["nothing", "one"])
def test_case_about_discovery_expects_tools(tools: list[str]) -> None:
    case = {"name": "sees", "as": {"subject": "user:ana"}, "discover": True, "expect": {"tools": tools}}

    (linked_case,) = snapshot_of(linked(policy_test(case, catalogue="desk", at=MOMENT), tool(), catalogue())).cases

    assert linked_case.tool is None
    assert linked_case.expected == frozenset(tools)


def test_callers_are_those_that_identity_providers_know() -> None:
    tokens = {
        "type": "token",
        "tokens": [
            {"subject": "agent:bot", "roles": ["role:agent"], "sha256": {"fromEnv": "BOT"}, "expires": "2026-11-16"},
            {"subject": "agent:old", "sha256": {"fromEnv": "OLD"}, "expires": "2026-11-15"},
        ],
    }
    jwt = {
        "type": "jwt",
        "issuer": "https://login.example.com",
        "audience": ["gateway"],
        "algorithms": ["RS256"],
        "keys": {"fromFile": "keys.json"},
        "roles": {"claim": "groups", "map": {"eng": "role:engineer"}},
    }

    found = linked(
        document("IdentityProvider", "a", tokens), document("IdentityProvider", "b", jwt), tool(), catalogue()
    )

    assert snapshot_of(found).subjects == {"user:you", "agent:bot", "agent:old"}
    assert snapshot_of(found).roles == {"role:clerk", "role:agent", "role:engineer"}
    assert list_codes(found) == ["token-expired"]
