"""What an approval is bound to, as text and as a digest.

Call ids are made of canonical JSON as JavaScript prints it, which rounds integers past 2^53. Here that would let an
approval for one account number be used for another, so every number is written in full.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any, Final

from gateway.core.canonical import MAX_DEPTH, js_number, js_string
from gateway.governance.approvals import Action
from gateway.governance.principals import Principal

_SAFE: Final = 2**53


def action_of(
    principal: Principal, *, catalogue: str, tool: str, definition: str, revision: str, arguments: Any
) -> Action:
    """The action with its digest. Raises `ValueError` or `TypeError` for arguments that are not JSON."""
    text = exact_json(arguments)
    named = {
        "principal": {"roles": sorted(principal.roles), "subject": principal.subject, "tenant": principal.tenant},
        "catalogue": catalogue,
        "tool": tool,
        "definition": definition,
        "revision": revision,
    }
    # Sorted like any other key, "arguments" comes first.
    digest = digest_of(f'{{"arguments":{text},{exact_json(named)[1:]}')
    return Action(principal, catalogue, tool, definition, revision, text, digest)


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def exact_json(value: Any) -> str:
    """Canonical JSON in which different numbers are different texts, and equal ones equal: `1`, `1.0` and `1e0`.

    Infinities and NaN are refused: JSON has no text for them, and `null` is another value.
    """
    return _written(value, 0)


def _written(value: Any, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is nested deeper than {MAX_DEPTH} levels")
    # No comprehensions: their frames would halve the depth that fits on Python's stack.
    parts: list[str] = []
    if isinstance(value, Mapping):
        for key, item in _sorted(value):
            parts.append(f"{js_string(key)}:{_written(item, depth + 1)}")
        return "{" + ",".join(parts) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        for item in value:
            parts.append(_written(item, depth + 1))
        return "[" + ",".join(parts) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return js_string(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number(value)
    raise TypeError(f"{type(value).__name__} is outside the JSON grammar")


def _number(value: float) -> str:
    if not isfinite(value):
        raise ValueError("JSON has no infinite numbers and no NaN")
    return int.__repr__(int(value)) if value.is_integer() and abs(value) >= _SAFE else js_number(value)


def _sorted(value: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """In the order of UTF-16 units, as JavaScript sorts. Two keys that print alike would be one key to a reader."""
    by_units: dict[bytes, tuple[str, Any]] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"an object key is a string, not {type(key).__name__}")
        by_units[key.encode("utf-16-be", "surrogatepass")] = (key, item)
    if len(by_units) < len(value):
        raise ValueError("two keys of an object are the same text, one of them written as a surrogate pair")
    return [by_units[units] for units in sorted(by_units)]
