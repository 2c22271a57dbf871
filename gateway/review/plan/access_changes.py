"""Finds callers that gain or lose access to a tool, prompt or resources, by the same steps that decide calls.

Only combinations that may have changed are checked, and one of several indistinguishable callers is checked for all.
Access to a tool in a catalogue depends on what a caller holds there: a place in the audience, and rows by their
actions, ceiling and effect (an `Atom`). Callers that hold the same on both sides have the same access. If a caller
holds the same before and after, and the tool and its trust did not change, its access did not change.

Callers are the subjects and roles of policy rows and links, and the subjects of identity providers. A role means a
caller with only this role. A subject has the roles that a provider gives it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from gateway.model import Principal, glob_matches
from gateway.policy import Access
from gateway.registries import Catalogue, DeclaredDefinition, DeclaredTool, Snapshot
from gateway.review.plan.policy_changes import GroupingRow, PolicyRow

Callers = Mapping[str, Principal]
"""Principals by the name that is shown to readers."""


def list_callers(snapshot: Snapshot, rows: Iterable[PolicyRow | GroupingRow]) -> Callers:
    names = {*snapshot.roles, *snapshot.subjects}
    for row in rows:
        if isinstance(row, PolicyRow):
            names.add(row.subject)
        elif row.section == "g":
            names |= {row.member, row.group}
    return {**{name: Principal(name) for name in names}, **_provider_principals(snapshot)}


def pair_callers(before: Callers, after: Callers) -> Iterator[tuple[str, Principal, Principal]]:
    """Yield every caller of either side. A caller that one side does not know has no roles of a provider there."""
    for name in sorted({*before, *after}):
        there = after.get(name) or before[name]
        without_roles = Principal(there.subject)
        yield name, before.get(name, without_roles), after.get(name, without_roles)


def _provider_principals(snapshot: Snapshot) -> dict[str, Principal]:
    grants: dict[str, set[frozenset[str]]] = {}
    for provider in snapshot.documents.get("IdentityProvider", {}).values():
        for subject, roles in _grants(provider.data.get("spec", {})):
            grants.setdefault(subject, set()).add(frozenset(roles))
    found = {}
    for subject, role_sets in grants.items():
        for roles in role_sets:
            name = subject if len(role_sets) == 1 else f"{subject} as {', '.join(sorted(roles)) or 'nothing else'}"
            found[name] = Principal(subject, roles)
    return found


def _grants(spec: Mapping[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    match spec:
        case {"type": "token", "tokens": [*tokens]}:
            for token in tokens:
                yield token["subject"], token.get("roles", ())
        case {"type": "none", "subject": str(subject)}:
            yield subject, spec.get("roles", ())


Level = Literal["none", "sees", "calls", "gets", "reads"]
"""Tools can be seen and called; prompts can be got, and resources can be read, or they are invisible."""
LEVELS: Final[tuple[Level, ...]] = ("none", "sees", "calls", "gets", "reads")
Rows = Sequence[PolicyRow | GroupingRow]
Progress = Callable[[int, int], None]
"""Called with the number of finished parts and the number of all parts."""


@dataclass(frozen=True, slots=True)
class AccessChange:
    """What a caller can do with a tool of a catalogue, before and after; gate rules are not evaluated.

    Prompts and groups of resources have their name in policies: `prompt:wiki.review`.
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
class AccessSide:
    """One side of the comparison: its access, and the rows that decide."""

    access: Access
    rows: Rows
    at: datetime

    def level(self, caller: Principal, catalogue: str, object: str) -> Level:
        """Return what a caller can do with a tool, prompt or group of resources of a catalogue."""
        offer = self.access.snapshot.offers.get(object)
        if offer is None:
            return self._tool_level(caller, catalogue, object.removeprefix(_TOOL))
        found = self.access.snapshot.catalogues.get(catalogue)
        if found is None or object not in (*found.prompts.values(), *found.resources):
            return "none"
        if not self.access.is_in_audience(caller, catalogue):
            return "none"
        if not self.access.decide_definition(caller, catalogue=catalogue, offer=offer).allowed:
            return "none"
        return "gets" if offer.kind == "prompt" else "reads"

    def _tool_level(self, caller: Principal, catalogue: str, tool: str) -> Level:
        """Return "calls" if the last step before the gate rules allows the call."""
        snapshot = self.access.snapshot
        found, declared = snapshot.catalogues.get(catalogue), snapshot.tools.get(tool)
        names = [name for name, identity in found.tools.items() if identity == tool] if found else []
        if found is None or declared is None or not names or not declared.is_callable_on(self.at.date()):
            return "none"
        if not self.access.is_in_audience(caller, catalogue):
            return "none"
        if not self.access.decide_discovery(caller, catalogue=catalogue, tool=declared).allowed:
            return "none"
        if (
            _is_callable(declared)
            and self.access.decide_action(caller, "invoke", catalogue=catalogue, tool=declared).allowed
        ):
            return "calls"
        return "sees" if any(name not in found.hidden for name in names) else "none"


def access_changes(
    before: AccessSide, after: AccessSide, *, progress: Progress | None = None
) -> tuple[AccessChange, ...]:
    """Return every difference, sorted by caller, catalogue and tool."""
    caller_groups = _CallerGroups(before, after)
    sides = (_SideHoldings(before, caller_groups.before), _SideHoldings(after, caller_groups.after))
    snapshots = (before.access.snapshot, after.access.snapshot)
    reassessed = _find_reassessed(*sides)
    names = sorted({*snapshots[0].catalogues, *snapshots[1].catalogues})
    found: list[AccessChange] = []
    for done, name in enumerate(names, 1):
        catalogues = snapshots[0].catalogues.get(name), snapshots[1].catalogues.get(name)
        moved = _find_moved(*catalogues)
        for object in _members(*catalogues):
            atoms = tuple(side.atoms(name, object) for side in sides)
            touched = caller_groups.all_callers if object in reassessed or object in moved else _find_differing(*atoms)
            for part in _parts(touched, atoms):
                levels = caller_groups.levels(part, name, object)
                if levels[0] != levels[1]:
                    shown = object.removeprefix(_TOOL)
                    found += (AccessChange(caller, name, shown, *levels) for caller in caller_groups.callers(part))
        if progress is not None:
            progress(done, len(names))
    return tuple(sorted(found, key=lambda each: (each.caller, each.catalogue, each.tool)))


Mask = int
"""A set of callers, one bit per caller. Big integers join and split thousands of callers in one step."""

Atom = tuple[str, ...]
"""Something that a caller holds and that decides: a place in the audience, or a row's actions, ceiling and effect."""

_AUDIENCE: Final[Atom] = ("audience",)
_DECIDING: Final = frozenset({"discover", "invoke", "read"})
_TOOL: Final = "tool:"


class _CallerGroups:
    """All callers of two sides; callers that have the same names on both sides form one group."""

    def __init__(self, before: AccessSide, after: AccessSide) -> None:
        self._sides = (before, after)
        self._members: list[tuple[Principal, Principal, list[str]]] = []
        self.before: dict[str, Mask] = {}
        self.after: dict[str, Mask] = {}
        deciding = _deciding_names(before) | _deciding_names(after)
        numbers: dict[tuple[frozenset[str], frozenset[str]], int] = {}
        known = (list_callers(side.access.snapshot, side.rows) for side in self._sides)
        for name, old, new in pair_callers(*known):
            holdings = before.access.roles_of(old) & deciding, after.access.roles_of(new) & deciding
            if holdings not in numbers:
                numbers[holdings] = len(self._members)
                self._members.append((old, new, []))
                self._add_group(*holdings, bit=1 << numbers[holdings])
            self._members[numbers[holdings]][2].append(name)

    @property
    def all_callers(self) -> Mask:
        return (1 << len(self._members)) - 1

    def callers(self, mask: Mask) -> Iterator[str]:
        while mask:
            lowest = mask & -mask
            yield from self._members[lowest.bit_length() - 1][2]
            mask ^= lowest

    def levels(self, mask: Mask, catalogue: str, object: str) -> tuple[Level, Level]:
        """Return what the callers can do before and after; one of them is checked for all."""
        old, new, _ = self._members[(mask & -mask).bit_length() - 1]
        before, after = self._sides
        return before.level(old, catalogue, object), after.level(new, catalogue, object)

    def _add_group(self, old: frozenset[str], new: frozenset[str], *, bit: Mask) -> None:
        for masks, names in ((self.before, old), (self.after, new)):
            for name in names:
                masks[name] = masks.get(name, 0) | bit


class _SideHoldings:
    """What callers hold on one side."""

    def __init__(self, side: AccessSide, holders: Mapping[str, Mask]) -> None:
        self.side = side
        self._holders = holders
        self._table: dict[str, dict[str, dict[Atom, Mask]]] = {}
        """By the pattern of the catalogue, then by that of the object."""
        for row in side.rows:
            if isinstance(row, PolicyRow) and (actions := row.actions & _DECIDING):
                atoms = self._table.setdefault(row.catalogue, {}).setdefault(row.object, {})
                atom = (*sorted(actions), row.tier, row.effect)
                atoms[atom] = atoms.get(atom, 0) | holders.get(row.subject, 0)
        objects = {pattern for table in self._table.values() for pattern in table}
        self._globs = sorted(pattern for pattern in objects if "*" in pattern)
        self._exact = objects - set(self._globs)
        self.groups = _groups(side.access.snapshot, side.rows)
        self._covering: dict[str, list[str]] = {}
        self._naming: dict[str, list[str]] = {}

    def atoms(self, catalogue: str, object: str) -> dict[Atom, Mask]:
        """Return the atoms that decide about a tool in a catalogue, with the callers that hold them."""
        found = {_AUDIENCE: self._audience(catalogue)}
        for pattern in self._patterns_naming(catalogue):
            for covering in self._patterns_covering(object):
                for atom, mask in self._table[pattern].get(covering, {}).items():
                    found[atom] = found.get(atom, 0) | mask
        return found

    def _audience(self, catalogue: str) -> Mask:
        declared = self.side.access.snapshot.catalogues.get(catalogue)
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


def _deciding_names(side: AccessSide) -> frozenset[str]:
    """Return the names in rows and audiences; nothing else distinguishes callers."""
    names = {row.subject for row in side.rows if isinstance(row, PolicyRow)}
    return frozenset(names).union(*(each.audience for each in side.access.snapshot.catalogues.values()))


def _find_differing(before: Mapping[Atom, Mask], after: Mapping[Atom, Mask]) -> Mask:
    """Return the callers that hold an atom on one side only."""
    differing = 0
    for atom in {*before, *after}:
        differing |= before.get(atom, 0) ^ after.get(atom, 0)
    return differing


def _parts(mask: Mask, sides: Iterable[Mapping[Atom, Mask]]) -> Iterator[Mask]:
    """Split the callers that are in an audience into groups that hold the same atoms."""
    known = tuple(sides)
    parts = [mask & (known[0][_AUDIENCE] | known[1][_AUDIENCE])]
    for holders in (holders for atoms in known for holders in atoms.values()):
        parts = [half for part in parts for half in (part & holders, part & ~holders) if half]
    return iter(parts)


def _find_reassessed(before: _SideHoldings, after: _SideHoldings) -> frozenset[str]:
    """Return the objects whose tier, trust or use changed, whatever rows and catalogues do."""
    old, new = _objects(before.side.access.snapshot), _objects(after.side.access.snapshot)
    return frozenset(
        name
        for name in {*old, *new}
        if name not in old or name not in new or _assess(old[name], before) != _assess(new[name], after)
    )


def _objects(snapshot: Snapshot) -> dict[str, DeclaredTool | DeclaredDefinition]:
    return {**{tool.object: tool for tool in snapshot.tools.values()}, **snapshot.offers}


def _assess(tool: DeclaredTool | DeclaredDefinition, holdings: _SideHoldings) -> tuple[object, ...]:
    tier, side = tool.trust.tier, holdings.side
    within = frozenset(name for name, other in side.access.snapshot.tiers.items() if tier.rank <= other.rank)
    is_in_use = isinstance(tool, DeclaredDefinition) or tool.is_callable_on(side.at.date())
    return tier.name, within, _is_callable(tool), is_in_use


def _is_callable(tool: DeclaredTool | DeclaredDefinition) -> bool:
    return tool.trust.tier.callable and tool.trust.callable


def _groups(snapshot: Snapshot, rows: Rows) -> dict[str, frozenset[str]]:
    """Return each tool with all its groups: by `g2` rows, direct or inherited, and by the artifacts it returns."""
    direct: dict[str, set[str]] = {}
    for row in rows:
        if isinstance(row, GroupingRow) and row.section == "g2":
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
    return sorted({object for each in (before, after) for object, _ in _listed_objects(each)})


def _find_moved(before: Catalogue | None, after: Catalogue | None) -> frozenset[str]:
    """Return the objects that only one side's catalogue has, or lists."""
    return frozenset(object for object, _ in _listed_objects(before) ^ _listed_objects(after))


def _listed_objects(catalogue: Catalogue | None) -> set[tuple[str, bool]]:
    if catalogue is None:
        return set()
    tools = {(f"{_TOOL}{tool}", name in catalogue.hidden) for name, tool in catalogue.tools.items()}
    return tools | {(object, False) for object in (*catalogue.prompts.values(), *catalogue.resources)}
