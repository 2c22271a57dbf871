"""Find policy rows that were added or removed, wherever they are written, and those that allow more.

A row is changed if another row for the same subject, catalogue and object replaces it. Splitting a row by its actions,
or moving it, allows nothing more and gives no finding.

Changed policy tests are reported, too: a removed expectation is a change, although nothing served depends on it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from gateway.policy import RowEnd
from gateway.registries import PolicyCase, Position
from gateway.review.plan.document_changes import Change
from gateway.review.plan.risk import RiskFinding


@dataclass(frozen=True, slots=True)
class CaseChange:
    change: Change
    suite: str
    name: str
    position: Position

    @property
    def about(self) -> str:
        return f"PolicyTest {self.suite}: {self.name}"


def case_changes(before: Iterable[PolicyCase], after: Iterable[PolicyCase]) -> tuple[CaseChange, ...]:
    """Return changed cases, by suite and name; their positions make no difference."""
    old, new = _by_name(before), _by_name(after)
    found = []
    for key in sorted({*old, *new}):
        one, other = old.get(key, []), new.get(key, [])
        if list(map(_content_of, one)) != list(map(_content_of, other)):
            change: Change = "changed" if one and other else "added" if other else "removed"
            found.append(CaseChange(change, *key, (other or one)[0].position))
    return tuple(found)


def case_findings(changes: Sequence[CaseChange]) -> Iterator[RiskFinding]:
    for each in changes:
        if each.change != "added":
            yield RiskFinding(f"test-{each.change}", each.about, position=each.position)


def _by_name(cases: Iterable[PolicyCase]) -> dict[tuple[str, str], list[PolicyCase]]:
    found: dict[tuple[str, str], list[PolicyCase]] = {}
    for case in cases:
        found.setdefault((case.suite, case.name), []).append(case)
    return found


def _content_of(case: PolicyCase) -> tuple[object, ...]:
    question = (case.principal, case.catalogue, case.at, case.tool, case.args, case.saw, case.read, case.calls)
    return (*question, case.expected, case.because)


Meaning = tuple[str | frozenset[str], ...]
"""The content of a row, without its position."""

_AUTHORITY: Final = frozenset({"approve", "administer"})


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A `p` row of a policy."""

    subject: str
    catalogue: str
    object: str
    actions: frozenset[str]
    tier: str
    effect: str
    position: Position
    end: RowEnd | None = None

    @property
    def target(self) -> tuple[str, str, str]:
        return self.subject, self.catalogue, self.object

    @property
    def meaning(self) -> Meaning:
        return (*self.target, self.actions, self.tier, self.effect, _describe_end(self.end))

    def __str__(self) -> str:
        verb = "may" if self.effect == "allow" else "may not"
        what = f"{'|'.join(sorted(self.actions))} {self.object} {self._where}, up to {self.tier}"
        return f"{self.subject} {verb} {what}{_describe_end(self.end)}"

    @property
    def _where(self) -> str:
        return "everywhere" if self.catalogue == "*" else f"in {self.catalogue}"


@dataclass(frozen=True, slots=True)
class GroupingRow:
    """A `g` row (a member has a role) or a `g2` row (an object is in a group)."""

    section: Literal["g", "g2"]
    member: str
    group: str
    position: Position
    end: RowEnd | None = None

    @property
    def target(self) -> tuple[str, str, str]:
        return self.section, self.member, self.group

    @property
    def meaning(self) -> Meaning:
        return (*self.target, _describe_end(self.end))

    def __str__(self) -> str:
        verb = "is" if self.section == "g" else "is in"
        return f"{self.member} {verb} {self.group}{_describe_end(self.end)}"


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that was added, removed, or replaced by another one."""

    change: Change
    before: PolicyRow | GroupingRow | None
    after: PolicyRow | GroupingRow | None

    @property
    def position(self) -> Position:
        row = self.after or self.before
        assert row is not None, "a change has at least one side"  # noqa: S101 - made with one
        return row.position

    @property
    def about(self) -> str:
        return f"{self.position.file}:{self.position.line}"

    def __str__(self) -> str:
        if isinstance(self.before, PolicyRow) and isinstance(self.after, PolicyRow):
            return f"{self.after.subject} {', '.join(_differences(self.before, self.after))}"
        if self.before is not None and self.after is not None:
            return f"{self.after}; before{_describe_end(self.before.end) or ' without an end'}"
        return str(self.after or self.before)


def row_changes(
    before: Iterable[PolicyRow | GroupingRow], after: Iterable[PolicyRow | GroupingRow]
) -> tuple[RowChange, ...]:
    """Return every difference, in the order of files and lines."""
    old, new = _by_meaning(before), _by_meaning(after)
    removed = [row for meaning, row in old.items() if meaning not in new]
    added = [row for meaning, row in new.items() if meaning not in old]
    changed = _pair_rows(removed, added)
    replaced = {id(row) for each in changed for row in (each.before, each.after)}
    rest = [RowChange("removed", row, None) for row in removed if id(row) not in replaced]
    rest += [RowChange("added", None, row) for row in added if id(row) not in replaced]
    return tuple(sorted((*changed, *rest), key=lambda each: (each.position, each.change)))


def row_findings(
    changes: Sequence[RowChange],
    *,
    before: Sequence[PolicyRow | GroupingRow],
    after: Sequence[PolicyRow | GroupingRow],
    ranks: Mapping[str, int],
) -> Iterator[RiskFinding]:
    """Yield findings for rows that allow more, compared with all rows of the other side."""
    allowed, denied = _ceilings(before, "allow", ranks), _ceilings(after, "deny", ranks)
    denied_subjects = {row.subject for row in before if isinstance(row, PolicyRow) and row.effect == "deny"}
    for each in changes:
        for code in dict.fromkeys(_codes(each, allowed, denied, ranks=ranks, denied_subjects=denied_subjects)):
            yield RiskFinding(code, each.about, position=each.position)


_Ceilings = Mapping[tuple[str, ...], int]


def _codes(
    each: RowChange, allowed: _Ceilings, denied: _Ceilings, *, ranks: Mapping[str, int], denied_subjects: set[str]
) -> Iterator[str]:
    yield from _end_codes(each, denied_subjects)
    if isinstance(each.before, GroupingRow) or isinstance(each.after, GroupingRow):
        yield from _link_codes(each, denied_subjects)
        return
    if each.before is not None and each.before.effect == "deny" and _uncovered_actions(each.before, denied, ranks):
        yield "deny-removed" if each.after is None or each.after.effect == "allow" else "deny-narrowed"
    if each.after is not None and each.after.effect == "allow":
        wider = _uncovered_actions(each.after, allowed, ranks)
        if wider & _AUTHORITY:
            yield "authority-granted"
        elif wider:
            yield _allow_code(each.before, each.after, ranks)


_NEVER: Final = datetime.max.replace(tzinfo=UTC)


def _end_codes(each: RowChange, denied_subjects: set[str]) -> Iterator[str]:
    """Yield the code of a row that grants for longer, or denies for a shorter time."""
    if each.before is None or each.after is None:
        return
    old, new = (_NEVER if row.end is None else row.end.until for row in (each.before, each.after))
    if new > old and _effect(each.after) != "deny":
        yield "row-prolonged"
    elif new < old and _is_denying(each.after, denied_subjects):
        yield "deny-ends"


def _is_denying(row: PolicyRow | GroupingRow, denied_subjects: set[str]) -> bool:
    """Whether a row denies something, or gives a role that is denied something."""
    return row.effect == "deny" if isinstance(row, PolicyRow) else row.group in denied_subjects


def _allow_code(before: PolicyRow | None, after: PolicyRow, ranks: Mapping[str, int]) -> str:
    if before is None or before.effect == "deny":
        return "allow-added"
    return "ceiling-raised" if ranks.get(after.tier, 0) > ranks.get(before.tier, 0) else "actions-widened"


def _link_codes(each: RowChange, denied_subjects: set[str]) -> Iterator[str]:
    row = each.after or each.before
    if isinstance(row, GroupingRow) and row.section == "g2":
        yield "group-changed"
    elif each.change == "added":
        yield "role-widened"
    elif each.change == "removed" and isinstance(row, GroupingRow) and row.group in denied_subjects:
        yield "deny-role-left"


def _uncovered_actions(row: PolicyRow, ceilings: _Ceilings, ranks: Mapping[str, int]) -> set[str]:
    """Return the actions of the row that rows of the same effect on the other side do not cover."""
    rank = ranks.get(row.tier, 0)
    return {action for action in row.actions if ceilings.get((*row.target, action), -1) < rank}


def _ceilings(rows: Iterable[PolicyRow | GroupingRow], effect: str, ranks: Mapping[str, int]) -> _Ceilings:
    found: dict[tuple[str, ...], int] = {}
    for row in rows:
        if isinstance(row, PolicyRow) and row.effect == effect:
            for action in row.actions:
                key = (*row.target, action)
                found[key] = max(found.get(key, -1), ranks.get(row.tier, -1))
    return found


def _by_meaning(rows: Iterable[PolicyRow | GroupingRow]) -> dict[Meaning, PolicyRow | GroupingRow]:
    found: dict[Meaning, PolicyRow | GroupingRow] = {}
    for row in rows:
        found.setdefault(row.meaning, row)
    return found


def _pair_rows(removed: Sequence[PolicyRow | GroupingRow], added: Sequence[PolicyRow | GroupingRow]) -> list[RowChange]:
    """Pair removed and added rows for the same target, preferably of the same effect."""
    removed_by_target: dict[tuple[str, str, str], list[PolicyRow | GroupingRow]] = {}
    for row in removed:
        removed_by_target.setdefault(row.target, []).append(row)
    changed = []
    for row in added:
        candidates = removed_by_target.get(row.target, [])
        if candidates:
            old = next((each for each in candidates if _effect(each) == _effect(row)), candidates[0])
            candidates.remove(old)
            changed.append(RowChange("changed", old, row))
    return changed


def _effect(row: PolicyRow | GroupingRow) -> str:
    return row.effect if isinstance(row, PolicyRow) else ""


def _describe_end(end: RowEnd | None) -> str:
    return "" if end is None else f" {end.describe}"


def _differences(before: PolicyRow, after: PolicyRow) -> Iterator[str]:
    if before.actions != after.actions:
        signs = [f"+ {action}" for action in sorted(after.actions - before.actions)]
        signs += [f"- {action}" for action in sorted(before.actions - after.actions)]
        yield f"actions {' '.join(signs)}"
    if before.tier != after.tier:
        yield f"ceiling {before.tier} → {after.tier}"
    if before.effect != after.effect:
        yield f"{before.effect} → {after.effect}"
    ends = _describe_end(before.end).lstrip(), _describe_end(after.end).lstrip()
    if ends[0] != ends[1]:
        yield f"{ends[0] or 'without an end'} → {ends[1] or 'without an end'}"
    yield f"on {after.object} {after._where}"
