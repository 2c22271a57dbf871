"""The shape of a JSON Schema document: where its subschemas stand, and what its references lead to.

A document may come from a stranger, so what it can cost is bounded here: how large and how deep it
is, and how many subschemas it can lay over one and the same value. Says nothing about values.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

Document = dict[str, Any]
Label = tuple[str, str]
"""Which part of a value a subschema describes: the keyword, and the key below it where that matters."""

MAX_DEPTH: Final = 200
MAX_VALUES: Final = 50_000
MAX_SUBSCHEMAS: Final = 5_000
MAX_LAYERS: Final = 10_000
"""Subschemas that may apply to one value at once: references can double them at every step."""

_MAX_CLOSURES: Final = 200_000
"""Subschemas kept in all closures together, so that a few wide ones cannot be referred to everywhere."""

_DIALECTS: Final = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "http://json-schema.org/draft-07/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-04/schema",
    }
)
# Keywords of older dialects that 2020-12 passes over in silence: a rule nobody enforces.
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


def own_copy(document: Any) -> Document:
    """A copy in which nothing is shared, in the one dialect that is enforced: 2020-12.

    `$schema` is left out. Older dialects are accepted as far as they mean the same.
    """
    if not isinstance(document, dict):
        raise ValueError("a JSON Schema is an object or a boolean")
    own: Document = _Unshared().copy(document, 0)
    dialect = own.pop("$schema", None)
    if dialect is not None and (not isinstance(dialect, str) or dialect.removesuffix("#") not in _DIALECTS):
        raise ValueError(f"the dialect {dialect!r} is not known; use JSON Schema 2020-12")
    return own


class _Unshared:
    """Counts while it copies: a shared or endless document would unfold without limit."""

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
    """Every subschema of a document, the document first. Raises `ValueError` for what cannot be followed."""

    def __init__(self, root: Document) -> None:
        self.root = root
        self.elsewhere: list[Document] = []
        """What references lead to where no keyword expects a subschema, so that nobody has checked it."""
        self._nodes: dict[int, Document] = {}
        self._pointers: dict[int, str] = {}
        self._anchors: dict[str, Document] = {}
        self._collect()
        _refuse_withdrawn(self)
        self._branches = {key: self._find_branches(node) for key, node in self._nodes.items()}
        self._parts = {key: _find_parts(node) for key, node in self._nodes.items()}
        self._closures: dict[int, Counter[int]] = {}
        self._kept = 0
        try:
            layers = _Layers(self).most()
        except RecursionError:
            raise ValueError("the references of the schema lead too deep") from None
        if layers > MAX_LAYERS:
            raise ValueError(f"the schema lays more than {MAX_LAYERS} subschemas over one value")

    def __iter__(self) -> Iterator[Document]:
        return iter(self._nodes.values())

    def node(self, key: int) -> Document:
        return self._nodes[key]

    def pointer(self, node: Document) -> str:
        return self._pointers[id(node)]

    def place(self, node: Document) -> str:
        """Where a subschema stands, for people."""
        pointer = self._pointers[id(node)]
        return repr(pointer[1:].replace("/", ".")) if pointer else "the top"

    def target(self, node: Document) -> Document | None:
        """What `$ref` or `$dynamicRef` leads to, where that is a subschema of this document."""
        fragment = self._fragment(node)
        if fragment is None:
            return None
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment)
        return self._nodes.get(id(_found(self.root, fragment)))

    def branches(self, node: Document) -> list[list[Document]]:
        """Subschemas of the same value, in groups; members of one group are alternatives to each other."""
        return self._branches[id(node)]

    def parts(self, node: Document) -> list[tuple[Label, Document]]:
        """Subschemas of parts of the value. Two with the same label may describe the same part."""
        return self._parts[id(node)]

    def conditions(self, node: Document) -> list[Document]:
        """Subschemas that ask about the value, or about a part of it, without describing it."""
        return _dicts([node.get("if"), node.get("not"), node.get("contains")])

    def closure(self, node: Document) -> Counter[int]:
        """The node and everything that describes the same value through it, with how often it does."""
        known = self._closures.get(id(node))
        if known is None:
            self._closures[id(node)] = Counter()  # found again below: the node describes itself
            known = Counter({id(node): 1})
            for group in self.branches(node):
                for branch in group:
                    known.update(self._closure_below(branch))
            self._closures[id(node)] = known
            self._kept += len(known)
            if self._kept > _MAX_CLOSURES:
                raise ValueError("the schema refers to too much from too many places")
        return known

    def _closure_below(self, branch: Document) -> Counter[int]:
        found = self.closure(branch)
        if not found:
            where = self.place(branch)
            raise ValueError(f"the schema at {where} describes a value by the same value, without end")
        return found

    def _collect(self) -> None:
        pending = [("", self.root)]
        referring: list[Document] = []
        while pending or referring:
            if not pending:
                pending = self._referred(referring.pop())
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

    def _referred(self, node: Document) -> list[tuple[str, Document]]:
        """What a reference leads to, if it was not found where subschemas are expected."""
        fragment = self._fragment(node) or ""
        found = _found(self.root, fragment) if fragment.startswith("/") else None
        if not isinstance(found, dict) or id(found) in self._nodes:
            return []
        self.elsewhere.append(found)
        return [(fragment, found)]

    def _fragment(self, node: Document) -> str | None:
        """The part of a reference after `#`, if it stays within this document."""
        reference = node.get("$ref", node.get("$dynamicRef"))
        if not isinstance(reference, str):
            return None
        base, _, fragment = reference.partition("#")
        return unquote(fragment) if base in ("", self.root.get("$id", "").removesuffix("#")) else None

    def _find_branches(self, node: Document) -> list[list[Document]]:
        if _APPLICATORS.isdisjoint(node):
            return []
        groups = [[branch] for branch in _dicts(node.get("allOf"))]
        groups += [_dicts(node.get("anyOf")), _dicts(node.get("oneOf"))]
        groups += [_dicts([node.get("if")]), _dicts([node.get("then"), node.get("else")])]
        groups += [[branch] for branch in _dicts(node.get("dependentSchemas"))]
        groups += [_dicts([self.target(node)])]
        return [group for group in groups if group]


class _Layers:
    """How many subschemas the document can lay over one value, in the worst case.

    Where a schema describes a part by means of itself the validator remembers its answers,
    so going around once is enough.
    """

    def __init__(self, subschemas: Subschemas) -> None:
        self._subschemas = subschemas
        self._known: dict[int, int] = {}

    def most(self) -> int:
        return max(self._of(node) for node in self._subschemas)

    def _of(self, node: Document) -> int:
        if id(node) not in self._known:
            self._known[id(node)] = 1
            closure = self._subschemas.closure(node)
            per_part: Counter[Label] = Counter()
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


def _find_parts(node: Document) -> list[tuple[Label, Document]]:
    if _PARTS.isdisjoint(node):
        return []
    found: list[tuple[Label, Document]] = [(("properties", name), child) for name, child in _items(node, "properties")]
    found += [(("patternProperties", ""), child) for _, child in _items(node, "patternProperties")]
    found += [(("prefixItems", str(index)), child) for index, child in enumerate(_dicts(node.get("prefixItems")))]
    found += [(("items", ""), child) for child in _dicts([node.get(keyword) for keyword in _OF_ITEMS])]
    for keyword in _OF_PROPERTIES:
        found += [((keyword, ""), child) for child in _dicts([node.get(keyword)])]
    return found


def _children(pointer: str, node: Document) -> list[tuple[str, Document]]:
    children = []
    for keyword in _MAPS & node.keys():
        children += [(f"{pointer}/{keyword}/{_escaped(name)}", child) for name, child in _items(node, keyword)]
    for keyword in _LISTS & node.keys():
        members = node[keyword] if isinstance(node[keyword], list) else ()
        children += [(f"{pointer}/{keyword}/{index}", child) for index, child in enumerate(members)]
    children += [(f"{pointer}/{keyword}", node[keyword]) for keyword in _SINGLES & node.keys()]
    return [(place, child) for place, child in children if isinstance(child, dict)]


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _found(root: Document, pointer: str) -> Any:
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


def _items(node: Document, keyword: str) -> list[tuple[str, Document]]:
    members = node.get(keyword)
    if not isinstance(members, dict):
        return []
    return [(name, child) for name, child in members.items() if isinstance(child, dict)]


def _dicts(value: Any) -> list[Document]:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [member for member in members if isinstance(member, dict)]
