"""Coercion for values that people type: texts become the numbers and truth values a schema asks for.

Used where a gate is resolved, never for the arguments of a tool. What cannot be read as the
wanted type stays a text, for validation to refuse.
"""

import re
from math import isfinite
from typing import Any, Final

from gateway.core.schema_document import Document, Subschemas

_TRUTH: Final = {"true": True, "false": False}
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?", re.ASCII)


def coerced(subschemas: Subschemas, value: Any) -> Any:
    """A copy of `value` with texts turned into what the schema wants at their place."""
    return _coerced(subschemas, [subschemas.root], value)


# One frame per level and no comprehensions around the calls: the value may be as deep as a copy may be.


def _coerced(subschemas: Subschemas, described_by: list[Document], value: Any) -> Any:
    if isinstance(value, str):
        return _coerced_text(value, _types(_layers(subschemas, described_by)))
    if isinstance(value, dict):
        layers = _layers(subschemas, described_by)
        copied: Any = {}
        for name, item in value.items():
            copied[name] = _coerced(subschemas, _of_property(layers, name), item)
        return copied
    if isinstance(value, list):
        layers = _layers(subschemas, described_by)
        copied = []
        for index, item in enumerate(value):
            copied.append(_coerced(subschemas, _of_item(layers, index), item))
        return copied
    return value


def _layers(subschemas: Subschemas, nodes: list[Document]) -> list[Document]:
    keys = dict.fromkeys(key for node in nodes for key in subschemas.closure(node))
    return [subschemas.node(key) for key in keys]


def _of_property(layers: list[Document], name: str) -> list[Document]:
    found = [layer.get("properties", {}).get(name, layer.get("additionalProperties")) for layer in layers]
    return [child for child in found if isinstance(child, dict)]


def _of_item(layers: list[Document], index: int) -> list[Document]:
    found = [[*layer.get("prefixItems", ())][index : index + 1] or [layer.get("items")] for layer in layers]
    return [child for (child,) in found if isinstance(child, dict)]


def _types(layers: list[Document]) -> set[str]:
    types: set[str] = set()
    for layer in layers:
        wanted = layer.get("type", ())
        types.update([wanted] if isinstance(wanted, str) else wanted)
    return types


def _coerced_text(text: str, wanted: set[str]) -> Any:
    if "string" in wanted:
        return text
    if "boolean" in wanted and text.strip().lower() in _TRUTH:
        return _TRUTH[text.strip().lower()]
    if wanted & {"integer", "number"} and _NUMBER.fullmatch(text.strip()):
        return _number(text)
    return text


def _number(text: str) -> Any:
    """The number; a text that stands for one too large for a double, or for a whole one of 64 bits, stays a text."""
    if _WHOLE.fullmatch(text.strip()):
        whole = int(text)
        return whole if whole in _INTEGERS else text
    number = float(text)
    if not isfinite(number):
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
