"""The names of spooled pieces. Every part that comes from outside is hashed: no id ever becomes a path.

    f.<tenant>.<turn>.<id>.<generation>      `s` in front: small, kept with the record

Generations of one id sort in the order they were written in.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from time import time_ns
from typing import Final, Literal

from gateway.core.ids import new_salt

_KEY: Final = re.compile(
    r"(?P<kind>[fs])\.(?P<tenant>[0-9a-f]{32})\.(?P<turn>[0-9a-f]{32})\.(?P<slot>[0-9a-f]{32}\.[0-9a-f]{32})"
)

_FRONT: Final = len("turn_")
_MOMENT: Final = 12
_TURN_AT: Final = len("s.") + 32 + len(".")
_OF_A_MOMENT: Final = re.compile(rf"turn_[0-9a-f]{{{_MOMENT}}}")

_EMPTY: Final = blake2b(digest_size=16)
"""Copied, which takes half as long as making one."""


@dataclass(frozen=True, slots=True)
class Key:
    kind: Literal["f", "s"]
    tenant: str
    turn: str
    name: str
    """The hashed id and the generation."""

    def __str__(self) -> str:
        return f"{self.kind}.{self.tenant}.{self.turn}.{self.name}"


def parsed(text: str) -> Key | None:
    """The parts of a key, `None` for a text that is none."""
    match = _KEY.fullmatch(text)
    if match is None:
        return None
    kind: Literal["f", "s"] = "f" if match[1] == "f" else "s"
    return Key(kind, tenant=match[2], turn=match[3], name=match[4])


def is_small(text: str) -> bool:
    key = parsed(text)
    return key is not None and key.kind == "s"


def hashed(text: str | None) -> str:
    """32 characters for any text. Nothing at all differs from the empty text; half a surrogate pair is a text, too."""
    if text is None:
        return blake2b(digest_size=16, person=b"nothing").hexdigest()
    begun = _EMPTY.copy()
    begun.update(text.encode("utf-8", "surrogatepass"))
    return begun.hexdigest()


def hashed_turn(id: str) -> str:
    """The same for a turn. The moment that is part of our own ids stays in front: keys of one moment are neighbours."""
    digest = hashed(id)
    return digest if _OF_A_MOMENT.match(id) is None else id[_FRONT : _FRONT + _MOMENT] + digest[_MOMENT:]


def beginning_of_turn(key: str) -> str:
    """What the id of a piece's turn begins with, if it has a moment. `key` may be the first part of one."""
    return f"turn_{key[_TURN_AT : _TURN_AT + _MOMENT]}"


def next_generation() -> str:
    return (time_ns().to_bytes(8) + new_salt()).hex()
