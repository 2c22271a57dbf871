"""How a document shapes an upstream's tool: arguments that are fixed, hidden, renamed, described or have a default.

What callers are shown is made from the upstream's schema, and what they give is turned back into what the upstream
takes. Names are the upstream's, unless they are said to be ours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from gateway.core.schemas import Schema
from gateway.governance.diagnostics import did_you_mean

Path = tuple[str | int, ...]

_BEYOND_PROPERTIES: Final = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"}
    | {"dependentRequired", "patternProperties", "propertyNames", "minProperties", "maxProperties"}
)
"""Keywords by which one argument depends on others: without it, nobody knows what they would mean."""

_MAX_NAMES: Final = 200
"""Characters of the names that a tool takes, where they are told."""


@dataclass(frozen=True, slots=True)
class ShapingProblem:
    """Why a shape does not fit the upstream's tool; `path` starts at `arguments`."""

    path: Path
    message: str
    help: str | None = None


@dataclass(frozen=True)
class Shaping:
    """`renamed` leads from the upstream's name to ours. Without anything in it, it changes nothing."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.fixed or self.hidden or self.defaults or self.renamed or self.described)

    def ours(self, name: str) -> str:
        return self.renamed.get(name, name)

    @property
    def removed(self) -> frozenset[str]:
        """What no caller may give."""
        return frozenset(self.fixed) | self.hidden

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What the upstream gets. What no caller may give is not passed on, whatever a schema let through."""
        theirs, refused = self._theirs, self._refused
        given = {theirs.get(name, name): value for name, value in args.items() if name not in refused}
        return {**given, **self._always}

    def schema(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """What callers are shown, closed: the upstream's schema without what they may not give."""
        if not self:
            return dict(theirs)
        properties = {
            self.ours(name): self._shown(name, each)
            for name, each in theirs.get("properties", {}).items()
            if name not in self.removed
        }
        needed = [
            self.ours(name)
            for name in theirs.get("required", ())
            if name not in self.removed and name not in self.defaults
        ]
        shaped = {key: value for key, value in theirs.items() if key not in ("required", "unevaluatedProperties")}
        shaped |= {"properties": properties, "additionalProperties": False}
        return shaped | ({"required": needed} if needed else {})

    def problems(self, theirs: Mapping[str, Any]) -> Iterator[ShapingProblem]:
        """What does not fit an upstream's schema."""
        if not self:
            return
        if unclear := sorted(_BEYOND_PROPERTIES & theirs.keys()):
            message = f"the upstream's schema has {unclear[0]!r} at its top, so its arguments cannot be told apart"
            yield ShapingProblem((), message, "publish the tool as it is, or have the upstream split it")
            return
        properties: Mapping[str, Any] = theirs.get("properties", {})
        yield from self._unknown(properties)
        yield from self._refused_values(theirs, properties)
        for name in sorted(self.hidden):
            needs = name in theirs.get("required", ()) and name in properties
            if needs and name not in self.fixed and name not in self.defaults:
                message = f"the upstream needs {name!r}, which is hidden and has no value"
                yield ShapingProblem(("hidden",), message, f"give it a value: fixed: {{{name}: …}}")
        yield from self._name_clashes(properties)

    @cached_property
    def _theirs(self) -> Mapping[str, str]:
        return {ours: theirs for theirs, ours in self.renamed.items()}

    @cached_property
    def _refused(self) -> frozenset[str]:
        """Names by which nobody may reach an argument that has another one, or none."""
        return (self.removed | self.renamed.keys()) - frozenset(self.renamed.values())

    @cached_property
    def _always(self) -> Mapping[str, Any]:
        return {**{name: value for name, value in self.defaults.items() if name in self.hidden}, **self.fixed}

    def _shown(self, name: str, schema: Any) -> Any:
        if name not in self.defaults and name not in self.described:
            return schema
        shown = dict(schema) if isinstance(schema, Mapping) else {}
        if name in self.described:
            shown["description"] = self.described[name]
        if name in self.defaults:
            shown["default"] = self.defaults[name]
        return shown

    def _unknown(self, properties: Mapping[str, Any]) -> Iterator[ShapingProblem]:
        for path, name in self._mentions():
            if name not in properties:
                takes = f"it takes {', '.join(sorted(properties))[:_MAX_NAMES]}" if properties else "it takes none"
                message = f"the upstream's tool takes no {name!r}"
                yield ShapingProblem(path, message, did_you_mean(name, properties) or takes)

    def _mentions(self) -> Iterator[tuple[Path, str]]:
        for part in ("fixed", "defaults", "renamed", "described"):
            for name in getattr(self, part):
                yield (part, name), name
        for name in sorted(self.hidden):
            yield ("hidden",), name

    def _refused_values(self, theirs: Mapping[str, Any], properties: Mapping[str, Any]) -> Iterator[ShapingProblem]:
        for part in ("fixed", "defaults"):
            for name, value in getattr(self, part).items():
                if name in properties and not accepts(properties[name], value, root=theirs):
                    yield ShapingProblem((part, name), f"the upstream's tool refuses this value for {name!r}")

    def _name_clashes(self, properties: Mapping[str, Any]) -> Iterator[ShapingProblem]:
        shown = [self.ours(name) for name in properties if name not in self.removed]
        for name, ours in self.renamed.items():
            if shown.count(ours) > 1:
                yield ShapingProblem(("renamed", name), f"another argument is called {ours!r}", "choose another name")


def accepts(schema: Any, value: Any, *, root: Mapping[str, Any]) -> bool:
    """Whether a part of a schema accepts a value; one that cannot be asked does not stand in the way."""
    if not isinstance(schema, Mapping):
        return schema is not False
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    try:
        return Schema({**shared, **schema}, closed=False).is_valid(value)
    except (ValueError, RecursionError):
        return True
