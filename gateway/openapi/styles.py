"""How values are written into a path, a query, a header or a cookie.

Every text is percent-encoded on its own, and joined by characters that no encoded text has.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, unquote

from gateway.openapi.refusals import NotWritable
from gateway.openapi.requests import Parameter

_MAX_DEPTH: Final = 8
_MAX_PAIRS: Final = 10_000
_RESERVED: Final = ":/?@!$'()*,;"
"""What `allowReserved` lets through: not what would start another pair, a fragment or an escape."""

_HEADER_VALUE: Final = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}

Pair = tuple[str, str]
"""A name and a value, both encoded."""


def in_path(parameter: Parameter, value: Any) -> str:
    """The text that replaces the placeholder."""
    name = parameter.argument
    if value is None:
        raise NotWritable(name, "was not given")
    if parameter.as_json:
        return _quoted(name, _json(name, value))
    match parameter.style:
        case "label":
            joined = _joined(name, value, explode=parameter.explode, by="." if parameter.explode else ",")
            return f".{joined}"
        case "matrix":
            return _matrix(parameter, value)
        case _:
            return _joined(name, value, explode=parameter.explode, by=",")


def in_query(parameter: Parameter, value: Any) -> list[Pair]:
    """The pairs a value becomes; none for what was not given and for an empty list."""
    safe = _RESERVED if parameter.reserved else ""
    argument, name = parameter.argument, _quoted(parameter.argument, parameter.name)
    if value is None:
        return []
    if parameter.as_json:
        return [(name, _quoted(argument, _json(argument, value), safe=safe))]
    if parameter.style == "deepObject":
        return list(nested(argument, parameter.name, value))
    delimiter = _DELIMITERS[parameter.style]
    match value:
        case list():
            texts = [_quoted(argument, _text(argument, item), safe=safe) for item in value]
            if parameter.explode:
                return [(name, text) for text in texts]
            return [(name, delimiter.join(texts))] if texts else []
        case dict() if parameter.explode:
            return [
                (_quoted(argument, key), _quoted(argument, _text(argument, item), safe=safe))
                for key, item in _given(value)
            ]
        case dict():
            texts = [_quoted(argument, text, safe=safe) for text in _flat(argument, value)]
            return [(name, delimiter.join(texts))] if texts else []
        case _:
            return [(name, _quoted(argument, _text(argument, value), safe=safe))]


def in_header(parameter: Parameter, value: Any) -> str:
    """One line of printable ASCII, as it is: a header has no escapes."""
    name = parameter.argument
    if parameter.as_json:
        return sendable(name, json.dumps(value))
    match value:
        case list():
            return sendable(name, ",".join(_element(name, _text(name, item)) for item in value))
        case dict() if parameter.explode:
            pairs = ((key, _text(name, item)) for key, item in _given(value))
            return sendable(name, ",".join(f"{_element(name, key)}={_element(name, text)}" for key, text in pairs))
        case dict():
            return sendable(name, ",".join(_element(name, text) for text in _flat(name, value)))
        case _:
            return sendable(name, _text(name, value))


def nested(argument: str, name: str, value: Any, depth: int = 0) -> Iterator[Pair]:
    """`name[key][0]=value` for every scalar inside; lists by their index, what is null left out."""
    if depth > _MAX_DEPTH:
        raise NotWritable(argument, f"is nested deeper than {_MAX_DEPTH} levels")
    match value:
        case None:
            return
        case dict():
            for key, item in value.items():
                if "[" in key or "]" in key:
                    raise NotWritable(argument, "has a key with a bracket")
                yield from nested(argument, f"{name}[{key}]", item, depth + 1)
        case list():
            if len(value) > _MAX_PAIRS:
                raise NotWritable(argument, f"has more than {_MAX_PAIRS} items")
            for index, item in enumerate(value):
                yield from nested(argument, f"{name}[{index}]", item, depth + 1)
        case _:
            yield _quoted(argument, name), _quoted(argument, _text(argument, value))


def changes_the_path(segment: str) -> bool:
    """Whether an encoded segment is one that clients or servers take away: empty, or dots in any spelling."""
    return unquote(segment) in ("", ".", "..")


def sendable(argument: str, text: str) -> str:
    if not _HEADER_VALUE.fullmatch(text):
        raise NotWritable(argument, "holds what a header cannot carry")
    return text


def plain_text(argument: str, value: Any) -> str:
    """A scalar as a form writes it."""
    return _text(argument, value)


def _matrix(parameter: Parameter, value: Any) -> str:
    argument, name = parameter.argument, _quoted(parameter.argument, parameter.name)
    match value:
        case list() if parameter.explode:
            return "".join(f";{name}={_quoted(argument, _text(argument, item))}" for item in value)
        case dict() if parameter.explode:
            return f";{_joined(argument, value, explode=True, by=';')}"
        case _:
            return f";{name}={_joined(argument, value, explode=False, by=',')}"


def _joined(argument: str, value: Any, *, explode: bool, by: str) -> str:
    match value:
        case list():
            return by.join(_quoted(argument, _text(argument, item)) for item in value)
        case dict() if explode:
            pairs = ((_quoted(argument, key), _text(argument, item)) for key, item in _given(value))
            return by.join(f"{key}={_quoted(argument, text)}" for key, text in pairs)
        case dict():
            return by.join(_quoted(argument, text) for text in _flat(argument, value))
        case _:
            return _quoted(argument, _text(argument, value))


def _flat(argument: str, value: dict[str, Any]) -> Iterable[str]:
    for key, item in _given(value):
        yield key
        yield _text(argument, item)


def _given(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, item) for key, item in value.items() if item is not None]


def _element(argument: str, text: str) -> str:
    """A header has no escapes, so an element with a comma would be two."""
    if "," in text:
        raise NotWritable(argument, "has an element with a comma, which would be two")
    return text


def _text(argument: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return _json(argument, value)
    raise NotWritable(argument, "has a part that is not a text, a number or a boolean")


def _json(argument: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotWritable(argument, "cannot be written as JSON") from error


def _quoted(argument: str, text: str, *, safe: str = "") -> str:
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise NotWritable(argument, "holds half a character") from None
