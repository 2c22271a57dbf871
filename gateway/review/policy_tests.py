"""Which policy cases hold, why the others do not, and which rules and tools no case has put to the test.

A case holds only if the decision and what decided are both as expected. Everything is asked of `Access`, as for a real
call; nothing is read from the world. How results are shown is not known here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.access import Access, Answer, Call, Discovery
from gateway.governance.cases import Because, PolicyCase
from gateway.governance.diagnostics import Position, did_you_mean
from gateway.governance.leaves import deciding_leaf
from gateway.governance.rules import GateRule, Permission, Verdict
from gateway.review.earlier import remembered

_GAP: Final = "   "


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case and what came of it: `answer` for a call, `discoveries` for a question about what is listed.

    `failure` says in a few lines why it does not hold; it is empty if it does.
    """

    case: PolicyCase
    passed: bool
    got: str
    position: Position | None = None
    """Where that stands which decided."""
    answer: Answer | None = None
    discoveries: tuple[Discovery, ...] = ()
    failure: tuple[str, ...] = ()

    @property
    def listed(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.discoveries if each.decision.allowed)

    @property
    def expected(self) -> str:
        """What the case expects, in the words of `got`."""
        expected = self.case.expected
        if not isinstance(expected, str):
            return counted_tools(len(expected))
        return f"{expected} by {_named(self.case.because)}" if self.case.because else expected


@dataclass(frozen=True, slots=True)
class Coverage:
    """What decided a case and what did not: policy rows by position, gate rules by name, and tools that were called.

    Rules that are disabled or count beyond a turn, and tools that no catalogue has, are left out: no case can be about
    them.
    """

    used_rows: tuple[Position, ...]
    idle_rows: tuple[Position, ...]
    used_rules: tuple[str, ...]
    idle_rules: tuple[str, ...]
    called_tools: tuple[str, ...]
    uncalled_tools: tuple[str, ...]


def run_cases(access: Access, cases: Iterable[PolicyCase]) -> list[CaseResult]:
    """The result of each case, in the same order."""
    return [_called(access, case, case.tool) if case.tool is not None else _discovered(access, case) for case in cases]


def coverage_of(access: Access, results: Sequence[CaseResult], *, rows: Iterable[Position]) -> Coverage:
    """What the cases have put to the test. `rows` are the policy rows that a case could be about."""
    snapshot = access.snapshot
    ordered = sorted(set(rows))
    decided = {row for result in results for row in _deciding_rows(result)}
    rules = sorted(rule.name for rule in snapshot.gates.values() if _is_testable(rule))
    spoke = {name for result in results for name in _deciding_rules(result)}
    tools = sorted({tool for catalogue in snapshot.catalogues.values() for tool in catalogue.tools.values()})
    called = {
        tool.name
        for case in (result.case for result in results)
        if case.tool is not None and (tool := snapshot.tool_in(case.catalogue, case.tool)) is not None
    }
    return Coverage(
        used_rows=tuple(row for row in ordered if row in decided),
        idle_rows=tuple(row for row in ordered if row not in decided),
        used_rules=tuple(name for name in rules if name in spoke),
        idle_rules=tuple(name for name in rules if name not in spoke),
        called_tools=tuple(name for name in tools if name in called),
        uncalled_tools=tuple(name for name in tools if name not in called),
    )


def actions_asked(access: Access) -> frozenset[str]:
    """What cases ask the policy about: seeing, calling, and every permission that a gate rule asks for."""
    checks = [rule.check for rule in access.snapshot.gates.values() if _is_testable(rule)]
    return frozenset({"discover", "invoke"}) | {check.action for check in checks if isinstance(check, Permission)}


def counted_tools(count: int) -> str:
    return f"{count} tool{'s' * (count != 1)}"


def placed(words: str, position: Position | None) -> str:
    """The words, and where that stands, unless they say so themselves."""
    place = f"{position.file}:{position.line}" if position else ""
    return words if place in words else f"{words}{_GAP}{place}"


def about_rule(rule: GateRule, answer: Answer) -> str | None:
    """Why a rule that is about the tool did not speak: the part of its condition that is false."""
    if rule.when is None or answer.scope is None or rule not in answer.idle_rules:
        return None
    return str(deciding_leaf(rule.when, answer.scope))


def about_verdict(verdict: Verdict) -> str:
    """What a rule said, with whether it counts and whether its condition could be told at all."""
    words = f"{verdict.judgement.decision}, {verdict.judgement.reason}"
    failed = f"; its condition could not be evaluated: {verdict.failure}" if verdict.failure else ""
    return f"{words}{failed}" if verdict.counts else f"only observes; it would say {words}{failed}"


def _called(access: Access, case: PolicyCase, tool: str) -> CaseResult:
    call = Call(case.principal, case.catalogue, tool, case.at, case.args, remembered(access, case), of=case.of)
    answer = access.call(call)
    is_same = answer.decision == case.expected and case.because in (None, answer.because)
    position = answer.steps[-1].position
    got: str = answer.decision
    if case.because is not None and answer.because is not None and not is_same:
        got = f"{got} by {_named(answer.because)}"
    failure = () if is_same else tuple(_why(access, case, answer))
    return CaseResult(case, is_same, got, position, answer, failure=failure)


def _why(access: Access, case: PolicyCase, answer: Answer) -> Iterable[str]:
    """First about what should have decided, then what did."""
    because = case.because
    if because is not None and because.kind == "gate" and because != answer.because:
        yield _why_not_the_gate(access, because.name, case=case, answer=answer)
        if answer.outcome is None or answer.decision == "allow":
            return
    step = answer.steps[-1]
    if step.name == "gates" and step.decision == "allow":
        yield placed(f"gates: {step.reason}", None)
        step = answer.steps[-2]
    yield placed(f"{step.name}: {step.reason}", step.position)


def _why_not_the_gate(access: Access, name: str, *, case: PolicyCase, answer: Answer) -> str:
    rule = access.snapshot.gates.get(name)
    if rule is None:
        suggestion = did_you_mean(name, access.snapshot.gates)
        return f"gate {name}: there is no such rule" + (f"; {suggestion}" if suggestion else "")
    return placed(f"gate {name}: {_silence(rule, case, answer)}", rule.position)


def _silence(rule: GateRule, case: PolicyCase, answer: Answer) -> str:
    if rule.mode == "disabled":
        return "it is disabled"
    if answer.outcome is None:
        step = answer.steps[-1]
        return f"it was not asked, because of the {step.name}: {step.reason}"
    verdict = next((each for each in answer.outcome.verdicts if each.rule.name == rule.name), None)
    if verdict is not None:
        return about_verdict(verdict)
    return about_rule(rule, answer) or f"it is not about calls of {case.tool} in {case.catalogue}"


def _discovered(access: Access, case: PolicyCase) -> CaseResult:
    found = tuple(access.discoveries(case.principal, case.catalogue, at=case.at))
    listed = {each.name: each for each in found if each.decision.allowed}
    expected = case.expected if not isinstance(case.expected, str) else frozenset[str]()
    missing, extra = sorted(expected - set(listed)), sorted(set(listed) - expected)
    failure = (
        *(f"missing {name}: {_why_unlisted(access, case, name)}" for name in missing),
        *(placed(f"extra {name}: {listed[name].decision.reason}", listed[name].decision.row) for name in extra),
    )
    return CaseResult(case, not failure, counted_tools(len(listed)), None, None, found, failure)


def _why_unlisted(access: Access, case: PolicyCase, name: str) -> str:
    catalogue = access.snapshot.catalogues.get(case.catalogue)
    tool = access.snapshot.tool_in(case.catalogue, name)
    if catalogue is None or tool is None:
        suggestion = did_you_mean(name, catalogue.tools) if catalogue else None
        return f"there is no such tool in {case.catalogue}" + (f"; {suggestion}" if suggestion else "")
    first = access.call(Call(case.principal, case.catalogue, name, case.at)).steps[0]
    if first.decision != "allow":
        return placed(first.reason, first.position)
    if name in catalogue.hidden:
        return placed(f"it is hidden in {case.catalogue}", catalogue.position)
    decision = access.asks(case.principal, "discover", catalogue=case.catalogue, tool=tool)
    if decision.allowed:
        return placed(f"it is {tool.lifecycle} and not in use on that day", tool.position)
    return placed(decision.reason, decision.row)


def _is_testable(rule: GateRule) -> bool:
    return rule.mode != "disabled" and not rule.limits


def _deciding_rows(result: CaseResult) -> Iterable[Position]:
    if result.answer is not None:
        return result.answer.rows
    return [each.decision.row for each in result.discoveries if each.decision.row is not None]


def _deciding_rules(result: CaseResult) -> Iterable[str]:
    """The rule that held or denied; one that observes decides nothing, so what it would have said counts."""
    outcome = result.answer.outcome if result.answer else None
    for verdict in outcome.verdicts if outcome else ():
        decides = verdict is outcome.decided_by if verdict.counts and outcome else True
        if decides and verdict.judgement.decision != "allow":
            yield verdict.rule.name


def _named(because: Because) -> str:
    return because.name if because.kind == "policy" else f"{because.kind} {because.name}"
