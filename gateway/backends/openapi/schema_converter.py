"""Conversion of OpenAPI schemas to self-contained JSON Schema 2020-12.

References become entries of `$defs`, so recursive schemas stay finite. A schema that exceeds its budget is cut at its
deepest parts: a part that was cut accepts anything, and the service validates it.
"""

import re
from collections import deque
from collections.abc import Callable
from hashlib import sha256
from json import dumps
from typing import Any, Final, Literal

from gateway.backends.openapi.document import ReferenceResolver, UnusableOperation, Version, clean_text

Direction = Literal["input", "output"]
"""Input schemas omit `readOnly` properties, output schemas `writeOnly` ones."""

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


class SchemaConverter:
    """Converts the schemas of a document for one direction, each part once."""

    def __init__(self, pointers: ReferenceResolver, version: Version, direction: Direction) -> None:
        self._pointers = pointers
        self._is_3_0 = version == "3.0"
        self._hidden_by = _HIDDEN_BY[direction]
        self._converted: dict[str, tuple[Any, int]] = {}
        """The converted schema of each reference, and its number of values."""

    def convert(self, node: Any) -> Any:
        """Return the schema with references into `$defs`, which `complete` adds. Raise `UnusableOperation`."""
        return self._convert(node, 0)

    def complete(self, schema: dict[str, Any], *, budget: int) -> dict[str, Any]:
        """Return the schema with all definitions it refers to, up to the budget of values."""
        left = budget - _count_values(schema)
        found: dict[str, Any] = {}
        pending = deque(_find_references(schema))
        while pending:
            reference = pending.popleft()
            name = _definition_name(reference)
            if name in found:
                continue
            part, size = self._convert_reference(reference)
            left -= size
            if left < 0:
                found[name] = {"description": "(more than is shown here; the service checks it)"}
                left += size
            else:
                found[name] = part
                pending.extend(_find_references(part))
        rewritten: dict[str, Any] = _rewrite_references(schema)
        if found:
            rewritten["$defs"] = {name: _rewrite_references(found[name]) for name in sorted(found)}
        return rewritten

    def resolve_target(self, schema: Any) -> Any:
        """Return the target of a converted schema that is only a reference; else the schema itself."""
        for _ in range(32):
            if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
                return schema
            schema = self._convert_reference(schema["$ref"])[0]
        return schema

    def _convert_reference(self, reference: str) -> tuple[Any, int]:
        if reference not in self._converted:
            part = self._convert(self._pointers.get(reference), 0)
            self._converted[reference] = part, _count_values(part)
        return self._converted[reference]

    def _convert(self, node: Any, depth: int) -> Any:
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise UnusableOperation("a schema is not a mapping")
        if depth > _MAX_DEPTH:
            raise UnusableOperation(f"a schema is nested deeper than {_MAX_DEPTH} levels")
        if not _REFUSED.isdisjoint(node):
            raise UnusableOperation("a schema refers to something dynamic, which is not followed")
        if "$ref" in node:
            reference = node["$ref"]
            self._pointers.get(reference)
            if self._is_3_0:  # 3.0 ignores siblings of a reference
                return {"$ref": reference}
        schema = {"$ref": node["$ref"]} if "$ref" in node else {}
        for keyword, value in node.items():
            self._add_keyword(schema, keyword, value, depth)
        self._add_properties(schema, node, depth)
        _mention_default(schema, node)
        return _with_null(schema) if self._is_3_0 and node.get("nullable") is True else schema

    def _add_keyword(self, schema: dict[str, Any], keyword: str, value: Any, depth: int) -> None:
        """Add a keyword as 2020-12 defines it; unknown and malformed keywords are skipped."""
        below: Callable[[Any], Any] = lambda each: self._convert(each, depth + 1)  # noqa: E731 - used five times
        match value:
            case _ if keyword == "type":
                schema |= _to_type(value)
            case str() if keyword in ("title", "description"):
                if text := clean_text(value, limit=_MAX_TEXT):
                    schema[keyword] = text
            case str() if keyword == "pattern" or keyword in _TEXTS:
                schema[keyword] = value
            case list() if keyword == "enum" and value:
                schema["enum"] = value
            case _ if keyword == "const":
                schema["const"] = value
            case bool() if keyword in _EXCLUSIVE:
                schema |= {keyword: True} if value else {}  # 3.0: applies to the bound beside it; resolved below
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

    def _add_properties(self, schema: dict[str, Any], node: dict[str, Any], depth: int) -> None:
        for exclusive, bound in _EXCLUSIVE.items():
            if schema.get(exclusive) is True:
                del schema[exclusive]
                if bound in schema:
                    schema[exclusive] = schema.pop(bound)
        properties = node.get("properties")
        shown = properties if isinstance(properties, dict) else {}
        hidden = {name for name, each in shown.items() if isinstance(each, dict) and each.get(self._hidden_by) is True}
        if isinstance(properties, dict):
            visible = {name: each for name, each in shown.items() if name not in hidden}
            schema["properties"] = {name: self._convert(each, depth + 1) for name, each in visible.items()}
        required = node.get("required")
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        if names := [name for name in dict.fromkeys(names) if name not in hidden]:
            schema["required"] = names


def _mention_default(schema: dict[str, Any], node: dict[str, Any]) -> None:
    """Mention the service's default in the description. It is not filled in: only arguments of the caller are sent."""
    value = node.get("default")
    if isinstance(value, str | int | float) and len(str(value)) <= _LONGEST_DEFAULT:
        description = clean_text(schema.get("description"), limit=_MAX_TEXT - _LONGEST_DEFAULT - 20)
        schema["description"] = f"{description} Default: {dumps(value)}.".strip()


def _to_type(value: Any) -> dict[str, Any]:
    """Return the types that JSON has; others (`file`, `any`) cannot be checked."""
    if isinstance(value, list):
        known = [each for each in value if isinstance(each, str) and each in _TYPES]
        return {"type": known} if known and len(known) == len(value) else {}
    return {"type": value} if isinstance(value, str) and value in _TYPES else {}


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a 3.0 `nullable` value."""
    kind = schema.get("type")
    if isinstance(kind, str):
        widened = {**schema, "type": [kind, "null"]}
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


def _find_references(schema: Any) -> list[str]:
    """Return every reference in a converted schema, in order."""
    found: list[str] = []
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str):
                found.append(reference)
            pending.extend(_subschemas(node))
    return found


def strip_patterns(schema: Any) -> Any:
    """Return the schema without patterns, which may be written for another regex engine."""

    def without_pattern(keyword: str, value: Any) -> Any:
        return None if keyword in ("pattern", "patternProperties") else value

    return _map_keywords(schema, without_pattern)


def _rewrite_references(schema: Any) -> Any:
    """Return a copy whose references point to `$defs`."""
    return _map_keywords(schema, lambda keyword, value: _to_defs(value) if keyword == "$ref" else value)


def _to_defs(reference: str) -> str:
    return f"#/$defs/{_definition_name(reference)}"


def _map_keywords(node: Any, map_value: Callable[[str, Any], Any]) -> Any:
    """Return a copy in which `map_value` maps each keyword that holds no schema to a new value; `None` omits it."""
    if not isinstance(node, dict):
        return node
    copied: dict[str, Any] = {}
    for keyword, value in node.items():
        if (mapped := map_value(keyword, value)) is None and value is not None:
            continue
        if keyword in _SINGLES:
            copied[keyword] = _map_keywords(value, map_value)
        elif keyword in _LISTS:
            copied[keyword] = [_map_keywords(each, map_value) for each in value]
        elif keyword in _MAPS:
            copied[keyword] = {name: _map_keywords(each, map_value) for name, each in value.items()}
        else:
            copied[keyword] = mapped
    return copied


def _subschemas(node: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for keyword, value in node.items():
        if keyword in _SINGLES:
            parts.append(value)
        elif keyword in _LISTS:
            parts.extend(value)
        elif keyword in _MAPS:
            parts.extend(value.values())
    return parts


def _count_values(value: Any) -> int:
    """Return the number of values in a value, including itself."""
    count, pending = 0, [value]
    while pending:
        node = pending.pop()
        count += 1
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return count
