"""Filling in defaults, and coercing texts.

`DefaultFiller` adds missing properties that have a default, at every depth. It follows `$ref`, `allOf` and the first
alternative that the value satisfies, but not `patternProperties`. Defaults inside of a default are filled in, too.

`coerce` turns texts that people type into the numbers and booleans that a schema wants. It is used to resolve gates,
never for the arguments of a tool. A text that cannot be converted stays a text, and validation refuses it.
"""

import re
from collections.abc import Callable
from itertools import islice
from math import isfinite
from typing import Any, Final

from gateway.model.primitives.containers import deep_copy_containers
from gateway.model.schema.subschemas import SchemaDocument, Subschemas

_TRUTH: Final = {"true": True, "false": False}
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?", re.ASCII)


def coerce(subschemas: Subschemas, value: Any) -> Any:
    """Return a copy of `value` in which texts are converted to the types that the schema wants."""
    return _coerce(subschemas, [subschemas.root], value)


# One stack frame per level, so no comprehensions around the calls: the value may be as deep as `MAX_DEPTH`.


def _coerce(subschemas: Subschemas, described_by: list[SchemaDocument], value: Any) -> Any:
    if isinstance(value, str):
        return _coerce_text(value, _types(_layers(subschemas, described_by)))
    if isinstance(value, dict):
        layers = _layers(subschemas, described_by)
        copied: Any = {}
        for name, item in value.items():
            copied[name] = _coerce(subschemas, _of_property(layers, name), item)
        return copied
    if isinstance(value, list):
        layers = _layers(subschemas, described_by)
        copied = []
        for index, item in enumerate(value):
            copied.append(_coerce(subschemas, _of_item(layers, index), item))
        return copied
    return value


def _layers(subschemas: Subschemas, nodes: list[SchemaDocument]) -> list[SchemaDocument]:
    keys = dict.fromkeys(key for node in nodes for key in subschemas.closure(node))
    return [subschemas.node(key) for key in keys]


def _of_property(layers: list[SchemaDocument], name: str) -> list[SchemaDocument]:
    found = [layer.get("properties", {}).get(name, layer.get("additionalProperties")) for layer in layers]
    return [child for child in found if isinstance(child, dict)]


def _of_item(layers: list[SchemaDocument], index: int) -> list[SchemaDocument]:
    found = [[*layer.get("prefixItems", ())][index : index + 1] or [layer.get("items")] for layer in layers]
    return [child for (child,) in found if isinstance(child, dict)]


def _types(layers: list[SchemaDocument]) -> set[str]:
    types: set[str] = set()
    for layer in layers:
        wanted = layer.get("type", ())
        types.update([wanted] if isinstance(wanted, str) else wanted)
    return types


def _coerce_text(text: str, wanted: set[str]) -> Any:
    if "string" in wanted:
        return text
    if "boolean" in wanted and text.strip().lower() in _TRUTH:
        return _TRUTH[text.strip().lower()]
    if wanted & {"integer", "number"} and _NUMBER.fullmatch(text.strip()):
        return _number(text)
    return text


def _number(text: str) -> Any:
    """Return the number, or the text itself if it is an integer past 64 bits or too large for a double."""
    if _WHOLE.fullmatch(text.strip()):
        whole = int(text)
        return whole if whole in _INTEGERS else text
    number = float(text)
    if not isfinite(number):
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


IsValid = Callable[[SchemaDocument, Any], bool]
"""Returns whether a value satisfies a subschema."""

MAX_DEFAULT: Final = 1_000
"""Values in one default, including the defaults inside of it."""


class DefaultFiller:
    """Fills in defaults. Raises `ValueError` for a default that violates its own schema or contains itself."""

    def __init__(self, subschemas: Subschemas, is_valid: IsValid) -> None:
        self._subschemas = subschemas
        self._is_valid = is_valid
        self._expanded: dict[int, Any] = {}
        self._sources: dict[int, list[tuple[str, SchemaDocument]]] = {}
        self._default_paths: set[int] = set()
        with_default = [node for node in subschemas if "default" in node]
        if with_default:
            self._sources = {id(node): self._find_sources(node) for node in subschemas}
            self._refuse_invalid()
            self._default_paths = self._find_default_paths()
        self.is_needed: Final = self._leads_to_default(subschemas.root)
        for node in with_default:
            self._default(node)

    def fill_defaults(self, value: Any) -> None:
        """Add missing properties in place. `value` must satisfy the schema."""
        self._fill(self._subschemas.root, value)

    def _fill(self, node: SchemaDocument, value: Any) -> None:
        pending = [(node, value)] if self._leads_to_default(node) else []
        while pending:
            node, value = pending.pop()
            branches = self._find_applicable(node, value)  # before anything is added
            if isinstance(value, dict):
                self._add_missing(node, value)
            pending += self._find_parts(node, value)
            pending += [(branch, value) for branch in branches if self._leads_to_default(branch)]

    def _leads_to_default(self, node: Any) -> bool:
        return id(node) in self._default_paths

    def _add_missing(self, node: SchemaDocument, value: dict[str, Any]) -> None:
        for name, source in self._sources[id(node)]:
            if name not in value:
                value[name] = deep_copy_containers(self._default(source))

    def _find_parts(self, node: SchemaDocument, value: Any) -> list[tuple[Any, Any]]:
        if not any(self._leads_to_default(child) for _, child in self._subschemas.parts(node)):
            return []
        if isinstance(value, dict):
            properties = node.get("properties", {})
            others = None if "patternProperties" in node else node.get("additionalProperties")
            described = [(properties.get(name, others), item) for name, item in value.items()]
        elif isinstance(value, list):
            first = node.get("prefixItems", [])
            described = [*zip(first, value, strict=False), *((node.get("items"), item) for item in value[len(first) :])]
        else:
            return []
        return [(child, item) for child, item in described if self._leads_to_default(child)]

    def _find_applicable(self, node: SchemaDocument, value: Any) -> list[Any]:
        """Return the subschemas of the same value that apply to it."""
        if not self._subschemas.branches(node):
            return []
        found = [self._subschemas.target(node), *node.get("allOf", ())]
        for keyword in ("anyOf", "oneOf"):
            found += self._first_satisfied(node.get(keyword, ()), value)
        if self._leads_to_default(node.get("then")) or self._leads_to_default(node.get("else")):
            found.append(node.get("then" if self._holds(node["if"], value) else "else"))
        for name, dependent in node.get("dependentSchemas", {}).items():
            found += [dependent] if isinstance(value, dict) and name in value else []
        return found

    def _first_satisfied(self, branches: list[Any], value: Any) -> list[Any]:
        if not any(map(self._leads_to_default, branches)):
            return []
        return list(islice((branch for branch in branches if self._holds(branch, value)), 1))

    def _holds(self, branch: Any, value: Any) -> bool:
        return branch if isinstance(branch, bool) else self._is_valid(branch, value)

    def _default(self, source: SchemaDocument) -> Any:
        """Return the default of a subschema, with the defaults inside of it filled in."""
        key = id(source)
        if key not in self._expanded:
            self._expanded[key] = _UNFINISHED
            expanded = deep_copy_containers(source["default"])
            self._fill(source, expanded)
            if _size(expanded) > MAX_DEFAULT:
                raise ValueError(f"the default at {self._subschemas.place(source)} grows past {MAX_DEFAULT} values")
            self._expanded[key] = expanded
        if self._expanded[key] is _UNFINISHED:
            raise ValueError(f"the default at {self._subschemas.place(source)} contains itself, without end")
        return self._expanded[key]

    def _find_sources(self, node: SchemaDocument) -> list[tuple[str, SchemaDocument]]:
        """Return the properties of a node that have a default, each with the subschema that defines it."""
        children = [(label[1], child) for label, child in self._subschemas.parts(node) if label[0] == "properties"]
        found = [(name, self._source(child)) for name, child in children]
        return [(name, source) for name, source in found if source is not None]

    def _source(self, child: SchemaDocument) -> SchemaDocument | None:
        """Return the subschema that defines the default of `child`: itself, its `$ref`, or a part of its `allOf`."""
        pending: list[Any] = [child]
        while pending:
            node = pending.pop(0)
            if isinstance(node, dict):
                if "default" in node:
                    return node
                pending += [self._subschemas.target(node), *node.get("allOf", ())]
        return None

    def _refuse_invalid(self) -> None:
        for node in self._subschemas:
            described = [(node["properties"][name], source) for name, source in self._sources[id(node)]]
            described += [(node, node)] if "default" in node else []
            for child, source in described:
                if not self._is_valid(child, source["default"]):
                    raise ValueError(f"the default at {self._subschemas.place(source)} does not satisfy its own schema")

    def _find_default_paths(self) -> set[int]:
        """Return every subschema through which a default can be reached."""
        parents: dict[int, list[int]] = {}
        for node in self._subschemas:
            below = [child for _, child in self._subschemas.parts(node)]
            below += [branch for group in self._subschemas.branches(node) for branch in group]
            for child in below:
                parents.setdefault(id(child), []).append(id(node))
        reached: set[int] = set()
        pending = [key for key, sources in self._sources.items() if sources]
        while pending:
            key = pending.pop()
            if key not in reached:
                reached.add(key)
                pending += parents.get(key, [])
        return reached


_UNFINISHED: Final = object()


def _size(value: Any) -> int:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_size, members))
