"""Closing a JSON Schema: unknown keys are refused at every depth, unless the schema says otherwise.

An object that lists its properties gets `additionalProperties: false`. Where several subschemas
describe one object together (`allOf`, a reference with siblings, `if` and `then`), they stay open and the place
where they meet gets `unevaluatedProperties: false`. Alternatives are closed one by one. What
only asks about a value (`if`, `not`, `contains`) is left as it is: closing it would change the question.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.core.schema_document import Document, Label, Subschemas

_OPENERS: Final = ("additionalProperties", "unevaluatedProperties")
_MAX_SUMS: Final = 10_000
"""Combinations of subschemas that meet in one value; a document that has more was made to have them."""


def close(subschemas: Subschemas) -> None:
    """Change the document in place."""
    closing = _Closing(subschemas)
    closing.find_what_stays_open()
    closing.close_the_rest()


class _Closing:
    def __init__(self, subschemas: Subschemas) -> None:
        self._subschemas = subschemas
        self._open: set[int] = set()
        self._summed: set[frozenset[frozenset[int]]] = set()

    def find_what_stays_open(self) -> None:
        for node in self._subschemas:
            for condition in self._subschemas.conditions(node):
                self._leave_open(condition)
            branches = [self._closure(group) for group in self._subschemas.branches(node)]
            if branches:
                self._sum(node, branches)

    def close_the_rest(self) -> None:
        ways = [(node, self._way_to_close(node)) for node in self._subschemas if id(node) not in self._open]
        for node, keyword in ways:
            if keyword:
                node[keyword] = False
        self._close_root()

    def _leave_open(self, node: Document) -> None:
        pending = [node]
        while pending:
            for key in self._subschemas.closure(pending.pop()):
                if key not in self._open:
                    self._open.add(key)
                    pending += [child for _, child in self._subschemas.parts(self._subschemas.node(key))]

    def _sum(self, node: Document, branches: Sequence[frozenset[int]]) -> None:
        """What describes one value together cannot be closed one by one: none of it knows every key."""
        meeting = [frozenset({id(node)}), *branches]
        pending = [meeting]
        while pending:
            groups = pending.pop()
            if frozenset(groups) in self._summed:
                continue
            self._summed.add(frozenset(groups))
            if len(self._summed) > _MAX_SUMS:
                raise ValueError("the subschemas of the schema overlap in too many ways")
            if sum(map(self._lists, groups)) > 1:
                self._open.update(*(branches if groups is meeting else groups))
            pending += self._parts_described_twice(groups)

    def _parts_described_twice(self, groups: Sequence[frozenset[int]]) -> list[list[frozenset[int]]]:
        by_label: dict[Label, list[frozenset[int]]] = {}
        for group in groups:
            for label, children in self._parts(group).items():
                by_label.setdefault(label, []).append(self._closure(children))
        return [described for described in by_label.values() if len(described) > 1]

    def _way_to_close(self, node: Document) -> str | None:
        if any(opener in node for opener in _OPENERS):
            return None
        groups = self._subschemas.branches(node)
        listing = [group for group in groups if self._lists(self._closure(group))]
        if _lists_keys(node):
            return "unevaluatedProperties" if self._adds(node, groups) else "additionalProperties"
        left_open = any(id(branch) in self._open for group in listing for branch in group)
        return "unevaluatedProperties" if len(listing) > 1 or left_open else None

    def _adds(self, node: Document, groups: list[list[Document]]) -> bool:
        """Whether branches allow keys that the node does not list itself."""
        for key in frozenset[int]().union(*map(self._closure, groups)):
            branch = self._subschemas.node(key)
            if any(opener in branch for opener in _OPENERS) or "patternProperties" in branch:
                return True
            if not branch.get("properties", {}).keys() <= node.get("properties", {}).keys():
                return True
        return False

    def _close_root(self) -> None:
        """Arguments are closed even where nothing is listed: such a tool takes none."""
        root = self._subschemas.root
        if root.get("type") != "object" or any(opener in root for opener in _OPENERS):
            return
        root.setdefault("properties", {})
        root["unevaluatedProperties" if self._subschemas.branches(root) else "additionalProperties"] = False

    def _closure(self, nodes: Iterable[Document]) -> frozenset[int]:
        return frozenset(key for node in nodes for key in self._subschemas.closure(node))

    def _lists(self, group: frozenset[int]) -> bool:
        return any(_lists_keys(self._subschemas.node(key)) for key in group)

    def _parts(self, group: frozenset[int]) -> dict[Label, list[Document]]:
        parts: dict[Label, list[Document]] = {}
        for key in group:
            for label, child in self._subschemas.parts(self._subschemas.node(key)):
                parts.setdefault(label, []).append(child)
        return parts


def _lists_keys(node: Document) -> bool:
    return "properties" in node or "patternProperties" in node
