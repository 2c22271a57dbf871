"""JSONPath over parsed documents: which values, or which places, a path finds.

Paths come from models and are bounded: in length, in nesting and in the nodes one query may visit.
What a path may say is described in `path_dialect`.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from gateway.errors import JsonPathInvalid, PeerMissing

MAX_PATH_LENGTH: Final = 2_048
MAX_PIECES: Final = 128
"""Dots, brackets and the like in one path: the parser recurses into some, and every step waits for the next."""

MAX_VISITS: Final = 1_000_000
"""Nodes that one query may look at, some seconds of work; every record adds `_VISITS_PER_RECORD`."""

_VISITS_PER_RECORD: Final = 10


class Place(Protocol):
    """A value inside a document, its key there, and the place that contains it."""

    @property
    def obj(self) -> Any: ...

    @property
    def key(self) -> str | int | None: ...

    @property
    def parent(self) -> "Place | None": ...


class Path:
    """A compiled path. Raises `JsonPathInvalid` for a text that is none."""

    __slots__ = ("_compiled", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        self._compiled = _compile(source)

    def values(self, records: Sequence[Any]) -> list[Any]:
        """What the path finds in each record, as one list. A falsy record has nothing to find."""
        return [place.obj for places in self._each(records) for place in places]

    def matching(self, records: Sequence[Any]) -> list[Any]:
        """The records in which the path finds something."""
        searched = zip(records, self._each(records), strict=True)
        return [record for record, places in searched if next(places, None) is not None]

    def places(self, record: Any) -> Iterator[Place]:
        """Where in the record the path leads, in order."""
        return next(self._each([record]))

    def _each(self, records: Sequence[Any]) -> Iterator[Iterator[Place]]:
        dialect = _dialect()
        budget = dialect.Budget(MAX_VISITS + _VISITS_PER_RECORD * len(records))
        return (dialect.found(self._compiled, record, budget=budget) for record in records)


@lru_cache(maxsize=256)
def _compile(source: str) -> Any:
    if not source.strip():
        raise JsonPathInvalid("the path is empty", help="use $ for the whole document")
    if len(source) > MAX_PATH_LENGTH:
        raise JsonPathInvalid(f"the path is longer than {MAX_PATH_LENGTH} characters")
    if sum(source.count(char) for char in ".^~([!") > MAX_PIECES:
        raise JsonPathInvalid(f"the path has more than {MAX_PIECES} dots, brackets and the like")
    return _dialect().compiled(source)


def _dialect() -> Any:
    try:
        from gateway.formats import path_dialect
    except ImportError as error:
        raise PeerMissing("the JSONPath parser is not installed", help="install python-jsonpath") from error
    return path_dialect
