"""The index of policy rows, the role graph, and the five functions of the policy matcher.

The index finds the rows that could decide a request without looking at the others. It leaves out a row only if one of
the matcher's own functions refuses it, or if an earlier row is the same, so its result is always enough to decide. It
does not consider tier and effect.

The role graph is the closure of `g` and `g2` rows, with their cycles and depth. Nothing recurses and no depth is cut
off silently, whatever the rows are.

The matcher's functions are pure and return a real boolean (the policy engine refuses anything else). The only pattern
is an anchored glob in which `*` matches any run of characters; its cost is linear in the length of the texts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

from gateway.model import (
    CONFIG_OBJECT,
    NAME_REGEX,
    OBJECT_KINDS,
    PATTERN_REGEX,
    SUBJECT_KINDS,
    SUBJECT_NAME_REGEX,
    glob_matches,
)
from gateway.policy.casbin.policy_files import PermissionRow, RoleLink

RoleGraph = Mapping[str, frozenset[str]]


def build_role_graph(links: Iterable[RoleLink]) -> RoleGraph:
    """Return each member with the groups it is directly in."""
    direct: dict[str, set[str]] = {}
    for link in links:
        direct.setdefault(link.member.text, set()).add(link.group.text)
    return {member: frozenset(groups) for member, groups in direct.items()}


def find_ancestors(names: Iterable[str], direct: RoleGraph) -> frozenset[str]:
    """Return the names and every group they belong to. Names without a link cost one lookup and are not cached."""
    reached = set(names)
    if direct.keys().isdisjoint(reached):
        return frozenset(reached)
    waiting = list(reached)
    while waiting:
        new = direct.get(waiting.pop(), frozenset()) - reached
        reached |= new
        waiting.extend(new)
    return frozenset(reached)


def find_parents(direct: RoleGraph) -> RoleGraph:
    """Return each member with every group it is in, directly or not."""
    return {member: find_ancestors((member,), direct) - {member} for member in direct}


def role_depths(direct: RoleGraph) -> dict[str, int]:
    """Return the longest chain of links above each member, without the members that lead into a cycle."""
    members: dict[str, list[str]] = {}
    open_links = {member: len(groups) for member, groups in direct.items()}
    for member, groups in direct.items():
        for group in groups:
            members.setdefault(group, []).append(member)
    depth = {group: 0 for group in members if group not in direct}
    settled = list(depth)
    while settled:
        group = settled.pop()
        for member in members.get(group, ()):
            open_links[member] -= 1
            if open_links[member] == 0:
                depth[member] = 1 + max(depth[above] for above in direct[member])
                settled.append(member)
    return depth


def find_cycles(direct: RoleGraph) -> list[list[str]]:
    """Return each cycle once, as the names on it in order."""
    settled = role_depths(direct)
    seen: set[str] = set()
    found = []
    for start in direct:
        walk: list[str] = []
        name = start
        while name not in settled and name not in seen:
            seen.add(name)
            walk.append(name)
            name = min(group for group in direct[name] if group not in settled)
        if name in walk:
            found.append(walk[walk.index(name) :])
    return found


ACTIONS: Final = ("discover", "invoke", "read", "approve", "observe", "administer")
EFFECTS: Final = ("allow", "deny")

_NAME: Final = re.compile(NAME_REGEX)
_PATTERN: Final = re.compile(PATTERN_REGEX)
_SUBJECT_NAME: Final = re.compile(SUBJECT_NAME_REGEX)


def has_role(who: Set[str], subject: str) -> bool:
    """Whether the caller is, or inherits, the row's subject; `who` already contains all inherited names."""
    return subject in who


def matches_catalogue(catalogue: str, pattern: str) -> bool:
    return glob_matches(catalogue, pattern)


def matches_object(object: str, pattern: str, groups: Mapping[str, Set[str]]) -> bool:
    """Whether the pattern matches the object, or a group the object belongs to."""
    return glob_matches(object, pattern) or any(glob_matches(group, pattern) for group in groups.get(object, ()))


def matches_action(action: str, actions: str) -> bool:
    """Whether the action is in a `|` list."""
    return action in actions.split("|")


def is_within_tier(tier: str, ceiling: str, ranks: Mapping[str, int]) -> bool:
    """Whether the tier is at most as risky as the ceiling; never if either tier is undeclared."""
    return tier in ranks and ceiling in ranks and ranks[tier] <= ranks[ceiling]


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether the text is a name that may contain single stars."""
    return _PATTERN.fullmatch(text) is not None


def is_subject(text: str) -> bool:
    """Whether the text is `user:`, `agent:`, `service:` or `role:` and a name."""
    kind, _, name = text.partition(":")
    return kind in SUBJECT_KINDS and _SUBJECT_NAME.fullmatch(name) is not None


def is_object(text: str) -> bool:
    kind, _, name = text.partition(":")
    return text == CONFIG_OBJECT or (kind in OBJECT_KINDS and is_name(name))


_Columns = tuple[str, str]
"""The object and the catalogue of a row: rows that share both are matched once."""

_Firsts = dict[tuple[str, str], int]
"""The number of the first row of each tier and effect: later ones repeat it and can decide nothing."""


class _Bucket:
    """The rows of one subject and one action, by their whole object or by its text before the first star."""

    __slots__ = ("heads", "lengths", "whole")

    def __init__(self) -> None:
        self.whole: dict[str, dict[_Columns, _Firsts]] = {}
        self.heads: dict[str, dict[_Columns, _Firsts]] = {}
        self.lengths: set[int] = set()

    def add(self, number: int, row: PermissionRow) -> None:
        head, star, _ = row.object.text.partition("*")
        if star:
            self.lengths.add(len(head))
        rows = (self.heads if star else self.whole).setdefault(head, {})
        firsts = rows.setdefault((row.object.text, row.catalogue.text), {})
        firsts.setdefault((row.tier.text, row.effect.text), number)

    def find(self, object: str) -> Iterator[tuple[_Columns, _Firsts]]:
        yield from self.whole.get(object, {}).items()
        for length in self.lengths:
            yield from self.heads.get(object[:length], {}).items()


class RowIndex:
    """Immutable; any number of threads may use it."""

    def __init__(self, rows: Iterable[PermissionRow], groups: RoleGraph) -> None:
        """`groups` are all groups of each object, however far up."""
        self._rows = tuple(rows)
        self._groups = groups
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        for number, row in enumerate(self._rows):
            for action in set(row.actions.text.split("|")):
                self._buckets.setdefault((row.subject.text, action), _Bucket()).add(number, row)

    def find_candidates(self, who: Iterable[str], *, catalogue: str, object: str, action: str) -> list[PermissionRow]:
        """Return the matching rows in their original order, without repetitions."""
        numbers: set[int] = set()
        for found in self._find_numbers(who, catalogue=catalogue, object=object, action=action):
            numbers.update(found)
        return [self._rows[number] for number in sorted(numbers)]

    def find_any(self, who: Iterable[str], *, catalogue: str, object: str, action: str) -> Iterator[PermissionRow]:
        """Yield the matching rows as they are found, some perhaps twice: for callers that stop at the first."""
        for found in self._find_numbers(who, catalogue=catalogue, object=object, action=action):
            yield from (self._rows[number] for number in found)

    def _find_numbers(self, who: Iterable[str], *, catalogue: str, object: str, action: str) -> Iterator[Iterable[int]]:
        objects = (object, *self._groups.get(object, ()))
        for subject in who:
            bucket = self._buckets.get((subject, action))
            if bucket is None:
                continue
            for name in objects:
                for (pattern, catalogues), firsts in bucket.find(name):
                    if matches_catalogue(catalogue, catalogues) and matches_object(object, pattern, self._groups):
                        yield firsts.values()
