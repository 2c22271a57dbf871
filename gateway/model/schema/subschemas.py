"""The structure of a JSON Schema document: its subschemas and the targets of its references.

A document may come from an untrusted author, so its cost is bounded here: its size, its depth, and
how many subschemas it can apply to the same value. This module does not validate values.

`close_schema` makes a schema refuse unknown keys at every depth, unless it allows them. An object that lists its
properties gets `additionalProperties: false`. If several subschemas describe one object together (`allOf`, a reference
with siblings, `if` and `then`), they stay open, and the subschema that combines them gets
`unevaluatedProperties: false`. Alternatives are closed one by one. Conditions (`if`, `not`, `contains`) are not closed:
that would change their result.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

SchemaDocument = dict[str, Any]
SchemaPath = tuple[str, str]
"""Which part of a value a subschema describes: the keyword, and for some keywords the key below it."""

MAX_DEPTH: Final = 200
MAX_VALUES: Final = 50_000
MAX_SUBSCHEMAS: Final = 5_000
MAX_LAYERS: Final = 10_000
"""Subschemas that may apply to one value: references can double them at every step."""

_MAX_CLOSURES: Final = 200_000
"""Total size of all closures, so that a few wide subschemas cannot be referenced from everywhere."""

_DIALECTS: Final = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-04/schema",
    }
)
# Keywords of older dialects that 2020-12 ignores silently, so that their rules would not be enforced.
_WITHDRAWN: Final = {
    "dependencies": "write dependentRequired or dependentSchemas",
    "$recursiveRef": "write $ref",
}

_OF_ITEMS: Final = ("items", "contains", "unevaluatedItems")
_OF_PROPERTIES: Final = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_APPLICATORS: Final = frozenset(
    {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"}
)
_PARTS: Final = frozenset({"properties", "patternProperties", "prefixItems", *_OF_ITEMS, *_OF_PROPERTIES})
_MAPS: Final = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLES: Final = frozenset({"if", "then", "else", "not", "contentSchema", *_OF_ITEMS, *_OF_PROPERTIES})


def copy_bounded(document: Any) -> SchemaDocument:
    """Return a copy without shared parts and without `$schema`, as the dialect that is enforced: 2020-12.

    Older dialects are accepted as far as they have the same meaning.
    """
    if not isinstance(document, dict):
        raise ValueError("a JSON Schema is an object or a boolean")
    own: SchemaDocument = _Unshared().copy(document, 0)
    dialect = own.pop("$schema", None)
    if dialect is not None and (not isinstance(dialect, str) or dialect.removesuffix("#") not in _DIALECTS):
        raise ValueError(f"the dialect {dialect!r} is not known; use JSON Schema 2020-12")
    return own


class _Unshared:
    """Copies a document and counts its values: one with shared or cyclic parts would expand without limit."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def copy(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"the schema has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            copied: Any = {}
            for key, item in value.items():
                copied[key] = self.copy(item, depth + 1)
            return copied
        if isinstance(value, list | tuple):
            copied = []
            for item in value:
                copied.append(self.copy(item, depth + 1))
            return copied
        return value


class Subschemas:
    """Every subschema of a document, the document first. Raises `ValueError` for an unsupported document."""

    def __init__(self, root: SchemaDocument) -> None:
        self.root = root
        self.elsewhere: list[SchemaDocument] = []
        """Targets of references outside of the keywords for subschemas. The meta schema has not checked them."""
        self._nodes: dict[int, SchemaDocument] = {}
        self._pointers: dict[int, str] = {}
        self._anchors: dict[str, SchemaDocument] = {}
        self._collect()
        _refuse_withdrawn(self)
        self._branches = {key: self._find_branches(node) for key, node in self._nodes.items()}
        self._parts = {key: _find_parts(node) for key, node in self._nodes.items()}
        self._closures: dict[int, Counter[int]] = {}
        self._closure_size = 0
        if any(self._branches.values()):  # a tree without them applies each subschema once
            self._refuse_layers()

    def __iter__(self) -> Iterator[SchemaDocument]:
        return iter(self._nodes.values())

    def node(self, key: int) -> SchemaDocument:
        return self._nodes[key]

    def pointer(self, node: SchemaDocument) -> str:
        return self._pointers[id(node)]

    def place(self, node: SchemaDocument) -> str:
        """Return the location of a subschema, for messages."""
        pointer = self._pointers[id(node)]
        return repr(pointer[1:].replace("/", ".")) if pointer else "the top"

    def target(self, node: SchemaDocument) -> SchemaDocument | None:
        """Return the target of `$ref` or `$dynamicRef`, if it is a subschema of this document."""
        fragment = self._fragment(node)
        if fragment is None:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment)
        return self._nodes.get(id(_resolve_pointer(self.root, fragment)))

    def branches(self, node: SchemaDocument) -> list[list[SchemaDocument]]:
        """Return subschemas of the same value, in groups; members of one group are alternatives to each other."""
        return self._branches[id(node)]

    def parts(self, node: SchemaDocument) -> list[tuple[SchemaPath, SchemaDocument]]:
        """Return subschemas of parts of the value. Two with the same path may describe the same part."""
        return self._parts[id(node)]

    def conditions(self, node: SchemaDocument) -> list[SchemaDocument]:
        """Return subschemas that test the value, or a part of it, without describing it."""
        return _dicts([node.get("if"), node.get("not"), node.get("contains")])

    def closure(self, node: SchemaDocument) -> Counter[int]:
        """Return the node and all subschemas that describe the same value through it, each with its count."""
        known = self._closures.get(id(node))
        if known is None:
            self._closures[id(node)] = Counter()  # marks a cycle if it is found again below
            known = Counter({id(node): 1})
            for group in self.branches(node):
                for branch in group:
                    known.update(self._closure_below(branch))
            self._closures[id(node)] = known
            self._closure_size += len(known)
            if self._closure_size > _MAX_CLOSURES:
                raise ValueError("the schema has too many references to large subschemas")
        return known

    def _refuse_layers(self) -> None:
        try:
            layers = _Layers(self).most()
        except RecursionError:
            raise ValueError("the references of the schema are nested too deeply") from None
        if layers > MAX_LAYERS:
            raise ValueError(f"the schema applies more than {MAX_LAYERS} subschemas to one value")

    def _closure_below(self, branch: SchemaDocument) -> Counter[int]:
        found = self.closure(branch)
        if not found:
            where = self.place(branch)
            raise ValueError(f"the schema at {where} refers to itself for the same value, without end")
        return found

    def _collect(self) -> None:
        pending = [("", self.root)]
        referring: list[SchemaDocument] = []
        while pending or referring:
            if not pending:
                pending = self._find_target(referring.pop())
                continue
            pointer, node = pending.pop()
            if node is not self.root and "$id" in node:
                raise ValueError(f"'$id' at {pointer!r} starts another document; describe it under $defs")
            if len(self._nodes) >= MAX_SUBSCHEMAS:
                raise ValueError(f"the schema has more than {MAX_SUBSCHEMAS} subschemas")
            self._nodes[id(node)] = node
            self._pointers[id(node)] = pointer
            for anchor in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(anchor), str):
                    self._anchors[node[anchor]] = node
            pending += _children(pointer, node)
            referring += [node] if "$ref" in node else []

    def _find_target(self, node: SchemaDocument) -> list[tuple[str, SchemaDocument]]:
        """Return the target of a reference, if it is not yet among the collected subschemas."""
        fragment = self._fragment(node) or ""
        found = _resolve_pointer(self.root, fragment) if fragment.startswith("/") else None
        if not isinstance(found, dict) or id(found) in self._nodes:
            return []
        self.elsewhere.append(found)
        return [(fragment, found)]

    def _fragment(self, node: SchemaDocument) -> str | None:
        """Return the part of a reference after `#`, if it stays within this document."""
        reference = node.get("$ref", node.get("$dynamicRef"))
        if not isinstance(reference, str):
            return None
        base, _, fragment = reference.partition("#")
        return unquote(fragment) if base in ("", self.root.get("$id", "").removesuffix("#")) else None

    def _find_branches(self, node: SchemaDocument) -> list[list[SchemaDocument]]:
        if _APPLICATORS.isdisjoint(node):
            return []
        groups = [[branch] for branch in _dicts(node.get("allOf"))]
        groups += [_dicts(node.get("anyOf")), _dicts(node.get("oneOf"))]
        groups += [_dicts([node.get("if")]), _dicts([node.get("then"), node.get("else")])]
        groups += [[branch] for branch in _dicts(node.get("dependentSchemas"))]
        groups += [_dicts([self.target(node)])]
        return [group for group in groups if group]


class _Layers:
    """Computes how many subschemas the document can apply to one value, in the worst case.

    A recursive schema is counted once: the validator caches its results.
    """

    def __init__(self, subschemas: Subschemas) -> None:
        self._subschemas = subschemas
        self._known: dict[int, int] = {}

    def most(self) -> int:
        return max(self._of(node) for node in self._subschemas)

    def _of(self, node: SchemaDocument) -> int:
        if id(node) not in self._known:
            self._known[id(node)] = 1
            closure = self._subschemas.closure(node)
            per_part: Counter[SchemaPath] = Counter()
            for key, times in closure.items():
                layered = self._subschemas.node(key)
                for label, child in self._subschemas.parts(layered):
                    per_part[label] += times * self._of(child)
                for child in _dicts([layered.get("not")]):
                    per_part["not", ""] += times * self._of(child)
            self._known[id(node)] = max(closure.total(), *per_part.values(), 1)
        return self._known[id(node)]


def _refuse_withdrawn(subschemas: Subschemas) -> None:
    for node in subschemas:
        for keyword, instead in _WITHDRAWN.items():
            if keyword in node:
                where = subschemas.place(node)
                raise ValueError(f"the keyword {keyword!r} at {where} has no effect in JSON Schema 2020-12; {instead}")


def _find_parts(node: SchemaDocument) -> list[tuple[SchemaPath, SchemaDocument]]:
    if _PARTS.isdisjoint(node):
        return []
    found: list[tuple[SchemaPath, SchemaDocument]] = [
        (("properties", name), child) for name, child in _items(node, "properties")
    ]
    found += [(("patternProperties", ""), child) for _, child in _items(node, "patternProperties")]
    found += [(("prefixItems", str(index)), child) for index, child in enumerate(_dicts(node.get("prefixItems")))]
    found += [(("items", ""), child) for child in _dicts([node.get(keyword) for keyword in _OF_ITEMS])]
    for keyword in _OF_PROPERTIES:
        found += [((keyword, ""), child) for child in _dicts([node.get(keyword)])]
    return found


def _children(pointer: str, node: SchemaDocument) -> list[tuple[str, SchemaDocument]]:
    children = []
    for keyword in _MAPS & node.keys():
        children += [(f"{pointer}/{keyword}/{_escape_pointer(name)}", child) for name, child in _items(node, keyword)]
    for keyword in _LISTS & node.keys():
        members = node[keyword] if isinstance(node[keyword], list) else ()
        children += [(f"{pointer}/{keyword}/{index}", child) for index, child in enumerate(members)]
    children += [(f"{pointer}/{keyword}", node[keyword]) for keyword in _SINGLES & node.keys()]
    return [(place, child) for place, child in children if isinstance(child, dict)]


def _escape_pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _resolve_pointer(root: SchemaDocument, pointer: str) -> Any:
    found: Any = root
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict):
            found = found.get(key)
        else:
            return None
    return found


def _items(node: SchemaDocument, keyword: str) -> list[tuple[str, SchemaDocument]]:
    members = node.get(keyword)
    if not isinstance(members, dict):
        return []
    return [(name, child) for name, child in members.items() if isinstance(child, dict)]


def _dicts(value: Any) -> list[SchemaDocument]:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [member for member in members if isinstance(member, dict)]


_OPENERS: Final = ("additionalProperties", "unevaluatedProperties")
_MAX_COMBINATIONS: Final = 10_000
"""Combinations of subschemas that apply to one value; only a hostile document has more."""


def close_schema(subschemas: Subschemas) -> None:
    """Close the document in place."""
    closer = _SchemaCloser(subschemas)
    closer.find_open()
    closer.close_others()


class _SchemaCloser:
    def __init__(self, subschemas: Subschemas) -> None:
        self._subschemas = subschemas
        self._open: set[int] = set()
        self._seen_combinations: set[frozenset[frozenset[int]]] = set()

    def find_open(self) -> None:
        for node in self._subschemas:
            for condition in self._subschemas.conditions(node):
                self._leave_open(condition)
            branches = [self._closure(group) for group in self._subschemas.branches(node)]
            if branches:
                self._leave_combined_open(node, branches)

    def close_others(self) -> None:
        keywords = [(node, self._closing_keyword(node)) for node in self._subschemas if id(node) not in self._open]
        for node, keyword in keywords:
            if keyword:
                node[keyword] = False
        self._close_root()

    def _leave_open(self, node: SchemaDocument) -> None:
        pending = [node]
        while pending:
            for key in self._subschemas.closure(pending.pop()):
                if key not in self._open:
                    self._open.add(key)
                    pending += [child for _, child in self._subschemas.parts(self._subschemas.node(key))]

    def _leave_combined_open(self, node: SchemaDocument, branches: Sequence[frozenset[int]]) -> None:
        """Leave open the subschemas that describe one value together: none of them lists every key."""
        meeting = [frozenset({id(node)}), *branches]
        pending = [meeting]
        while pending:
            groups = pending.pop()
            if frozenset(groups) in self._seen_combinations:
                continue
            self._seen_combinations.add(frozenset(groups))
            if len(self._seen_combinations) > _MAX_COMBINATIONS:
                raise ValueError("the subschemas of the schema overlap in too many ways")
            if sum(map(self._lists_any_keys, groups)) > 1:
                self._open.update(*(branches if groups is meeting else groups))
            pending += self._parts_described_twice(groups)

    def _parts_described_twice(self, groups: Sequence[frozenset[int]]) -> list[list[frozenset[int]]]:
        by_label: dict[SchemaPath, list[frozenset[int]]] = {}
        for group in groups:
            for label, children in self._parts(group).items():
                by_label.setdefault(label, []).append(self._closure(children))
        return [described for described in by_label.values() if len(described) > 1]

    def _closing_keyword(self, node: SchemaDocument) -> str | None:
        if any(opener in node for opener in _OPENERS):
            return None
        groups = self._subschemas.branches(node)
        listing = [group for group in groups if self._lists_any_keys(self._closure(group))]
        if _lists_keys(node):
            return "unevaluatedProperties" if self._allows_more_keys(node, groups) else "additionalProperties"
        left_open = any(id(branch) in self._open for group in listing for branch in group)
        return "unevaluatedProperties" if len(listing) > 1 or left_open else None

    def _allows_more_keys(self, node: SchemaDocument, groups: list[list[SchemaDocument]]) -> bool:
        """Whether branches allow keys that the node does not list itself."""
        for key in frozenset[int]().union(*map(self._closure, groups)):
            branch = self._subschemas.node(key)
            if any(opener in branch for opener in _OPENERS) or "patternProperties" in branch:
                return True
            if not branch.get("properties", {}).keys() <= node.get("properties", {}).keys():
                return True
        return False

    def _close_root(self) -> None:
        """Close the root even if it lists no properties: such a tool takes no arguments."""
        root = self._subschemas.root
        if root.get("type") != "object" or any(opener in root for opener in _OPENERS):
            return
        root.setdefault("properties", {})
        root["unevaluatedProperties" if self._subschemas.branches(root) else "additionalProperties"] = False

    def _closure(self, nodes: Iterable[SchemaDocument]) -> frozenset[int]:
        return frozenset(key for node in nodes for key in self._subschemas.closure(node))

    def _lists_any_keys(self, group: frozenset[int]) -> bool:
        return any(_lists_keys(self._subschemas.node(key)) for key in group)

    def _parts(self, group: frozenset[int]) -> dict[SchemaPath, list[SchemaDocument]]:
        parts: dict[SchemaPath, list[SchemaDocument]] = {}
        for key in group:
            for label, child in self._subschemas.parts(self._subschemas.node(key)):
                parts.setdefault(label, []).append(child)
        return parts


def _lists_keys(node: SchemaDocument) -> bool:
    return "properties" in node or "patternProperties" in node
