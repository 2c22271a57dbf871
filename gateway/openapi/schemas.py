"""Schemas of an OpenAPI document as JSON Schema 2020-12 that stands on its own.

References become entries of `$defs`, so what contains itself stays finite. What grows past a bound is cut where it is
deepest: a part that was cut takes anything, and the service judges it.
"""

import re
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from json import dumps
from typing import Any, Final, Literal

from gateway.openapi.pointers import Pointers
from gateway.openapi.reading import Version
from gateway.openapi.refusals import Unusable
from gateway.openapi.texts import prose

Direction = Literal["input", "output"]
"""What is sent has no `readOnly` properties, what is answered no `writeOnly` ones."""

_MAX_DEPTH: Final = 20
_MAX_TEXT: Final = 1024
_LONGEST_DEFAULT: Final = 100
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TYPES: Final = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
_HIDDEN_BY: Final[dict[Direction, str]] = {"input": "readOnly", "output": "writeOnly"}

_NUMBERS: Final = frozenset({"multipleOf", "maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum"})
_EXCLUSIVE: Final = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}
_COUNTS: Final = frozenset(
    {"maxLength", "minLength", "maxItems", "minItems", "maxContains", "minContains", "maxProperties", "minProperties"}
)
_SINGLES: Final = frozenset(
    {"additionalProperties", "propertyNames", "unevaluatedProperties", "items", "contains", "unevaluatedItems"}
    | {"not", "if", "then", "else"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
_TEXTS: Final = frozenset({"format", "contentEncoding", "contentMediaType"})
_REFUSED: Final = frozenset({"$dynamicRef", "$recursiveRef"})


class Schemas:
    """The schemas of a document in one direction, each part converted once."""

    def __init__(self, pointers: Pointers, version: Version, direction: Direction) -> None:
        self._pointers = pointers
        self._is_old = version == "3.0"
        self._hidden_by = _HIDDEN_BY[direction]
        self._parts: dict[str, tuple[Any, int]] = {}
        """What each reference stands for, and of how many values it consists."""

    def converted(self, node: Any) -> Any:
        """The schema with references to `$defs` that it does not have yet. Raises `Unusable`."""
        return self._converted(node, 0)

    def complete(self, schema: dict[str, Any], *, budget: int) -> dict[str, Any]:
        """The schema with everything it refers to, as far as the budget of values goes."""
        left = budget - _size(schema)
        found: dict[str, Any] = {}
        waiting = deque(_references(schema))
        while waiting:
            reference = waiting.popleft()
            name = _definition_name(reference)
            if name in found:
                continue
            part, size = self._part(reference)
            left -= size
            if left < 0:
                found[name] = {"description": "(more than is shown here; the service checks it)"}
                left += size
            else:
                found[name] = part
                waiting.extend(_references(part))
        rewritten: dict[str, Any] = _rewritten(schema)
        if found:
            rewritten["$defs"] = {name: _rewritten(found[name]) for name in sorted(found)}
        return rewritten

    def target(self, schema: Any) -> Any:
        """What a converted schema refers to, if it is nothing but a reference."""
        for _ in range(32):
            if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
                return schema
            schema = self._part(schema["$ref"])[0]
        return schema

    def _part(self, reference: str) -> tuple[Any, int]:
        if reference not in self._parts:
            part = self._converted(self._pointers.at(reference), 0)
            self._parts[reference] = part, _size(part)
        return self._parts[reference]

    def _converted(self, node: Any, depth: int) -> Any:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise Unusable("a schema is not a mapping")
        if depth > _MAX_DEPTH:
            raise Unusable(f"a schema is nested deeper than {_MAX_DEPTH} levels")
        if not _REFUSED.isdisjoint(node):
            raise Unusable("a schema refers to something dynamic, which is not followed")
        if "$ref" in node:
            reference = node["$ref"]
            self._pointers.at(reference)
            if self._is_old:  # then nothing beside a reference counts
                return {"$ref": reference}
        schema = {"$ref": node["$ref"]} if "$ref" in node else {}
        for keyword, value in node.items():
            self._take(schema, keyword, value, depth)
        self._take_properties(schema, node, depth)
        _mention_default(schema, node)
        return _with_null(schema) if self._is_old and node.get("nullable") is True else schema

    def _take(self, schema: dict[str, Any], keyword: str, value: Any, depth: int) -> None:
        """Add what a keyword means in 2020-12; what it means nothing in, or is written wrongly, is passed over."""
        below: Callable[[Any], Any] = lambda each: self._converted(each, depth + 1)  # noqa: E731 - used five times
        match value:
            case _ if keyword == "type":
                schema |= _type(value)
            case str() if keyword in ("title", "description"):
                if text := prose(value, limit=_MAX_TEXT):
                    schema[keyword] = text
            case str() if keyword == "pattern" or keyword in _TEXTS:
                schema[keyword] = value
            case list() if keyword == "enum" and value:
                schema["enum"] = value
            case _ if keyword == "const":
                schema["const"] = value
            case bool() if keyword in _EXCLUSIVE:
                schema |= {keyword: True} if value else {}  # 3.0: it is about the bound beside it, settled below
            case int() | float() if keyword in _NUMBERS and not isinstance(value, bool):
                schema[keyword] = value
            case int() if keyword in _COUNTS and not isinstance(value, bool) and value >= 0:
                schema[keyword] = value
            case bool() if keyword in ("uniqueItems", "deprecated"):
                schema[keyword] = value
            case dict() | bool() if keyword in _SINGLES:
                schema[keyword] = below(value)
            case list() if keyword in _LISTS and value:
                schema[keyword] = [below(each) for each in value]
            case dict() if keyword in ("patternProperties", "dependentSchemas"):
                schema[keyword] = {str(name): below(each) for name, each in value.items()}
            case dict() if keyword == "dependentRequired":
                schema[keyword] = value
            case str() | int() | float() if keyword == "example" and len(str(value)) <= 100:
                schema["examples"] = [value]

    def _take_properties(self, schema: dict[str, Any], node: dict[str, Any], depth: int) -> None:
        for exclusive, bound in _EXCLUSIVE.items():
            if schema.get(exclusive) is True:
                del schema[exclusive]
                if bound in schema:
                    schema[exclusive] = schema.pop(bound)
        properties = node.get("properties")
        shown = properties if isinstance(properties, dict) else {}
        hidden = {name for name, each in shown.items() if isinstance(each, dict) and each.get(self._hidden_by) is True}
        if isinstance(properties, dict):
            kept = {name: each for name, each in shown.items() if name not in hidden}
            schema["properties"] = {name: self._converted(each, depth + 1) for name, each in kept.items()}
        required = node.get("required")
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        if names := [name for name in dict.fromkeys(names) if name not in hidden]:
            schema["required"] = names


def _mention_default(schema: dict[str, Any], node: dict[str, Any]) -> None:
    """Models are told what the service takes for granted. It is not filled in: what nobody said is not sent."""
    value = node.get("default")
    if isinstance(value, str | int | float) and len(str(value)) <= _LONGEST_DEFAULT:
        said = prose(schema.get("description"), limit=_MAX_TEXT - _LONGEST_DEFAULT - 20)
        schema["description"] = f"{said} Default: {dumps(value)}.".strip()


def _type(value: Any) -> dict[str, Any]:
    """The types that JSON has; others (`file`, `any`) say nothing that can be checked."""
    if isinstance(value, list):
        known = [each for each in value if isinstance(each, str) and each in _TYPES]
        return {"type": known} if known and len(known) == len(value) else {}
    return {"type": value} if isinstance(value, str) and value in _TYPES else {}


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """What 3.0 calls nullable."""
    given = schema.get("type")
    if isinstance(given, str):
        widened = {**schema, "type": [given, "null"]}
        if "enum" in schema and None not in schema["enum"]:
            widened["enum"] = [*schema["enum"], None]
        return widened
    if "$ref" in schema or "allOf" in schema or "anyOf" in schema or "oneOf" in schema:
        about = {key: value for key, value in schema.items() if key in ("title", "description")}
        rest = {key: value for key, value in schema.items() if key not in about}
        return {**about, "anyOf": [rest, {"type": "null"}]}
    return schema


def _definition_name(reference: str) -> str:
    name = reference.rpartition("/")[2]
    if reference == f"#/components/schemas/{name}" and _PLAIN_NAME.fullmatch(name):
        return name
    return f"part_{sha256(reference.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _references(schema: Any) -> list[str]:
    """Every reference in a converted schema, in order."""
    found: list[str] = []
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str):
                found.append(reference)
            waiting.extend(_parts(node))
    return found


def without_patterns(schema: Any) -> Any:
    """The schema without what asks how texts are written: a pattern may be meant for another engine."""

    def taken(keyword: str, value: Any) -> Any:
        return None if keyword in ("pattern", "patternProperties") else value

    return _mapped(schema, taken)


def _rewritten(schema: Any) -> Any:
    """A copy whose references lead to `$defs`."""
    return _mapped(schema, lambda keyword, value: _in_defs(value) if keyword == "$ref" else value)


def _in_defs(reference: str) -> str:
    return f"#/$defs/{_definition_name(reference)}"


def _mapped(node: Any, taken: Callable[[str, Any], Any]) -> Any:
    """A copy in which each keyword that holds no schema has another value, or is left out for `None`."""
    if not isinstance(node, dict):
        return node
    copied: dict[str, Any] = {}
    for keyword, value in node.items():
        if (kept := taken(keyword, value)) is None and value is not None:
            continue
        if keyword in _SINGLES:
            copied[keyword] = _mapped(value, taken)
        elif keyword in _LISTS:
            copied[keyword] = [_mapped(each, taken) for each in value]
        elif keyword in _MAPS:
            copied[keyword] = {name: _mapped(each, taken) for name, each in value.items()}
        else:
            copied[keyword] = kept
    return copied


def _parts(node: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for keyword, value in node.items():
        if keyword in _SINGLES:
            parts.append(value)
        elif keyword in _LISTS:
            parts.extend(value)
        elif keyword in _MAPS:
            parts.extend(value.values())
    return parts


def _size(value: Any) -> int:
    """How many values there are in a value, itself included."""
    count, waiting = 0, [value]
    while waiting:
        node = waiting.pop()
        count += 1
        if isinstance(node, dict):
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return count
