"""One chain of entries: each hash covers the hash before it, so that no entry changes without all later ones.

    first prev  =  SHA-256("gateway-audit/1" 0x00 shard)
    hash        =  SHA-256(prev  seq as 8 bytes, big-endian  body)

The name of a shard is thereby in every hash of it. A shard has one writer, so processes never wait for each other.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final, NamedTuple, Self

from gateway.audit.entries import Entry, Mark, Opening, Place
from gateway.errors import ProgramError

DOMAIN: Final = b"gateway-audit/1\x00"
FIRST: Final = 1

SHARD_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
"""Plain ASCII: no name needs an escape in JSON, CEF or a terminal."""

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:-]")
_LAST: Final = 2**63 - 1


class InvalidShard(ProgramError):
    code = "E_INVALID_SHARD"
    default_message = "the shard cannot be continued"


class Row(NamedTuple):
    """An entry as it is kept. `at` is that of the body, for whoever looks by time; `None` where no column has it."""

    shard: str
    seq: int
    prev: bytes
    hash: bytes
    body: bytes
    at: int | None = None


class Head(NamedTuple):
    """How far a chain has come; `seq` is 0 before its first entry."""

    shard: str
    seq: int
    hash: bytes

    @property
    def mark(self) -> Mark:
        return Mark(self.shard, self.seq, self.hash.hex())


class Chain:
    """The end of one shard. It belongs to the shard's one writer, and is not safe across threads."""

    __slots__ = ("_hash", "_seq", "_shard")

    def __init__(self, shard: str, seq: int = 0, head: bytes | None = None) -> None:
        if not SHARD_NAME.fullmatch(shard):
            raise InvalidShard(
                f"{shard[:64]!r} is no name of a shard",
                help="use letters, digits and . _ : - only, at most 128 of them, with a letter or digit first",
            )
        self._shard: Final = shard
        self._seq = seq
        self._hash = origin(shard) if head is None else head
        if not 0 <= seq < _LAST or len(self._hash) != 32 or (seq == 0) != (self._hash == origin(shard)):
            raise InvalidShard(
                f"entry {seq} is no place to go on from", help="resume from the last row of the shard, as it is stored"
            )

    @classmethod
    def resume(cls, last: Row) -> Self:
        """Go on after the last row of a shard whose writer has ended."""
        if not is_sound(last):
            raise InvalidShard(
                f"the last entry of shard {last.shard} ({last.seq}) does not match its hash",
                help="run gateway audit verify, keep what is there, and begin a new shard",
            )
        return cls(last.shard, last.seq, last.hash)

    @property
    def head(self) -> Head:
        return Head(self._shard, self._seq, self._hash)

    def open(self, place: Place, *, at: int, predecessors: Sequence[Mark] = ()) -> Row:
        """The first row of a shard."""
        if self._seq:
            raise InvalidShard(f"shard {self._shard} has begun already", help="append to it, or name another shard")
        body = Entry("shard-opened", at, place, opened=Opening(self._shard, predecessors)).encode()
        return self._linked([(at, body)])[0]

    def append(self, bodies: Iterable[tuple[int, bytes]]) -> list[Row]:
        """Rows for bodies of entries with their moments, in that order. If they are not kept, `rewind`."""
        if not self._seq:
            raise InvalidShard(f"shard {self._shard} has not begun", help="open it first")
        return self._linked(bodies)

    def rewind(self, head: Head) -> None:
        """Back to where the chain was before rows that were not kept after all."""
        if head.shard != self._shard or head.seq > self._seq:
            raise InvalidShard(
                f"shard {self._shard} has not been at entry {head.seq} of {head.shard}",
                help="rewind to a head of this very chain",
            )
        self._seq, self._hash = head.seq, head.hash

    def _linked(self, bodies: Iterable[tuple[int, bytes]]) -> list[Row]:
        linked, shard, seq, prev = [], self._shard, self._seq, self._hash
        for at, body in bodies:
            seq += 1
            digest = sha256(prev + seq.to_bytes(8, "big") + body).digest()
            linked.append(Row(shard, seq, prev, digest, body, at))
            prev = digest
        self._seq, self._hash = seq, prev
        return linked


def shard_name(node: str, at: int, *, unique: str) -> str:
    """A name for a new shard: by when it was begun, so that names sort by age, by whom, and unlike any other."""
    begun = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{begun}.{_NOT_IN_NAMES.sub('-', node)[:64]}.{_NOT_IN_NAMES.sub('-', unique)[:32]}"


def origin(shard: str) -> bytes:
    """What stands for the hash before a shard's first entry."""
    return sha256(DOMAIN + shard.encode()).digest()


def linked_hash(prev: bytes, seq: int, body: bytes) -> bytes:
    return sha256(prev + seq.to_bytes(8, "big") + body).digest()


def is_sound(row: Row) -> bool:
    """Whether a row matches its own hash; whether it belongs where it stands is another question."""
    return linked_hash(row.prev, row.seq, row.body) == row.hash
