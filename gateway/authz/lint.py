"""What is wrong with policy rows, each problem at its cell.

Casbin itself drops unknown sections, ignores misspelt effects and stops following long role chains without a word; here
each of these is a diagnostic. Names are compared with what the rest of the configuration knows, where it is given.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gateway.authz.closure import above, cycles, depths, graph, reach
from gateway.authz.index import RowIndex
from gateway.authz.matching import ACTIONS, EFFECTS, is_name, is_object, is_pattern, is_subject, within
from gateway.authz.rules import Cell, Link, Permission, PolicySet
from gateway.governance.diagnostics import Diagnostic, did_you_mean, in_order
from gateway.governance.globs import glob_matches
from gateway.governance.names import CONFIG, OBJECT_KINDS, SUBJECT_KINDS

MAX_DEPTH: Final = 8
"""Casbin itself stops following chains at ten links, silently; ours are refused before."""

_SHOWN: Final = 80


@dataclass(frozen=True, slots=True)
class KnownNames:
    """What the configuration declares; `None` means not known here, and checks that need it are left out.

    Tools, classes and catalogues are bare names, tiers have their ranks, roles are whole (`role:reader`).
    """

    tools: frozenset[str] | None = None
    classes: frozenset[str] | None = None
    catalogues: frozenset[str] | None = None
    tiers: Mapping[str, int] | None = None
    roles: frozenset[str] | None = None
    prompts: frozenset[str] | None = None
    resources: frozenset[str] | None = None

    def of_kind(self, kind: str) -> frozenset[str] | None:
        """The known names behind an object's prefix."""
        known = {"tool": self.tools, "class": self.classes, "catalogue": self.catalogues}
        return {**known, "prompt": self.prompts, "resource": self.resources}.get(kind)


class _Declared:
    """Known names to compare many cells with: sorted for patterns, and with few suggestions, because each is slow."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sorted = sorted(names)
        self._suggestions = 10

    def has(self, pattern: str) -> bool:
        head = pattern.partition("*")[0]
        for name in islice(self._sorted, bisect_left(self._sorted, head), None):
            if not name.startswith(head):
                return False
            if glob_matches(name, pattern):
                return True
        return False

    def near(self, name: str) -> str | None:
        self._suggestions -= 1
        return did_you_mean(name, self._sorted) if self._suggestions >= 0 else None


Known = Mapping[str, _Declared | None]
"""By kind of object, and `tier`."""


def lint(policies: PolicySet, known: KnownNames) -> list[Diagnostic]:
    """All problems in order. An error makes the set unusable; a warning is a row that cannot do what it says."""
    kinds = {**{kind: known.of_kind(kind) for kind in OBJECT_KINDS}, "tier": known.tiers}
    declared = {kind: None if names is None else _Declared(names) for kind, names in kinds.items()}
    found: list[Diagnostic] = []
    for row in policies.permissions:
        found.extend(_row_problems(row, declared))
    found.extend(_link_problems(policies, declared))
    found.extend(_duplicates(policies))
    for links in (policies.members, policies.objects):
        found.extend(_cycle_problems(links))
        found.extend(_depth_problems(links))
    found.extend(_unheld(policies, known.roles))
    if not any(one.is_error for one in found):  # circles and endless chains are out of the way
        found.extend(_shadowed(policies, known.tiers))
    return in_order(found)


def _row_problems(row: Permission, known: Known) -> Iterator[Diagnostic]:
    yield from _subject_problems(row.subject)
    yield from _catalogue_problems(row.catalogue, known["catalogue"])
    yield from _object_problems(row.object, known)
    yield from _action_problems(row.actions)
    yield from _tier_problems(row.tier, known["tier"])
    if row.effect.text not in EFFECTS:
        help = did_you_mean(row.effect.text, EFFECTS)
        yield _error("policy-effect", f"the effect is allow or deny, not {_shown(row.effect)}", row.effect, help=help)


def _subject_problems(cell: Cell) -> Iterator[Diagnostic]:
    if not is_subject(cell.text):
        help = f"write {', '.join(f'{kind}:NAME' for kind in SUBJECT_KINDS)}; subjects are exact, without *"
        yield _error("bad-name", f"{_shown(cell)} is not a subject", cell, help=help)


def _catalogue_problems(cell: Cell, catalogues: _Declared | None) -> Iterator[Diagnostic]:
    if not is_pattern(cell.text):
        yield _bad_pattern(cell)
    elif catalogues is not None and not catalogues.has(cell.text):
        if "*" in cell.text:
            yield _dead(cell, f"no catalogue matches {_shown(cell)}")
        else:
            help = catalogues.near(cell.text)
            yield _error("unknown-catalogue", f"there is no catalogue {_shown(cell)}", cell, help=help)


def _object_problems(cell: Cell, known: Known) -> Iterator[Diagnostic]:
    kind, _, name = cell.text.partition(":")
    if cell.text == CONFIG:
        return
    if kind not in OBJECT_KINDS:
        yield _bad_object(cell)
    elif not is_pattern(name):
        yield _bad_pattern(cell)
    else:
        yield from _dead_object(cell, known)


def _dead_object(cell: Cell, known: Known) -> Iterator[Diagnostic]:
    kind, _, pattern = cell.text.partition(":")
    declared = known.get(kind)
    if declared is not None and not declared.has(pattern):
        yield _dead(cell, f"no {kind} matches {_shown(cell)}", help=declared.near(pattern))


def _action_problems(cell: Cell) -> Iterator[Diagnostic]:
    for action in cell.text.split("|"):
        if action not in ACTIONS:
            message = f"actions are {'|'.join(ACTIONS)}, not {_shown(Cell(action, cell.position))}"
            yield _error("unknown-action", message, cell, help=did_you_mean(action, ACTIONS))


def _tier_problems(cell: Cell, tiers: _Declared | None) -> Iterator[Diagnostic]:
    if not is_name(cell.text):
        yield _error("bad-name", f"{_shown(cell)} is not the name of a tier", cell)
    elif tiers is not None and not tiers.has(cell.text):
        yield _error("unknown-tier", f"there is no tier {_shown(cell)}", cell, help=tiers.near(cell.text))


def _link_problems(policies: PolicySet, known: Known) -> Iterator[Diagnostic]:
    for link in policies.members:
        yield from _subject_problems(link.member)
        yield from _subject_problems(link.group)
        if is_subject(link.group.text) and not link.group.text.startswith("role:"):
            yield _error(
                "bad-name", f"{_shown(link.group)} is not a role", link.group, help="write g, member, role:NAME"
            )
    for link in policies.objects:
        for cell in (link.member, link.group):
            if is_object(cell.text):
                yield from _dead_object(cell, known)
            else:
                yield _bad_object(cell)
        if is_object(link.group.text) and not link.group.text.startswith("class:"):
            yield _error("bad-object", f"{_shown(link.group)} is not a group", link.group, help="groups are class:NAME")


def _duplicates(policies: PolicySet) -> Iterator[Diagnostic]:
    rows: list[tuple[Cell, tuple[object, ...]]] = []
    for row in policies.permissions:
        rows.append((row.subject, (*row.texts[:3], frozenset(row.actions.text.split("|")), *row.texts[4:])))
    for section, links in (("g", policies.members), ("g2", policies.objects)):
        rows.extend((link.member, (section, link.member.text, link.group.text)) for link in links)
    first: dict[tuple[object, ...], Cell] = {}
    for cell, key in rows:
        before = first.setdefault(key, cell)
        if before is not cell:
            yield _warning(
                "duplicate-row", "this row says what another says", cell, related=("first said here", before)
            )


def _cycle_problems(links: Sequence[Link]) -> Iterator[Diagnostic]:
    places = {(link.member.text, link.group.text): link for link in links}
    for names in cycles(graph(links)):
        link = places[names[-1], names[0]]
        around = " → ".join([*names[:MAX_DEPTH], names[0] if len(names) <= MAX_DEPTH else "…"])
        yield _error("role-cycle", f"membership runs in a circle: {around}", link.group, help="remove one link")


def _depth_problems(links: Sequence[Link]) -> Iterator[Diagnostic]:
    depth = depths(graph(links))
    for link in links:
        if depth.get(link.member.text) == MAX_DEPTH + 1 and depth[link.group.text] == MAX_DEPTH:
            message = f"the chain of roles above {_shown(link.member)} is longer than {MAX_DEPTH} links"
            yield _error("role-depth", message, link.member, help="give the member a role further up directly")


def _unheld(policies: PolicySet, roles: frozenset[str] | None) -> Iterator[Diagnostic]:
    if roles is None:
        return
    given = {link.member.text for link in policies.members if not link.member.text.startswith("role:")}
    held = reach(given | roles, graph(policies.members))
    declared = _Declared(held)
    for row in policies.permissions:
        name = row.subject.text
        if name.startswith("role:") and is_subject(name) and name not in held:
            yield _dead(row.subject, f"nobody holds {_shown(row.subject)}", help=declared.near(name))


def _shadowed(policies: PolicySet, tiers: Mapping[str, int] | None) -> Iterator[Diagnostic]:
    """Allows that some deny covers wholly.

    A pattern covers another when it matches the other's text: its own stars are the only place where the other's stars
    can fall. So each allow is asked about as if it were a request, of an index over the denies.
    """
    members, groups = graph(policies.members), above(graph(policies.objects))
    denies = RowIndex((row for row in policies.permissions if row.effect.text == "deny"), groups)
    ceiling: Callable[[str, str], bool] = str.__eq__ if tiers is None else lambda low, high: within(low, high, tiers)
    for row in policies.permissions:
        if row.effect.text != "allow":
            continue
        who = sorted(reach((row.subject.text,), members))
        covering = []
        for action in row.actions.text.split("|"):
            found = denies.some(who, catalogue=row.catalogue.text, object=row.object.text, action=action)
            covering.append(next((deny for deny in found if ceiling(row.tier.text, deny.tier.text)), None))
        if (deny := covering[0]) is not None and None not in covering:
            yield _warning(
                "shadowed-allow", "a deny covers all of it", row.effect, related=("denied here", deny.effect)
            )


def _bad_object(cell: Cell) -> Diagnostic:
    help = f"write {', '.join(f'{kind}:NAME' for kind in OBJECT_KINDS)} or {CONFIG}"
    return _error("bad-object", f"{_shown(cell)} is not an object", cell, help=help)


def _bad_pattern(cell: Cell) -> Diagnostic:
    help = "letters, digits, _ - . and single stars, at most 128; * stands for any run of characters, nothing else does"
    return _error("bad-pattern", f"{_shown(cell)} is not a pattern", cell, help=help)


def _dead(cell: Cell, message: str, *, help: str | None = None) -> Diagnostic:
    return Diagnostic("dead-rule", message, cell.position, severity="warning", help=help)


def _error(code: str, message: str, cell: Cell, *, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, cell.position, help=help)


def _warning(code: str, message: str, cell: Cell, *, related: tuple[str, Cell]) -> Diagnostic:
    note, place = related
    return Diagnostic(code, message, cell.position, severity="warning", related=((note, place.position),))


def _shown(cell: Cell) -> str:
    return repr(cell.text if len(cell.text) <= _SHOWN else f"{cell.text[:_SHOWN]}…")
