"""A plan for people, as lines of styled text, and for programs, as plain data.

Findings are at the right of the change: `!!` for high, `!` for medium risk. Values and names are on one line: in YAML's
flow style, truncated, with control characters escaped. The printer decides how each style looks.

The data:

    {"before": revision, "after": revision, "environment": name or null,
     "documents": [{"change": "added|removed|changed", "kind", "name", "position",
                    "fields": [{"path", "before", "after", "added": [...], "removed": [...]}]}],
     "policies":  [{"change", "position", "text", "before": row or null, "after": row or null}],
     "tests":     {"passed", "failed"} or null,
     "cases":     [{"change", "suite", "name", "position"}],
     "definitions": [{"upstream", "kind", "name", "what", "grade", "words", "path", "before", "after"}],
     "collisions": [{"catalogue", "name", "existing", "incoming", "outcome": "throw|replace|keep",
                     "kind": "tool|prompt|resource"}],
     "access":    [{"caller", "catalogue", "tool", "before": "none|sees|calls|gets|reads", "after"}],
     "findings":  [{"code", "weight": "low|medium|high", "about", "path", "words"}],
     "waivers":   [{"catalogue", "flags", "until", "by", "because"}],
     "replay":    what `gateway replay --output json` prints, or null,
     "risk":      "low|medium|high" or null, "accepted": true or false}

Prompts and groups of resources are in `tool`, with their name in policies: `prompt:wiki.review`.
Values are as written in the files; if one side does not have a field, its `before` or `after` is left out.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.registries import SHORT_REVISION, NameKind, Position
from gateway.review.plan.access_changes import AccessChange
from gateway.review.plan.builder import NameCollision, Plan, definition_change_kind
from gateway.review.plan.document_changes import AbsentValue, DocumentChange, FieldChange
from gateway.review.plan.policy_changes import GroupingRow, PolicyRow, RowChange
from gateway.review.plan.risk import WEIGHTS, RiskFinding, Weight, is_accepted
from gateway.review.plan.styled_text import Line, Style, StyledText, escape_controls
from gateway.review.replay.replay_text import replay_data, summarize_replay

_PLAIN: Final = re.compile(r"[A-Za-z0-9_$/.(*][^\[\]{},#\n\"]*(?<![ :])")
_LONGEST: Final = 60
_WIDEST_VALUE: Final = 72
_ENTRIES: Final = 4


def format_difference(field: FieldChange) -> str:
    """Format `old → new`; for long lists and lists of mappings, the removed and added entries."""
    entries = (*field.removed, *field.added)
    is_short = len(_flow(field.before)) + len(_flow(field.after)) <= _WIDEST_VALUE
    if not entries or (is_short and not any(isinstance(each, dict) for each in entries)):
        return f"{format_value(field.before)} → {format_value(field.after)}"
    return "  ".join((*_with_sign("-", field.removed), *_with_sign("+", field.added)))


def _with_sign(sign: str, entries: Sequence[Any]) -> Iterator[str]:
    yield from (f"{sign} {truncate_text(_flow(each), _WIDEST_VALUE)}" for each in entries[:_ENTRIES])
    if len(entries) > _ENTRIES:
        yield f"{sign} {len(entries) - _ENTRIES} more"


def format_value(value: Any) -> str:
    return truncate_text(_flow(value), _LONGEST)


def truncate_text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _flow(value: Any) -> str:
    match value:
        case AbsentValue():
            return repr(value)
        case str():
            return _text(value)
        case dict():
            return "{" + ", ".join(f"{_text(str(key))}: {_flow(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value, default=str)


def _text(text: str) -> str:
    seen = escape_controls(text)
    if _PLAIN.fullmatch(text) and ": " not in text and seen == text:
        return text
    return f'"{seen}"'


_SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
_MARKS: Final[dict[Weight, str]] = {"high": "!!", "medium": "! ", "low": "  "}
_KINDS: Final[dict[NameKind, str]] = {"tool": "", "prompt": "prompt ", "resource": "resources "}
_NARROWEST, _WIDEST = 40, 80
"""The column of the marks is between these; wider lines have their marks below."""
_BELOW: Final = 6
_CALLERS, _TOOLS = 3, 6
"""How many are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class _PlanRow:
    """A line about a change, and its findings."""

    line: Line
    findings: tuple[RiskFinding, ...] = ()

    @property
    def width(self) -> int:
        return sum(len(span.text) for span in self.line)


def plan_text(plan: Plan, *, accepted: Weight | None = None) -> str:
    """Return the plan without colours."""
    lines = ("".join(span.text for span in line).rstrip() for line in plan_lines(plan, accepted=accepted))
    return "".join(f"{line}\n" for line in lines)


def plan_lines(plan: Plan, *, accepted: Weight | None = None) -> Iterator[Line]:
    if plan.is_empty:
        yield (StyledText(f"no changes   {plan.after[:SHORT_REVISION]}{_environment(plan)}"),)
        return
    yield _heading(plan)
    yield ()
    yield from _add_marks(list(_entries(plan)))
    blocks = list(_blocks(plan))
    if blocks:
        yield ()
        yield from blocks
    yield ()
    yield _verdict(plan.risk, accepted)


def _heading(plan: Plan) -> Line:
    counts = [f"{count} {change}" for change in ("changed", "added", "removed") if (count := plan.count(change))]
    revisions = f"{plan.before[:SHORT_REVISION]} → {plan.after[:SHORT_REVISION]}"
    changes = ", ".join(counts) or "only access changes"
    return (StyledText(revisions, "strong"), StyledText(f"{_environment(plan)}   {changes}"))


def _environment(plan: Plan) -> str:
    return f"   environment {escape_controls(plan.environment)}" if plan.environment else ""


def _verdict(risk: Weight | None, accepted: Weight | None) -> Line:
    if risk is None:
        return (StyledText("risk: none"),)
    then = "accepted" if is_accepted(risk, accepted) else f"needs --accept {risk}"
    return (StyledText(f"risk: {risk}", risk), StyledText(f" — {then}"))


def _entries(plan: Plan) -> Iterator[_PlanRow]:
    by_about: dict[str, list[RiskFinding]] = {}
    for found in plan.findings:
        by_about.setdefault(found.about, []).append(found)
    for document in plan.documents:
        yield from _document(document, by_about.pop(document.about, []))
    for row in plan.policies:
        line = (_sign(row.change), StyledText(f"{escape_controls(row.about)}   {escape_controls(str(row))}"))
        yield _PlanRow(line, tuple(by_about.pop(row.about, ())))
    for case in plan.cases:
        line = (_sign(case.change), StyledText(escape_controls(case.about)))
        yield _PlanRow(line, tuple(by_about.pop(case.about, ())))
    for about, sign in {each.about: definition_change_kind(each) for each in plan.definitions}.items():
        yield _PlanRow(
            (_sign(sign), StyledText(escape_controls(about), "strong")), _gravest_first(by_about.pop(about, []))
        )
    # The remaining findings are about documents that did not change, but are affected by others that did.
    for about, findings in by_about.items():
        if about not in ("plan", "access", "tests", "replay"):
            yield _PlanRow(
                (StyledText("    "), StyledText(escape_controls(about)), StyledText("   follows", "quiet")),
                _gravest_first(findings),
            )


def _document(change: DocumentChange, findings: Sequence[RiskFinding]) -> Iterator[_PlanRow]:
    left = list(_gravest_first(findings))
    fields = []
    width = min(max((len(field.path) for field in change.fields), default=0), 32)
    for field in change.fields:
        own = [found for found in left if _is_about(found.path, field.path)]
        left = [found for found in left if found not in own]
        text = StyledText(f"      {escape_controls(field.path):{width}}  ", "quiet")
        fields.append(_PlanRow((text, StyledText(format_difference(field))), tuple(own)))
    summary = StyledText(f"   {change.summary}", "quiet") if change.summary else StyledText("")
    yield _PlanRow((_sign(change.change), StyledText(escape_controls(change.about), "strong"), summary), tuple(left))
    yield from fields


def _is_about(path: str, field: str) -> bool:
    return bool(path) and (field == path or field.startswith((f"{path}.", f"{path}[")) or path.startswith(f"{field}."))


def _gravest_first(findings: Iterable[RiskFinding]) -> tuple[RiskFinding, ...]:
    return tuple(sorted(findings, key=lambda found: -WEIGHTS.index(found.weight)))


def _sign(change: str) -> StyledText:
    styles: dict[str, Style] = {"added": "added", "removed": "removed", "changed": "changed"}
    return StyledText(f"  {_SIGNS[change]} ", styles[change])


def _add_marks(entries: Sequence[_PlanRow]) -> Iterator[Line]:
    """Yield the lines with their marks in one column; further marks, and those of wide lines, are below."""
    fitting = [entry.width for entry in entries if entry.findings and entry.width <= _WIDEST]
    column = max(_NARROWEST, *fitting, 0) + 2
    for entry in entries:
        notes = [_note(found) for found in _gravest_first(entry.findings)]
        if notes and entry.width < column:
            yield (*entry.line, StyledText(" " * (column - entry.width)), *notes.pop(0))
            below = column
        else:
            yield entry.line
            below = _BELOW
        for note in notes:
            yield (StyledText(" " * below), *note)


def _note(found: RiskFinding) -> Line:
    return StyledText(f"{_MARKS[found.weight]} ", found.weight), StyledText(escape_controls(found.words), found.weight)


def _blocks(plan: Plan) -> Iterator[Line]:
    yield from _block("access", list(_access(plan.access)))
    waivers = [f"{' + '.join(each.flags)} in {each.catalogue} until {each.until} ({each.by})" for each in plan.waivers]
    won = [f"{_KINDS[each.kind]}{each.name} in {each.catalogue}: {_winner(each)}" for each in plan.collisions]
    yield from _block("names", [(StyledText(escape_controls(each)),) for each in won])
    yield from _block("waivers", [(StyledText(escape_controls(waiver)),) for waiver in waivers])
    if plan.tests is not None:
        yield from _block("tests", [_tests(plan.tests.passed, plan.tests.failed)])
    if plan.replay is not None:
        yield from _block("replay", [(StyledText(summarize_replay(plan.replay)),)])


def _winner(won: NameCollision) -> str:
    """Describe which side gets a name. If neither side gets it, that is an error, and there is no plan."""
    first, second = (won.incoming, won.existing) if won.outcome == "replace" else (won.existing, won.incoming)
    return f"of {first}, not of {second}"


def _tests(passed: int, failed: int) -> Line:
    passes = StyledText(f"{passed} passed", "good")
    return (passes, StyledText(", "), StyledText(f"{failed} failed", "bad")) if failed else (passes,)


def _block(title: str, lines: Sequence[Line]) -> Iterator[Line]:
    for index, line in enumerate(lines):
        yield (StyledText(f"  {'' if index else title:9}", "quiet"), *line)


def _access(changes: Sequence[AccessChange]) -> Iterator[Line]:
    """Yield lines about access; callers with the same changes in a catalogue share a line."""
    by_caller: dict[tuple[str, str, bool], list[AccessChange]] = {}
    for each in changes:
        by_caller.setdefault((each.caller, each.catalogue, each.is_gain), []).append(each)
    shared: dict[tuple[str, bool, str], list[str]] = {}
    for (caller, catalogue, is_gain), found in by_caller.items():
        shared.setdefault((catalogue, is_gain, _tools(found)), []).append(caller)
    lines = sorted((_callers(who), *what) for what, who in shared.items())
    width = min(max((len(f"{who} in {where}") for who, where, _, _ in lines), default=0), 64)
    for who, where, is_gain, tools in lines:
        verb = StyledText("gains ", "added") if is_gain else StyledText("loses ", "removed")
        yield StyledText(f"{escape_controls(f'{who} in {where}'):{width}}   "), verb, StyledText(escape_controls(tools))


def _callers(names: Sequence[str]) -> str:
    ordered = sorted(names, key=lambda name: (not name.startswith("role:"), name))
    rest = len(ordered) - _CALLERS
    return ", ".join(ordered[:_CALLERS]) + (f" and {rest} more" if rest > 0 else "")


def _tools(changes: Sequence[AccessChange]) -> str:
    steps = {each.tool: _step(each) for each in changes}
    if len(steps) <= _TOOLS:
        return ", ".join(f"{tool} ({step})" for tool, step in steps.items())
    rest = len(steps) - _TOOLS
    named = ", ".join(list(steps)[:_TOOLS])
    what = "tools, prompts and resources" if any(":" in each for each in steps) else "tools"
    return f"{len(steps)} {what} ({', '.join(sorted(set(steps.values())))}): {named} and {rest} more"


def _step(change: AccessChange) -> str:
    if change.before == "none":
        return change.after
    return change.before if change.after == "none" else f"{change.before} → {change.after}"


def plan_data(plan: Plan, *, accepted: Weight | None = None) -> dict[str, Any]:
    return {
        "before": plan.before,
        "after": plan.after,
        "environment": plan.environment,
        "documents": [_document_data(each) for each in plan.documents],
        "policies": [_row_change(each) for each in plan.policies],
        "cases": [
            {"change": each.change, "suite": each.suite, "name": each.name, "position": _place(each.position)}
            for each in plan.cases
        ],
        "definitions": [each.to_dict() for each in plan.definitions],
        "collisions": [
            {
                "catalogue": each.catalogue,
                "name": each.name,
                "existing": each.existing,
                "incoming": each.incoming,
                "outcome": each.outcome,
                "kind": each.kind,
            }
            for each in plan.collisions
        ],
        "access": [
            {
                "caller": each.caller,
                "catalogue": each.catalogue,
                "tool": each.tool,
                "before": each.before,
                "after": each.after,
            }
            for each in plan.access
        ],
        "findings": [
            {
                "code": each.code,
                "weight": each.weight,
                "about": each.about,
                "path": each.path,
                "words": each.words,
            }
            for each in plan.findings
        ],
        "waivers": [
            {
                "catalogue": each.catalogue,
                "flags": list(each.flags),
                "until": each.until.isoformat(),
                "by": each.by,
                "because": each.because,
            }
            for each in plan.waivers
        ],
        "tests": {"passed": plan.tests.passed, "failed": plan.tests.failed} if plan.tests else None,
        "replay": None if plan.replay is None else replay_data(plan.replay),
        "risk": plan.risk,
        "accepted": is_accepted(plan.risk, accepted),
    }


def _document_data(change: DocumentChange) -> dict[str, Any]:
    return {
        "change": change.change,
        "kind": change.kind,
        "name": change.name,
        "position": _place(change.position),
        "fields": [_field(each) for each in change.fields],
    }


def _field(field: FieldChange) -> dict[str, Any]:
    sides = {"before": field.before, "after": field.after}
    values = {side: value for side, value in sides.items() if not isinstance(value, AbsentValue)}
    return {"path": field.path, **values, "added": list(field.added), "removed": list(field.removed)}


def _row_change(change: RowChange) -> dict[str, Any]:
    return {
        "change": change.change,
        "position": _place(change.position),
        "text": str(change),
        "before": _row(change.before),
        "after": _row(change.after),
    }


def _row(row: PolicyRow | GroupingRow | None) -> list[str] | None:
    match row:
        case PolicyRow():
            return ["p", *row.target, "|".join(sorted(row.actions)), row.tier, row.effect, *_end(row)]
        case GroupingRow():
            return [row.section, row.member, row.group, *_end(row)]
    return None


def _end(row: PolicyRow | GroupingRow) -> list[str]:
    """Return the end of a row, after its cells."""
    return [] if row.end is None else [row.end.describe]


def _place(position: Position) -> str:
    return f"{position.file}:{position.line}"
