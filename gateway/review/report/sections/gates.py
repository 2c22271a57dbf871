"""Section: gate rules in plain words, the tests that cover them, and the rules without a test."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.policy import GateRule
from gateway.registries import Position
from gateway.review.policy_tests import CaseResult, find_deciding_rules, is_testable
from gateway.review.report.report_input import ReportInput
from gateway.review.report.rule_words import describe_check, describe_match
from gateway.review.report.setting_values import format_setting, read_spec


@dataclass(frozen=True, slots=True)
class ReviewedCase:
    """A policy test: what it expects, whether it passes, and why not."""

    suite: str
    name: str
    expected: str
    got: str
    passed: bool
    failure: tuple[str, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class ReviewedRule:
    """A rule in words. Without `is_testable`, no test can cover it: it is disabled, or counts beyond a turn."""

    name: str
    owner: str | None
    description: str
    mode: str
    about: str
    when: str | None
    does: str
    tools: tuple[str, ...]
    """`catalogue/name` of every tool that it matches."""
    is_testable: bool
    tests: tuple[ReviewedCase, ...]
    position: Position


@dataclass(frozen=True, slots=True)
class RulesSection:
    rules: tuple[ReviewedRule, ...]
    passed: int
    failed: int
    failing: tuple[ReviewedCase, ...]
    untested: tuple[str, ...]
    """Rules that a test could cover, and none does."""
    idle_rows: tuple[Position, ...]
    """Policy rows that decided no test."""
    uncalled_tools: tuple[str, ...]


def build_rules(source: ReportInput) -> RulesSection:
    rules = tuple(_rule(source, rule) for _, rule in sorted(source.snapshot.gates.items()))
    failing = tuple(_case(source, each) for each in source.tests if not each.passed)
    return RulesSection(
        rules,
        len(source.tests) - len(failing),
        len(failing),
        failing,
        source.coverage.idle_rules,
        tuple(map(source.place, source.coverage.idle_rows)),
        source.coverage.uncalled_tools,
    )


def _rule(source: ReportInput, rule: GateRule) -> ReviewedRule:
    document = source.project.documents["GateRule"][rule.name]
    spec = read_spec(source.project, document)
    when = spec.get("when")
    tests = [each for each in source.tests if rule.name in set(find_deciding_rules(each))]
    return ReviewedRule(
        rule.name,
        document.owner,
        rule.description,
        rule.mode,
        describe_match(spec),
        None if when is None else format_setting(when),
        describe_check(rule, spec),
        tuple(_matched(source, rule)),
        is_testable(rule),
        tuple(_case(source, each) for each in tests),
        document.position,
    )


def _matched(source: ReportInput, rule: GateRule) -> Iterator[str]:
    for name, catalogue in sorted(source.snapshot.catalogues.items()):
        for advertised, identity in sorted(catalogue.tools.items()):
            if rule.matches(source.snapshot.tools[identity].to_governed, name):
                yield f"{name}/{advertised}"


def _case(source: ReportInput, result: CaseResult) -> ReviewedCase:
    case = result.case
    position = source.place(case.position)
    return ReviewedCase(case.suite, case.name, result.expected, result.got, result.passed, result.failure, position)
