"""Diagnostics for policy rows, each at its cell.

Casbin itself silently drops unknown sections, ignores misspelt effects and stops following long role chains; here each
of these is a diagnostic. Names are compared with those that the rest of the configuration declares, if given.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gateway.model import CONFIG_OBJECT, OBJECT_KINDS, SUBJECT_KINDS, glob_matches
from gateway.policy.casbin.policy_files import PermissionRow, PolicyCell, PolicySet, RoleLink
from gateway.policy.casbin.policy_index import (
    ACTIONS,
    EFFECTS,
    RowIndex,
    build_role_graph,
    find_ancestors,
    find_cycles,
    find_parents,
    is_name,
    is_object,
    is_pattern,
    is_subject,
    is_within_tier,
    role_depths,
)
from gateway.policy.casbin.row_end import ENDING_SOON, RowEnd
from gateway.registries import Diagnostic, sort_diagnostics, suggest_name

MAX_DEPTH: Final = 8
"""Casbin silently stops following chains at ten links; longer chains than this are refused before that."""

_SHOWN: Final = 80
_ONE_END: Final = "remove one of them: the row that ends last is the one that counts"


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names that the configuration declares; `None` means unknown here, and checks that need it are skipped.

    Tools, classes and catalogues are bare names, tiers have their ranks, roles have their prefix (`role:reader`).
    """

    tools: frozenset[str] | None = None
    classes: frozenset[str] | None = None
    catalogues: frozenset[str] | None = None
    tiers: Mapping[str, int] | None = None
    roles: frozenset[str] | None = None
    prompts: frozenset[str] | None = None
    resources: frozenset[str] | None = None

    def of_kind(self, kind: str) -> frozenset[str] | None:
        """Return the known names for an object's prefix."""
        known = {"tool": self.tools, "class": self.classes, "catalogue": self.catalogues}
        return {**known, "prompt": self.prompts, "resource": self.resources}.get(kind)


class _Declared:
    """Known names to compare many cells with: sorted for patterns; suggestions are limited, because each is slow."""

    def __init__(self, names: Iterable[str]) -> None:
        self._sorted = sorted(names)
        self._suggestions = 10

    def has(self, pattern: str) -> bool:
        head = pattern.partition("*")[0]
        at = bisect_left(self._sorted, head)
        while at < len(self._sorted) and self._sorted[at].startswith(head):
            if glob_matches(self._sorted[at], pattern):
                return True
            at += 1
        return False

    def near(self, name: str) -> str | None:
        self._suggestions -= 1
        return suggest_name(name, self._sorted) if self._suggestions >= 0 else None


NameLookup = Mapping[str, _Declared | None]
"""By kind of object, and `tier`."""


def lint_policies(policies: PolicySet, known: KnownNames) -> list[Diagnostic]:
    """Return all problems in order. An error makes the set unusable; a warning is a row that has no effect."""
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
    found.extend(_find_unheld_roles(policies, known.roles))
    if not any(one.is_error for one in found):  # the graph has no cycles or overlong chains
        found.extend(_find_shadowed_allows(policies, known.tiers))
    return sort_diagnostics(found)


def _row_problems(row: PermissionRow, known: NameLookup) -> Iterator[Diagnostic]:
    yield from _subject_problems(row.subject)
    yield from _catalogue_problems(row.catalogue, known["catalogue"])
    yield from _object_problems(row.object, known)
    yield from _action_problems(row.actions)
    yield from _tier_problems(row.tier, known["tier"])
    if row.effect.text not in EFFECTS:
        help = suggest_name(row.effect.text, EFFECTS)
        yield _error("policy-effect", f"the effect is allow or deny, not {_quote(row.effect)}", row.effect, help=help)


def _subject_problems(cell: PolicyCell) -> Iterator[Diagnostic]:
    if not is_subject(cell.text):
        help = f"write {', '.join(f'{kind}:NAME' for kind in SUBJECT_KINDS)}; subjects are exact, without *"
        yield _error("bad-name", f"{_quote(cell)} is not a subject", cell, help=help)


def _catalogue_problems(cell: PolicyCell, catalogues: _Declared | None) -> Iterator[Diagnostic]:
    if not is_pattern(cell.text):
        yield _bad_pattern(cell)
    elif catalogues is not None and not catalogues.has(cell.text):
        if "*" in cell.text:
            yield _dead(cell, f"no catalogue matches {_quote(cell)}")
        else:
            help = catalogues.near(cell.text)
            yield _error("unknown-catalogue", f"there is no catalogue {_quote(cell)}", cell, help=help)


def _object_problems(cell: PolicyCell, known: NameLookup) -> Iterator[Diagnostic]:
    kind, _, name = cell.text.partition(":")
    if cell.text == CONFIG_OBJECT:
        return
    if kind not in OBJECT_KINDS:
        yield _bad_object(cell)
    elif not is_pattern(name):
        yield _bad_pattern(cell)
    else:
        yield from _dead_object(cell, known)


def _dead_object(cell: PolicyCell, known: NameLookup) -> Iterator[Diagnostic]:
    kind, _, pattern = cell.text.partition(":")
    declared = known.get(kind)
    if declared is not None and not declared.has(pattern):
        yield _dead(cell, f"no {kind} matches {_quote(cell)}", help=declared.near(pattern))


def _action_problems(cell: PolicyCell) -> Iterator[Diagnostic]:
    for action in cell.text.split("|"):
        if action not in ACTIONS:
            message = f"actions are {'|'.join(ACTIONS)}, not {_quote(PolicyCell(action, cell.position))}"
            yield _error("unknown-action", message, cell, help=suggest_name(action, ACTIONS))


def _tier_problems(cell: PolicyCell, tiers: _Declared | None) -> Iterator[Diagnostic]:
    if not is_name(cell.text):
        yield _error("bad-name", f"{_quote(cell)} is not the name of a tier", cell)
    elif tiers is not None and not tiers.has(cell.text):
        yield _error("unknown-tier", f"there is no tier {_quote(cell)}", cell, help=tiers.near(cell.text))


def _link_problems(policies: PolicySet, known: NameLookup) -> Iterator[Diagnostic]:
    for link in policies.members:
        yield from _subject_problems(link.member)
        yield from _subject_problems(link.group)
        if is_subject(link.group.text) and not link.group.text.startswith("role:"):
            yield _error(
                "bad-name", f"{_quote(link.group)} is not a role", link.group, help="write g, member, role:NAME"
            )
    for link in policies.objects:
        for cell in (link.member, link.group):
            if is_object(cell.text):
                yield from _dead_object(cell, known)
            else:
                yield _bad_object(cell)
        if is_object(link.group.text) and not link.group.text.startswith("class:"):
            yield _error("bad-object", f"{_quote(link.group)} is not a group", link.group, help="groups are class:NAME")


def find_ended_rows(policies: PolicySet, at: datetime) -> Iterator[Diagnostic]:
    """Yield a warning for each row that has ended, or ends soon. The end of a deny lets calls through."""
    for row in policies.ending:
        if row.end is None or at < row.end.until - ENDING_SOON:
            continue
        is_deny = isinstance(row, PermissionRow) and row.effect.text == "deny"
        place = row.subject.position if isinstance(row, PermissionRow) else row.member.position
        then = "; what it denied is decided by other rows" if is_deny else ""
        if row.end.is_over(at):
            message, help = f"the row was in force {row.end.describe}{then}", "remove the row and its comment"
            yield Diagnostic("ended-row", message, place, "warning", help)
        else:
            message = f"the row is in force {row.end.describe}{f'{then} then' if then else ''}"
            yield Diagnostic("ending-row", message, place, "warning", "review it: extend it, or let it end")


def _duplicates(policies: PolicySet) -> Iterator[Diagnostic]:
    rows: list[tuple[PolicyCell, tuple[object, ...], RowEnd | None]] = []
    for row in policies.permissions:
        actions = frozenset(row.actions.text.split("|"))
        rows.append((row.subject, (*row.texts[:3], actions, *row.texts[4:]), row.end))
    for section, links in (("g", policies.members), ("g2", policies.objects)):
        rows.extend((link.member, (section, link.member.text, link.group.text), link.end) for link in links)
    first: dict[tuple[object, ...], tuple[PolicyCell, RowEnd | None]] = {}
    for cell, key, end in rows:
        before, earlier = first.setdefault(key, (cell, end))
        if before is cell:
            continue
        if (end and end.until) != (earlier and earlier.until):
            related = (("other row", before.position),)
            yield Diagnostic(
                "row-end",
                "this row repeats another row with another end",
                cell.position,
                related=related,
                help=_ONE_END,
            )
        else:
            yield _warn("duplicate-row", "this row repeats another row", cell, related=("first row", before))


def _cycle_problems(links: Sequence[RoleLink]) -> Iterator[Diagnostic]:
    places = {(link.member.text, link.group.text): link for link in links}
    for names in find_cycles(build_role_graph(links)):
        link = places[names[-1], names[0]]
        around = " → ".join([*names[:MAX_DEPTH], names[0] if len(names) <= MAX_DEPTH else "…"])
        yield _error("role-cycle", f"membership runs in a circle: {around}", link.group, help="remove one link")


def _depth_problems(links: Sequence[RoleLink]) -> Iterator[Diagnostic]:
    depth = role_depths(build_role_graph(links))
    for link in links:
        if depth.get(link.member.text) == MAX_DEPTH + 1 and depth[link.group.text] == MAX_DEPTH:
            message = f"the chain of roles above {_quote(link.member)} is longer than {MAX_DEPTH} links"
            yield _error("role-depth", message, link.member, help="give the member a role further up directly")


def _find_unheld_roles(policies: PolicySet, roles: frozenset[str] | None) -> Iterator[Diagnostic]:
    if roles is None:
        return
    given = {link.member.text for link in policies.members if not link.member.text.startswith("role:")}
    held = find_ancestors(given | roles, build_role_graph(policies.members))
    declared = _Declared(held)
    for row in policies.permissions:
        name = row.subject.text
        if name.startswith("role:") and is_subject(name) and name not in held:
            yield _dead(row.subject, f"no subject holds {_quote(row.subject)}", help=declared.near(name))


def _find_shadowed_allows(policies: PolicySet, tiers: Mapping[str, int] | None) -> Iterator[Diagnostic]:
    """Yield a warning for each allow row that a deny row covers completely.

    A pattern covers another if it matches the other's text, because only its own stars can match the other's stars. So
    each allow row is looked up like a request in an index of the deny rows.
    """
    members, groups = build_role_graph(policies.members), find_parents(build_role_graph(policies.objects))
    denies = RowIndex((row for row in policies.permissions if row.effect.text == "deny"), groups)
    ceiling: Callable[[str, str], bool] = (
        str.__eq__ if tiers is None else lambda low, high: is_within_tier(low, high, tiers)
    )
    for row in policies.permissions:
        if row.effect.text != "allow":
            continue
        who = sorted(find_ancestors((row.subject.text,), members))
        covering = []
        for action in row.actions.text.split("|"):
            found = denies.find_any(who, catalogue=row.catalogue.text, object=row.object.text, action=action)
            covering.append(next((deny for deny in found if ceiling(row.tier.text, deny.tier.text)), None))
        if (deny := covering[0]) is not None and None not in covering:
            yield _warn("shadowed-allow", "a deny covers all of it", row.effect, related=("denied here", deny.effect))


def _bad_object(cell: PolicyCell) -> Diagnostic:
    help = f"write {', '.join(f'{kind}:NAME' for kind in OBJECT_KINDS)} or {CONFIG_OBJECT}"
    return _error("bad-object", f"{_quote(cell)} is not an object", cell, help=help)


def _bad_pattern(cell: PolicyCell) -> Diagnostic:
    help = "use letters, digits, _ - . and single stars, at most 128; * matches any run of characters"
    return _error("bad-pattern", f"{_quote(cell)} is not a pattern", cell, help=help)


def _dead(cell: PolicyCell, message: str, *, help: str | None = None) -> Diagnostic:
    return Diagnostic("dead-rule", message, cell.position, severity="warning", help=help)


def _error(code: str, message: str, cell: PolicyCell, *, help: str | None = None) -> Diagnostic:
    return Diagnostic(code, message, cell.position, help=help)


def _warn(code: str, message: str, cell: PolicyCell, *, related: tuple[str, PolicyCell]) -> Diagnostic:
    note, place = related
    return Diagnostic(code, message, cell.position, severity="warning", related=((note, place.position),))


def _quote(cell: PolicyCell) -> str:
    return repr(cell.text if len(cell.text) <= _SHOWN else f"{cell.text[:_SHOWN]}…")
