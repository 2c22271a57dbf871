"""Hash chains of the decision log: each hash covers the previous one, so no entry changes without all later ones.

    first prev  =  SHA-256("gateway-audit/1" 0x00 shard)
    hash        =  SHA-256(prev  seq as 8 bytes, big-endian  body)

Every hash of a shard thus covers the shard's name. A shard has one writer, so processes never wait for each other.

Some entries are statements about the log itself: which shard follows which, what was pruned, which key replaced which.
They are collected before verification, which needs them, and count only if their own entries are valid.

Pruning removes entries from the start of a shard, after an entry has recorded it. Statements in removed entries are
written again: anchors and later shards still name a pruned shard, and entries endorse keys.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

import orjson

from gateway.audit.entries import AuditEntry, AuditKeyRotation, AuditOrigin, ChainPosition, ShardOpening
from gateway.errors import ProgramError

DOMAIN: Final = b"gateway-audit/1\x00"
FIRST: Final = 1

SHARD_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""Plain ASCII: no name needs escaping in JSON, CEF or a terminal."""

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:-]")
_LAST: Final = 2**63 - 1


class InvalidShard(ProgramError):
    code = "E_INVALID_SHARD"
    default_message = "the shard cannot be continued"


class ChainRow(NamedTuple):
    """An entry as stored. `at` is the time in the body, for queries by time; `None` if there is no such column."""

    shard: str
    seq: int
    prev: bytes
    hash: bytes
    body: bytes
    at: int | None = None


class ChainHead(NamedTuple):
    """The end of a chain; `seq` is 0 before its first entry."""

    shard: str
    seq: int
    hash: bytes

    @property
    def mark(self) -> ChainPosition:
        return ChainPosition(self.shard, self.seq, self.hash.hex())


class Chain:
    """The end of one shard. Only the shard's writer uses it; it is not safe across threads."""

    __slots__ = ("_hash", "_seq", "_shard")

    def __init__(self, shard: str, seq: int = 0, head: bytes | None = None) -> None:
        if not SHARD_NAME.fullmatch(shard):
            raise InvalidShard(
                f"{shard[:64]!r} is not a valid shard name",
                help="use letters, digits and . _ : - only, at most 128 of them, with a letter or digit first",
            )
        self._shard: Final = shard
        self._seq = seq
        self._hash = genesis_hash(shard) if head is None else head
        if not 0 <= seq < _LAST or len(self._hash) != 32 or (seq == 0) != (self._hash == genesis_hash(shard)):
            raise InvalidShard(
                f"cannot resume a shard at entry {seq}", help="resume from the last row of the shard, as it is stored"
            )

    @classmethod
    def resume(cls, last: ChainRow) -> Self:
        """Continue after the last row of a shard whose writer has ended."""
        if not has_valid_hash(last):
            raise InvalidShard(
                f"the last entry of shard {last.shard} ({last.seq}) does not match its hash",
                help="run gateway audit verify, retain the log, and begin a new shard",
            )
        return cls(last.shard, last.seq, last.hash)

    @property
    def head(self) -> ChainHead:
        return ChainHead(self._shard, self._seq, self._hash)

    def open(self, place: AuditOrigin, *, at: int, predecessors: Sequence[ChainPosition] = ()) -> ChainRow:
        """Return the first row of a shard."""
        if self._seq:
            raise InvalidShard(f"shard {self._shard} is already open", help="append to it, or name another shard")
        body = AuditEntry("shard-opened", at, place, opened=ShardOpening(self._shard, predecessors)).encode()
        return self._link([(at, body)])[0]

    def append(self, bodies: Iterable[tuple[int, bytes]]) -> list[ChainRow]:
        """Return rows for bodies with their times, in that order. Call `rewind` if they are not stored."""
        if not self._seq:
            raise InvalidShard(f"shard {self._shard} is not open", help="open it first")
        return self._link(bodies)

    def rewind(self, head: ChainHead) -> None:
        """Return to the head before rows that were not stored."""
        if head.shard != self._shard or head.seq > self._seq:
            raise InvalidShard(
                f"shard {self._shard} has not been at entry {head.seq} of {head.shard}",
                help="rewind to a head of the same chain",
            )
        self._seq, self._hash = head.seq, head.hash

    def _link(self, bodies: Iterable[tuple[int, bytes]]) -> list[ChainRow]:
        linked, shard, seq, prev = [], self._shard, self._seq, self._hash
        for at, body in bodies:
            seq += 1
            digest = sha256(prev + seq.to_bytes(8, "big") + body).digest()
            linked.append(ChainRow(shard, seq, prev, digest, body, at))
            prev = digest
        self._seq, self._hash = seq, prev
        return linked


def shard_name(node: str, at: int, *, unique: str) -> str:
    """Return a unique name for a new shard: its start time, so that names sort by age, its node and `unique`."""
    started = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{started}.{_NOT_IN_NAMES.sub('-', node)[:64]}.{_NOT_IN_NAMES.sub('-', unique)[:32]}"


def genesis_hash(shard: str) -> bytes:
    """Return the value that replaces the previous hash in a shard's first entry."""
    return sha256(DOMAIN + shard.encode()).digest()


def chain_hash(prev: bytes, seq: int, body: bytes) -> bytes:
    return sha256(prev + seq.to_bytes(8, "big") + body).digest()


def has_valid_hash(row: ChainRow) -> bool:
    """Whether a row matches its own hash; its position in the chain is not checked."""
    return chain_hash(row.prev, row.seq, row.body) == row.hash


@dataclass(frozen=True, slots=True)
class ShardStatement:
    """A statement about the entry `seq` of `shard`, made by the entry `by_seq` of `by`."""

    shard: str
    seq: int
    hash: bytes
    by: str
    by_seq: int


@dataclass(frozen=True, slots=True)
class LogStatements:
    successions: tuple[ShardStatement, ...] = ()
    prunings: tuple[ShardStatement, ...] = ()
    rotations: tuple[AuditKeyRotation, ...] = ()


def collect_statements(rows: Iterable[ChainRow]) -> LogStatements:
    """Collect all readable statements. Verification reports the unreadable ones."""
    successions: list[ShardStatement] = []
    prunings: list[ShardStatement] = []
    rotations: list[AuditKeyRotation] = []
    for row in rows:
        match parse_body(row.body):
            case {"event": "shard-opened", "log": {"opened": {"predecessors": [*marks]}}} if row.seq == 1:
                successions += _find_positions(marks, row)
            case {"event": "log-pruned", "log": {"pruned": mark}}:
                prunings += _find_positions((mark,), row)
            case {"event": "key-rotated", "log": {"key": part}}:
                rotations += _parse_rotation(part)
    return LogStatements(tuple(successions), tuple(prunings), tuple(rotations))


def find_open_heads(heads: Iterable[ChainHead], statements: LogStatements) -> list[ChainPosition]:
    """Return the ends of shards that no other shard follows yet: the predecessors of a new shard."""
    predecessors = {(statement.shard, statement.seq, statement.hash) for statement in statements.successions}
    return [head.mark for head in heads if head not in predecessors]


def is_opening_row(row: ChainRow) -> bool:
    """Whether the entry opens its own shard."""
    match parse_body(row.body):
        case {"event": "shard-opened", "log": {"opened": {"shard": row.shard}}}:
            return True
    return False


def parse_body(body: bytes) -> Mapping[str, Any]:
    """Return the body as data; empty if it is not a JSON object."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _find_positions(marks: Iterable[Any], row: ChainRow) -> Iterator[ShardStatement]:
    for mark in marks:
        match mark:
            case {"shard": str(shard), "seq": int(seq), "hash": str(digest)}:
                try:
                    yield ShardStatement(shard, seq, bytes.fromhex(digest), row.shard, row.seq)
                except ValueError:
                    continue


def _parse_rotation(part: Any) -> Iterator[AuditKeyRotation]:
    match part:
        case {"before": str(before), "after": str(after), "public": str(public), "endorsement": str(endorsement)}:
            yield AuditKeyRotation(before, after, public, endorsement)


class ExpiredPrefix(NamedTuple):
    """Expired entries of a shard, from `first` to `last` inclusive; `statements` are among them."""

    first: int
    last: ChainHead
    statements: Sequence[ChainRow] = ()


def prune_entries(beginnings: Iterable[ExpiredPrefix], *, at: int, place: AuditOrigin) -> list[tuple[int, bytes]]:
    """Return the bodies, with their time, that must be in the log and anchored before the entries are removed."""
    found = list(beginnings)
    statement = collect_statements(row for each in found for row in each.statements)
    earlier = (ChainPosition(each.shard, each.seq, each.hash.hex()) for each in statement.prunings)
    entries = [AuditEntry("log-pruned", at, place, pruned=mark) for mark in _last_positions(found, earlier)]
    entries += [AuditEntry("key-rotated", at, place, key=part) for part in dict.fromkeys(statement.rotations)]
    return [(at, entry.encode()) for entry in entries]


def _last_positions(beginnings: Iterable[ExpiredPrefix], earlier: Iterable[ChainPosition]) -> Iterable[ChainPosition]:
    """Return the last position of each shard."""
    marks = sorted((*earlier, *(each.last.mark for each in beginnings)), key=lambda mark: mark.seq)
    return {mark.shard: mark for mark in marks}.values()
