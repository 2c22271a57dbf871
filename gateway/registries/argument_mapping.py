"""How a document maps the arguments of an upstream's tool: fixed, hidden, renamed, described, or with a default.

The schema for callers is derived from the upstream's schema, and the arguments of a call are mapped back. Names are
those of the upstream, unless noted otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from gateway.model import Schema
from gateway.registries.diagnostics import suggest_name

ArgumentPath = tuple[str | int, ...]

_BEYOND_PROPERTIES: Final = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
    | {"dependentRequired", "patternProperties", "propertyNames", "minProperties", "maxProperties"}
)
"""Keywords by which arguments depend on each other, so that one cannot be changed or removed alone."""

_MAX_NAMES: Final = 200
"""Maximum length of a list of argument names in a message."""


@dataclass(frozen=True, slots=True)
class ArgumentMappingProblem:
    """A mapping that does not fit the upstream's tool; `path` starts at `arguments`."""

    path: ArgumentPath
    message: str
    help: str | None = None


@dataclass(frozen=True)
class ArgumentMapping:
    """An argument mapping. `renamed` maps the upstream's names to ours. An empty mapping changes nothing."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fixed or self.hidden or self.defaults or self.renamed or self.described)

    def public_name(self, name: str) -> str:
        return self.renamed.get(name, name)

    @property
    def hidden_names(self) -> frozenset[str]:
        """Arguments that callers cannot set."""
        return frozenset(self.fixed) | self.hidden

    def to_upstream(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the upstream's arguments. Hidden arguments from callers are dropped, whatever the schema allows."""
        theirs, refused = self._upstream_names, self._refused_names
        given = {theirs.get(name, name): value for name, value in args.items() if name not in refused}
        return {**given, **self._constant_arguments}

    def apply_to_schema(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the closed schema for callers: the upstream's schema without hidden arguments."""
        if not self:
            return dict(theirs)
        properties = {
            self.public_name(name): self._map_property(name, each)
            for name, each in theirs.get("properties", {}).items()
            if name not in self.hidden_names
        }
        needed = [
            self.public_name(name)
            for name in theirs.get("required", ())
            if name not in self.hidden_names and name not in self.defaults
        ]
        shaped = {key: value for key, value in theirs.items() if key not in ("required", "unevaluatedProperties")}
        shaped |= {"properties": properties, "additionalProperties": False}
        return shaped | ({"required": needed} if needed else {})

    def check(self, theirs: Mapping[str, Any]) -> Iterator[ArgumentMappingProblem]:
        """Yield the parts of the mapping that do not fit an upstream's schema."""
        if not self:
            return
        if unclear := sorted(_BEYOND_PROPERTIES & theirs.keys()):
            message = f"the upstream's schema has {unclear[0]!r} at its root, so its arguments cannot be mapped"
            yield ArgumentMappingProblem((), message, "remove the mapping, or have the upstream split the tool")
            return
        properties: Mapping[str, Any] = theirs.get("properties", {})
        yield from self._find_unknown(properties)
        yield from self._find_refused_values(theirs, properties)
        for name in sorted(self.hidden):
            needs = name in theirs.get("required", ()) and name in properties
            if needs and name not in self.fixed and name not in self.defaults:
                message = f"the upstream requires {name!r}, which is hidden and has no value"
                yield ArgumentMappingProblem(("hidden",), message, f"give it a value: fixed: {{{name}: …}}")
        yield from self._find_name_clashes(properties)

    @cached_property
    def _upstream_names(self) -> Mapping[str, str]:
        return {ours: theirs for theirs, ours in self.renamed.items()}

    @cached_property
    def _refused_names(self) -> frozenset[str]:
        """Names that callers cannot use, because the argument is hidden or renamed."""
        return (self.hidden_names | self.renamed.keys()) - frozenset(self.renamed.values())

    @cached_property
    def _constant_arguments(self) -> Mapping[str, Any]:
        return {**{name: value for name, value in self.defaults.items() if name in self.hidden}, **self.fixed}

    def _map_property(self, name: str, schema: Any) -> Any:
        if name not in self.defaults and name not in self.described:
            return schema
        shown = dict(schema) if isinstance(schema, Mapping) else {}
        if name in self.described:
            shown["description"] = self.described[name]
        if name in self.defaults:
            shown["default"] = self.defaults[name]
        return shown

    def _find_unknown(self, properties: Mapping[str, Any]) -> Iterator[ArgumentMappingProblem]:
        for path, name in self._mentions():
            if name not in properties:
                takes = f"it has {', '.join(sorted(properties))[:_MAX_NAMES]}" if properties else "it has none"
                message = f"the upstream's tool has no argument {name!r}"
                yield ArgumentMappingProblem(path, message, suggest_name(name, properties) or takes)

    def _mentions(self) -> Iterator[tuple[ArgumentPath, str]]:
        for part in ("fixed", "defaults", "renamed", "described"):
            for name in getattr(self, part):
                yield (part, name), name
        for name in sorted(self.hidden):
            yield ("hidden",), name

    def _find_refused_values(
        self, theirs: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> Iterator[ArgumentMappingProblem]:
        for part in ("fixed", "defaults"):
            for name, value in getattr(self, part).items():
                if name in properties and not schema_accepts(properties[name], value, root=theirs):
                    yield ArgumentMappingProblem((part, name), f"the upstream's tool refuses this value for {name!r}")

    def _find_name_clashes(self, properties: Mapping[str, Any]) -> Iterator[ArgumentMappingProblem]:
        shown = [self.public_name(name) for name in properties if name not in self.hidden_names]
        for name, ours in self.renamed.items():
            if shown.count(ours) > 1:
                yield ArgumentMappingProblem(
                    ("renamed", name), f"another argument has the name {ours!r}", "choose another name"
                )


def schema_accepts(schema: Any, value: Any, *, root: Mapping[str, Any]) -> bool:
    """Whether a part of a schema accepts a value. A schema that does not compile accepts any value."""
    if not isinstance(schema, Mapping):
        return schema is not False
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    try:
        return Schema({**shared, **schema}, closed=False).is_valid(value)
    except (ValueError, RecursionError):
        return True
