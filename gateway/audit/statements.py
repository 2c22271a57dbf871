"""What a log says about itself: which shards follow which, what was pruned, which key came after which.

It is gathered before the entries are verified, because it is needed to judge them, and counts only as far as the
entries that say it turn out to be good.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.audit.chain import Head, Row
from gateway.audit.entries import KeyPart, Mark


@dataclass(frozen=True, slots=True)
class Said:
    """Something about the entry `seq` of `shard`, said by the entry `by_seq` of `by`."""

    shard: str
    seq: int
    hash: bytes
    by: str
    by_seq: int


@dataclass(frozen=True, slots=True)
class Statements:
    successions: tuple[Said, ...] = ()
    prunings: tuple[Said, ...] = ()
    rotations: tuple[KeyPart, ...] = ()


def gathered(rows: Iterable[Row]) -> Statements:
    """Whatever can be understood. What cannot is judged where its entry is verified."""
    successions: list[Said] = []
    prunings: list[Said] = []
    rotations: list[KeyPart] = []
    for row in rows:
        match parsed_body(row.body):
            case {"event": "shard-opened", "log": {"opened": {"predecessors": [*marks]}}} if row.seq == 1:
                successions += _said(marks, row)
            case {"event": "log-pruned", "log": {"pruned": mark}}:
                prunings += _said((mark,), row)
            case {"event": "key-rotated", "log": {"key": part}}:
                rotations += _keys(part)
    return Statements(tuple(successions), tuple(prunings), tuple(rotations))


def unfollowed(heads: Iterable[Head], statements: Statements) -> list[Mark]:
    """The ends of shards that no other shard names yet: what a shard that is opened now follows."""
    named = {(said.shard, said.seq, said.hash) for said in statements.successions}
    return [head.mark for head in heads if head not in named]


def opens(row: Row) -> bool:
    """Whether the entry opens the shard that it is the first of."""
    match parsed_body(row.body):
        case {"event": "shard-opened", "log": {"opened": {"shard": row.shard}}}:
            return True
    return False


def parsed_body(body: bytes) -> Mapping[str, Any]:
    """The body as data; empty if it is no JSON object."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(marks: Iterable[Any], row: Row) -> Iterator[Said]:
    for mark in marks:
        match mark:
            case {"shard": str(shard), "seq": int(seq), "hash": str(digest)}:
                try:
                    yield Said(shard, seq, bytes.fromhex(digest), row.shard, row.seq)
                except ValueError:
                    continue


def _keys(part: Any) -> Iterator[KeyPart]:
    match part:
        case {"before": str(before), "after": str(after), "public": str(public), "endorsement": str(endorsement)}:
            yield KeyPart(before, after, public, endorsement)
