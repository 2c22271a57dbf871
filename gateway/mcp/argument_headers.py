"""Headers of MCP requests: encoding of values, and `Mcp-Param-*` headers, which intermediaries may route by.

A schema marks arguments that have a header with `x-mcp-header`. If any mark is invalid, the schema has no headers, and
clients ignore the tool. A `Mcp-Param-*` header must match its argument and must not be repeated: readers of the first
and of the last copy would disagree.
"""

import base64
import binascii
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gateway.mcp.messages import HEADER_MISMATCH, ProtocolError

_LEGAL: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def encode_header_value(text: str) -> str:
    """Return a text as a header value; text that a header cannot carry is base64-encoded."""
    if _LEGAL.fullmatch(text) and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{b64encode(text.encode('utf-8', 'surrogatepass')).decode('ascii')}?="


PARAM_PREFIX: Final = "mcp-param-"
_SENTINEL: Final = re.compile(r"=\?base64\?(.*)\?=")


def decode_value(value: str | None) -> str | None:
    """Decode `=?base64?…?=`; return `None` for an encoding that is not canonical."""
    if value is None or not value.startswith("=?base64?"):
        return value
    found = _SENTINEL.fullmatch(value)
    if found is None:
        return value
    try:
        content = base64.b64decode(found[1], validate=True)
        return content.decode() if base64.b64encode(content).decode() == found[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


HEADER_KEYWORD: Final = "x-mcp-header"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL: Final = re.compile(r"(-?[0-9]+)(?:\.0+)?")
_TYPES: Final = frozenset({"string", "integer", "boolean"})
_SINGLES: Final = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"}
    | {"not", "if", "then", "else", "contentSchema"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})


@dataclass(frozen=True, slots=True)
class HeaderArgument:
    path: tuple[str, ...]
    header: str
    """The header name in lower case."""
    type: str


class RequestHeaders(Protocol):
    """The headers of a request. A header that occurs twice is in `repeated`."""

    @property
    def repeated(self) -> AbstractSet[bytes]: ...

    def get(self, name: bytes) -> str | None: ...


def find_header_arguments(schema: Any) -> tuple[HeaderArgument, ...]:
    """Return the arguments that have a header; none if any mark is invalid."""
    found: dict[str, HeaderArgument] = {}
    for path, node in _iterate_subschemas(schema):
        if HEADER_KEYWORD not in node:
            continue
        token, type = node[HEADER_KEYWORD], node.get("type")
        is_valid = path and isinstance(token, str) and _TOKEN.fullmatch(token) and isinstance(type, str)
        if not is_valid or type not in _TYPES or token.lower() in found:
            return ()
        found[token.lower()] = HeaderArgument(path or (), PARAM_PREFIX + token.lower(), type)
    return tuple(found.values())


def has_header_arguments(schema: Any) -> bool:
    """Whether a schema marks any argument, validly or not."""
    return any(HEADER_KEYWORD in node for _, node in _iterate_subschemas(schema))


def check_param_headers(marked: tuple[HeaderArgument, ...], arguments: Any, headers: RequestHeaders) -> None:
    """Raise `ProtocolError` if a header and its argument disagree; headers without a mark are ignored."""
    for each in marked:
        name = each.header.encode()
        if name in headers.repeated:
            raise _mismatch_error(each, "is repeated")
        raw, value = headers.get(name), get_value(arguments, each.path)
        text = render_header_value(value)
        if raw is None:
            if text is not None:
                raise _mismatch_error(each, "is missing")
            continue
        decoded = decode_value(raw)
        if text is None or decoded is None or not _is_equal(each.type, value, text, decoded):
            raise _mismatch_error(each, "does not match its argument")


def _iterate_subschemas(root: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Yield every subschema with its path if only `properties` lead to it, else with `None`."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                stack += [(None if path is None else (*path, name), child) for name, child in value.items()]
            elif keyword in _SINGLES:
                stack.append((None, value))
            elif keyword in _LISTS and isinstance(value, list):
                stack += [(None, child) for child in value]
            elif keyword in _MAPS and isinstance(value, dict):
                stack += [(None, child) for child in value.values()]


def get_value(arguments: Any, path: tuple[str, ...]) -> Any:
    """Return the argument at a path; `None` if it is missing."""
    node = arguments
    for key in path:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def render_header_value(value: Any) -> str | None:
    """Return an argument as the text of its header; `None` for other types."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _is_equal(type: str, value: Any, text: str, decoded: str) -> bool:
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    if type == "integer" and is_whole and (number := _DECIMAL.fullmatch(decoded)):
        return len(number[1]) < 64 and int(number[1]) == int(value)
    return decoded == text


def _mismatch_error(argument: HeaderArgument, what: str) -> ProtocolError:
    return ProtocolError(HEADER_MISMATCH, f"the header {argument.header!r} {what}")
