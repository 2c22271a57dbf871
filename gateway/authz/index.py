"""Finds the rows that could decide a request, without looking at the others.

A row is left out only when one of the matcher's own functions refuses it, so what is found is always enough to decide;
the tier and the effect are not looked at. Rows come out in the order they went in.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from gateway.authz.closure import Graph
from gateway.authz.matching import covers, names
from gateway.authz.rules import Permission


class _Bucket:
    """The rows of one subject and one verb, by their whole object or by what stands before its first star."""

    __slots__ = ("lengths", "patterns", "whole")

    def __init__(self) -> None:
        self.whole: dict[str, list[int]] = {}
        self.patterns: dict[str, list[int]] = {}
        self.lengths: set[int] = set()

    def add(self, number: int, pattern: str) -> None:
        head, star, _ = pattern.partition("*")
        if star:
            self.patterns.setdefault(head, []).append(number)
            self.lengths.add(len(head))
        else:
            self.whole.setdefault(pattern, []).append(number)

    def find(self, object: str) -> Iterator[int]:
        yield from self.whole.get(object, ())
        for length in self.lengths:
            yield from self.patterns.get(object[:length], ())


class RowIndex:
    """Immutable once made; any number of threads may ask."""

    def __init__(self, rows: Iterable[Permission], groups: Graph) -> None:
        """`groups` are all groups of each object, however far up."""
        self._rows = tuple(rows)
        self._groups = groups
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        for number, row in enumerate(self._rows):
            for action in set(row.actions.text.split("|")):
                self._buckets.setdefault((row.subject.text, action), _Bucket()).add(number, row.object.text)

    def candidates(self, who: AbstractSet[str], *, catalogue: str, object: str, action: str) -> list[Permission]:
        numbers: set[int] = set()
        objects = (object, *self._groups.get(object, ()))
        for subject in who:
            bucket = self._buckets.get((subject, action))
            if bucket is not None:
                for name in objects:
                    numbers.update(bucket.find(name))
        rows = (self._rows[number] for number in sorted(numbers))
        return [
            row
            for row in rows
            if names(catalogue, row.catalogue.text) and covers(object, row.object.text, self._groups)
        ]
