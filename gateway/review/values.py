"""Values and names on one line for a reader: YAML's flow style, clipped, with nothing in it that a terminal obeys."""

import json
import re
from typing import Any, Final

from gateway.review.changes import FieldChange
from gateway.review.written import Missing

_PLAIN: Final = re.compile(r"[A-Za-z0-9_$/.(*][^\[\]{},#\n\"]*(?<![ :])")
_LONGEST: Final = 60
_WIDEST: Final = 72


def difference(field: FieldChange) -> str:
    """`old → new`; for long lists of words, the entries that came and went."""
    whole = f"{shown(field.before)} → {shown(field.after)}"
    if len(_flow(field.before)) + len(_flow(field.after)) <= _WIDEST or not (field.added or field.removed):
        return whole
    came = [f"+ {visible(str(each))}" for each in field.added]
    return clipped("  ".join((*came, *(f"- {visible(str(each))}" for each in field.removed))), _WIDEST * 2)


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
