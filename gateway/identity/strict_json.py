"""JSON that means one thing to every reader: no member twice, no NaN, no invalid UTF-8."""

import json
from typing import Any, NoReturn


def strict_object(data: bytes) -> dict[str, Any] | None:
    """The object in the bytes; `None` for everything else, so that no error carries a piece of the text along."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("a member stands twice")
    return found


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("not a JSON number")
