"""Finds the policy rows that cover an object in a catalogue, whichever caller, action and tier they are for.

Patterns are looked up by their text before the first star, so the cost does not grow with the number of rows.
"""

from collections.abc import Iterable, Mapping, Sequence

from gateway.model import glob_matches
from gateway.registries import Snapshot
from gateway.review.plan.policy_changes import GroupingRow, PolicyRow

RowNumber = int
"""The index of a row in `RowCover.rows`."""


class _Patterns:
    """Patterns by their text before the first star."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._exact: set[str] = set()
        self._by_head: dict[str, list[str]] = {}
        for pattern in patterns:
            head, star, _ = pattern.partition("*")
            if star:
                self._by_head.setdefault(head, []).append(pattern)
            else:
                self._exact.add(pattern)
        self._lengths = {len(head) for head in self._by_head}

    def find(self, text: str) -> list[str]:
        """Return the patterns that match the text."""
        heads = (text[:length] for length in self._lengths if length <= len(text))
        globs = (pattern for head in heads for pattern in self._by_head.get(head, ()))
        found = [pattern for pattern in globs if glob_matches(text, pattern)]
        return [text, *found] if text in self._exact else found


class RowCover:
    """An index of permission rows by catalogue and object; an object is covered by rows about its groups, too."""

    def __init__(self, snapshot: Snapshot, rows: Iterable[PolicyRow | GroupingRow]) -> None:
        known = list(rows)
        self.rows: Sequence[PolicyRow] = [row for row in known if isinstance(row, PolicyRow)]
        self._groups = _find_groups(snapshot, known)
        self._table: dict[str, dict[str, list[RowNumber]]] = {}
        for number, row in enumerate(self.rows):
            self._table.setdefault(row.catalogue, {}).setdefault(row.object, []).append(number)
        self._catalogues = _Patterns(self._table)
        self._objects = _Patterns({pattern for table in self._table.values() for pattern in table})
        self._covering: dict[str, list[str]] = {}
        self._tables: dict[str, list[Mapping[str, list[RowNumber]]]] = {}

    def find(self, catalogue: str, object: str) -> tuple[RowNumber, ...]:
        """Return the rows that cover the object in the catalogue, in their order."""
        if catalogue not in self._tables:
            self._tables[catalogue] = [self._table[pattern] for pattern in self._catalogues.find(catalogue)]
        patterns = self._find_patterns(object)
        numbers = {
            number for table in self._tables[catalogue] for pattern in patterns for number in table.get(pattern, ())
        }
        return tuple(sorted(numbers))

    def _find_patterns(self, object: str) -> Iterable[str]:
        if object not in self._covering:
            names = (object, *self._groups.get(object, ()))
            self._covering[object] = list(dict.fromkeys(each for name in names for each in self._objects.find(name)))
        return self._covering[object]


def _find_groups(snapshot: Snapshot, rows: Iterable[PolicyRow | GroupingRow]) -> dict[str, frozenset[str]]:
    """Return every object with all its groups: by `g2` rows, direct or inherited, and by the artifacts of a tool."""
    direct: dict[str, set[str]] = {}
    for row in rows:
        if isinstance(row, GroupingRow) and row.section == "g2":
            direct.setdefault(row.member, set()).add(row.group)
    for tool in snapshot.tools.values():
        if tool.artifact in snapshot.artifacts:
            direct.setdefault(tool.object, set()).add(f"class:{tool.artifact}")
    return {object: _find_ancestors(object, direct) for object in direct}


def _find_ancestors(object: str, direct: Mapping[str, set[str]]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = [object]
    while waiting:
        new = direct.get(waiting.pop(), set()) - reached
        reached |= new
        waiting.extend(new)
    return frozenset(reached)
