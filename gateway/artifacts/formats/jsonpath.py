"""JSONPath over parsed documents: finds the values or nodes of a path.

Paths come from models and are limited: in length, in nesting and in the nodes that one query may visit.
`jsonpath_dialect` describes the syntax.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from gateway.errors import JsonPathInvalid, PeerMissing

MAX_PATH_LENGTH: Final = 2_048
MAX_PIECES: Final = 128
"""Dots, brackets and similar characters in one path: the parser recurses, and generators nest, at each of them."""

MAX_VISITS: Final = 1_000_000
"""Nodes that one query may visit, which takes some seconds; every record adds `_VISITS_PER_RECORD`."""

_VISITS_PER_RECORD: Final = 10


class JsonPathMatch(Protocol):
    """A value inside a document, its key, and its parent."""

    @property
    def obj(self) -> Any: ...

    @property
    def key(self) -> str | int | None: ...

    @property
    def parent(self) -> "JsonPathMatch | None": ...


class JsonPath:
    """A compiled path. Raises `JsonPathInvalid` for an invalid path."""

    __slots__ = ("_compiled", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._compiled = _compile(source)

    def values(self, records: Sequence[Any]) -> list[Any]:
        """Return the values that the path finds in all records, as one list; none in a falsy record."""
        return [place.obj for places in self._each(records) for place in places]

    def filter(self, records: Sequence[Any]) -> list[Any]:
        """Return the records in which the path finds something."""
        searched = zip(records, self._each(records), strict=True)
        return [record for record, places in searched if next(places, None) is not None]

    def matches(self, record: Any) -> Iterator[JsonPathMatch]:
        """Yield the nodes of the record that the path finds, in order."""
        return next(self._each([record]))

    def _each(self, records: Sequence[Any]) -> Iterator[Iterator[JsonPathMatch]]:
        dialect = _dialect()
        budget = dialect.VisitBudget(MAX_VISITS + _VISITS_PER_RECORD * len(records))
        return (dialect.find_nodes(self._compiled, record, budget=budget) for record in records)


@lru_cache(maxsize=256)
def _compile(source: str) -> Any:
    if not source.strip():
        raise JsonPathInvalid("the path is empty", help="use $ for the whole document")
    if len(source) > MAX_PATH_LENGTH:
        raise JsonPathInvalid(f"the path is longer than {MAX_PATH_LENGTH} characters")
    if sum(source.count(char) for char in ".^~([!") > MAX_PIECES:
        raise JsonPathInvalid(f"the path has more than {MAX_PIECES} dots, brackets and the like")
    return _dialect().compile_path(source)


def _dialect() -> Any:
    try:
        from gateway.artifacts.formats import jsonpath_dialect as path_dialect
    except ImportError as error:
        raise PeerMissing("the JSONPath parser is not installed", help="install python-jsonpath") from error
    return path_dialect
