"""Who gains and who loses which tool: access before and after, decided by the same steps as calls.

Only what can have changed is asked about. A triple of caller, catalogue and tool is left out if the caller is
admitted on both sides, the tool stands in the catalogue as before and is judged as before, and no row that came,
went or reaches the caller anew covers it. Callers who hold the same names that rows and audiences speak of are asked
about once.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from gateway.access import Access
from gateway.governance.globs import glob_matches
from gateway.governance.principals import Principal
from gateway.review.callers import both, known_callers
from gateway.review.rows import MemberRow, PolicyRow
from gateway.snapshot import Catalogue, DeclaredTool, Snapshot

Level = Literal["none", "sees", "calls"]
LEVELS: Final[tuple[Level, ...]] = ("none", "sees", "calls")
Rows = Sequence[PolicyRow | MemberRow]
Progress = Callable[[int, int], None]
"""Told how many parts of how many are done."""


@dataclass(frozen=True, slots=True)
class AccessChange:
    """What a caller can do with a tool through a catalogue, before and after; gates are not asked."""

    caller: str
    catalogue: str
    tool: str
    before: Level
    after: Level

    @property
    def is_gain(self) -> bool:
        return LEVELS.index(self.after) > LEVELS.index(self.before)


@dataclass(frozen=True, slots=True)
class Reach:
    """One side: whom to ask about what, and the rows that decide."""

    access: Access
    rows: Rows
    at: datetime

    def level(self, caller: Principal, catalogue: str, tool: str) -> Level:
        """What a caller who is admitted can do with a tool. The last step before the gates allows: calls."""
        snapshot = self.access.snapshot
        found, declared = snapshot.catalogues.get(catalogue), snapshot.tools.get(tool)
        names = [name for name, identity in found.tools.items() if identity == tool] if found else []
        if found is None or declared is None or not names or not declared.is_in_use(self.at.date()):
            return "none"
        if not self.access.visibility(caller, catalogue=catalogue, tool=declared).allowed:
            return "none"
        if _is_callable(declared) and self.access.asks(caller, "invoke", catalogue=catalogue, tool=declared).allowed:
            return "calls"
        return "sees" if any(name not in found.hidden for name in names) else "none"


def access_changes(before: Reach, after: Reach, *, progress: Progress | None = None) -> tuple[AccessChange, ...]:
    """Every difference, by caller, catalogue and tool."""
    comparison = _Comparison(before, after)
    alike = comparison.callers()
    found: list[AccessChange] = []
    for done, (names, pair) in enumerate(alike.items(), 1):
        for catalogue, tool, old, new in comparison.changes(pair, names):
            found += (AccessChange(caller, catalogue, tool, old, new) for caller in pair.callers)
        if progress is not None:
            progress(done, len(alike))
    return tuple(sorted(found, key=lambda each: (each.caller, each.catalogue, each.tool)))


@dataclass(frozen=True, slots=True)
class _Alike:
    """Callers that nothing here can tell apart, and one of them on either side."""

    callers: list[str]
    before: Principal
    after: Principal


_Names = tuple[frozenset[str], frozenset[str]]
"""What callers hold before and after, as far as rows and audiences speak of it."""


class _Comparison:
    """What differs between two sides, prepared for asking about many callers."""

    def __init__(self, before: Reach, after: Reach) -> None:
        self._before, self._after = before, after
        self._old, self._new = before.access.snapshot, after.access.snapshot
        self._rows = _by_subject((*before.rows, *after.rows))
        self._changed_rows = _by_subject(_differing(before.rows, after.rows))
        self._groups = (_groups(self._old, before.rows), _groups(self._new, after.rows))
        self._tools = {*self._old.tools, *self._new.tools}
        self._changed_tools = frozenset(filter(self._is_judged_anew, self._tools))
        self._members = {
            name: _members(self._old.catalogues.get(name), self._new.catalogues.get(name))
            for name in {*self._old.catalogues, *self._new.catalogues}
        }
        self._moved = {
            name: _moved(self._old.catalogues.get(name), self._new.catalogues.get(name)) for name in self._members
        }
        self._covered: dict[str, frozenset[str]] = {}

    def callers(self) -> Mapping[_Names, _Alike]:
        audiences = [each.audience for snapshot in (self._old, self._new) for each in snapshot.catalogues.values()]
        telling = frozenset(self._rows).union(*audiences)
        found: dict[_Names, _Alike] = {}
        known = (known_callers(side.access.snapshot, side.rows) for side in (self._before, self._after))
        for name, old, new in both(*known):
            held = self._before.access.held_by(old) & telling, self._after.access.held_by(new) & telling
            found.setdefault(held, _Alike([], old, new)).callers.append(name)
        return found

    def changes(self, pair: _Alike, names: _Names) -> Iterator[tuple[str, str, Level, Level]]:
        rows = self._rows_that_matter(names)
        for catalogue in sorted(self._members):
            admitted = (
                self._before.access.admits(pair.before, catalogue),
                self._after.access.admits(pair.after, catalogue),
            )
            for tool in sorted(self._candidates(catalogue, rows, admitted)):
                old = self._before.level(pair.before, catalogue, tool) if admitted[0] else "none"
                new = self._after.level(pair.after, catalogue, tool) if admitted[1] else "none"
                if old != new:
                    yield catalogue, tool, old, new

    def _candidates(self, catalogue: str, rows: Iterable[PolicyRow], admitted: tuple[bool, bool]) -> Collection[str]:
        members = self._members[catalogue]
        if not any(admitted):
            return ()
        if not all(admitted):
            return members
        touched = self._moved[catalogue] | (self._changed_tools & members)
        for row in rows:
            if len(touched) == len(members):
                break
            if glob_matches(catalogue, row.catalogue):
                touched |= self._covered_by(row.object) & members
        return touched

    def _rows_that_matter(self, names: _Names) -> list[PolicyRow]:
        """Rows that came or went for names the caller holds, and all rows for names held on one side only."""
        old, new = names
        kept = [row for name in old & new for row in self._changed_rows.get(name, ())]
        return kept + [row for name in old ^ new for row in self._rows.get(name, ())]

    def _covered_by(self, pattern: str) -> frozenset[str]:
        if pattern not in self._covered:
            self._covered[pattern] = frozenset(tool for tool in self._tools if self._covers(pattern, f"tool:{tool}"))
        return self._covered[pattern]

    def _covers(self, pattern: str, object: str) -> bool:
        objects = (object, *(group for groups in self._groups for group in groups.get(object, ())))
        return any(glob_matches(each, pattern) for each in objects)

    def _is_judged_anew(self, name: str) -> bool:
        old, new = self._old.tools.get(name), self._new.tools.get(name)
        if old is None or new is None:
            return True
        return self._judged(old, before=True) != self._judged(new, before=False)

    def _judged(self, tool: DeclaredTool, *, before: bool) -> tuple[object, ...]:
        """Everything about a tool that its level depends on, apart from rows and catalogues."""
        side, snapshot = (self._before, self._old) if before else (self._after, self._new)
        groups = self._groups[0 if before else 1].get(tool.object, frozenset())
        rank = tool.trust.tier.rank
        within = frozenset(name for name, tier in snapshot.tiers.items() if rank <= tier.rank)
        return tool.trust.tier.name, within, _is_callable(tool), tool.is_in_use(side.at.date()), groups


def _is_callable(tool: DeclaredTool) -> bool:
    return tool.trust.tier.callable and tool.trust.callable


def _by_subject(rows: Iterable[PolicyRow | MemberRow]) -> dict[str, list[PolicyRow]]:
    found: dict[str, list[PolicyRow]] = {}
    for row in rows:
        if isinstance(row, PolicyRow):
            found.setdefault(row.subject, []).append(row)
    return found


def _differing(before: Rows, after: Rows) -> Iterator[PolicyRow | MemberRow]:
    old, new = {row.meaning for row in before}, {row.meaning for row in after}
    yield from (row for row in before if row.meaning not in new)
    yield from (row for row in after if row.meaning not in old)


def _groups(snapshot: Snapshot, rows: Rows) -> dict[str, frozenset[str]]:
    """Each tool with every group it is in: through `g2` rows, at any distance, and by the artifacts it yields."""
    direct: dict[str, set[str]] = {}
    for row in rows:
        if isinstance(row, MemberRow) and row.section == "g2":
            direct.setdefault(row.member, set()).add(row.group)
    for tool in snapshot.tools.values():
        if tool.artifact in snapshot.artifacts:
            direct.setdefault(tool.object, set()).add(f"class:{tool.artifact}")
    return {tool.object: _above(tool.object, direct) for tool in snapshot.tools.values() if tool.object in direct}


def _above(object: str, direct: Mapping[str, set[str]]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = [object]
    while waiting:
        new = direct.get(waiting.pop(), set()) - reached
        reached |= new
        waiting.extend(new)
    return frozenset(reached)


def _members(before: Catalogue | None, after: Catalogue | None) -> frozenset[str]:
    return frozenset(tool for each in (before, after) if each for tool in each.tools.values())


def _moved(before: Catalogue | None, after: Catalogue | None) -> frozenset[str]:
    """Tools that one side's catalogue has, or lists, and the other's does not."""
    return frozenset(tool for tool, _ in _standing(before) ^ _standing(after))


def _standing(catalogue: Catalogue | None) -> set[tuple[str, bool]]:
    if catalogue is None:
        return set()
    return {(tool, name in catalogue.hidden) for name, tool in catalogue.tools.items()}
