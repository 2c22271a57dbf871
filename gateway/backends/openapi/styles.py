"""Serialization of values into a path, a query, a header or a cookie.

Each text is percent-encoded separately and joined by characters that encoded texts do not contain.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import quote, unquote

from gateway.backends.openapi.document import InvalidArgument
from gateway.backends.openapi.request import RequestParameter

_MAX_DEPTH: Final = 8
_MAX_PAIRS: Final = 10_000
_RESERVED: Final = ":/?@!$'()*,;"
"""Characters that `allowReserved` permits: none that would start another pair, a fragment or an escape."""

_HEADER_VALUE: Final = re.compile(r"(?! )[\x20-\x7e]*(?<! )")
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}

Pair = tuple[str, str]
"""A name and a value, both encoded."""


def write_path_value(parameter: RequestParameter, value: Any) -> str:
    """Return the text that replaces the placeholder."""
    name = parameter.argument
    if value is None:
        raise InvalidArgument(name, "was not given")
    if parameter.as_json:
        return _quote(name, _to_json(name, value))
    match parameter.style:
        case "label":
            joined = _join(name, value, explode=parameter.explode, by="." if parameter.explode else ",")
            return f".{joined}"
        case "matrix":
            return _write_matrix(parameter, value)
        case _:
            return _join(name, value, explode=parameter.explode, by=",")


def write_query_pairs(parameter: RequestParameter, value: Any) -> list[Pair]:
    """Return the pairs of a value; none for a missing value and for an empty list."""
    safe = _RESERVED if parameter.reserved else ""
    argument, name = parameter.argument, _quote(parameter.argument, parameter.name)
    if value is None:
        return []
    if parameter.as_json:
        return [(name, _quote(argument, _to_json(argument, value), safe=safe))]
    if parameter.style == "deepObject":
        return list(write_deep_object(argument, parameter.name, value))
    delimiter = _DELIMITERS[parameter.style]
    match value:
        case list():
            texts = [_quote(argument, _to_text(argument, item), safe=safe) for item in value]
            if parameter.explode:
                return [(name, text) for text in texts]
            return [(name, delimiter.join(texts))] if texts else []
        case dict() if parameter.explode:
            return [
                (_quote(argument, key), _quote(argument, _to_text(argument, item), safe=safe))
                for key, item in _present_items(value)
            ]
        case dict():
            texts = [_quote(argument, text, safe=safe) for text in _flatten(argument, value)]
            return [(name, delimiter.join(texts))] if texts else []
        case _:
            return [(name, _quote(argument, _to_text(argument, value), safe=safe))]


def write_header_value(parameter: RequestParameter, value: Any) -> str:
    """Return one line of printable ASCII, unescaped: headers have no escapes."""
    name = parameter.argument
    if parameter.as_json:
        return check_header_text(name, json.dumps(value))
    match value:
        case list():
            return check_header_text(name, ",".join(_check_element(name, _to_text(name, item)) for item in value))
        case dict() if parameter.explode:
            pairs = ((key, _to_text(name, item)) for key, item in _present_items(value))
            return check_header_text(
                name, ",".join(f"{_check_element(name, key)}={_check_element(name, text)}" for key, text in pairs)
            )
        case dict():
            return check_header_text(name, ",".join(_check_element(name, text) for text in _flatten(name, value)))
        case _:
            return check_header_text(name, _to_text(name, value))


def write_deep_object(argument: str, name: str, value: Any, depth: int = 0) -> Iterator[Pair]:
    """Yield `name[key][0]=value` for every scalar; list items by index, nulls omitted."""
    if depth > _MAX_DEPTH:
        raise InvalidArgument(argument, f"is nested deeper than {_MAX_DEPTH} levels")
    match value:
        case None:
            return
        case dict():
            for key, item in value.items():
                if "[" in key or "]" in key:
                    raise InvalidArgument(argument, "has a key with a bracket")
                yield from write_deep_object(argument, f"{name}[{key}]", item, depth + 1)
        case list():
            if len(value) > _MAX_PAIRS:
                raise InvalidArgument(argument, f"has more than {_MAX_PAIRS} items")
            for index, item in enumerate(value):
                yield from write_deep_object(argument, f"{name}[{index}]", item, depth + 1)
        case _:
            yield _quote(argument, name), _quote(argument, _to_text(argument, value))


def is_unsafe_segment(segment: str) -> bool:
    """Whether clients or servers would remove an encoded segment: empty, or dots in any spelling."""
    return unquote(segment) in ("", ".", "..")


def check_header_text(argument: str, text: str) -> str:
    if not _HEADER_VALUE.fullmatch(text):
        raise InvalidArgument(argument, "has characters that are invalid in headers")
    return text


def format_scalar(argument: str, value: Any) -> str:
    """Return a scalar as forms write it."""
    return _to_text(argument, value)


def _write_matrix(parameter: RequestParameter, value: Any) -> str:
    argument, name = parameter.argument, _quote(parameter.argument, parameter.name)
    match value:
        case list() if parameter.explode:
            return "".join(f";{name}={_quote(argument, _to_text(argument, item))}" for item in value)
        case dict() if parameter.explode:
            return f";{_join(argument, value, explode=True, by=';')}"
        case _:
            return f";{name}={_join(argument, value, explode=False, by=',')}"


def _join(argument: str, value: Any, *, explode: bool, by: str) -> str:
    match value:
        case list():
            return by.join(_quote(argument, _to_text(argument, item)) for item in value)
        case dict() if explode:
            pairs = ((_quote(argument, key), _to_text(argument, item)) for key, item in _present_items(value))
            return by.join(f"{key}={_quote(argument, text)}" for key, text in pairs)
        case dict():
            return by.join(_quote(argument, text) for text in _flatten(argument, value))
        case _:
            return _quote(argument, _to_text(argument, value))


def _flatten(argument: str, value: dict[str, Any]) -> Iterable[str]:
    for key, item in _present_items(value):
        yield key
        yield _to_text(argument, item)


def _present_items(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, item) for key, item in value.items() if item is not None]


def _check_element(argument: str, text: str) -> str:
    """Refuse an element with a comma: headers have no escapes, so it would become two."""
    if "," in text:
        raise InvalidArgument(argument, "has an element with a comma, which would become two")
    return text


def _to_text(argument: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return _to_json(argument, value)
    raise InvalidArgument(argument, "has a part that is not a text, a number or a boolean")


def _to_json(argument: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(argument, "cannot be written as JSON") from error


def _quote(argument: str, text: str, *, safe: str = "") -> str:
    try:
        return quote(text, safe=safe)
    except UnicodeEncodeError:
        raise InvalidArgument(argument, "contains an unpaired surrogate") from None
