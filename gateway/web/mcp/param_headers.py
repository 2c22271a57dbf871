"""`Mcp-Param-*` headers: arguments that intermediaries may route by, held against the arguments themselves.

A schema says with `x-mcp-header` which arguments have one. A schema whose marks are not valid has none: clients leave
such a tool alone.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.web.mcp.headers import PARAM_PREFIX, Headers, decoded_value
from gateway.web.mcp.protocol import HEADER_MISMATCH, ProtocolError

MARK: Final = "x-mcp-header"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL: Final = re.compile(r"(-?[0-9]+)(?:\.0+)?")
_TYPES: Final = frozenset({"string", "integer", "boolean"})
_ONE: Final = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"}
    | {"not", "if", "then", "else", "contentSchema"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})


@dataclass(frozen=True, slots=True)
class MarkedArgument:
    path: tuple[str, ...]
    header: str
    """The name of its header, in lower case."""
    type: str


def marked_arguments(schema: Any) -> tuple[MarkedArgument, ...]:
    """The arguments that a schema gives a header; none if any of its marks is not valid."""
    found: dict[str, MarkedArgument] = {}
    for path, node in _positions(schema):
        if MARK not in node:
            continue
        token, type = node[MARK], node.get("type")
        is_valid = path and isinstance(token, str) and _TOKEN.fullmatch(token) and isinstance(type, str)
        if not is_valid or type not in _TYPES or token.lower() in found:
            return ()
        found[token.lower()] = MarkedArgument(path or (), PARAM_PREFIX + token.lower(), type)
    return tuple(found.values())


def is_marked(schema: Any) -> bool:
    """Whether a schema gives any argument a header, validly or not."""
    return any(MARK in node for _, node in _positions(schema))


def check_param_headers(marked: tuple[MarkedArgument, ...], arguments: Any, headers: Headers) -> None:
    """Raises where a header and its argument disagree; headers that no schema speaks of are not looked at."""
    for each in marked:
        name = each.header.encode()
        if name in headers.repeated:
            raise _mismatch(each, "is there twice")
        raw, value = headers.get(name), value_at(arguments, each.path)
        text = rendered(value)
        if raw is None:
            if text is not None:
                raise _mismatch(each, "is missing")
            continue
        decoded = decoded_value(raw)
        if text is None or decoded is None or not _agrees(each.type, value, text, decoded):
            raise _mismatch(each, "does not match its argument")


def _positions(root: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Every schema in a schema, with its path where only `properties` lead to it, else with `None`."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                stack += [(None if path is None else (*path, name), child) for name, child in value.items()]
            elif keyword in _ONE:
                stack.append((None, value))
            elif keyword in _LISTS and isinstance(value, list):
                stack += [(None, child) for child in value]
            elif keyword in _MAPS and isinstance(value, dict):
                stack += [(None, child) for child in value.values()]


def value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    """The argument at a path; `None` where there is none."""
    node = arguments
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def rendered(value: Any) -> str | None:
    """An argument as the text of its header; `None` for what has none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _agrees(type: str, value: Any, text: str, decoded: str) -> bool:
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if type == "integer" and is_whole and (number := _DECIMAL.fullmatch(decoded)):
        return len(number[1]) < 64 and int(number[1]) == int(value)
    return decoded == text


def _mismatch(argument: MarkedArgument, what: str) -> ProtocolError:
    return ProtocolError(HEADER_MISMATCH, f"the header {argument.header!r} {what}")
