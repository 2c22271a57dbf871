"""Attestations: an owner looked at the access to what it owns. Compares that access with the access of today.

The scope of an owner is all access to its tools, prompts and resources, and all access of its callers. An attestation
has the list of this access, and its digest. Access has grown if a caller has a right that the list does not have, or
calls a tool without a gate rule that the list has. Limits of how often are not listed. Less access is no growth.

Lists are compared in a normal form that depends on the access only, not on how it was grouped when it was written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from gateway.model import exact_digest
from gateway.registries import Position, Snapshot
from gateway.review.access.caller_groups import CallerGroups
from gateway.review.access.effective_access import ACTIONS, CALL, AccessBlock
from gateway.review.access.owners import find_caller_owners, find_object_owners

_PREFIX: Final = "sha256:"
_READ_ALL: Final = "read"
_READ_BY: Final = "read:"


@dataclass(frozen=True, slots=True)
class AttestedAccess:
    """Callers that have the same rights to the same objects of a catalogue. `gates` may hold or deny their calls."""

    catalogue: str
    callers: tuple[str, ...]
    objects: tuple[str, ...]
    actions: tuple[str, ...]
    gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attestation:
    """The statement of a person, for an owner, that this access is as it should be until a day."""

    name: str
    owner: str
    by: str
    on: date
    until: date
    digest: str
    access: tuple[AttestedAccess, ...]
    position: Position
    until_position: Position
    environment: str | None = None

    @property
    def is_intact(self) -> bool:
        """Whether the list has the digest that was attested."""
        return digest_access(self.access) == self.digest


@dataclass(frozen=True, slots=True)
class AccessGrowth:
    """What a caller can do with an object that was not attested; `without` are rules that no longer hold or deny it."""

    caller: str
    catalogue: str
    object: str
    actions: tuple[str, ...]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Rights:
    actions: frozenset[str]
    gates: frozenset[str] = field(default_factory=frozenset)


_Profile = Mapping[tuple[str, str], _Rights]
"""The rights of a caller by catalogue and object."""
_NOTHING: Final = _Rights(frozenset())


def select_scope(
    snapshot: Snapshot, blocks: Iterable[AccessBlock], callers: CallerGroups, *, owner: str
) -> tuple[AttestedAccess, ...]:
    """Return the access to what an owner owns, and of the callers that it owns, in normal form."""
    owners, owned_callers = find_object_owners(snapshot), find_caller_owners(snapshot)
    found = []
    for block in blocks:
        mine = tuple(each for each in block.objects if owners.get(each) == owner)
        others = tuple(each for each in block.objects if owners.get(each) != owner)
        names = tuple(callers.list_names(block.callers))
        my_callers = tuple(each for each in names if owned_callers.get(callers.principals[each].subject) == owner)
        gates = tuple(gate.rule for gate in block.gates if not gate.is_limit) if block.can(CALL) else ()
        for objects, concerned in ((mine, names), (others, my_callers)):
            if objects and concerned:
                found.append(AttestedAccess(block.catalogue, concerned, objects, block.actions, gates))
    return normalise_access(found)


def normalise_access(entries: Iterable[AttestedAccess]) -> tuple[AttestedAccess, ...]:
    """Return the same access as the fewest sorted entries."""
    lists: dict[str, dict[tuple[str, _Rights], set[str]]] = {}
    for caller, profile in _list_profiles(entries):
        grouped = lists.setdefault(caller, {})
        for (catalogue, object), rights in profile.items():
            grouped.setdefault((catalogue, rights), set()).add(object)
    callers: dict[tuple[str, _Rights, tuple[str, ...]], list[str]] = {}
    for caller, grouped in lists.items():
        for (catalogue, rights), objects in grouped.items():
            callers.setdefault((catalogue, rights, tuple(sorted(objects))), []).append(caller)
    found = [
        AttestedAccess(catalogue, tuple(sorted(names)), objects, _sort_actions(rights.actions), _sorted(rights.gates))
        for (catalogue, rights, objects), names in callers.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.catalogue, each.callers, each.objects, each.actions, each.gates)))


def digest_access(entries: Iterable[AttestedAccess]) -> str:
    """Return the SHA-256 of the access in normal form."""
    return _PREFIX + exact_digest([list(map(list_or_text, _fields(each))) for each in normalise_access(entries)])


def list_or_text(value: Any) -> Any:
    return value if isinstance(value, str) else list(value)


def find_growth(before: Iterable[AttestedAccess], after: Iterable[AttestedAccess]) -> Iterator[AccessGrowth]:
    """Yield what callers can do now and could not when it was attested, by caller, catalogue and object."""
    attested = dict(_list_profiles(before))
    for caller, profile in sorted(_list_profiles(after), key=lambda each: each[0]):
        known = attested.get(caller, {})
        for (catalogue, object), rights in sorted(profile.items(), key=lambda each: each[0]):
            old = known.get((catalogue, object), _NOTHING)
            actions = _find_new_actions(old, rights)
            dropped = old.gates - rights.gates if CALL in rights.actions & old.actions else frozenset[str]()
            if actions or dropped:
                yield AccessGrowth(caller, catalogue, object, _sort_actions(actions), _sorted(dropped))


def _find_new_actions(old: _Rights, new: _Rights) -> frozenset[str]:
    """Return the added actions. The right to read covers that of every query tool."""
    added = new.actions - old.actions
    if _READ_ALL in old.actions:
        return frozenset(each for each in added if not each.startswith(_READ_BY))
    return added


def _list_profiles(entries: Iterable[AttestedAccess]) -> Iterator[tuple[str, _Profile]]:
    """Yield every caller with its rights; entries about the same object add up, and only common rules count."""
    by_caller: dict[str, list[AttestedAccess]] = {}
    for each in entries:
        for caller in each.callers:
            by_caller.setdefault(caller, []).append(each)
    for caller, mine in by_caller.items():
        profile: dict[tuple[str, str], _Rights] = {}
        for each in mine:
            rights = _Rights(frozenset(each.actions), frozenset(each.gates if CALL in each.actions else ()))
            for object in each.objects:
                known = profile.get((each.catalogue, object))
                profile[each.catalogue, object] = rights if known is None else _join(known, rights)
        yield caller, profile


def _join(one: _Rights, other: _Rights) -> _Rights:
    if CALL not in one.actions or CALL not in other.actions:
        return _Rights(one.actions | other.actions, one.gates | other.gates)
    return _Rights(one.actions | other.actions, one.gates & other.gates)


def _fields(entry: AttestedAccess) -> Sequence[str | tuple[str, ...]]:
    return entry.catalogue, entry.callers, entry.objects, entry.actions, entry.gates


def _sort_actions(actions: Iterable[str]) -> tuple[str, ...]:
    order = {action: number for number, action in enumerate(ACTIONS)}
    return tuple(sorted(actions, key=lambda each: (order.get(each, len(order)), each)))


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
