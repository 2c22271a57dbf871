"""What a JSON Schema says about one value: its possible types, values and fields.

`None` means that the schema alone does not decide it. Schemas are compiled, so their keywords are well formed, and
closed: an object that lists its properties accepts no others unless the schema allows them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

Types = frozenset[str]
_MAX_LAYERS: Final = 200
_GROUPS: Final = ("anyOf", "oneOf")
_SOMETIMES: Final = ("if", "then", "else")
_CLOSED: Final = ("additionalProperties", "unevaluatedProperties")
_BY_PATTERN: Final = ("patternProperties", "$dynamicRef")
NUMBERS: Final[Types] = frozenset({"number", "integer"})


@dataclass(frozen=True, slots=True)
class MissingField:
    """A field that no schema lists. `is_certain`: it is refused; otherwise fields besides `known` may exist."""

    known: frozenset[str]
    is_certain: bool


@dataclass(frozen=True)
class SchemaView:
    """One value, as described by a subschema of a root."""

    schema: Any
    root: Mapping[str, Any]

    @cached_property
    def types(self) -> Types | None:
        """The JSON types that the value may have; `None` if any."""
        found: Types | None = None
        for layer in self._always:
            for types in (_own_types(layer), *(self._group_types(layer, name) for name in _GROUPS)):
                if types is not None:
                    found = types if found is None else found & types
        return found

    @cached_property
    def values(self) -> tuple[Any, ...] | None:
        """The allowed values, if the schema lists them."""
        for layer in self._always:
            if "const" in layer:
                return (layer["const"],)
            if "enum" in layer:
                return tuple(layer["enum"])
            for name in _GROUPS:
                listed = [self._below(each).values for each in layer.get(name, ())]
                if listed and None not in listed:
                    return tuple(value for values in listed for value in values or ())
        return None

    @cached_property
    def bounds(self) -> tuple[float | None, float | None]:
        """The least and the greatest number that the value may be."""
        least = [each for layer in self._always for each in _keyword_values(layer, "minimum", "exclusiveMinimum")]
        most = [each for layer in self._always for each in _keyword_values(layer, "maximum", "exclusiveMaximum")]
        return max(least, default=None), min(most, default=None)

    def field(self, name: str) -> "SchemaView | MissingField | None":
        if self.types is not None and "object" not in self.types:
            return MissingField(frozenset(), is_certain=True)
        layers = self._layers
        if layers is None:
            return None
        listed = [layer["properties"] for layer in layers if "properties" in layer]
        found = [properties[name] for properties in listed if name in properties]
        if found:
            return self._below(found[0] if len(found) == 1 else {"anyOf": found})
        if any(keyword in layer for layer in layers for keyword in _BY_PATTERN):
            return None
        known = frozenset(each for properties in listed for each in properties)
        is_closed = self.is_closed
        return MissingField(known, is_closed) if known or is_closed else None

    def item(self) -> "SchemaView | MissingField | None":
        """Return the view of any entry of a list."""
        if self.types is not None and "array" not in self.types:
            return MissingField(frozenset(), is_certain=True)
        layers = self._layers
        if layers is None or self.types != frozenset({"array"}):
            return None
        found = [layer["items"] for layer in layers if "items" in layer and "prefixItems" not in layer]
        return self._below(found[0]) if len(found) == 1 and len(layers) == 1 else None

    @cached_property
    def is_closed(self) -> bool:
        """Whether fields that no layer lists are refused."""
        for layer in self._always:
            if any(layer.get(keyword) is False for keyword in _CLOSED):
                return True
            for name in _GROUPS:
                if layer.get(name) and all(self._below(each).is_closed for each in layer[name]):
                    return True
        return False

    @cached_property
    def _always(self) -> list[Mapping[str, Any]]:
        """The subschemas that always apply to the value."""
        found: list[Mapping[str, Any]] = []
        pending: list[Any] = [self.schema]
        while pending and len(found) < _MAX_LAYERS:
            layer = pending.pop()
            if isinstance(layer, Mapping) and not any(layer is each for each in found):
                found.append(layer)
                pending += [*layer.get("allOf", ()), _target(layer, self.root)]
        return found

    @cached_property
    def _layers(self) -> list[Mapping[str, Any]] | None:
        """All subschemas that may describe the value; `None` if they are too many to follow."""
        found: list[Mapping[str, Any]] = []
        pending: list[Any] = [self.schema]
        while pending:
            layer = pending.pop()
            if layer is True:  # an alternative that accepts anything
                return None
            if not isinstance(layer, Mapping) or any(layer is each for each in found):
                continue
            found.append(layer)
            if len(found) > _MAX_LAYERS:
                return None
            pending += [each for name in ("allOf", *_GROUPS) for each in layer.get(name, ())]
            pending += [layer[name] for name in _SOMETIMES if name in layer and layer[name] is not True]
            pending += [*layer.get("dependentSchemas", {}).values(), _target(layer, self.root)]
        return found

    def _group_types(self, layer: Mapping[str, Any], name: str) -> Types | None:
        found: Types = frozenset()
        for each in layer.get(name, ()):
            types = self._below(each).types
            if types is None:
                return None
            found |= types
        return found or None

    def _below(self, schema: Any) -> "SchemaView":
        return SchemaView(schema, self.root)


def types_of(value: Any) -> Types:
    """Return the JSON types of a value. A number has both number types."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return NUMBERS
        case str():
            return frozenset({"string"})
        case Mapping():
            return frozenset({"object"})
    return frozenset({"array"})


def _own_types(layer: Mapping[str, Any]) -> Types | None:
    if "type" in layer:
        given = layer["type"]
        return _widen([given] if isinstance(given, str) else given)
    values = [layer["const"]] if "const" in layer else layer.get("enum")
    return None if values is None else frozenset(each for value in values for each in types_of(value))


def _widen(types: Iterable[str]) -> Types:
    """Return the types, with both number types for either: conditions compare integers and other numbers alike."""
    found = frozenset(types)
    return found | NUMBERS if found & NUMBERS else found


def _keyword_values(layer: Mapping[str, Any], *keywords: str) -> Iterator[float]:
    yield from (layer[keyword] for keyword in keywords if keyword in layer)


def _target(layer: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """Return the target of a reference; `True`, which allows anything, if it is outside this schema."""
    reference = layer.get("$ref")
    if reference is None:
        return None
    base, _, pointer = str(reference).partition("#")
    if base or (pointer and not pointer.startswith("/")):
        return True
    found: Any = root
    for step in unquote(pointer).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list | tuple) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return True
    return True if found is None else found
