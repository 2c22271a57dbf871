"""Properties of every configuration: decisions over random snapshots, policies and gate rules."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.caller import Principal
from gateway.policy.access import Access
from gateway.policy.access_answer import AccessAnswer, AccessQuestion
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.lint import KnownNames
from gateway.policy.casbin.policy_files import PermissionRow, PolicyCell, PolicySet, RoleLink
from gateway.policy.rules.conditions import ConditionScope
from gateway.policy.rules.gate_checks import Decision, GateCheck, Judgement, PermissionLookup
from gateway.policy.rules.gate_rules import SEVERITY, GateRule
from gateway.policy.rules.turn_state import TurnState
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.snapshot import Catalogue, DeclaredTool, Snapshot
from gateway.registries.tool_selection import Selector

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)
HERE = Position("a.yaml", 1)
TIERS = {
    "internal": Tier("internal", 0, "first-party"),
    "partner": Tier("partner", 10, "third-party-private"),
    "quarantine": Tier("quarantine", 90, "third-party-public", callable=False),
}
TOOLS = ["log_read", "log_wipe", "pay_in"]
CATALOGUES = ["desk", "ops"]
ROLES = ["role:a", "role:b", "role:c"]
SUBJECTS = ["user:ana", "user:bo", "agent:bot"]
ORDER: list[Decision] = ["allow", "hold", "deny"]


class FixedCheck(GateCheck):
    """A check with a fixed result."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        return Judgement(self.decision, "it always does")


def cell(text: str) -> PolicyCell:
    return PolicyCell(text, HERE)


rows = st.builds(
    lambda *texts: PermissionRow(*map(cell, texts)),
    st.sampled_from([*ROLES, *SUBJECTS]),
    st.sampled_from(["*", *CATALOGUES]),
    st.sampled_from(["tool:*", "tool:log_*", "tool:pay_in", "class:money"]),
    st.sampled_from(["invoke", "discover", "discover|invoke"]),
    st.sampled_from(list(TIERS)),
    st.sampled_from(["allow", "allow", "deny"]),
)
links = st.builds(
    lambda member, role: RoleLink(cell(member), cell(role)), st.sampled_from(SUBJECTS), st.sampled_from(ROLES)
)
tools = st.builds(
    lambda name, tier: DeclaredTool(
        name, f"Does {name}.", EffectiveTrust(tier, frozenset(), False, tier.callable), "http", HERE
    ),
    st.sampled_from(TOOLS),
    st.sampled_from(list(TIERS.values())),
)
rules = st.builds(
    lambda number, decision, pattern, mode: GateRule(
        f"rule-{number}", Selector(tools=(pattern,)), FixedCheck(decision), HERE, mode=mode
    ),
    st.integers(0, 9),
    st.sampled_from(ORDER),
    st.sampled_from(["*", "log_*", "pay_in"]),
    st.sampled_from(["enforce", "enforce", "observe", "disabled"]),
)
policies = st.builds(
    lambda permissions, members: PolicySet(
        tuple(permissions), tuple(members), (RoleLink(cell("tool:pay_in"), cell("class:money")),)
    ),
    st.lists(rows, max_size=12),
    st.lists(links, max_size=4, unique_by=lambda link: (link.member.text, link.group.text)),
)
snapshots = st.builds(
    lambda found, gates, audience: snapshot({tool.name: tool for tool in found}, gates, frozenset(audience)),
    st.lists(tools, min_size=1, max_size=3),
    st.lists(rules, max_size=5),
    st.sets(st.sampled_from([*ROLES, *SUBJECTS]), min_size=1),
)
calls = st.builds(
    lambda subject, roles, catalogue, tool: AccessQuestion(Principal(subject, frozenset(roles)), catalogue, tool, NOW),
    st.sampled_from(SUBJECTS),
    st.sets(st.sampled_from(ROLES), max_size=2),
    st.sampled_from(CATALOGUES),
    st.sampled_from(TOOLS),
)


def snapshot(found: dict[str, DeclaredTool], gates: list[GateRule], audience: frozenset[str]) -> Snapshot:
    catalogues = {
        name: Catalogue(name, audience, {tool: tool for tool in found}, "standard", f"/{name}", HERE)
        for name in CATALOGUES
    }
    empty: dict[str, Any] = {}
    return Snapshot(
        "random",
        {},
        flags=empty,
        tiers=TIERS,
        artifacts=empty,
        collision_policies=empty,
        gates={rule.name: rule for rule in gates},
        pipelines=empty,
        tools=found,
        catalogues=catalogues,
    )


def ask(declared: Snapshot, policy: PolicySet, call: AccessQuestion) -> AccessAnswer:
    known = KnownNames(
        tools=frozenset(declared.tools), classes=frozenset({"money"}), catalogues=frozenset(declared.catalogues)
    )
    return Access(declared, CasbinAuthoriser(policy, ranks=declared.ranks, known=known)).decide_call(call)


@given(snapshots, policies, calls)
def test_deny_beats_hold_beats_allow(declared: Snapshot, policy: PolicySet, call: AccessQuestion) -> None:
    answer = ask(declared, policy, call)

    before_gates = ask(replace(declared, gates={}), policy, call)
    if before_gates.decision == "deny":
        assert answer.decision == "deny"
    else:
        tool = declared.tools[call.tool]
        verdicts = [
            rule.check.judge(ConditionScope({}, {}, {}, TurnState(), NOW), lambda action, target: True).decision
            for rule in declared.gates.values()
            if rule.mode == "enforce" and rule.match.matches(tool.to_governed)
        ]
        assert answer.decision == max(verdicts, key=SEVERITY.__getitem__, default="allow")


@given(snapshots, policies, calls, rows)
def test_adding_an_allow_never_removes_access(
    declared: Snapshot, policy: PolicySet, call: AccessQuestion, row: PermissionRow
) -> None:
    more = replace(policy, permissions=(*policy.permissions, replace(row, effect=cell("allow"))))

    before, after = ask(declared, policy, call).decision, ask(declared, more, call).decision

    assert SEVERITY[after] <= SEVERITY[before]


@given(snapshots, policies, calls, rows)
def test_adding_a_deny_never_grants_access(
    declared: Snapshot, policy: PolicySet, call: AccessQuestion, row: PermissionRow
) -> None:
    more = replace(policy, permissions=(*policy.permissions, replace(row, effect=cell("deny"))))

    before, after = ask(declared, policy, call).decision, ask(declared, more, call).decision

    assert SEVERITY[after] >= SEVERITY[before]


@given(snapshots, policies, calls, rules)
def test_adding_a_rule_never_grants_access(
    declared: Snapshot, policy: PolicySet, call: AccessQuestion, rule: GateRule
) -> None:
    more = replace(declared, gates={**declared.gates, "another": replace(rule, name="another")})

    before, after = ask(declared, policy, call).decision, ask(more, policy, call).decision

    assert SEVERITY[after] >= SEVERITY[before]


@given(snapshots, policies, calls, st.randoms(use_true_random=False))
def test_order_of_rows_links_and_rules_changes_nothing(
    declared: Snapshot, policy: PolicySet, call: AccessQuestion, random: Any
) -> None:
    def shuffled(items: Any) -> list[Any]:
        listed: list[Any] = list(items)
        random.shuffle(listed)
        return listed

    other_policy = replace(
        policy, permissions=tuple(shuffled(policy.permissions)), members=tuple(shuffled(policy.members))
    )
    other = replace(declared, gates=dict(shuffled(declared.gates.items())))

    before, after = ask(declared, policy, call), ask(other, other_policy, call)

    assert (before.decision, [step.name for step in before.steps]) == (
        after.decision,
        [step.name for step in after.steps],
    )


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param({"principal": Principal("user:nobody")}, id="subject"),
        pytest.param({"principal": Principal("")}, id="no name"),
        pytest.param({"principal": Principal("user:ana\n", frozenset(ROLES))}, id="illegal name"),
        pytest.param({"catalogue": "nowhere"}, id="catalogue"),
        pytest.param({"catalogue": "*"}, id="catalogue pattern"),
        pytest.param({"tool": "nothing"}, id="tool"),
        pytest.param({"tool": "*"}, id="tool pattern"),
    ],
)
@given(snapshots, policies, calls)
def test_unknown_names_are_denied(
    strange: dict[str, Any], declared: Snapshot, policy: PolicySet, call: AccessQuestion
) -> None:
    assert ask(declared, policy, call._replace(**strange)).decision == "deny"


@given(snapshots, policies, calls)
def test_tool_of_an_undeclared_tier_is_denied(declared: Snapshot, policy: PolicySet, call: AccessQuestion) -> None:
    forgotten = Tier("forgotten", 0, "first-party")
    trust = EffectiveTrust(forgotten, frozenset(), False, True)
    found = {name: replace(tool, trust=trust) for name, tool in declared.tools.items()}

    assert ask(replace(declared, tools=found), policy, call).decision == "deny"


@given(snapshots, calls)
def test_without_rows_everything_is_denied(declared: Snapshot, call: AccessQuestion) -> None:
    assert ask(declared, PolicySet(), call).decision == "deny"
