"""Nodes, segments and selectors of a JSONPath, which replace some of python-jsonpath's.

They differ in three ways: a query has a budget of visits, it does not reference nodes it has left, and lists
have JavaScript's `length`. Needs python-jsonpath; only `javascript_jsonpath` imports this module.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathMatch
from jsonpath.segments import JSONPathRecursiveDescentSegment, JSONPathSegment
from jsonpath.selectors import NameSelector, SliceSelector
from jsonpath.token import Token

from gateway.errors import JsonPathInvalid

_CONTAINERS: Final = (dict, list)


class VisitBudget:
    """The number of nodes that one query may still visit, in all its records and nested filters."""

    __slots__ = ("_left", "_limit")

    def __init__(self, limit: int) -> None:
        self._left = self._limit = limit

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise JsonPathInvalid(
                f"the path visits more than {self._limit} nodes of this document",
                help="name more of the path instead of '..' and '*', or slice the document first",
            )


class PathNode(JSONPathMatch):
    """A node of the document. The budget is in the filter context, which filters pass on."""

    __slots__ = ("key",)

    def __init__(
        self, obj: Any, *, key: str | int | None, parent: "PathNode | None", root: Any, context: Mapping[str, Any]
    ) -> None:
        context["budget"].take()
        self.obj = obj
        self.key = key
        self.parent = parent
        self.root = root
        self._filter_context = context

    def new_child(self, obj: object, key: str | int) -> "PathNode":
        return type(self)(obj, key=key, parent=self, root=self.root, context=self._filter_context)

    def add_child(self, *children: JSONPathMatch) -> None:
        """Do nothing: otherwise the first node would reference every visited node."""


class FilterNode(PathNode):
    """A node inside a filter, where texts have a length, too."""

    __slots__ = ()


def iter_nodes(path: JSONPath, node: PathNode) -> Iterator[Any]:
    """Yield the nodes that `path` finds from `node`, in document order."""
    nodes: Iterable[Any] = [node]
    for segment in path.segments:
        nodes = segment.resolve(nodes)
    return iter(nodes)


class _BareSegment(JSONPathSegment):
    """A segment without selectors. Only the synchronous API of the library is used."""

    def __init__(self, env: JSONPathEnvironment, token: Token) -> None:
        super().__init__(env=env, token=token, selectors=())

    def resolve_async(self, nodes: Any) -> Any: ...


class ParentSegment(_BareSegment):
    """`^`, the parent."""

    def resolve(self, nodes: Iterable[Any]) -> Iterator[Any]:
        return (node.parent for node in nodes if node.parent is not None)


class PropertySegment(_BareSegment):
    """`~`, the property name."""

    def resolve(self, nodes: Iterable[Any]) -> Iterator[Any]:
        return (node.new_child(node.key, node.key) for node in nodes if node.key is not None)


class DescentSegment(JSONPathRecursiveDescentSegment):
    """`..` without recursion: the library nests a generator per level."""

    def resolve(self, nodes: Iterable[Any]) -> Iterator[Any]:
        for node in nodes:
            for each in _with_descendants(node):
                for selector in self.selectors:
                    yield from selector.resolve(each)


class LengthSelector(NameSelector):
    """`.length`, which is a property of lists in JavaScript."""

    def resolve(self, node: Any) -> Iterator[Any]:
        if isinstance(node.obj, list) or (isinstance(node, FilterNode) and isinstance(node.obj, str)):
            return iter([node.new_child(len(node.obj), self.name)])
        return iter(super().resolve(node))


class ListSlice(SliceSelector):
    """A slice of lists only; the library would slice texts, too."""

    def resolve(self, node: Any) -> Iterator[Any]:
        return iter(super().resolve(node)) if isinstance(node.obj, list) else iter(())


def _with_descendants(node: PathNode) -> Iterator[PathNode]:
    pending = [node]
    while pending:
        each = pending.pop()
        yield each
        children = [each.new_child(item, key) for key, item in _members(each.obj) if isinstance(item, _CONTAINERS)]
        pending.extend(reversed(children))


def _members(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
