"""Query tools in policies, gate rules, policy tests and explanations: named, checked and reported like other tools."""

import shutil
from contextlib import chdir
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.cli.main import app
from gateway.model.caller import Principal
from gateway.policy.access import Access
from gateway.policy.access_answer import AccessQuestion
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust
from gateway.registries.policy_cases import ExpectedReason
from gateway.registries.snapshot import CONTENT, DeclaredDefinition
from gateway.review.policy_tests import run_cases
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ANA, KIM = Principal("user:ana"), Principal("user:kim")
GREP = {"callId": "c", "pattern": "x"}
RULE = """
---
apiVersion: gateway/v1
kind: GateRule
metadata: {{name: {name}, owner: team-orders}}
spec:
  description: A rule.
  match: {match}
  {more}
"""


def load(folder: Path, *, rules: str = "", rows: str = "", cases: str = "") -> LoadedProject:
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    tools = folder / "configs" / "tools.yaml"  # with every query over an order
    tools.write_text(
        tools.read_text(encoding="utf-8").replace("queries: [json_get, json_keys], ", ""), encoding="utf-8"
    )
    with (folder / "configs" / "gates.yaml").open("a", encoding="utf-8") as gates:
        gates.write(rules)
    with (folder / "policies" / "policy.csv").open("a", encoding="utf-8") as policy:
        policy.write(rows)
    if cases:
        (folder / "policies" / "tests" / "queries.yaml").write_text(cases, encoding="utf-8")
    return load_project(ProjectFolders.from_folder(folder), environ={}, today=NOON.date())


def rule(name: str, match: str, more: str = "check: {type: budget, calls: 1, scope: turn}") -> str:
    return RULE.format(name=name, match=match, more=more)


def access_of(found: LoadedProject) -> Access:
    assert found.access is not None, found.diagnostics
    return found.access


def run(folder: Path, *args: str) -> Result:
    with chdir(folder):
        return CliRunner().invoke(app, list(args), prog_name="gateway")


def test_rules_may_name_query_tools_that_results_have(tmp_path: Path) -> None:
    names = "{tools: [artifact_grep, artifact_json_get, artifact_content, artifact_*]}"
    found = load(tmp_path, rules=rule("few", names))

    assert found.diagnostics == ()
    assert access_of(found).snapshot.gates["few"].match.tools[0] == "artifact_grep"


def test_rules_that_name_no_query_tool_are_reported(tmp_path: Path) -> None:
    found = load(tmp_path, rules=rule("few", "{tools: [artifact_grpe]}"))

    assert [(each.code, each.help) for each in found.diagnostics] == [
        ("unknown-reference", "did you mean 'artifact_grep'?")
    ]


@pytest.mark.parametrize(
    ("match", "words"),
    [
        ("{tools: [artifact_md_text]}", "the rule matches no tool"),
        ("{tools: [order_read, 'artifact_nothing_*']}", "'artifact_nothing_*' matches no tool"),
        ("{prompts: ['*']}", "the rule matches no tool"),
    ],
)
def test_rules_about_queries_that_no_result_has_are_idle(match: str, words: str, tmp_path: Path) -> None:
    found = load(tmp_path, rules=rule("few", match))

    [problem] = found.diagnostics
    assert problem.code == "idle-rule"
    assert problem.message.startswith(words)


def test_conditions_are_compared_with_the_arguments_of_the_query(tmp_path: Path) -> None:
    when = "when: args.patern == 'x'\n  check: {type: budget, calls: 1}"
    found = load(tmp_path, rules=rule("few", "{tools: [artifact_grep]}", when))

    [problem] = found.diagnostics
    assert problem.severity == "warning"
    assert "patern" in problem.message


@pytest.mark.parametrize(
    ("name", "codes"), [("artifact_grep", []), ("artifact_*", []), ("artifact_grpe", ["dead-rule"])]
)
def test_policy_rows_may_name_query_tools(name: str, codes: list[str], tmp_path: Path) -> None:
    found = load(tmp_path, rows=f"p, role:clerk, desk, tool:{name}, read, internal, deny\n")

    assert [each.code for each in found.diagnostics] == codes


def test_rows_about_query_tools_are_not_reported_beside_an_error(tmp_path: Path) -> None:
    rows = "p, role:clerk, desk, tool:artifact_grep, read, internal, deny\n"
    found = load(tmp_path, rows=rows, rules=rule("few", "{tools: [nothing]}"))

    assert [each.code for each in found.diagnostics] == ["unknown-reference"]


def test_a_query_takes_the_steps_of_a_call(tmp_path: Path) -> None:
    rows = "p, role:clerk, desk, tool:artifact_grep, read, internal, deny\n"
    allowed, denied = access_of(load(tmp_path / "a")), access_of(load(tmp_path / "b", rows=rows))
    call = AccessQuestion(ANA, "desk", "artifact_grep", NOON, GREP, of="order_read")

    assert [step.name for step in allowed.decide_call(call).steps][-1] == "gates"
    assert allowed.decide_call(call).decision == "allow"
    assert denied.decide_call(call).because == ExpectedReason("policy", "role:clerk")
    assert denied.decide_call(call._replace(tool="artifact_head", args={"callId": "c"})).decision == "allow"


def test_a_query_of_several_tools_needs_to_name_one(tmp_path: Path) -> None:
    access = access_of(load(tmp_path))
    call = AccessQuestion(ANA, "desk", "artifact_grep", NOON, GREP)
    answers = [
        access.decide_call(each) for each in (call, call._replace(of="nothing"), call._replace(tool="artifact_grpe"))
    ]

    assert [each.decision for each in answers] == ["deny"] * 3
    assert answers[0].steps[-1].reason == "artifact_grep reads what one of order_read, refund_pay yields; name one"
    assert answers[2].steps[-1].reason == "there is no tool 'artifact_grpe' in desk"
    only = call._replace(tool="artifact_json_keys", args={"callId": "c"})
    assert access.decide_call(only).decision == "allow"


def test_arguments_of_a_query_are_checked(tmp_path: Path) -> None:
    access = access_of(load(tmp_path))
    answer = access.decide_call(AccessQuestion(ANA, "desk", "artifact_grep", NOON, {"callId": "c"}, of="order_read"))

    assert (answer.steps[-1].name, answer.decision) == ("arguments", "deny")


def test_reading_all_of_a_result_has_a_name(tmp_path: Path) -> None:
    rows = f"p, role:clerk, desk, tool:{CONTENT}, read, internal, deny\n"
    access = access_of(load(tmp_path, rows=rows))

    assert access.decide_call(AccessQuestion(ANA, "desk", CONTENT, NOON, of="order_read")).decision == "deny"


class Answers:
    """An authoriser that answers by action and object."""

    def __init__(self, **answers: AccessDecision) -> None:
        self.answers = answers

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        return names

    def decide(self, request: AccessRequest) -> AccessDecision:
        name = f"{request.action}_{request.object.replace(':', '_')}"
        return self.answers.get(name, AccessDecision(False, "no row"))


ROW = Position("policy.csv", 1)
YES, NO = AccessDecision(True, "yes", ROW), AccessDecision(False, "no", ROW)
BROKEN = AccessDecision(False, "broken", is_unanswered=True)


@pytest.mark.parametrize(
    ("answers", "is_allowed"),
    [
        ({}, False),
        ({"invoke_tool_order_read": YES}, True),
        ({"read_tool_order_read": YES}, True),
        ({"read_class_order": YES}, True),
        ({"read_tool_artifact_head": YES}, False),
        ({"read_tool_artifact_head": NO, "read_tool_order_read": YES}, False),
        ({"read_class_order": NO, "read_tool_order_read": YES}, False),
        ({"read_tool_order_read": NO, "invoke_tool_order_read": YES}, False),
        ({"read_tool_artifact_head": BROKEN, "invoke_tool_order_read": YES}, False),
        ({"read_tool_order_read": BROKEN, "invoke_tool_order_read": YES}, False),
    ],
)
def test_rows_about_reading(answers: dict[str, Any], is_allowed: bool, tmp_path: Path) -> None:
    snapshot = access_of(load(tmp_path)).snapshot
    access = Access(snapshot, Answers(**answers))
    query = snapshot.query("artifact_head", snapshot.tools["order_read"])

    assert access.permits(ANA, "desk", query).allowed is is_allowed


def test_who_approves_a_query_is_asked_by_its_name(tmp_path: Path) -> None:
    access = access_of(load(tmp_path))
    tier = access.snapshot.tiers["internal"]
    offer = DeclaredDefinition(
        "prompt", "wiki.greet", "wiki", "greet", EffectiveTrust(tier, frozenset(), False, True), ROW
    )
    offering = Access(replace(access.snapshot, offers={offer.object: offer}), Answers(approve_tool_artifact_grep=YES))

    assert access.decide_approval(KIM, catalogue="desk", tool="artifact_grep").allowed
    assert not access.decide_approval(ANA, catalogue="desk", tool="artifact_grep").allowed
    assert access.decide_approval(KIM, catalogue="desk", tool="artifact_grpe").reason == "there is no such tool"
    assert not offering.decide_approval(KIM, catalogue="desk", tool=offer.object).allowed
    assert offering.decide_approval(KIM, catalogue="desk", tool="artifact_grep").allowed


def test_explain_shows_what_becomes_of_a_query(tmp_path: Path) -> None:
    load(tmp_path, rows="p, role:clerk, desk, class:order, read, partner, deny\n", rules=rule("few", "{tools: ['*']}"))
    arguments = ("--as", "user:ana", "--with", "callId=c", "--with", "pattern=x")
    denied = run(tmp_path, "explain", "call", "artifact_grep", "--of", "order_read", *arguments)
    allowed = run(tmp_path, "explain", "call", "artifact_grep", "--of", "refund_pay", *arguments)
    unsaid = run(tmp_path, "explain", "call", "artifact_grep", *arguments)
    unknown = run(tmp_path, "explain", "call", "artifact_grpe", *arguments)

    assert "deny: user:ana calls artifact_grep in desk; decided by policy role:clerk" in denied.output
    assert "effects: none: it reads what order_read yielded" in denied.output
    assert allowed.output.startswith("allow: user:ana calls artifact_grep in desk")
    assert "few" in allowed.output
    assert (unsaid.exit_code, "--of order_read | --of refund_pay" in unsaid.output) == (2, True)
    assert "did you mean 'artifact_grep'?" in unknown.output


CASES = """
apiVersion: gateway/v1
kind: PolicyTest
metadata: {name: queries, owner: team-orders}
spec:
  given: {catalogue: desk, at: "2026-11-16T12:00:00Z"}
  cases:
    - name: clerks read orders
      as: {subject: user:ana}
      call: artifact_json_keys
      with: {callId: c}
      expect: {decision: allow}
    - name: and no refunds
      as: {subject: user:ana}
      call: artifact_head
      of: refund_pay
      with: {callId: c}
      expect: {decision: deny, because: {policy: role:clerk}}
"""


def test_policy_tests_may_call_query_tools(tmp_path: Path) -> None:
    rows = "p, role:clerk, desk, tool:refund_pay, read, partner, deny\n"
    access = access_of(load(tmp_path, rows=rows, cases=CASES))
    cases = [case for case in access.snapshot.cases if case.suite == "queries"]

    assert [result.passed for result in run_cases(access, cases)] == [True, True]


def test_only_a_call_has_a_tool_whose_result_is_read(tmp_path: Path) -> None:
    wrong = CASES.replace("call: artifact_head\n", "discover: true\n").replace(
        "      of: refund_pay\n", "      of: refund_pay\n", 1
    )
    found = load(tmp_path, cases=wrong)

    assert any("only a call reads the result of a tool" in each.message for each in found.diagnostics)


def test_query_tools_can_be_quarantined_by_name(tmp_path: Path) -> None:
    snapshot = access_of(load(tmp_path)).snapshot

    assert {"artifact_grep", "artifact_json_get", CONTENT} <= snapshot.query_names
