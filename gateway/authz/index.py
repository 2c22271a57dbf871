"""Finds the rows that could decide a request, without looking at the others.

A row is left out only when one of the matcher's own functions refuses it, or when an earlier row says the same, so what
is found is always enough to decide. Whether tier and effect matter is not judged here.
"""

from collections.abc import Iterable, Iterator

from gateway.authz.closure import Graph
from gateway.authz.matching import covers, names
from gateway.authz.rules import Permission

_Columns = tuple[str, str]
"""The object and the catalogue of a row: rows that have both in common are looked at once."""

_Firsts = dict[tuple[str, str], int]
"""The number of the first row of each tier and effect: later ones say the same again and can decide nothing."""


class _Bucket:
    """The rows of one subject and one verb, by their whole object or by what stands before its first star."""

    __slots__ = ("heads", "lengths", "whole")

    def __init__(self) -> None:
        self.whole: dict[str, dict[_Columns, _Firsts]] = {}
        self.heads: dict[str, dict[_Columns, _Firsts]] = {}
        self.lengths: set[int] = set()

    def add(self, number: int, row: Permission) -> None:
        head, star, _ = row.object.text.partition("*")
        if star:
            self.lengths.add(len(head))
        rows = (self.heads if star else self.whole).setdefault(head, {})
        firsts = rows.setdefault((row.object.text, row.catalogue.text), {})
        firsts.setdefault((row.tier.text, row.effect.text), number)

    def find(self, object: str) -> Iterator[tuple[_Columns, _Firsts]]:
        yield from self.whole.get(object, {}).items()
        for length in self.lengths:
            yield from self.heads.get(object[:length], {}).items()


class RowIndex:
    """Immutable once made; any number of threads may ask."""

    def __init__(self, rows: Iterable[Permission], groups: Graph) -> None:
        """`groups` are all groups of each object, however far up."""
        self._rows = tuple(rows)
        self._groups = groups
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        for number, row in enumerate(self._rows):
            for action in set(row.actions.text.split("|")):
                self._buckets.setdefault((row.subject.text, action), _Bucket()).add(number, row)

    def candidates(self, who: Iterable[str], *, catalogue: str, object: str, action: str) -> list[Permission]:
        """The rows that fit, in the order they were given in, without those that only repeat another."""
        numbers: set[int] = set()
        for found in self._fitting(who, catalogue=catalogue, object=object, action=action):
            numbers.update(found)
        return [self._rows[number] for number in sorted(numbers)]

    def some(self, who: Iterable[str], *, catalogue: str, object: str, action: str) -> Iterator[Permission]:
        """The same rows as they are found, some of them perhaps twice: for those who stop at the first."""
        for found in self._fitting(who, catalogue=catalogue, object=object, action=action):
            yield from (self._rows[number] for number in found)

    def _fitting(self, who: Iterable[str], *, catalogue: str, object: str, action: str) -> Iterator[Iterable[int]]:
        objects = (object, *self._groups.get(object, ()))
        for subject in who:
            bucket = self._buckets.get((subject, action))
            if bucket is None:
                continue
            for name in objects:
                for (pattern, catalogues), firsts in bucket.find(name):
                    if names(catalogue, catalogues) and covers(object, pattern, self._groups):
                        yield firsts.values()
