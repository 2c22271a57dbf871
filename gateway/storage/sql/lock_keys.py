"""What a write shares with the writes of other processes, so that on PostgreSQL only those wait for each other.

SQLite ignores it: there, all writes are one after the other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.policy import TurnStateWrite


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a write shares. A write without a footprint may change anything.

    `keys` name what it reads before it changes it, and rows that other processes may change, too. A write without keys
    only adds rows that no other process can know. `turns` are turns whose states it merges.
    """

    keys: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()


NOTHING_SHARED: Final = Footprint()
APPROVALS: Final = Footprint(("approvals",))
"""Of all approvals: one number counts their changes, and processes follow it."""


def turn_key(turn_id: str) -> str:
    """Return the key of a turn, its calls, its state and the pieces of its results."""
    return f"turn {turn_id}"


def claim_key(owner: str, key: str) -> str:
    """Return the key of an idempotency key."""
    return f"claim {owner} {key}"


def refusal_key(owner: str, reason: str) -> str:
    """Return the key of the counted refusals of one caller for one reason."""
    return f"refusal {owner} {reason}"


def sighting_key(owner: str) -> str:
    """Return the key of the sightings of one caller."""
    return f"sightings {owner}"


def limit_key(digest: bytes) -> str:
    """Return the key of a rate or a quota, whose digest names its rule and its caller."""
    return f"limit {digest.hex()}"


def turn_footprint(turn_id: str) -> Footprint:
    """Return the footprint of a write that changes a turn, and not its state."""
    return Footprint((turn_key(turn_id),))


def state_footprint(*states: TurnStateWrite | None, keys: Iterable[str] = ()) -> Footprint:
    """Return the footprint of a write that merges states of turns, and has other keys."""
    turns = tuple(state.turn_id for state in states if state is not None)
    return Footprint((*keys, *map(turn_key, turns)), turns)


def combine_footprints(footprints: Iterable[Footprint | None]) -> Footprint | None:
    """Return the footprint of a group of writes."""
    keys: set[str] = set()
    turns: set[str] = set()
    for each in footprints:
        if each is None:
            return None
        keys.update(each.keys)
        turns.update(each.turns)
    return Footprint(tuple(keys), tuple(turns))
