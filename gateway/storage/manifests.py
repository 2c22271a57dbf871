"""What lies beside a large piece in an object store: its line index, and the digest of every block of it.

A store, or whoever stands between, may give other bytes than were put there; nothing of a piece is believed that its
manifest does not vouch for. The manifest vouches for itself by a digest at its end.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from gateway.core.lines import LineIndex
from gateway.errors import ArtifactDamaged
from gateway.storage.keys import Key

BLOCK: Final = 256 << 10
"""Bytes that one digest stands for: the least that is read from the store."""

PART: Final = 16 * BLOCK
"""Bytes of one object. A large piece is as many of them as it takes; the last one is shorter."""

LARGEST: Final = 64 << 20
"""Bytes of a manifest: enough for a piece of 300 GB."""

_DIGEST: Final = 16
_SEAL: Final = 32


@dataclass(frozen=True, slots=True)
class Manifest:
    index: LineIndex
    digests: bytes
    """One after the other, in the order of the blocks."""

    @property
    def size(self) -> int:
        return self.index.size

    @property
    def parts(self) -> int:
        return -(-self.size // PART)

    def vouches_for(self, block: int, content: bytes | memoryview) -> bool:
        start = block * _DIGEST
        is_whole = len(content) == min(BLOCK, self.size - block * BLOCK)
        return is_whole and self.digests[start : start + _DIGEST] == _digest(content)

    def to_bytes(self, key: Key) -> bytes:
        head = json.dumps({"key": str(key), "size": self.size, "block": BLOCK, "part": PART})
        unsealed = head.encode() + b"\n" + self.index.to_bytes() + self.digests
        return unsealed + sha256(unsealed).digest()

    @classmethod
    def from_bytes(cls, data: bytes, key: Key) -> "Manifest":
        """Raises `ArtifactDamaged` for anything that was not written as the manifest of this very key."""
        unsealed = data[:-_SEAL]
        if sha256(unsealed).digest() != data[-_SEAL:]:
            raise damaged("its index is damaged")
        head, _, rest = unsealed.partition(b"\n")
        about = json.loads(head)
        if about["key"] != str(key):
            raise damaged("its index is that of another result")
        if (about["block"], about["part"]) != (BLOCK, PART):
            raise damaged("its index was written by another version of this program")
        length = LineIndex.stored_size(about["size"])
        index = LineIndex.from_bytes(rest[:length], about["size"])
        digests = rest[length:]
        if index is None or len(digests) != -(-about["size"] // BLOCK) * _DIGEST:
            raise damaged("its index is damaged")
        return cls(index, digests)


def digests_of(part: bytes | bytearray) -> bytes:
    """The digests of the blocks of one part."""
    view = memoryview(part)
    return b"".join(_digest(view[start : start + BLOCK]) for start in range(0, len(part), BLOCK))


def damaged(because: str) -> ArtifactDamaged:
    return ArtifactDamaged(
        f"the object store does not give what was kept: {because}",
        help="look at the bucket and at who else writes to it; the call has to be made again",
    )


def _digest(content: bytes | memoryview) -> bytes:
    return sha256(content).digest()[:_DIGEST]
