"""Values and names on one line for a reader: YAML's flow style, clipped, with nothing in it that a terminal obeys."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.review.changes import FieldChange
from gateway.review.written import Missing

_PLAIN: Final = re.compile(r"[A-Za-z0-9_$/.(*][^\[\]{},#\n\"]*(?<![ :])")
_LONGEST: Final = 60
_WIDEST: Final = 72
_ENTRIES: Final = 4


def difference(field: FieldChange) -> str:
    """`old → new`; for long lists and lists of mappings, the entries that went and came."""
    entries = (*field.removed, *field.added)
    is_short = len(_flow(field.before)) + len(_flow(field.after)) <= _WIDEST
    if not entries or (is_short and not any(isinstance(each, dict) for each in entries)):
        return f"{shown(field.before)} → {shown(field.after)}"
    return "  ".join((*_signed("-", field.removed), *_signed("+", field.added)))


def _signed(sign: str, entries: Sequence[Any]) -> Iterator[str]:
    yield from (f"{sign} {clipped(_flow(each), _WIDEST)}" for each in entries[:_ENTRIES])
    if len(entries) > _ENTRIES:
        yield f"{sign} {len(entries) - _ENTRIES} more"


def shown(value: Any) -> str:
    return clipped(_flow(value), _LONGEST)


def clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def visible(text: str) -> str:
    """The text with an escape for every character that would not be seen, or would be obeyed."""
    return text if text.isprintable() else "".join(char if char.isprintable() else _escaped(char) for char in text)


def _flow(value: Any) -> str:
    match value:
        case Missing():
            return repr(value)
        case str():
            return _text(value)
        case dict():
            return "{" + ", ".join(f"{_text(str(key))}: {_flow(each)}" for key, each in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value, default=str)


def _text(text: str) -> str:
    seen = visible(text)
    if _PLAIN.fullmatch(text) and ": " not in text and seen == text:
        return text
    return f'"{seen}"'


def _escaped(char: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or f"\\u{ord(char):04x}"
