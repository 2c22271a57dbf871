"""What a schema adds to a valid value: the defaults of properties that are missing, at every depth.

Defaults are found through `$ref`, `allOf` and whichever alternative the value satisfies; not behind
`patternProperties`. An object that is itself a default has its own defaults filled in.
"""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from gateway.core.registry import copy_containers
from gateway.core.schema_document import Document, Subschemas

IsValid = Callable[[Document, Any], bool]
"""Whether a value satisfies a subschema."""

MAX_DEFAULT: Final = 1_000
"""Values in one default, once its own defaults are filled in."""


class Filling:
    """Raises `ValueError` for a default that does not satisfy its own schema, or that has no end."""

    def __init__(self, subschemas: Subschemas, is_valid: IsValid) -> None:
        self._subschemas = subschemas
        self._is_valid = is_valid
        self._expanded: dict[int, Any] = {}
        self._sources = {id(node): self._find_sources(node) for node in subschemas}
        self._refuse_invalid()
        self._leads_to_defaults = self._find_ways()
        self.is_needed: Final = self._matters(subschemas.root)
        for node in subschemas:
            if "default" in node:
                self._default(node)

    def fill(self, value: Any) -> None:
        """Add what is missing. `value` satisfies the schema and is ours to change."""
        self._fill(self._subschemas.root, value)

    def _fill(self, node: Document, value: Any) -> None:
        pending = [(node, value)] if self._matters(node) else []
        while pending:
            node, value = pending.pop()
            branches = self._applying(node, value)  # asked before anything is added
            if isinstance(value, dict):
                self._add_missing(node, value)
            pending += self._described_parts(node, value)
            pending += [(branch, value) for branch in branches if self._matters(branch)]

    def _matters(self, node: Any) -> bool:
        return id(node) in self._leads_to_defaults

    def _add_missing(self, node: Document, value: dict[str, Any]) -> None:
        for name, source in self._sources[id(node)]:
            if name not in value:
                value[name] = copy_containers(self._default(source))

    def _described_parts(self, node: Document, value: Any) -> list[tuple[Any, Any]]:
        if not any(self._matters(child) for _, child in self._subschemas.parts(node)):
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
        return [(child, item) for child, item in described if self._matters(child)]

    def _applying(self, node: Document, value: Any) -> list[Any]:
        """The subschemas of the same value that hold for it."""
        if not self._subschemas.branches(node):
            return []
        found = [self._subschemas.target(node), *node.get("allOf", ())]
        for keyword in ("anyOf", "oneOf"):
            found += self._first_satisfied(node.get(keyword, ()), value)
        if self._matters(node.get("then")) or self._matters(node.get("else")):
            found.append(node.get("then" if self._holds(node["if"], value) else "else"))
        for name, dependent in node.get("dependentSchemas", {}).items():
            found += [dependent] if isinstance(value, dict) and name in value else []
        return found

    def _first_satisfied(self, branches: list[Any], value: Any) -> list[Any]:
        if not any(map(self._matters, branches)):
            return []
        return list(islice((branch for branch in branches if self._holds(branch, value)), 1))

    def _holds(self, branch: Any, value: Any) -> bool:
        return branch if isinstance(branch, bool) else self._is_valid(branch, value)

    def _default(self, source: Document) -> Any:
        """The default that a subschema carries, with its own defaults filled in."""
        key = id(source)
        if key not in self._expanded:
            self._expanded[key] = _UNFINISHED
            expanded = copy_containers(source["default"])
            self._fill(source, expanded)
            if _size(expanded) > MAX_DEFAULT:
                raise ValueError(f"the default at {self._subschemas.place(source)} grows past {MAX_DEFAULT} values")
            self._expanded[key] = expanded
        if self._expanded[key] is _UNFINISHED:
            raise ValueError(f"the default at {self._subschemas.place(source)} contains itself, without end")
        return self._expanded[key]

    def _find_sources(self, node: Document) -> list[tuple[str, Document]]:
        """The properties of a node that have a default, each with the subschema that carries it."""
        children = [(label[1], child) for label, child in self._subschemas.parts(node) if label[0] == "properties"]
        found = [(name, self._source(child)) for name, child in children]
        return [(name, source) for name, source in found if source is not None]

    def _source(self, child: Document) -> Document | None:
        """The subschema whose default holds for `child`: itself, what it refers to, or a part of its `allOf`."""
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

    def _find_ways(self) -> set[int]:
        """Every subschema through which a default can be reached."""
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
