"""A plan for people, as lines of spans: what each span is is said, how that looks is decided by whoever prints.

The most important stands at the right of what it is about: `!!` for high, `!` for medium.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.governance.collisions import NameKind
from gateway.review.changes import DocumentChange
from gateway.review.plan import NameWon, Plan, definition_sign
from gateway.review.reach import AccessChange
from gateway.review.risk import WEIGHTS, Finding, Weight, is_accepted
from gateway.review.values import difference, visible
from gateway.snapshot import SHORT_REVISION

Style = Literal["plain", "strong", "quiet", "added", "removed", "changed", "low", "medium", "high", "good", "bad"]
Line = tuple["Span", ...]

_SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
_MARKS: Final[dict[Weight, str]] = {"high": "!!", "medium": "! ", "low": "  "}
_KINDS: Final[dict[NameKind, str]] = {"tool": "", "prompt": "prompt ", "resource": "resources "}
_NARROWEST, _WIDEST = 40, 80
"""Between these columns the marks stand in one line; what reaches further has its marks below it."""
_BELOW: Final = 6
_CALLERS, _TOOLS = 3, 6
"""As many are named; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Span:
    text: str
    style: Style = "plain"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line about a change, and what was found about it."""

    line: Line
    findings: tuple[Finding, ...] = ()

    @property
    def width(self) -> int:
        return sum(len(span.text) for span in self.line)


def plan_text(plan: Plan, *, accepted: Weight | None = None) -> str:
    """The plan without any colour."""
    lines = ("".join(span.text for span in line).rstrip() for line in plan_lines(plan, accepted=accepted))
    return "".join(f"{line}\n" for line in lines)


def plan_lines(plan: Plan, *, accepted: Weight | None = None) -> Iterator[Line]:
    if plan.is_empty:
        yield (Span(f"no changes   {plan.after[:SHORT_REVISION]}{_environment(plan)}"),)
        return
    yield _heading(plan)
    yield ()
    yield from _marked(list(_entries(plan)))
    blocks = list(_blocks(plan))
    if blocks:
        yield ()
        yield from blocks
    yield ()
    yield _verdict(plan.risk, accepted)


def _heading(plan: Plan) -> Line:
    counts = [f"{count} {change}" for change in ("changed", "added", "removed") if (count := plan.count(change))]
    revisions = f"{plan.before[:SHORT_REVISION]} → {plan.after[:SHORT_REVISION]}"
    told = ", ".join(counts) or "nothing but access changes"
    return (Span(revisions, "strong"), Span(f"{_environment(plan)}   {told}"))


def _environment(plan: Plan) -> str:
    return f"   environment {visible(plan.environment)}" if plan.environment else ""


def _verdict(risk: Weight | None, accepted: Weight | None) -> Line:
    if risk is None:
        return (Span("risk: none"),)
    then = "accepted" if is_accepted(risk, accepted) else f"needs --accept {risk}"
    return (Span(f"risk: {risk}", risk), Span(f" — {then}"))


def _entries(plan: Plan) -> Iterator[_Entry]:
    by_about: dict[str, list[Finding]] = {}
    for found in plan.findings:
        by_about.setdefault(found.about, []).append(found)
    for document in plan.documents:
        yield from _document(document, by_about.pop(document.about, []))
    for row in plan.policies:
        line = (_sign(row.change), Span(f"{visible(row.about)}   {visible(str(row))}"))
        yield _Entry(line, tuple(by_about.pop(row.about, ())))
    for case in plan.cases:
        yield _Entry((_sign(case.change), Span(visible(case.about))), tuple(by_about.pop(case.about, ())))
    for about, sign in {each.about: definition_sign(each) for each in plan.definitions}.items():
        yield _Entry((_sign(sign), Span(visible(about), "strong")), _gravest_first(by_about.pop(about, [])))
    # What is left is about documents that did not change: they mean something else because others did.
    for about, findings in by_about.items():
        if about not in ("plan", "access", "tests"):
            yield _Entry((Span("    "), Span(visible(about)), Span("   follows", "quiet")), _gravest_first(findings))


def _document(change: DocumentChange, findings: Sequence[Finding]) -> Iterator[_Entry]:
    left = list(_gravest_first(findings))
    fields = []
    width = min(max((len(field.path) for field in change.fields), default=0), 32)
    for field in change.fields:
        own = [found for found in left if _is_about(found.path, field.path)]
        left = [found for found in left if found not in own]
        text = Span(f"      {visible(field.path):{width}}  ", "quiet")
        fields.append(_Entry((text, Span(difference(field))), tuple(own)))
    summary = Span(f"   {change.summary}", "quiet") if change.summary else Span("")
    yield _Entry((_sign(change.change), Span(visible(change.about), "strong"), summary), tuple(left))
    yield from fields


def _is_about(path: str, field: str) -> bool:
    return bool(path) and (field == path or field.startswith((f"{path}.", f"{path}[")) or path.startswith(f"{field}."))


def _gravest_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda found: -WEIGHTS.index(found.weight)))


def _sign(change: str) -> Span:
    styles: dict[str, Style] = {"added": "added", "removed": "removed", "changed": "changed"}
    return Span(f"  {_SIGNS[change]} ", styles[change])


def _marked(entries: Sequence[_Entry]) -> Iterator[Line]:
    """The lines with their marks in one column; further marks, and those of wide lines, stand below."""
    fitting = [entry.width for entry in entries if entry.findings and entry.width <= _WIDEST]
    column = max(_NARROWEST, *fitting, 0) + 2
    for entry in entries:
        notes = [_note(found) for found in _gravest_first(entry.findings)]
        if notes and entry.width < column:
            yield (*entry.line, Span(" " * (column - entry.width)), *notes.pop(0))
            below = column
        else:
            yield entry.line
            below = _BELOW
        for note in notes:
            yield (Span(" " * below), *note)


def _note(found: Finding) -> Line:
    return Span(f"{_MARKS[found.weight]} ", found.weight), Span(visible(found.words), found.weight)


def _blocks(plan: Plan) -> Iterator[Line]:
    yield from _block("access", list(_access(plan.access)))
    waivers = [f"{' + '.join(each.flags)} in {each.catalogue} until {each.until} ({each.by})" for each in plan.waivers]
    won = [f"{_KINDS[each.kind]}{each.name} in {each.catalogue}: {_winner(each)}" for each in plan.collisions]
    yield from _block("names", [(Span(visible(each)),) for each in won])
    yield from _block("waivers", [(Span(visible(waiver)),) for waiver in waivers])
    if plan.tests is not None:
        yield from _block("tests", [_tests(plan.tests.passed, plan.tests.failed)])


def _winner(won: NameWon) -> str:
    """Who gets a name. One that nobody gets is an error, and there is no plan."""
    first, second = (won.incoming, won.existing) if won.outcome == "replace" else (won.existing, won.incoming)
    return f"of {first}, not of {second}"


def _tests(passed: int, failed: int) -> Line:
    told = Span(f"{passed} passed", "good")
    return (told, Span(", "), Span(f"{failed} failed", "bad")) if failed else (told,)


def _block(title: str, lines: Sequence[Line]) -> Iterator[Line]:
    for index, line in enumerate(lines):
        yield (Span(f"  {'' if index else title:9}", "quiet"), *line)


def _access(changes: Sequence[AccessChange]) -> Iterator[Line]:
    """Callers to whom the same happens in a catalogue share a line."""
    happens: dict[tuple[str, str, bool], list[AccessChange]] = {}
    for each in changes:
        happens.setdefault((each.caller, each.catalogue, each.is_gain), []).append(each)
    shared: dict[tuple[str, bool, str], list[str]] = {}
    for (caller, catalogue, is_gain), found in happens.items():
        shared.setdefault((catalogue, is_gain, _tools(found)), []).append(caller)
    lines = sorted((_callers(who), *what) for what, who in shared.items())
    width = min(max((len(f"{who} in {where}") for who, where, _, _ in lines), default=0), 64)
    for who, where, is_gain, tools in lines:
        verb = Span("gains ", "added") if is_gain else Span("loses ", "removed")
        yield Span(f"{visible(f'{who} in {where}'):{width}}   "), verb, Span(visible(tools))


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
