"""Sections with what a store, a replay and the upstreams say, as data, as findings and on the page."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from gateway.model import Principal
from gateway.policy import Grant, Stop, StopTarget
from gateway.registries import Position
from gateway.review.access.idle_rows import RowUse
from gateway.review.access.usage import ToolUse, UsageTable
from gateway.review.grant_report import AddedAccess, EndingRow, GrantAccess
from gateway.review.plan.policy_changes import PolicyRow
from gateway.review.replay.differences import Decider, ReplayGroup, ReplayResult, UnreplayedCalls
from gateway.review.report.page import render_page
from gateway.review.report.report_data import ReportData, build_report, report_to_dict
from gateway.review.report.report_input import AuditState, Dependency, DependencyList, ReportInput
from tests.review.report.report_projects import report_input
from tests.support.paths import ROOT

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ROW = Position("policies/policy.csv", 7)


def with_parts(**parts: Any) -> tuple[ReportData, str]:
    """Return the report of the example with these parts, and its page."""
    source: ReportInput = replace(report_input(ROOT), **parts)
    report = build_report(source)
    return report, render_page(report)


def finding_codes(report: ReportData) -> set[tuple[str, str]]:
    return {(each.code, each.grade) for each in report.summary.findings}


def group(change: str, before: str, after: str) -> ReplayGroup:
    deciders = Decider(before, "", ""), Decider(after, "fair-use", "configs/gates.yaml:70")  # type: ignore[arg-type]  # they are decisions
    names = (("user:bo", 3), ("agent:\u202ebot", 1))
    at = int(NOON.timestamp() * 1_000_000)
    return ReplayGroup(change, *deciders, 4, names, 0, (("mail_send", 4),), 0, at, at, ("id-1", "id-2"))  # type: ignore[arg-type]  # it is a change


def test_replayed_calls_that_would_pass_are_a_grave_finding() -> None:
    groups = (group("deny-to-allow", "deny", "allow"), group("other-rule", "deny", "deny"))
    unreplayed = (UnreplayedCalls("arguments", 2),)
    at = int(NOON.timestamp() * 1_000_000)

    report, page = with_parts(replay=ReplayResult("a" * 64, "b" * 64, 20, 10, groups, unreplayed, at, at))

    data = report_to_dict(report)["replay"]
    assert [(each["wider"], each["calls"]) for each in data["differences"]] == [(True, 4), (False, 4)]
    assert data["unreplayed"] == [
        {"words": "a rule or the schema reads arguments, and they were not stored", "calls": 2}
    ]
    assert ("replay-wider", "high") in finding_codes(report)
    assert "refused before, allowed now" in page
    assert 'agent:<span class="inv">U+202E</span>bot' in page


def test_replayed_calls_that_would_be_stopped_are_a_lesser_finding() -> None:
    result = ReplayResult("a" * 64, None, 4, 0, (group("allow-to-deny", "allow", "deny"),))

    report, page = with_parts(replay=result)

    assert ("replay-differs", "medium") in finding_codes(report)
    assert "what was recorded" in page


def test_replay_without_calls_says_so() -> None:
    _, page = with_parts(replay=ReplayResult("a" * 64, None, 0, 0))

    assert "There are no recorded calls to replay." in page


def grant(until: datetime) -> GrantAccess:
    found = Grant(
        "grant_1",
        "user:kim",
        None,
        "role:oncall",
        "oncall",
        timedelta(hours=2),
        "INC-42",
        Principal("user:kim"),
        NOON,
        NOON,
        state="approved",
        decider=Principal("user:lea"),
        since=NOON,
        until=until,
    )
    return GrantAccess(found, False, ROW, (AddedAccess("finance", "invoke", "payment_refund", ROW),))


def test_grants_in_force_are_shown_with_what_they_add() -> None:
    report, page = with_parts(grants=(grant(NOON + timedelta(hours=2)),))

    [found] = report_to_dict(report)["grants"]["grants"]
    assert (found["subject"], found["approver"], found["until"]) == ("user:kim", "user:lea", "2026-11-16T14:00:00Z")
    assert found["adds"] == ["invoke payment_refund in finance"]
    assert ("grant", "medium") in finding_codes(report)
    assert "the policy no longer allows it" in page


def test_denial_that_ended_is_a_grave_finding() -> None:
    over = EndingRow("role:agent, *", "permission", True, NOON - timedelta(days=1), "SEC-1", True, ROW)
    ahead = EndingRow("user:kim, role:x", "membership", False, NOON + timedelta(days=1), "SEC-2", False, ROW)

    report, page = with_parts(ending_rows=[over, ahead])

    assert ("deny-over", "high") in finding_codes(report)
    assert [each["over"] for each in report_to_dict(report)["grants"]["rows"]] == [True, False]
    assert "SEC-2" in page


def test_stops_are_shown_with_their_reasons() -> None:
    stops = [
        Stop(StopTarget("tool", "mail_send"), "odd mails", "os:kim", NOON, NOON + timedelta(hours=1)),
        Stop(StopTarget("principal", "user:bo"), "stolen laptop", "os:kim", NOON - timedelta(hours=1)),
    ]

    report, page = with_parts(stops=stops)

    assert [each["target"] for each in report_to_dict(report)["quarantines"]["stops"]] == [
        "principal:user:bo",
        "tool:mail_send",
    ]
    assert ("quarantine", "medium") in finding_codes(report)
    assert "stolen laptop" in page


def test_store_without_stops_says_so() -> None:
    _, page = with_parts(stops=[])

    assert "Nothing is stopped." in page


def test_altered_decision_log_is_a_grave_finding() -> None:
    state = AuditState(10, 1, 0, 10, NOON, ("main:3 altered: the hash differs",), ("a note",))

    report, page = with_parts(audit=state)

    assert ("audit-log", "high") in finding_codes(report)
    assert "The log was altered." in page


def test_log_that_no_anchor_confirms_is_a_finding() -> None:
    loose, _ = with_parts(audit=AuditState(10, 1, 0, 10, NOON))
    anchored, page = with_parts(audit=AuditState(10, 1, 2, 3, NOON))

    assert ("audit-unanchored", "medium") in finding_codes(loose)
    assert ("audit-unanchored", "medium") not in finding_codes(anchored)
    assert "10 entries are intact" in page
    assert "2026-11-16 12:00 UTC" in page


def test_dependencies_are_listed_with_their_digests() -> None:
    packages = (Dependency("jinja2", "3.1.6", ("sha256:aa", "sha256:bb")), Dependency("odd", "1", ()))

    _, page = with_parts(dependencies=DependencyList("some.lock", "cc", packages))

    assert "sha256:aa" in page
    assert "not pinned" in page


def test_upstreams_that_give_what_is_pinned_are_no_finding() -> None:
    report, page = with_parts(drift=[])

    assert not [each for each in report.summary.findings if each.code == "drift"]
    assert "Every upstream gives what is pinned." in page


@pytest.mark.parametrize(("oldest", "grade"), [(NOON - timedelta(days=40), "medium"), (NOON, "low"), (None, "low")])
def test_row_that_was_not_used_is_a_lesser_finding_if_records_are_young(oldest: datetime | None, grade: str) -> None:
    review = report_input(ROOT).review
    row = PolicyRow("role:clerk", "finance", "tool:*", frozenset({"invoke"}), "internal", "allow", ROW)
    usage = UsageTable([], NOON - timedelta(days=30), oldest)

    report, page = with_parts(review=replace(review, usage=usage, row_use=(RowUse(row, ToolUse(0, None)),)))

    assert ("row-unused", grade) in finding_codes(report)
    assert report_to_dict(report)["accessUse"]["use"]["covered"] is (grade == "medium")
    assert ("Use before that is unknown." in page) is (grade == "low")


def test_day_of_the_report_is_an_input() -> None:
    report, page = with_parts(day=date(2027, 1, 2))

    assert report_to_dict(report)["revision"]["day"] == "2027-01-02"
    assert "on 2027-01-02" in page
