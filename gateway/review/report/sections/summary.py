"""Section: the one-minute summary. Findings come from the other sections, each with a link to its section."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gateway.registries import Position
from gateway.review.report.report_input import AuditState, NoData

if TYPE_CHECKING:
    from gateway.review.report.report_data import ReportSections

Grade = Literal["high", "medium", "low"]
GRADES: Final[tuple[Grade, ...]] = ("high", "medium", "low")
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class ReviewFinding:
    """Something that a reviewer should look at. `code` is stable, `section` has the details."""

    code: str
    grade: Grade
    title: str
    words: str
    section: str
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class SummaryFigure:
    name: str
    value: int
    note: str


@dataclass(frozen=True, slots=True)
class SummarySection:
    verdict: str
    figures: tuple[SummaryFigure, ...]
    findings: tuple[ReviewFinding, ...]


def build_summary(sections: "ReportSections") -> SummarySection:
    findings = sorted(_findings(sections), key=lambda found: (GRADES.index(found.grade), found.code, found.title))
    return SummarySection(_verdict(findings), tuple(_figures(sections)), tuple(findings))


def _verdict(findings: list[ReviewFinding]) -> str:
    counts = [(grade, sum(found.grade == grade for found in findings)) for grade in GRADES]
    named = [f"{count} {grade}" for grade, count in counts if count]
    if not named:
        return "Nothing was found that needs a decision."
    size = len(findings)
    return f"{size} finding{'s' * (size != 1)}: {', '.join(named)}."


def _figures(sections: "ReportSections") -> Iterator[SummaryFigure]:
    tools = {tool.identity: tool for each in sections.catalogues.catalogues for tool in each.tools}
    idle = sum(not tool.callable for tool in tools.values())
    yield SummaryFigure("Tools", sections.trust.tools, f"{idle} not callable" if idle else "all can be called")
    callers = sections.identities.callers
    agents = sum(each.name.startswith("agent:") for each in callers)
    yield SummaryFigure("Callers", len(callers), f"{agents} of them agents" if agents else "no agent among them")
    rules = sections.rules.rules
    enforced = sum(each.mode == "enforce" for each in rules)
    words = "all enforced" if enforced == len(rules) else f"{enforced} enforced"
    yield SummaryFigure("Gate rules", len(rules), words)
    failed = sections.rules.failed
    total = sections.rules.passed + failed
    yield SummaryFigure("Policy tests", total, f"{failed} fail" if failed else "all pass")


def _findings(sections: "ReportSections") -> Iterator[ReviewFinding]:
    yield from _of_rules(sections)
    yield from _of_tools(sections)
    yield from _of_identities(sections)
    yield from _of_changes(sections)
    yield from _of_replay(sections)
    yield from _of_access(sections)
    yield from _of_grants(sections)
    yield from _of_definitions(sections)
    yield from _of_operation(sections)


def _of_rules(sections: "ReportSections") -> Iterator[ReviewFinding]:
    rules = sections.rules
    for case in rules.failing:
        title = f"A policy test fails: {case.name}"
        words = f"expected {case.expected}, got {case.got}"
        yield ReviewFinding("test-fails", "high", title, words, "rules", case.position)
    if not rules.passed + rules.failed:
        yield ReviewFinding("no-tests", "medium", "There are no policy tests", "no rule is tested", "rules")
    for rule in rules.rules:
        if rule.mode != "enforce":
            word = "only observes" if rule.mode == "observe" else "is disabled"
            title = f"Rule {rule.name} {word}"
            yield ReviewFinding("rule-not-enforced", "medium", title, "it decides nothing", "rules", rule.position)
        elif rule.name in rules.untested:
            title = f"Rule {rule.name} has no test"
            yield ReviewFinding("rule-untested", "low", title, "no policy test reaches it", "rules", rule.position)


def _of_tools(sections: "ReportSections") -> Iterator[ReviewFinding]:
    for tool in sections.hazards.tools:
        if tool.callable and tool.callers and not tool.guards:
            title = f"No rule but limits guards {tool.name} in {tool.catalogue}"
            callers = sum(len(each.callers) for each in tool.callers)
            words = f"it carries {', '.join(tool.hazards)}, and {_count(callers, 'caller')} can call it"
            yield ReviewFinding("hazard-without-rule", "high", title, words, "hazards", tool.position)
    for tool in {each.identity: each for each in sections.hazards.tools if each.is_unknown}.values():
        title = f"The effects of {tool.identity} are unknown"
        yield ReviewFinding("effects-unknown", "medium", title, "the worst is assumed", "hazards", tool.position)
    for waiver in sections.trust.waivers:
        title = f"{waiver.catalogue} has a waiver until {waiver.until}"
        words = f"{', '.join(waiver.flags)} together; {waiver.by}: {waiver.because}"
        yield ReviewFinding("waiver", "medium", title, words, "trust", waiver.position)
    for name in sections.catalogues.unlisted:
        yield ReviewFinding("tool-unlisted", "low", f"{name} is in no catalogue", "no caller sees it", "catalogues")


def _of_identities(sections: "ReportSections") -> Iterator[ReviewFinding]:
    subject = sections.identities.common_subject
    if subject is not None:
        title = f"Every caller is {subject}"
        words = "no provider in use distinguishes callers; for trying out only"
        yield ReviewFinding("one-caller", "high", title, words, "identities")
    for each in sections.identities.approvals:
        if each.problem is not None:
            title = f"Rule {each.rule} cannot be approved"
            yield ReviewFinding("not-approvable", "high", title, each.problem, "identities", each.position)


def _of_changes(sections: "ReportSections") -> Iterator[ReviewFinding]:
    changes, access = sections.changes, sections.access_changes
    if not isinstance(changes, NoData):
        for control in changes.controls:
            if control.weight == "high":
                title = f"{control.about} changed since {changes.against}"
                yield ReviewFinding(control.code, "high", title, control.words, "changes", control.position)
    if not isinstance(access, NoData) and access.gained:
        callers = sorted({each.caller for each in access.gained})
        title = f"{_count(len(callers), 'caller')} gained access"
        more = f" and {len(callers) - _NAMED} more" if len(callers) > _NAMED else ""
        words = f"{', '.join(callers[:_NAMED])}{more}"
        yield ReviewFinding("access-gained", "medium", title, words, "access-changes")


def _of_replay(sections: "ReportSections") -> Iterator[ReviewFinding]:
    found = sections.replay
    if isinstance(found, NoData):
        return
    wider = sum(each.calls for each in found.differences if each.is_wider)
    if wider:
        title = f"{_count(wider, 'recorded call')} would pass that did not"
        yield ReviewFinding("replay-wider", "high", title, found.summary, "replay")
    elif found.differences:
        calls = sum(each.calls for each in found.differences)
        title = f"{_count(calls, 'recorded call')} would be decided otherwise"
        yield ReviewFinding("replay-differs", "medium", title, found.summary, "replay")


def _of_grants(sections: "ReportSections") -> Iterator[ReviewFinding]:
    for row in sections.grants.rows:
        if row.is_over and row.is_deny:
            title = f"A denial ended on {row.until.date()}"
            yield ReviewFinding("deny-over", "high", title, row.words, "grants", row.position)
    if not isinstance(sections.grants.grants, NoData):
        for grant in sections.grants.grants:
            title = f"{grant.subject} holds {grant.role} by a grant"
            yield ReviewFinding("grant", "medium", title, grant.reason, "grants", grant.position)


def _of_access(sections: "ReportSections") -> Iterator[ReviewFinding]:
    found = sections.access_use
    if not isinstance(found.use, NoData):
        grade: Grade = "medium" if found.use.is_covered else "low"  # what was before the records is unknown
        for row in found.use.unused:
            title = "A row was not used"
            yield ReviewFinding("row-unused", grade, title, row.words, "access-use", row.position)
    for row in found.redundant:
        yield ReviewFinding("row-redundant", "low", "A row adds nothing", row.words, "access-use", row.position)
    for name in found.ownerless:
        title = f"{name} has no owner"
        yield ReviewFinding("caller-ownerless", "low", title, "no team answers for it", "access-use")


def _of_definitions(sections: "ReportSections") -> Iterator[ReviewFinding]:
    definitions = sections.definitions
    for each in definitions.definitions:
        if not each.is_pinned:
            title = f"{each.upstream}.{each.name} is not pinned"
            words = "a changed definition would not be noticed"
            yield ReviewFinding("not-pinned", "medium", title, words, "definitions", each.position)
    if not isinstance(definitions.drift, NoData):
        for change in definitions.drift:
            title = f"{change.upstream}.{change.name} differs from its pin"
            yield ReviewFinding("drift", change.grade, title, change.words, "definitions")
    for problem in sections.diagnostics.diagnostics:
        title = f"{problem.code}: {problem.message}"
        help = problem.help or "see the file"
        yield ReviewFinding("diagnostic", "medium", title, help, "diagnostics", problem.position)


def _of_operation(sections: "ReportSections") -> Iterator[ReviewFinding]:
    stops, audit = sections.quarantines, sections.audit
    if not isinstance(stops, NoData):
        for stop in stops.stops:
            title = f"{stop.target} is stopped"
            yield ReviewFinding("quarantine", "medium", title, f"{stop.by}: {stop.reason}", "quarantines")
    if isinstance(audit, AuditState):
        for words in audit.findings:
            yield ReviewFinding("audit-log", "high", "The decision log was altered", words, "audit")
        if not audit.findings and audit.unanchored == audit.entries:
            title = "No anchor confirms the decision log"
            words = "a truncated or rewritten log would not be noticed"
            yield ReviewFinding("audit-unanchored", "medium", title, words, "audit")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
