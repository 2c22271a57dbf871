"""Which policy rows differ, whatever files and lines they stand in, and which of the differences let more through.

A row changed if another row about the same subject, catalogue and object took its place. Splitting a row by its
actions, or moving it, lets nothing through and is judged so.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.governance.diagnostics import Position
from gateway.review.changes import Change
from gateway.review.risk import Finding

Meaning = tuple[str | frozenset[str], ...]
"""What a row says, wherever it stands."""

_AUTHORITY: Final = frozenset({"approve", "administer"})


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A `p` row."""

    subject: str
    catalogue: str
    object: str
    actions: frozenset[str]
    tier: str
    effect: str
    position: Position

    @property
    def target(self) -> tuple[str, str, str]:
        return self.subject, self.catalogue, self.object

    @property
    def meaning(self) -> Meaning:
        return (*self.target, self.actions, self.tier, self.effect)

    def __str__(self) -> str:
        verb = "may" if self.effect == "allow" else "may not"
        return f"{self.subject} {verb} {'|'.join(sorted(self.actions))} {self.object} {self._where}, up to {self.tier}"

    @property
    def _where(self) -> str:
        return "everywhere" if self.catalogue == "*" else f"in {self.catalogue}"


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A `g` row (a member holds a role) or a `g2` row (an object is in a group)."""

    section: Literal["g", "g2"]
    member: str
    group: str
    position: Position

    @property
    def meaning(self) -> Meaning:
        return self.section, self.member, self.group

    def __str__(self) -> str:
        verb = "is" if self.section == "g" else "is in"
        return f"{self.member} {verb} {self.group}"


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that came, went, or took the place of another one."""

    change: Change
    before: PolicyRow | MemberRow | None
    after: PolicyRow | MemberRow | None

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
        return str(self.after or self.before)


def row_changes(
    before: Iterable[PolicyRow | MemberRow], after: Iterable[PolicyRow | MemberRow]
) -> tuple[RowChange, ...]:
    """Every difference, in the order of files and lines."""
    old, new = _by_meaning(before), _by_meaning(after)
    gone = [row for meaning, row in old.items() if meaning not in new]
    come = [row for meaning, row in new.items() if meaning not in old]
    changed = _replaced(gone, come)
    replaced = {id(row) for each in changed for row in (each.before, each.after)}
    rest = [RowChange("removed", row, None) for row in gone if id(row) not in replaced]
    rest += [RowChange("added", None, row) for row in come if id(row) not in replaced]
    return tuple(sorted((*changed, *rest), key=lambda each: (each.position, each.change)))


def row_findings(
    changes: Sequence[RowChange],
    *,
    before: Sequence[PolicyRow | MemberRow],
    after: Sequence[PolicyRow | MemberRow],
    ranks: Mapping[str, int],
) -> Iterator[Finding]:
    """What the changed rows let through, judged against all rows of the other side."""
    allowed, denied = _ceilings(before, "allow", ranks), _ceilings(after, "deny", ranks)
    denied_subjects = {row.subject for row in before if isinstance(row, PolicyRow) and row.effect == "deny"}
    for each in changes:
        for code in dict.fromkeys(_codes(each, allowed, denied, ranks=ranks, denied_subjects=denied_subjects)):
            yield Finding(code, each.about, position=each.position)


_Ceilings = Mapping[tuple[str, ...], int]


def _codes(
    each: RowChange, allowed: _Ceilings, denied: _Ceilings, *, ranks: Mapping[str, int], denied_subjects: set[str]
) -> Iterator[str]:
    if isinstance(each.before, MemberRow) or isinstance(each.after, MemberRow):
        yield from _link_codes(each, denied_subjects)
        return
    if each.before is not None and each.before.effect == "deny" and _lets_through(each.before, denied, ranks):
        yield "deny-removed" if each.after is None or each.after.effect == "allow" else "deny-narrowed"
    if each.after is not None and each.after.effect == "allow":
        wider = _lets_through(each.after, allowed, ranks)
        if wider & _AUTHORITY:
            yield "authority-granted"
        elif wider:
            yield _widening(each.before, each.after, ranks)


def _widening(before: PolicyRow | None, after: PolicyRow, ranks: Mapping[str, int]) -> str:
    if before is None or before.effect == "deny":
        return "allow-added"
    return "ceiling-raised" if ranks.get(after.tier, 0) > ranks.get(before.tier, 0) else "actions-widened"


def _link_codes(each: RowChange, denied_subjects: set[str]) -> Iterator[str]:
    row = each.after or each.before
    if isinstance(row, MemberRow) and row.section == "g2":
        yield "group-changed"
    elif each.change == "added":
        yield "role-widened"
    elif isinstance(row, MemberRow) and row.group in denied_subjects:
        yield "deny-role-left"


def _lets_through(row: PolicyRow, ceilings: _Ceilings, ranks: Mapping[str, int]) -> set[str]:
    """The actions of the row that the other side's rows of the same effect do not cover."""
    rank = ranks.get(row.tier, 0)
    return {action for action in row.actions if ceilings.get((*row.target, action), -1) < rank}


def _ceilings(rows: Iterable[PolicyRow | MemberRow], effect: str, ranks: Mapping[str, int]) -> _Ceilings:
    found: dict[tuple[str, ...], int] = {}
    for row in rows:
        if isinstance(row, PolicyRow) and row.effect == effect:
            for action in row.actions:
                key = (*row.target, action)
                found[key] = max(found.get(key, -1), ranks.get(row.tier, -1))
    return found


def _by_meaning(rows: Iterable[PolicyRow | MemberRow]) -> dict[Meaning, PolicyRow | MemberRow]:
    found: dict[Meaning, PolicyRow | MemberRow] = {}
    for row in rows:
        found.setdefault(row.meaning, row)
    return found


def _replaced(gone: Sequence[PolicyRow | MemberRow], come: Sequence[PolicyRow | MemberRow]) -> list[RowChange]:
    """Rows about the same thing, those of one effect first."""
    waiting: dict[tuple[str, str, str], list[PolicyRow]] = {}
    for row in gone:
        if isinstance(row, PolicyRow):
            waiting.setdefault(row.target, []).append(row)
    changed = []
    for row in come:
        candidates = waiting.get(row.target, []) if isinstance(row, PolicyRow) else []
        if isinstance(row, PolicyRow) and candidates:
            old = next((each for each in candidates if each.effect == row.effect), candidates[0])
            candidates.remove(old)
            changed.append(RowChange("changed", old, row))
    return changed


def _differences(before: PolicyRow, after: PolicyRow) -> Iterator[str]:
    if before.actions != after.actions:
        signs = [f"+ {action}" for action in sorted(after.actions - before.actions)]
        signs += [f"- {action}" for action in sorted(before.actions - after.actions)]
        yield f"actions {' '.join(signs)}"
    if before.tier != after.tier:
        yield f"ceiling {before.tier} → {after.tier}"
    if before.effect != after.effect:
        yield f"{before.effect} → {after.effect}"
    yield f"on {after.object} {after._where}"
