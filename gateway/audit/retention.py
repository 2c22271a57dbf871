"""How a decision log is shortened: from the beginnings of its shards, and never without having said so.

What the entries that go have said about the log itself is said again: a shard that is gone is still named by anchors
and by the shards after it, and keys are vouched for by entries.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.audit.chain import Head, Row
from gateway.audit.entries import Entry, Mark, Place
from gateway.audit.statements import gathered


class OldBeginning(NamedTuple):
    """Entries of a shard that are to go, from `first` up to and including `last`; `statements` are among them."""

    first: int
    last: Head
    statements: Sequence[Row] = ()


def farewells(beginnings: Iterable[OldBeginning], *, at: int, place: Place) -> list[tuple[int, bytes]]:
    """What has to be in the log, and anchored, before they go: bodies of entries, with their moment."""
    found = list(beginnings)
    said = gathered(row for each in found for row in each.statements)
    earlier = (Mark(each.shard, each.seq, each.hash.hex()) for each in said.prunings)
    entries = [Entry("log-pruned", at, place, pruned=mark) for mark in _farthest(found, earlier)]
    entries += [Entry("key-rotated", at, place, key=part) for part in dict.fromkeys(said.rotations)]
    return [(at, entry.encode()) for entry in entries]


def _farthest(beginnings: Iterable[OldBeginning], earlier: Iterable[Mark]) -> Iterable[Mark]:
    """One for each shard."""
    marks = sorted((*earlier, *(each.last.mark for each in beginnings)), key=lambda mark: mark.seq)
    return {mark.shard: mark for mark in marks}.values()
