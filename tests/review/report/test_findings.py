"""What a report finds in a project, in words, with the place and the section that has the details."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.registries import Position
from gateway.review.plan.builder import build_plan
from gateway.review.report.page import render_page
from gateway.review.report.report_data import ReportData, build_report, report_to_dict
from gateway.review.report.section_titles import TITLES
from gateway.review.report.sections.definitions import CollisionSide, ReviewedCollision
from tests.review.report.report_projects import Edits, edit_files, older_side, report_input
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
CHECK = "check: {type: approval, from: [role:lead], timeout: 30m, reason: A large refund, show: [order, amount]}"
RULE = "when: args.amount > 500"


def small_report(folder: Path, edits: Edits, *, against: Path | None = None) -> ReportData:
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    edit_files(folder, edits)
    source = report_input(folder, environment=None)
    if against is not None:
        plan = build_plan(older_side(against, folder), source.project, at=source.at)
        source = replace(source, plan=plan, against="main")
    return build_report(source)


FINDINGS: dict[str, tuple[Edits, str, str]] = {
    "one-caller": ({}, "high", "Every caller is user:you"),
    "test-fails": (
        {"policies/tests/desk.yaml": ("with: {order: A1, amount: 900}", "with: {order: A1, amount: 90}")},
        "high",
        "A policy test fails: a large refund waits",
    ),
    "rule-not-enforced": (
        {"configs/gates.yaml": (RULE, f"mode: observe\n  {RULE}")},
        "medium",
        "Rule large-refunds only observes",
    ),
    "effects-unknown": (
        {"configs/tools.yaml": ("trust: {tier: internal, flags: [private-data]}", "trust: {tier: internal}")},
        "medium",
        "The effects of order_read are unknown",
    ),
    "hazard-without-rule": (
        {"configs/tools.yaml": ("flags: [private-data]}", "flags: [egress]}")},
        "high",
        "No rule but limits guards order_read in desk",
    ),
    "tool-unlisted": (
        {"configs/catalogues.yaml": ('tools: ["order_*", refund_pay]', "tools: [refund_pay]")},
        "low",
        "order_read is in no catalogue",
    ),
    "not-approvable": (
        {"configs/gates.yaml": ("from: [role:lead]", "from: [role:absent]")},
        "high",
        "Rule large-refunds cannot be approved",
    ),
}


@pytest.mark.parametrize("code", FINDINGS)
def test_finding_has_its_grade_and_is_on_the_page(code: str, tmp_path: Path) -> None:
    edits, grade, title = FINDINGS[code]

    report = small_report(tmp_path, edits)

    found = {(each.code, each.title): each for each in report.summary.findings}
    assert (code, title) in found, [each.title for each in report.summary.findings]
    assert found[code, title].grade == grade
    assert found[code, title].section in TITLES
    assert title in render_page(report)


def test_untouched_project_has_none_of_the_findings_of_edits(tmp_path: Path) -> None:
    report = small_report(tmp_path, {})

    assert {each.code for each in report.summary.findings} & (FINDINGS.keys() - {"one-caller"}) <= {"not-approvable"}


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (
            "{type: confirmation, reason: Sure?, timeout: 5m}",
            "holds the call until the caller confirms it, for at most 5 minutes",
        ),
        (
            "{type: permission, action: invoke, object: 'class:payment'}",
            "denies the call unless the caller may also invoke class:payment",
        ),
        ("{type: rate, limit: 2, per: 1s, by: [subject]}", "denies calls beyond 2 in 1 second, counted by subject"),
        (
            "{type: quota, limit: 90, per: 1d, by: [subject, tool], sum: args.amount, onExhausted: hold, "
            "approval: {from: [role:lead], reason: More, timeout: 1h}}",
            "holds a sum of args.amount beyond 90 in 1 day, counted by subject and tool; role:lead can approve more",
        ),
        ("{type: loop, sameCall: 3, onExceeded: hold, scope: turn}", "holds the same call after 3 times in one turn"),
        (
            "{type: budget, calls: 1000, onExhausted: deny, scope: turn}",
            "denies calls once a turn has used 1,000 calls",
        ),
        (
            "{type: window, timezone: Europe/Berlin, open: [{days: [mon, tue, fri], from: '08:00', to: '18:00'}], "
            "outside: hold}",
            "holds the call outside of mon to tue, fri 08:00 to 18:00 (Europe/Berlin)",
        ),
        (
            "{type: arguments, require: args.amount < 10, message: Too much}",
            "denies the call unless args.amount < 10",
        ),
        (
            CHECK.removeprefix("check: "),
            "holds the call until 1 of role:lead approves it, for at most 30 minutes; approvers see order, amount",
        ),
    ],
)
def test_check_is_described_in_words(check: str, words: str, tmp_path: Path) -> None:
    report = small_report(tmp_path, {"configs/gates.yaml": (CHECK, f"check: {check}")})

    [rule] = report.sections.rules.rules
    assert rule.does == words
    assert rule.when == "args.amount > 500"
    assert rule.about == "calls of tools named refund_pay"


def test_changes_since_a_revision_are_shown_with_their_places(tmp_path: Path) -> None:
    edits = {
        "configs/gates.yaml": ("amount > 500", "amount > 900"),
        "policies/policy.csv": (
            "p, role:lead,  *,         tool:*,       discover|approve, quarantine, allow",
            "p, role:lead,  *,         tool:*,       discover|approve|invoke, quarantine, allow",
        ),
        "policies/tests/desk.yaml": ("a stranger sees nothing", "a stranger sees no tool"),
        "configs/tools.yaml": ("description: Reads one order.", "description: Reads an order."),
    }

    report = small_report(tmp_path, edits, against=SMALL)

    changes = report_to_dict(report)["changes"]
    assert changes["risk"] == "high"
    assert {each["name"] for each in changes["documents"]} == {"large-refunds", "order_read"}
    assert [each["position"]["file"] for each in changes["rows"]] == ["policies/policy.csv"]
    assert {each["change"] for each in changes["tests"]} == {"added", "removed"}
    assert {each["position"]["file"] for each in changes["controls"] if each["position"]} >= {"configs/gates.yaml"}
    gained = report_to_dict(report)["accessChanges"]["gained"]
    assert ("role:lead", "order_read") in {(each["caller"], each["tool"]) for each in gained}
    assert any(each.code == "access-gained" for each in report.summary.findings)
    assert "high risk" in render_page(report)


def test_lost_access_is_shown(tmp_path: Path) -> None:
    edits = {"policies/roles.csv": ("g, user:ana,    role:clerk", "# nothing")}

    report = small_report(tmp_path, edits, against=SMALL)

    lost = report_to_dict(report)["accessChanges"]["lost"]
    assert {each["caller"] for each in lost} == {"user:ana"}
    assert "loses" in render_page(report)


def test_unchanged_project_has_no_changes(tmp_path: Path) -> None:
    report = small_report(tmp_path, {}, against=SMALL)

    assert report_to_dict(report)["changes"]["risk"] is None
    assert "Nothing changed" in render_page(report)
    assert "No caller gains or loses access." in render_page(report)


def test_collision_names_its_winner(tmp_path: Path) -> None:
    report = small_report(tmp_path, {})
    sides = (
        CollisionSide("find", "tools", Position("configs/tools.yaml", 3)),
        CollisionSide("find", "wiki", Position("configs/gateway.lock", 9)),
    )
    found = (
        ReviewedCollision("desk", "tool", *sides, "keep", "tools", "the policy keeps the first"),
        ReviewedCollision("desk", "tool", *sides, "throw", None, "nothing decides"),
    )
    sections = replace(report.sections, collisions=replace(report.sections.collisions, collisions=found))

    page = render_page(replace(report, sections=sections))

    assert "the policy keeps the first" in page
    assert "configs/<wbr>gateway.lock<b>:9</b>" in page
