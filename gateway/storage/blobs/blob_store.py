"""Blob stores: the protocols that disk and bucket implement, and the keys of stored results.

Every part of a key that comes from outside is hashed: no id ever becomes a path.

    f.<tenant>.<turn>.<id>.<generation>      `s` instead of `f`: small, stored with the record

Generations of one id sort in the order in which they were written.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from time import time_ns
from typing import Any, Final, Literal, Protocol

from gateway.artifacts import IndexedReader, InMemoryReader, LineIndex
from gateway.model import new_random_64

_KEY: Final = re.compile(
    r"(?P<kind>[fs])\.(?P<tenant>[0-9a-f]{32})\.(?P<turn>[0-9a-f]{32})\.(?P<slot>[0-9a-f]{32}\.[0-9a-f]{32})"
)

_FRONT: Final = len("turn_")
_MOMENT: Final = 12
_TURN_AT: Final = len("s.") + 32 + len(".")
_OF_A_MOMENT: Final = re.compile(rf"turn_[0-9a-f]{{{_MOMENT}}}")

_EMPTY: Final = blake2b(digest_size=16)
"""To be copied, which takes half as long as to create one."""


@dataclass(frozen=True, slots=True)
class BlobKey:
    kind: Literal["f", "s"]
    tenant: str
    turn: str
    name: str
    """The hashed id and the generation."""

    def __str__(self) -> str:
        return f"{self.kind}.{self.tenant}.{self.turn}.{self.name}"


def parse_key(text: str) -> BlobKey | None:
    """Return the parts of a key, `None` for a text that is not a key."""
    match = _KEY.fullmatch(text)
    if match is None:
        return None
    kind: Literal["f", "s"] = "f" if match[1] == "f" else "s"
    return BlobKey(kind, tenant=match[2], turn=match[3], name=match[4])


def is_inline(text: str) -> bool:
    key = parse_key(text)
    return key is not None and key.kind == "s"


def hash_id(text: str | None) -> str:
    """Return 32 characters for any text. `None` differs from the empty text; half a surrogate pair is allowed."""
    if text is None:
        return blake2b(digest_size=16, person=b"nothing").hexdigest()
    digest = _EMPTY.copy()
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def hash_turn_id(id: str) -> str:
    """Return the same for a turn. The timestamp in generated ids stays in front, so keys of one time are neighbours."""
    digest = hash_id(id)
    return digest if _OF_A_MOMENT.match(id) is None else id[_FRONT : _FRONT + _MOMENT] + digest[_MOMENT:]


def turn_id_prefix(key: str) -> str:
    """Return the prefix of the id of a piece's turn, if the id has a timestamp. `key` may be incomplete."""
    return f"turn_{key[_TURN_AT : _TURN_AT + _MOMENT]}"


def next_generation() -> str:
    return (time_ns().to_bytes(8) + new_random_64()).hex()


class InlineBlobStore(Protocol):
    """Stores small pieces with their records."""

    async def find_blob(self, key: str) -> bytes | None: ...

    async def find_last_blob(self, prefix: str) -> tuple[str, bytes] | None: ...

    async def delete_blobs(self, prefix: str) -> bool: ...


class InlineBlobReader(InMemoryReader):
    """A result in memory. The record of its call is written with `content` and the key."""

    def __init__(self, key: str, content: bytes) -> None:
        self._content = self.content = content
        self.key = key

    def describe(self) -> dict[str, Any]:
        return {"tag": "spool", "locator": self.key}


class BlobReader(IndexedReader):
    """A stored result that is read range by range; nothing stays open between two reads."""

    content: None = None

    def __init__(self, key: BlobKey, index: LineIndex) -> None:
        super().__init__(index)
        self.key = str(key)

    def describe(self) -> dict[str, Any]:
        return {"tag": "spool", "locator": self.key}


Reader = InlineBlobReader | BlobReader


class BlobWriter(Protocol):
    """A large piece that is being written. It is either published or discarded, and cannot be read before that."""

    async def append(self, chunk: bytes) -> None: ...

    async def publish(self) -> BlobReader: ...

    async def discard(self) -> None:
        """Delete everything, also a piece that was just published."""
        ...


class BlobStore(Protocol):
    """Stores large pieces. Methods raise `StoreUnavailable` if it cannot be read or written."""

    @property
    def trouble(self) -> str | None:
        """Why nothing can be read or written at present, if that is known."""
        ...

    async def start_write(self, key: BlobKey) -> BlobWriter: ...

    async def open(self, key: BlobKey) -> BlobReader | None: ...

    async def delete(self, key: BlobKey) -> int | None:
        """Return how many bytes were deleted; `None` if the piece is not there."""
        ...

    async def names(self, tenant: str, turn: str, slot: str) -> list[str]:
        """Return the generations of one id, in order."""
        ...

    async def count_bytes(self, tenant: str) -> int:
        """Return how many bytes the pieces of a tenant have."""
        ...

    def list_older(self, before: datetime) -> AsyncIterator[list[str]]:
        """Iterate over the keys of pieces that were written before a time, in batches."""
        ...

    async def close(self) -> None: ...
