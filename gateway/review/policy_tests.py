"""Runs policy cases: which pass, why the others fail, and which rules and tools no case tests.

A case passes only if both the decision and its reason are as expected. `Access` decides, as for a real call; nothing
else is read. This module does not format results. `hypothetical_turn` builds the turn state that a case describes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.model import fingerprint_of
from gateway.policy import (
    Access,
    AccessAnswer,
    AccessQuestion,
    GateRule,
    PermissionCheck,
    RuleVerdict,
    ToolVisibility,
    TurnState,
    find_deciding_part,
)
from gateway.registries import ExpectedReason, PolicyCase, Position, suggest_name


def hypothetical_turn(access: Access, case: PolicyCase) -> TurnState:
    """Return the turn state that a case describes. Its earlier calls were allowed, with the taint of their tools."""
    memory = TurnState()
    memory.flags.update(case.saw)
    memory.classes.update(case.read)
    for earlier in sorted(case.calls, key=lambda call: call.ago, reverse=True):
        tool = access.snapshot.tool_in(case.catalogue, earlier.tool)
        taint = access.taint_of_tool(tool) if tool is not None else access.taint_of_artifact(earlier.tool)
        fingerprint = fingerprint_of(earlier.tool, earlier.args)
        for _ in range(earlier.times):
            memory.reserve_call(fingerprint)
            memory.record_call(taint, "allow", at=case.at - earlier.ago)
        memory.add_bytes(earlier.bytes * earlier.times)
    return memory


_GAP: Final = "   "


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case and its result: `answer` for a call, `discoveries` for a case about the list of tools.

    `failure` explains in a few lines why the case failed; it is empty if it passed.
    """

    case: PolicyCase
    passed: bool
    got: str
    position: Position | None = None
    """The position of the row or document that decided."""
    answer: AccessAnswer | None = None
    discoveries: tuple[ToolVisibility, ...] = ()
    failure: tuple[str, ...] = ()

    @property
    def listed(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.discoveries if each.decision.allowed)

    @property
    def expected(self) -> str:
        """The expected result, in the same form as `got`."""
        expected = self.case.expected
        if not isinstance(expected, str):
            return format_tool_count(len(expected))
        return f"{expected} by {_format_reason(self.case.because)}" if self.case.because else expected


@dataclass(frozen=True, slots=True)
class Coverage:
    """What decided a case and what did not: policy rows by position, gate rules by name, and called tools.

    Rules that are disabled or count beyond a turn, and tools that are in no catalogue, are left out: no case can test
    them.
    """

    used_rows: tuple[Position, ...]
    idle_rows: tuple[Position, ...]
    used_rules: tuple[str, ...]
    idle_rules: tuple[str, ...]
    called_tools: tuple[str, ...]
    uncalled_tools: tuple[str, ...]


def run_cases(access: Access, cases: Iterable[PolicyCase]) -> list[CaseResult]:
    """Return the result of each case, in the same order."""
    return [
        _run_call(access, case, case.tool) if case.tool is not None else _run_discovery(access, case) for case in cases
    ]


def measure_coverage(access: Access, results: Sequence[CaseResult], *, rows: Iterable[Position]) -> Coverage:
    """Return what the cases tested. `rows` are the policy rows that a case can test."""
    snapshot = access.snapshot
    ordered = sorted(set(rows))
    decided = {row for result in results for row in _deciding_rows(result)}
    rules = sorted(rule.name for rule in snapshot.gates.values() if is_testable(rule))
    used = {name for result in results for name in find_deciding_rules(result)}
    tools = sorted({tool for catalogue in snapshot.catalogues.values() for tool in catalogue.tools.values()})
    called = {
        tool.name
        for case in (result.case for result in results)
        if case.tool is not None and (tool := snapshot.tool_in(case.catalogue, case.tool)) is not None
    }
    return Coverage(
        used_rows=tuple(row for row in ordered if row in decided),
        idle_rows=tuple(row for row in ordered if row not in decided),
        used_rules=tuple(name for name in rules if name in used),
        idle_rules=tuple(name for name in rules if name not in used),
        called_tools=tuple(name for name in tools if name in called),
        uncalled_tools=tuple(name for name in tools if name not in called),
    )


def list_testable_actions(access: Access) -> frozenset[str]:
    """Return the actions that cases can test: discover, invoke, and every permission that a gate rule checks."""
    checks = [rule.check for rule in access.snapshot.gates.values() if is_testable(rule)]
    return frozenset({"discover", "invoke"}) | {check.action for check in checks if isinstance(check, PermissionCheck)}


def format_tool_count(count: int) -> str:
    return f"{count} tool{'s' * (count != 1)}"


def append_position(text: str, position: Position | None) -> str:
    """Append a position to a text, unless the text contains it already."""
    place = f"{position.file}:{position.line}" if position else ""
    return text if place in text else f"{text}{_GAP}{place}"


def find_false_condition(rule: GateRule, answer: AccessAnswer) -> str | None:
    """Return the false part of the condition of a rule that applies to the tool but did not decide."""
    if rule.when is None or answer.scope is None or rule not in answer.idle_rules:
        return None
    return str(find_deciding_part(rule.when, answer.scope))


def describe_verdict(verdict: RuleVerdict) -> str:
    """Describe the decision of a rule, whether it is enforced, and whether its condition could be evaluated."""
    decision = f"{verdict.judgement.decision}, {verdict.judgement.reason}"
    failed = f"; its condition could not be evaluated: {verdict.failure}" if verdict.failure else ""
    return f"{decision}{failed}" if verdict.is_enforced else f"only observes; it would decide {decision}{failed}"


def _run_call(access: Access, case: PolicyCase, tool: str) -> CaseResult:
    call = AccessQuestion(
        case.principal, case.catalogue, tool, case.at, case.args, hypothetical_turn(access, case), of=case.of
    )
    answer = access.decide_call(call)
    is_same = answer.decision == case.expected and case.because in (None, answer.because)
    position = answer.steps[-1].position
    got: str = answer.decision
    if case.because is not None and answer.because is not None and not is_same:
        got = f"{got} by {_format_reason(answer.because)}"
    failure = () if is_same else tuple(_why(access, case, answer))
    return CaseResult(case, is_same, got, position, answer, failure=failure)


def _why(access: Access, case: PolicyCase, answer: AccessAnswer) -> Iterable[str]:
    """Explain first why the expected reason did not decide, then what decided."""
    because = case.because
    if because is not None and because.kind == "gate" and because != answer.because:
        yield _why_not_the_gate(access, because.name, case=case, answer=answer)
        if answer.outcome is None or answer.decision == "allow":
            return
    step = answer.steps[-1]
    if step.name == "gates" and step.decision == "allow":
        yield append_position(f"gates: {step.reason}", None)
        step = answer.steps[-2]
    yield append_position(f"{step.name}: {step.reason}", step.position)


def _why_not_the_gate(access: Access, name: str, *, case: PolicyCase, answer: AccessAnswer) -> str:
    rule = access.snapshot.gates.get(name)
    if rule is None:
        suggestion = suggest_name(name, access.snapshot.gates)
        return f"gate {name}: there is no such rule" + (f"; {suggestion}" if suggestion else "")
    return append_position(f"gate {name}: {_why_silent(rule, case, answer)}", rule.position)


def _why_silent(rule: GateRule, case: PolicyCase, answer: AccessAnswer) -> str:
    if rule.mode == "disabled":
        return "it is disabled"
    if answer.outcome is None:
        step = answer.steps[-1]
        return f"it was not evaluated, because of the {step.name}: {step.reason}"
    verdict = next((each for each in answer.outcome.verdicts if each.rule.name == rule.name), None)
    if verdict is not None:
        return describe_verdict(verdict)
    return find_false_condition(rule, answer) or f"it does not apply to calls of {case.tool} in {case.catalogue}"


def _run_discovery(access: Access, case: PolicyCase) -> CaseResult:
    found = tuple(access.list_visibility(case.principal, case.catalogue, at=case.at))
    listed = {each.name: each for each in found if each.decision.allowed}
    expected = case.expected if not isinstance(case.expected, str) else frozenset[str]()
    missing, extra = sorted(expected - set(listed)), sorted(set(listed) - expected)
    failure = (
        *(f"missing {name}: {_why_unlisted(access, case, name)}" for name in missing),
        *(
            append_position(f"extra {name}: {listed[name].decision.reason}", listed[name].decision.row)
            for name in extra
        ),
    )
    return CaseResult(case, not failure, format_tool_count(len(listed)), None, None, found, failure)


def _why_unlisted(access: Access, case: PolicyCase, name: str) -> str:
    catalogue = access.snapshot.catalogues.get(case.catalogue)
    tool = access.snapshot.tool_in(case.catalogue, name)
    if catalogue is None or tool is None:
        suggestion = suggest_name(name, catalogue.tools) if catalogue else None
        return f"there is no such tool in {case.catalogue}" + (f"; {suggestion}" if suggestion else "")
    first = access.decide_call(AccessQuestion(case.principal, case.catalogue, name, case.at)).steps[0]
    if first.decision != "allow":
        return append_position(first.reason, first.position)
    if name in catalogue.hidden:
        return append_position(f"it is hidden in {case.catalogue}", catalogue.position)
    decision = access.decide_action(case.principal, "discover", catalogue=case.catalogue, tool=tool)
    if decision.allowed:
        return append_position(f"it is {tool.lifecycle} and not in use on that day", tool.position)
    return append_position(decision.reason, decision.row)


def is_testable(rule: GateRule) -> bool:
    return rule.mode != "disabled" and not rule.limits


def _deciding_rows(result: CaseResult) -> Iterable[Position]:
    if result.answer is not None:
        return result.answer.rows
    return [each.decision.row for each in result.discoveries if each.decision.row is not None]


def find_deciding_rules(result: CaseResult) -> Iterable[str]:
    """Yield the rule that held or denied the call, and observing rules that would have."""
    outcome = result.answer.outcome if result.answer else None
    for verdict in outcome.verdicts if outcome else ():
        decides = verdict is outcome.decided_by if verdict.is_enforced and outcome else True
        if decides and verdict.judgement.decision != "allow":
            yield verdict.rule.name


def _format_reason(because: ExpectedReason) -> str:
    return because.name if because.kind == "policy" else f"{because.kind} {because.name}"
