"""Which documents differ, and in which fields: what they mean is compared, what people wrote is shown.

Files, the order of keys, comments and defaults make no difference. A text that reads another environment variable
does, even where both have the same value here: elsewhere they may not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.governance.diagnostics import Position
from gateway.review.written import MISSING, Missing, Path, Written
from gateway.snapshot import Declared, Registry

Change = Literal["added", "removed", "changed"]
Documents = Mapping[str, Registry]
Texts = Mapping[tuple[str, str], Written]
"""How documents are written, by kind and name."""

_REFERENCE: Final = "${"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """`path` as in the YAML, without `spec`. `added` and `removed` are the entries that a list differs in."""

    path: str
    before: Any
    after: Any
    added: tuple[Any, ...] = ()
    removed: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentChange:
    change: Change
    kind: str
    name: str
    position: Position
    fields: tuple[FieldChange, ...] = ()
    summary: str = ""

    @property
    def about(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Pair:
    """One document before and after; one of the two may be missing."""

    kind: str
    name: str
    before: Declared | None
    after: Declared | None

    @property
    def about(self) -> str:
        return f"{self.kind} {self.name}"


def pairs(before: Documents, after: Documents) -> Iterator[Pair]:
    """Every document of either side, by kind in the order of the newer side, then by name."""
    for kind in dict.fromkeys((*after, *before)):
        old, new = before.get(kind, {}), after.get(kind, {})
        for name in sorted({*old, *new}):
            yield Pair(kind, name, old.get(name), new.get(name))


def document_change(pair: Pair, before: Texts, after: Texts) -> DocumentChange | None:
    """What became of a document, or `None` if it means and reads the same."""
    kind, name = pair.kind, pair.name
    if pair.before is None or pair.after is None:
        there = pair.after or pair.before
        assert there is not None, "a pair has at least one side"  # noqa: S101 - made from names of either side
        return DocumentChange("added" if pair.after else "removed", kind, name, there.position)
    old = before.get((kind, name)) or Written(pair.before.data)
    new = after.get((kind, name)) or Written(pair.after.data)
    fields = tuple(field_changes(pair.before.data, pair.after.data, old=old, new=new))
    return DocumentChange("changed", kind, name, pair.after.position, fields) if fields else None


def field_changes(before: Any, after: Any, *, old: Written, new: Written) -> Iterator[FieldChange]:
    """The leaves in which two documents differ, shown as they are written."""
    found: set[Path] = set()
    for path in _differences(before, after, ()):
        found.add(path)
        shown = old.at(path), new.at(path)
        yield FieldChange(dotted(path), *shown, *_entries(*shown))
    for path in sorted({*old.references, *new.references}, key=str):
        reads = old.references.get(path), new.references.get(path)
        covered = any(path[: len(each)] == each for each in found)
        if reads[0] != reads[1] and not covered and any(text and _REFERENCE in text for text in reads):
            yield FieldChange(dotted(path), old.at(path), new.at(path))


def dotted(path: Path) -> str:
    """`spec.trust.flags` is `trust.flags` to a reader; entries of lists are numbered: `waivers[0].until`."""
    text = ""
    for part in path[1:] if path[:1] == ("spec",) and len(path) > 1 else path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _differences(before: Any, after: Any, path: Path) -> Iterator[Path]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*after, *before)):
            yield from _differences(before.get(key, MISSING), after.get(key, MISSING), (*path, key))
    elif _is_opened(before, after):
        yield from _differences(before if isinstance(before, dict) else {}, after if after is not MISSING else {}, path)
    elif isinstance(before, list) and isinstance(after, list) and _is_compared_by_entry(before, after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, (*path, index))
    elif isinstance(before, Missing) or isinstance(after, Missing):
        if before is not after:
            yield path
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield path


def _is_opened(before: Any, after: Any) -> bool:
    """Whether a whole mapping came or went: its leaves tell more than its braces."""
    sides = (before, after)
    return any(isinstance(side, Missing) for side in sides) and any(isinstance(side, dict) and side for side in sides)


def _is_compared_by_entry(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(isinstance(each, dict) for each in (*before, *after))


def _entries(before: Any, after: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The entries that a list gained and lost; one that is only moved is neither."""
    if not all(isinstance(side, list | Missing) for side in (before, after)):
        return (), ()
    old: list[Any] = before if isinstance(before, list) else []
    new: list[Any] = after if isinstance(after, list) else []
    return tuple(each for each in new if each not in old), tuple(each for each in old if each not in new)
