"""Who gains and who loses which tool, prompt or resources: access before and after, decided by the same steps as calls.

Only what can have changed is asked about, and callers that nothing can tell apart are asked about once. What decides
for a tool in a catalogue is what callers hold there: a place in the audience, and rows by their actions, ceiling and
effect. Callers who hold the same of it on both sides see the same; where they hold the same before and after, and the
tool stands and is judged as before, nothing changed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from gateway.access import Access
from gateway.governance.globs import glob_matches
from gateway.governance.principals import Principal
from gateway.review.callers import both, known_callers
from gateway.review.rows import MemberRow, PolicyRow
from gateway.snapshot import Catalogue, DeclaredTool, Offer, Snapshot

Level = Literal["none", "sees", "calls", "gets", "reads"]
"""Tools are seen and called; prompts are got, and resources read, or nobody knows of them."""
LEVELS: Final[tuple[Level, ...]] = ("none", "sees", "calls", "gets", "reads")
Rows = Sequence[PolicyRow | MemberRow]
Progress = Callable[[int, int], None]
"""Told how many parts of how many are done."""


@dataclass(frozen=True, slots=True)
class AccessChange:
    """What a caller can do with a tool through a catalogue, before and after; gates are not asked.

    Prompts and groups of resources have the name that policies have for them: `prompt:wiki.review`.
    """

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

    def level(self, caller: Principal, catalogue: str, object: str) -> Level:
        """What a caller can do with a tool, or with what else a catalogue has."""
        offer = self.access.snapshot.offers.get(object)
        if offer is None:
            return self._tool_level(caller, catalogue, object.removeprefix(_TOOL))
        found = self.access.snapshot.catalogues.get(catalogue)
        if found is None or object not in (*found.prompts.values(), *found.resources):
            return "none"
        if not self.access.admits(caller, catalogue):
            return "none"
        if not self.access.offers(caller, catalogue=catalogue, offer=offer).allowed:
            return "none"
        return "gets" if offer.kind == "prompt" else "reads"

    def _tool_level(self, caller: Principal, catalogue: str, tool: str) -> Level:
        """If the last step before the gates allows, that is to call it."""
        snapshot = self.access.snapshot
        found, declared = snapshot.catalogues.get(catalogue), snapshot.tools.get(tool)
        names = [name for name, identity in found.tools.items() if identity == tool] if found else []
        if found is None or declared is None or not names or not declared.is_in_use(self.at.date()):
            return "none"
        if not self.access.admits(caller, catalogue):
            return "none"
        if not self.access.visibility(caller, catalogue=catalogue, tool=declared).allowed:
            return "none"
        if _is_callable(declared) and self.access.asks(caller, "invoke", catalogue=catalogue, tool=declared).allowed:
            return "calls"
        return "sees" if any(name not in found.hidden for name in names) else "none"


def access_changes(before: Reach, after: Reach, *, progress: Progress | None = None) -> tuple[AccessChange, ...]:
    """Every difference, by caller, catalogue and tool."""
    crowd = _Crowd(before, after)
    sides = (_Held(before, crowd.before), _Held(after, crowd.after))
    snapshots = (before.access.snapshot, after.access.snapshot)
    anew = _judged_anew(*sides)
    names = sorted({*snapshots[0].catalogues, *snapshots[1].catalogues})
    found: list[AccessChange] = []
    for done, name in enumerate(names, 1):
        catalogues = snapshots[0].catalogues.get(name), snapshots[1].catalogues.get(name)
        moved = _moved(*catalogues)
        for object in _members(*catalogues):
            atoms = tuple(side.atoms(name, object) for side in sides)
            touched = crowd.everybody if object in anew or object in moved else _differing(*atoms)
            for part in _parts(touched, atoms):
                levels = crowd.levels(part, name, object)
                if levels[0] != levels[1]:
                    shown = object.removeprefix(_TOOL)
                    found += (AccessChange(caller, name, shown, *levels) for caller in crowd.callers(part))
        if progress is not None:
            progress(done, len(names))
    return tuple(sorted(found, key=lambda each: (each.caller, each.catalogue, each.tool)))


Mask = int
"""A set of callers: the bit of each is set. Big integers join and split thousands of callers at once."""

Atom = tuple[str, ...]
"""Something a caller can hold that decides: a place in the audience, or a row's actions, ceiling and effect."""

_AUDIENCE: Final[Atom] = ("audience",)
_DECIDING: Final = frozenset({"discover", "invoke", "read"})
_TOOL: Final = "tool:"


class _Crowd:
    """All known callers of two sides, those who hold the same names on both of them as one."""

    def __init__(self, before: Reach, after: Reach) -> None:
        self._reaches = (before, after)
        self._alike: list[tuple[Principal, Principal, list[str]]] = []
        self.before: dict[str, Mask] = {}
        self.after: dict[str, Mask] = {}
        telling = _telling(before) | _telling(after)
        numbers: dict[tuple[frozenset[str], frozenset[str]], int] = {}
        known = (known_callers(reach.access.snapshot, reach.rows) for reach in self._reaches)
        for name, old, new in both(*known):
            held = before.access.held_by(old) & telling, after.access.held_by(new) & telling
            if held not in numbers:
                numbers[held] = len(self._alike)
                self._alike.append((old, new, []))
                self._enter(*held, bit=1 << numbers[held])
            self._alike[numbers[held]][2].append(name)

    @property
    def everybody(self) -> Mask:
        return (1 << len(self._alike)) - 1

    def callers(self, mask: Mask) -> Iterator[str]:
        while mask:
            lowest = mask & -mask
            yield from self._alike[lowest.bit_length() - 1][2]
            mask ^= lowest

    def levels(self, mask: Mask, catalogue: str, object: str) -> tuple[Level, Level]:
        """What the callers can do before and after; one of them is asked about for all."""
        old, new, _ = self._alike[(mask & -mask).bit_length() - 1]
        before, after = self._reaches
        return before.level(old, catalogue, object), after.level(new, catalogue, object)

    def _enter(self, old: frozenset[str], new: frozenset[str], *, bit: Mask) -> None:
        for masks, names in ((self.before, old), (self.after, new)):
            for name in names:
                masks[name] = masks.get(name, 0) | bit


class _Held:
    """Who holds what on one side."""

    def __init__(self, reach: Reach, holders: Mapping[str, Mask]) -> None:
        self.reach = reach
        self._holders = holders
        self._table: dict[str, dict[str, dict[Atom, Mask]]] = {}
        """By the pattern of the catalogue, then that of the object."""
        for row in reach.rows:
            if isinstance(row, PolicyRow) and (actions := row.actions & _DECIDING):
                atoms = self._table.setdefault(row.catalogue, {}).setdefault(row.object, {})
                atom = (*sorted(actions), row.tier, row.effect)
                atoms[atom] = atoms.get(atom, 0) | holders.get(row.subject, 0)
        objects = {pattern for table in self._table.values() for pattern in table}
        self._globs = sorted(pattern for pattern in objects if "*" in pattern)
        self._exact = objects - set(self._globs)
        self.groups = _groups(reach.access.snapshot, reach.rows)
        self._covering: dict[str, list[str]] = {}
        self._naming: dict[str, list[str]] = {}

    def atoms(self, catalogue: str, object: str) -> dict[Atom, Mask]:
        """What decides about a tool in a catalogue, with everybody who holds it."""
        found = {_AUDIENCE: self._audience(catalogue)}
        for pattern in self._patterns_naming(catalogue):
            for covering in self._patterns_covering(object):
                for atom, mask in self._table[pattern].get(covering, {}).items():
                    found[atom] = found.get(atom, 0) | mask
        return found

    def _audience(self, catalogue: str) -> Mask:
        declared = self.reach.access.snapshot.catalogues.get(catalogue)
        mask = 0
        for name in declared.audience if declared else ():
            mask |= self._holders.get(name, 0)
        return mask

    def _patterns_naming(self, catalogue: str) -> list[str]:
        if catalogue not in self._naming:
            self._naming[catalogue] = [each for each in self._table if glob_matches(catalogue, each)]
        return self._naming[catalogue]

    def _patterns_covering(self, object: str) -> list[str]:
        if object not in self._covering:
            objects = (object, *self.groups.get(object, ()))
            globs = [each for each in self._globs if any(glob_matches(name, each) for name in objects)]
            self._covering[object] = [*(name for name in objects if name in self._exact), *globs]
        return self._covering[object]


def _telling(reach: Reach) -> frozenset[str]:
    """The names that rows and audiences speak of; nothing else tells callers apart."""
    names = {row.subject for row in reach.rows if isinstance(row, PolicyRow)}
    return frozenset(names).union(*(each.audience for each in reach.access.snapshot.catalogues.values()))


def _differing(before: Mapping[Atom, Mask], after: Mapping[Atom, Mask]) -> Mask:
    """Everybody who holds something on one side only."""
    differing = 0
    for atom in {*before, *after}:
        differing |= before.get(atom, 0) ^ after.get(atom, 0)
    return differing


def _parts(mask: Mask, sides: Iterable[Mapping[Atom, Mask]]) -> Iterator[Mask]:
    """Callers who are in an audience at all, split into those who hold the same of everything."""
    known = tuple(sides)
    parts = [mask & (known[0][_AUDIENCE] | known[1][_AUDIENCE])]
    for holders in (holders for atoms in known for holders in atoms.values()):
        parts = [half for part in parts for half in (part & holders, part & ~holders) if half]
    return iter(parts)


def _judged_anew(before: _Held, after: _Held) -> frozenset[str]:
    """Objects about which something else holds than did, apart from rows and catalogues."""
    old, new = _objects(before.reach.access.snapshot), _objects(after.reach.access.snapshot)
    return frozenset(
        name
        for name in {*old, *new}
        if name not in old or name not in new or _judged(old[name], before) != _judged(new[name], after)
    )


def _objects(snapshot: Snapshot) -> dict[str, DeclaredTool | Offer]:
    return {**{tool.object: tool for tool in snapshot.tools.values()}, **snapshot.offers}


def _judged(tool: DeclaredTool | Offer, held: _Held) -> tuple[object, ...]:
    tier, reach = tool.trust.tier, held.reach
    within = frozenset(name for name, other in reach.access.snapshot.tiers.items() if tier.rank <= other.rank)
    is_in_use = isinstance(tool, Offer) or tool.is_in_use(reach.at.date())
    return tier.name, within, _is_callable(tool), is_in_use


def _is_callable(tool: DeclaredTool | Offer) -> bool:
    return tool.trust.tier.callable and tool.trust.callable


def _groups(snapshot: Snapshot, rows: Rows) -> dict[str, frozenset[str]]:
    """Each tool with every group it is in: through `g2` rows, at any distance, and by the artifacts it yields."""
    direct: dict[str, set[str]] = {}
    for row in rows:
        if isinstance(row, MemberRow) and row.section == "g2":
            direct.setdefault(row.member, set()).add(row.group)
    for tool in snapshot.tools.values():
        if tool.artifact in snapshot.artifacts:
            direct.setdefault(tool.object, set()).add(f"class:{tool.artifact}")
    return {object: _above(object, direct) for object in _objects(snapshot) if object in direct}


def _above(object: str, direct: Mapping[str, set[str]]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = [object]
    while waiting:
        new = direct.get(waiting.pop(), set()) - reached
        reached |= new
        waiting.extend(new)
    return frozenset(reached)


def _members(before: Catalogue | None, after: Catalogue | None) -> list[str]:
    return sorted({object for each in (before, after) for object, _ in _standing(each)})


def _moved(before: Catalogue | None, after: Catalogue | None) -> frozenset[str]:
    """What one side's catalogue has, or lists, and the other's does not."""
    return frozenset(object for object, _ in _standing(before) ^ _standing(after))


def _standing(catalogue: Catalogue | None) -> set[tuple[str, bool]]:
    if catalogue is None:
        return set()
    tools = {(f"{_TOOL}{tool}", name in catalogue.hidden) for name, tool in catalogue.tools.items()}
    return tools | {(object, False) for object in (*catalogue.prompts.values(), *catalogue.resources)}
