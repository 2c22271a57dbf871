"""What becomes of a call, told step by step, for people and for programs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console

from gateway.access import STEPS, Access, Answer, Call
from gateway.cli.console import print_line
from gateway.config.report_text import visible
from gateway.governance.conditions import Scope
from gateway.governance.diagnostics import Position
from gateway.governance.effects import in_effect_order
from gateway.governance.leaves import deciding_leaf
from gateway.governance.rules import Arguments, GateRule, Verdict
from gateway.review.policy_tests import about_rule
from gateway.snapshot import DeclaredTool, Query

NOT_ASKED: Final = "not asked"
_COLOURS: Final = {"allow": "green", "hold": "yellow", "deny": "red"}
_WIDEST: Final = 80


@dataclass(frozen=True, slots=True)
class Told:
    """One line of an explanation: a step or a gate rule, what it said, and why."""

    name: str
    word: str
    reason: str = ""
    position: Position | None = None
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where that stands, unless the reason says so."""
        place = f"{self.position.file}:{self.position.line}" if self.position else ""
        return "" if place in self.reason else place


def steps_told(answer: Answer) -> list[Told]:
    """Every step in its order, those that were not asked, too."""
    asked = [Told(step.name, step.decision, step.reason, step.position) for step in answer.steps]
    if asked and asked[-1].name == "gates" and answer.decision == "allow":  # what let it through stands at the policy
        asked[-1] = Told("gates", "allow", answer.steps[-1].reason)
    return asked + [Told(name, NOT_ASKED) for name in STEPS[len(asked) :]]


def rules_told(access: Access, call: Call, answer: Answer) -> list[Told]:
    """Every gate rule about the tool: what it said, or why it had nothing to say. None if gates were not asked."""
    tool = access.requested(call)
    if answer.outcome is None or tool is None:
        return []
    verdicts = {verdict.rule.name: verdict for verdict in answer.outcome.verdicts}
    resting = [rule for rule in access.snapshot.gates.values() if rule.mode == "disabled"]
    about = [rule for rule in resting if rule.is_about(tool.governed, call.catalogue)]
    about += access.rules_about(tool, call.catalogue)
    return [
        _rule_told(rule, verdicts.get(rule.name), answer, tool) for rule in sorted(about, key=lambda rule: rule.name)
    ]


def effects_told(access: Access, call: Call) -> str:
    """Who says what the tool does, and what it counts as; nothing if there is no such tool."""
    tool = access.requested(call)
    if tool is None:
        return ""
    if isinstance(tool, Query):
        return f"none: it reads what {tool.maker.name} yielded"
    trust = tool.trust
    flags = ", ".join(in_effect_order(trust.flags)) or "no flags"
    claims = f"; its server claims {', '.join(in_effect_order(trust.claimed))}" if trust.claimed else ""
    by = {"declared": "declared", "implied": "implied by the method", "unknown": "unknown, which counts as the worst"}
    return f"{by[trust.effects]}: {flags}{claims}"


def print_explanation(console: Console, call: Call, answer: Answer, rules: list[Told], effects: str) -> None:
    """The decision first, then what the tool does, then each step, then each gate rule."""
    decision, step = answer.decision, answer.steps[-1]
    who = f"{call.principal.subject} calls {call.tool} in {call.catalogue}"
    what = f"{answer.because.kind} {answer.because.name}" if answer.because else f"the {step.name}"
    print_line(console, (decision, f"bold {_COLOURS[decision]}"), visible(f": {who}; decided by {what}"))
    if effects:
        print_line(console, visible(f"effects: {effects}"))
    print_line(console)
    _print_lines(console, steps_told(answer))
    if rules:
        print_line(console)
        print_line(console, ("gate rules about the tool", "bold"))
        _print_lines(console, rules)


def as_json(call: Call, answer: Answer, rules: list[Told], effects: str) -> str:
    document = {
        "decision": answer.decision,
        "because": {answer.because.kind: answer.because.name} if answer.because else None,
        "call": {
            "tool": call.tool,
            "catalogue": call.catalogue,
            "subject": call.principal.subject,
            "roles": sorted(call.principal.roles),
            "tenant": call.principal.tenant,
            "at": call.at.isoformat(),
        },
        "effects": effects,
        "steps": [_object(told) for told in steps_told(answer)],
        "gateRules": [_object(told) for told in rules],
    }
    return json.dumps(document, indent=2) + "\n"


def _rule_told(rule: GateRule, verdict: Verdict | None, answer: Answer, tool: DeclaredTool | Query) -> Told:
    assumed = _assumed(rule, tool)
    if rule.mode == "disabled":
        return Told(rule.name, "disabled", "", rule.position, assumed)
    if verdict is None:
        return Told(rule.name, "not about it", about_rule(rule, answer) or "", rule.position, assumed)
    word = verdict.judgement.decision
    return Told(
        rule.name,
        word if verdict.counts else f"would {word}",
        verdict.judgement.reason,
        rule.position,
        (*assumed, *(_notes(rule, verdict, answer.scope) if answer.scope else ())),
    )


def _assumed(rule: GateRule, tool: DeclaredTool | Query) -> tuple[str, ...]:
    """Said of a rule that matches the tool only because nobody knows what the tool does."""
    if not rule.match.flags or not tool.trust.known_flags.isdisjoint(rule.match.flags):
        return ()
    flags = in_effect_order(tool.trust.assumed.intersection(rule.match.flags))
    return (f"matches because the effects are unknown, which counts as {', '.join(flags)}",)


def _notes(rule: GateRule, verdict: Verdict, scope: Scope) -> Iterator[str]:
    """Which part of a requirement is not met, and why the rule is about the call."""
    if isinstance(rule.check, Arguments) and verdict.judgement.decision != "allow":
        yield str(deciding_leaf(rule.check.require, scope))
    if rule.when is not None:
        yield f"asked because {deciding_leaf(rule.when, scope)}"


def _print_lines(console: Console, lines: list[Told]) -> None:
    names = max(len(told.name) for told in lines)
    words = max(len(told.word) for told in lines)
    reasons = min(_WIDEST, max(cell_len(visible(told.reason)) for told in lines))
    for told in lines:
        reason = visible(told.reason)
        gap = " " * max(0, reasons - cell_len(reason)) if told.place else ""
        style = _COLOURS.get(told.word.removeprefix("would "), "dim")
        after = f"  {reason}{gap}  {visible(told.place)}".rstrip()
        if after:
            print_line(console, f"  {told.name:{names}}  ", (f"{told.word:{words}}", style), after)
        else:
            print_line(console, f"  {told.name:{names}}  ", (told.word, style))
        for words_below in told.notes:
            print_line(console, " " * (names + words + 6), (visible(words_below), "dim"))


def _object(told: Told) -> dict[str, Any]:
    position = told.position
    return {
        "name": told.name,
        "answer": told.word,
        "reason": told.reason,
        "file": position.file if position else None,
        "line": position.line if position else None,
        "notes": list(told.notes),
    }
