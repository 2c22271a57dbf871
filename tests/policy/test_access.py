"""The decision about a call: the order of the steps, and that failures never allow a call."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from gateway.app.project import ProjectFolders, load_project
from gateway.errors import NotPermitted
from gateway.model.caller import Principal
from gateway.model.primitives.canonical_json import call_id
from gateway.policy.access import Access
from gateway.policy.access_answer import STEPS, AccessAnswer, AccessQuestion
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.policy.rules.conditions import ConditionScope
from gateway.policy.rules.gate_checks import GateCheck, Judgement, PermissionCheck, PermissionLookup
from gateway.policy.rules.turn_state import TurnState
from gateway.registries.diagnostics import Position
from gateway.registries.policy_cases import ExpectedReason
from gateway.registries.snapshot import Deprecation
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ANA, BOT, EVE, KIM = Principal("user:ana"), Principal("agent:bot"), Principal("user:eve"), Principal("user:kim")
REFUND = AccessQuestion(ANA, "desk", "refund_pay", NOON, {"order": "A1", "amount": 20})

NO_MAPPING: Any = [1, 2]


@pytest.fixture(scope="module")
def access() -> Access:
    found = load_project(ProjectFolders.from_folder(SMALL), environ={}, today=NOON.date())
    assert found.access is not None, found.diagnostics
    return found.access


def with_tool(access: Access, **changes: Any) -> Access:
    tool = replace(access.snapshot.tools["refund_pay"], **changes)
    return with_snapshot(access, tools={**access.snapshot.tools, tool.name: tool})


def with_catalogue(access: Access, **changes: Any) -> Access:
    return with_snapshot(access, catalogues={"desk": replace(access.snapshot.catalogues["desk"], **changes)})


def with_snapshot(access: Access, **changes: Any) -> Access:
    return Access(replace(access.snapshot, **changes), access.authoriser)


def refused_at(answer: AccessAnswer) -> str:
    assert answer.decision == "deny"
    assert all(step.decision == "allow" for step in answer.steps[:-1])
    assert [step.name for step in answer.steps] + list(answer.skipped_steps) == list(STEPS)
    return answer.steps[-1].name


def test_allowed_call_takes_every_step(access: Access) -> None:
    answer = access.decide_call(REFUND)

    assert [step.name for step in answer.steps] == list(STEPS)
    assert (answer.decision, answer.because, answer.skipped_steps) == (
        "allow",
        ExpectedReason("policy", "role:clerk"),
        (),
    )
    assert [rule.name for rule in answer.idle_rules] == ["large-refunds"]
    assert answer.steps[-1].reason == "no rule applies"


def test_held_call_names_the_rule_and_the_row_that_let_it_get_there(access: Access) -> None:
    answer = access.decide_call(REFUND._replace(args={"order": "A1", "amount": 900}))

    assert (answer.decision, answer.because) == ("hold", ExpectedReason("gate", "large-refunds"))
    assert [(Path(row.file).name, row.line) for row in answer.rows] == [("policy.csv", 2)]


def test_denied_call_names_the_row(access: Access) -> None:
    answer = access.decide_call(REFUND._replace(principal=BOT))

    assert refused_at(answer) == "policy"
    assert answer.because == ExpectedReason("policy", "role:agent")
    assert [row.line for row in answer.rows] == [5]


@pytest.mark.parametrize(
    ("call", "step"),
    [
        pytest.param(REFUND._replace(catalogue="nowhere"), "audience", id="unknown-catalogue"),
        pytest.param(REFUND._replace(catalogue=""), "audience", id="no-catalogue"),
        pytest.param(REFUND._replace(principal=EVE), "audience", id="stranger"),
        pytest.param(REFUND._replace(principal=Principal("")), "audience", id="no-name"),
        pytest.param(REFUND._replace(principal=Principal("*")), "audience", id="pattern-for-a-name"),
        pytest.param(REFUND._replace(principal=Principal("", frozenset({"role:clerk"}))), "tool", id="roles-only"),
        pytest.param(REFUND._replace(principal=replace(EVE, roles=frozenset({"user:ana"}))), "audience", id="disguise"),
        pytest.param(REFUND._replace(tool="nothing"), "tool", id="unknown-tool"),
        pytest.param(REFUND._replace(tool=""), "tool", id="no-tool"),
        pytest.param(REFUND._replace(tool="refund_*"), "tool", id="pattern-for-a-tool"),
        pytest.param(REFUND._replace(args={}), "arguments", id="no-arguments"),
        pytest.param(REFUND._replace(args={**REFUND.args, "more": 1}), "arguments", id="unknown-argument"),
        pytest.param(REFUND._replace(args={"order": "A1", "amount": object()}), "arguments", id="no-json"),
        pytest.param(REFUND._replace(args=NO_MAPPING), "arguments", id="no-mapping"),
        pytest.param(REFUND._replace(principal=KIM), "policy", id="sees-but-may-not-call"),
    ],
)
def test_call_is_refused_at_its_step(access: Access, call: AccessQuestion, step: str) -> None:
    assert refused_at(access.decide_call(call)) == step


def test_refusal_of_arguments_shows_no_value(access: Access) -> None:
    answer = access.decide_call(REFUND._replace(args={"order": "A1", "amount": "hunter2"}))

    assert refused_at(answer) == "arguments"
    assert "amount" in answer.steps[-1].reason
    assert "hunter2" not in answer.steps[-1].reason


@pytest.mark.parametrize(
    ("change", "step"),
    [
        pytest.param({"lifecycle": "draft"}, "lifecycle", id="draft"),
        pytest.param({"lifecycle": "retired"}, "lifecycle", id="retired"),
        pytest.param(
            {"lifecycle": "deprecated", "deprecation": Deprecation(date(2026, 1, 1), date(2026, 11, 15))},
            "lifecycle",
            id="past-its-last-day",
        ),
        pytest.param({"input_schema": {"type": 5}}, "arguments", id="broken-schema"),
        pytest.param({"input_schema": {"$ref": "https://example.com/elsewhere"}}, "arguments", id="schema-elsewhere"),
    ],
)
def test_tool_in_a_bad_state_is_not_called(access: Access, change: dict[str, Any], step: str) -> None:
    assert refused_at(with_tool(access, **change).decide_call(REFUND)) == step


def test_tool_without_a_known_schema_is_asked_about_with_any_arguments(access: Access) -> None:
    answer = with_tool(access, input_schema=None).decide_call(REFUND._replace(args={"amount": 20}))

    assert answer.decision == "allow"
    assert answer.steps[2].reason == "only the upstream server knows their schema"


def test_tier_that_cannot_be_called_decides(access: Access) -> None:
    trust = access.snapshot.tools["refund_pay"].trust
    quarantined = replace(trust, tier=access.snapshot.tiers["quarantine"])

    answer = with_tool(access, trust=quarantined).decide_call(REFUND._replace(principal=KIM))

    assert refused_at(answer) == "tier"
    assert answer.because == ExpectedReason("tier", "quarantine")


def test_undeclared_tier_is_refused(access: Access) -> None:
    trust = access.snapshot.tools["refund_pay"].trust
    unheard_of = replace(trust, tier=replace(trust.tier, name="unheard-of"))

    assert refused_at(with_tool(access, trust=unheard_of).decide_call(REFUND)) == "tool"


def test_tool_whose_review_expired_is_listed_and_not_called() -> None:
    found = load_project(ProjectFolders.from_folder(SMALL), environ={}, today=date(2027, 12, 1))
    assert found.access is not None, found.diagnostics

    answer = found.access.decide_call(REFUND)

    assert refused_at(answer) == "tier"
    assert answer.steps[-1].reason == "the tool does not meet the requirements of tier 'partner'"
    assert "refund_pay" in [name for name, _ in found.access.list_tools(ANA, "desk", at=NOON)]


def test_last_day_ends_at_midnight_utc_wherever_the_caller_is(access: Access) -> None:
    last = Deprecation(date(2026, 1, 1), date(2026, 11, 16))
    deprecated = with_tool(access, lifecycle="deprecated", deprecation=last)
    midnight = datetime(2026, 11, 17, tzinfo=UTC)
    west = timezone(timedelta(hours=-8))

    before = deprecated.decide_call(REFUND._replace(at=midnight - timedelta(seconds=1)))
    after = deprecated.decide_call(REFUND._replace(at=midnight.astimezone(west)))

    assert before.decision == "allow"
    assert before.steps[4].reason == "the tool is deprecated"
    assert refused_at(after) == "lifecycle"
    assert after.steps[-1].reason == "its last day was 2026-11-16"


def test_hidden_tool_is_called_by_name_and_not_listed(access: Access) -> None:
    hiding = with_catalogue(access, hidden=frozenset({"refund_pay"}))

    assert hiding.decide_call(REFUND).decision == "allow"
    assert [name for name, _ in hiding.list_tools(ANA, "desk", at=NOON)] == ["order_read"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"tools": {}}, id="no-tools"),
        pytest.param({"tools": {"refund_pay": "gone"}}, id="tool-that-is-gone"),
        pytest.param({"audience": frozenset()}, id="no-audience"),
    ],
)
def test_empty_catalogue_shows_and_allows_nothing(access: Access, change: dict[str, Any]) -> None:
    emptied = with_catalogue(access, **change)

    assert emptied.decide_call(REFUND).decision == "deny"
    assert emptied.list_tools(ANA, "desk", at=NOON) == []


def test_catalogue_may_advertise_another_name(access: Access) -> None:
    renamed = with_catalogue(access, tools={"pay": "refund_pay"})

    assert renamed.decide_call(REFUND._replace(tool="pay")).decision == "allow"
    assert refused_at(renamed.decide_call(REFUND)) == "tool"


@pytest.mark.parametrize(
    ("principal", "catalogue", "names"),
    [
        pytest.param(ANA, "desk", ["order_read", "refund_pay"], id="clerk"),
        pytest.param(KIM, "desk", ["order_read", "refund_pay"], id="lead"),
        pytest.param(EVE, "desk", [], id="stranger"),
        pytest.param(Principal(""), "desk", [], id="no-name"),
        pytest.param(ANA, "nowhere", [], id="unknown-catalogue"),
    ],
)
def test_listing_shows_what_may_be_discovered(
    access: Access, principal: Principal, catalogue: str, names: list[str]
) -> None:
    assert sorted(name for name, _ in access.list_tools(principal, catalogue, at=NOON)) == names


@pytest.mark.parametrize("lifecycle", ["draft", "retired"])
def test_tool_that_is_not_in_use_is_not_listed(access: Access, lifecycle: str) -> None:
    changed = with_tool(access, lifecycle=lifecycle)

    assert [name for name, _ in changed.list_tools(ANA, "desk", at=NOON)] == ["order_read"]


def test_known_caller_lends_no_rights_to_a_role_of_the_same_name(access: Access) -> None:
    fresh = with_snapshot(access)

    assert fresh.is_in_audience(ANA, "desk")
    assert not fresh.is_in_audience(replace(EVE, roles=frozenset({"user:ana"})), "desk")
    assert not fresh.is_in_audience(replace(ANA, roles=frozenset({"user:ana"})), "desk")
    assert fresh.is_in_audience(ANA, "desk")


def test_rights_are_the_same_after_more_callers_than_are_cached(access: Access) -> None:
    fresh = with_snapshot(access)
    strangers = [Principal(f"user:stranger-{number}") for number in range(3_000)]

    assert fresh.is_in_audience(ANA, "desk")
    assert not any(fresh.is_in_audience(each, "desk") for each in strangers)
    assert fresh.is_in_audience(ANA, "desk")
    assert len(fresh._rights) <= 1_024


def test_audience_and_roles_can_be_asked_for(access: Access) -> None:
    assert access.is_in_audience(ANA, "desk")
    assert not access.is_in_audience(EVE, "desk")
    assert not access.is_in_audience(ANA, "nowhere")
    assert access.roles_of(ANA) == {"user:ana", "role:clerk"}


class Broken:
    """An authoriser that breaks its contract for some questions."""

    def __init__(self, works: Access, *, breaks: Callable[[AccessRequest | None], bool]) -> None:
        self._works = works.authoriser
        self._breaks = breaks

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        if self._breaks(None):
            raise ConnectionError("gone")
        return self._works.roles_of(names)

    def decide(self, request: AccessRequest) -> AccessDecision:
        if self._breaks(request):
            raise ConnectionError("gone")
        return self._works.decide(request)


@pytest.mark.parametrize(
    ("breaks", "step"),
    [
        pytest.param(lambda request: request is None, "audience", id="roles"),
        pytest.param(lambda request: request is not None, "tool", id="decisions"),
        pytest.param(lambda request: request is not None and request.action == "invoke", "policy", id="invoke"),
    ],
)
def test_authoriser_that_fails_refuses(
    access: Access,
    breaks: Callable[[AccessRequest | None], bool],
    step: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Access(access.snapshot, Broken(access, breaks=breaks))

    with caplog.at_level(logging.ERROR):
        answer = broken.decide_call(REFUND)

    assert refused_at(answer) == step
    assert "the authoriser failed" in caplog.text


def test_authoriser_that_fails_shows_nothing(access: Access) -> None:
    assert Access(access.snapshot, Broken(access, breaks=lambda _: True)).list_tools(ANA, "desk", at=NOON) == []
    assert Access(access.snapshot, Broken(access, breaks=bool)).list_tools(ANA, "desk", at=NOON) == []


def test_permission_that_a_rule_asks_for_counts_with_its_row(access: Access) -> None:
    rule = replace(
        access.snapshot.gates["large-refunds"], when=None, check=PermissionCheck("approve", "tool:refund_pay")
    )
    asking = with_snapshot(access, gates={rule.name: rule})

    permitted = asking.decide_call(REFUND._replace(principal=replace(ANA, roles=frozenset({"role:lead"}))))
    refused = asking.decide_call(REFUND)

    assert (permitted.decision, sorted(row.line for row in permitted.rows)) == ("allow", [2, 4])
    assert (refused_at(refused), refused.because) == ("gates", ExpectedReason("gate", "large-refunds"))


class Granting:
    """Lets all callers approve what is listed with `True`, and none what a row forbids."""

    def __init__(self, rows: dict[str, bool]) -> None:
        self.rows = rows

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        return names

    def decide(self, request: AccessRequest) -> AccessDecision:
        assert request.action == "approve"
        found = self.rows.get(request.object)
        return AccessDecision(bool(found), str(found), None if found is None else Position("policy.csv", 1, 1))


@pytest.mark.parametrize(
    ("rows", "allowed"),
    [
        ({}, False),
        ({"tool:refund_pay": True}, True),
        ({"class:receipt": True}, True),
        ({"class:other": True}, False),
        ({"tool:refund_pay": True, "class:receipt": False}, False),
        ({"tool:refund_pay": False, "class:receipt": True}, False),
    ],
    ids=["nothing", "tool", "class", "another class", "class denied", "tool denied"],
)
def test_deciding_is_permitted_by_the_tool_or_its_class(access: Access, rows: dict[str, bool], allowed: bool) -> None:
    declared = replace(access.snapshot.tools["refund_pay"], artifact="receipt")
    tools = {**access.snapshot.tools, "refund_pay": declared}
    known = replace(access.snapshot, tools=tools, artifacts={"receipt": next(iter(access.snapshot.artifacts.values()))})
    asked = Access(known, Granting(rows))

    assert asked.decide_approval(ANA, catalogue="desk", tool="refund_pay").allowed is allowed
    assert not asked.decide_approval(ANA, catalogue="desk", tool="unheard-of").allowed


class Exploding(GateCheck):
    """A check that breaks."""

    def judge(self, scope: ConditionScope, may: PermissionLookup) -> Judgement:
        raise ZeroDivisionError


def test_check_that_breaks_denies(access: Access) -> None:
    rule = replace(access.snapshot.gates["large-refunds"], when=None, check=Exploding())

    answer = with_snapshot(access, gates={rule.name: rule}).decide_call(REFUND)

    assert refused_at(answer) == "gates"
    assert answer.steps[-1].reason == "large-refunds: the check failed: ZeroDivisionError"


def test_rule_that_observes_is_reported_and_decides_nothing(access: Access) -> None:
    rule = replace(access.snapshot.gates["large-refunds"], mode="observe")
    observing = with_snapshot(access, gates={rule.name: rule})

    answer = observing.decide_call(REFUND._replace(args={"order": "A1", "amount": 900}))

    assert (answer.decision, answer.because) == ("allow", ExpectedReason("policy", "role:clerk"))
    assert answer.steps[-1].reason == "no rule applies; 1 only observes"


def test_rule_that_allows_leaves_the_decision_to_the_policy(access: Access) -> None:
    rule = access.snapshot.gates["large-refunds"]
    allowing = replace(rule, when=None, check=PermissionCheck("invoke", "tool:refund_pay"))
    disabled = replace(rule, name="off", mode="disabled")

    answer = with_snapshot(access, gates={"large-refunds": allowing, "off": disabled}).decide_call(REFUND)

    assert (answer.decision, answer.because) == ("allow", ExpectedReason("policy", "role:clerk"))
    assert answer.steps[-1].reason == "1 evaluated, none holds or denies"
    assert answer.idle_rules == ()


def test_rules_see_what_the_turn_has_seen_and_who_calls(access: Access) -> None:
    memory = TurnState()
    memory.flags.add("egress")
    call = REFUND._replace(principal=replace(ANA, tenant="acme"), memory=memory)

    scope = access.decide_call(call).scope

    assert scope is not None
    assert scope.caller == {"subject": "user:ana", "roles": ["role:clerk"], "tenant": "acme"}
    assert scope.turn is memory
    assert scope.fingerprint == call_id("refund_pay", REFUND.args)
    assert scope.tool["name"] == "refund_pay"
    assert scope.now == NOON


def test_rules_can_be_asked_about_a_call_that_was_let_through(access: Access) -> None:
    tool = access.snapshot.tools["refund_pay"]
    rule = replace(
        access.snapshot.gates["large-refunds"],
        name="extra",
        when=None,
        check=PermissionCheck("approve", "class:payment"),
    )
    asked = AccessQuestion(Principal("user:ana"), "desk", "refund_pay", NOON, {"order": "A1", "amount": 20})

    outcome = access.evaluate_rules(asked, tool, [*access.find_rules(tool, "desk"), rule])

    assert outcome.decision == "deny"
    assert outcome.decided_by is not None
    assert outcome.decided_by.rule.name == "extra"


def test_rules_are_not_asked_about_a_caller_whose_roles_are_none(access: Access) -> None:
    tool = access.snapshot.tools["refund_pay"]
    asked = AccessQuestion(
        Principal("user:eve", frozenset({"user:ana"})), "desk", "refund_pay", NOON, {"order": "A", "amount": 1}
    )

    with pytest.raises(NotPermitted):
        access.evaluate_rules(asked, tool, access.find_rules(tool, "desk"))


@pytest.mark.parametrize(
    ("rows", "is_visible"),
    [
        (["p, role:clerk, desk, tool:*, invoke, partner, allow"], True),
        (["p, role:clerk, desk, tool:*, discover, partner, allow"], True),
        (
            [
                "p, role:clerk, desk, tool:*, invoke, partner, allow",
                "p, role:clerk, *, tool:*, discover, partner, deny",
            ],
            False,
        ),
        (["p, role:clerk, desk, tool:*, read, partner, allow"], False),
    ],
    ids=["may call", "may discover", "may call and must not discover", "neither"],
)
def test_caller_of_a_tool_may_know_of_it_unless_a_row_forbids_it(
    tmp_path: Path, rows: list[str], is_visible: bool
) -> None:
    shutil.copytree(SMALL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "policies" / "policy.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    found = load_project(ProjectFolders.from_folder(tmp_path), environ={}, today=date(2026, 11, 16)).access
    assert found is not None
    ana, tool = Principal("user:ana"), found.snapshot.tools["order_read"]

    answer = found.decide_call(AccessQuestion(ana, "desk", "order_read", NOON, {"order": "A1"}))

    assert found.decide_discovery(ana, catalogue="desk", tool=tool).allowed is is_visible
    assert ("order_read" in [name for name, _ in found.list_tools(ana, "desk", at=NOON)]) is is_visible
    assert ("tool" in [step.name for step in answer.steps if step.decision == "deny"]) is not is_visible


def test_only_a_row_about_the_configuration_grants_administration(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "policies" / "policy.csv").open("a", encoding="utf-8") as file:
        file.write("p, role:lead, desk, config, administer, internal, allow\n")
    found = load_project(ProjectFolders.from_folder(tmp_path), environ={}, today=NOON.date()).access
    assert found is not None

    assert found.can_administer(KIM)
    assert found.can_read_metrics(KIM)
    assert not found.can_administer(ANA)
    assert not found.can_read_metrics(ANA)
    assert not found.can_administer(Principal("user:eve", frozenset({"user:kim"})))


def test_observer_does_not_administer(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "policies" / "policy.csv").open("a", encoding="utf-8") as file:
        file.write("p, role:lead, desk, config, observe, internal, allow\n")
    found = load_project(ProjectFolders.from_folder(tmp_path), environ={}, today=NOON.date()).access
    assert found is not None

    assert found.can_read_metrics(KIM)
    assert not found.can_administer(KIM)
    assert not found.can_read_metrics(ANA)
