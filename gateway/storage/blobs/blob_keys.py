"""Keys of stored results. Every part that comes from outside is hashed: no id ever becomes a path.

    f.<tenant>.<turn>.<id>.<generation>      `s` instead of `f`: small, stored with the record

Generations of one id sort in the order in which they were written.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from time import time_ns
from typing import Final, Literal

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
