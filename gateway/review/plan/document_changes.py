"""Finds documents and fields that differ. Normalised data is compared; the text of the files is shown.

Files, the order of keys, comments and defaults make no difference. A text that reads another environment variable
does, even if both have the same value here: in another environment they may differ.

`SourceValues` has the values as written: a value from the environment is shown as the reference in the file, and an
omitted value as its default.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.registries import DeclaredDocument, DocumentRegistry, Position

Path = tuple[str | int, ...]

_ISO: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


class AbsentValue:
    """A value that is neither written nor has a default."""

    def __repr__(self) -> str:
        return "(none)"


MISSING: Final = AbsentValue()


def _no_defaults() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class SourceValues:
    """The values of one document as written in its file. `references` are the texts that contain `${NAME}`."""

    data: Mapping[str, Any]
    references: Mapping[Path, str] = field(default_factory=dict)
    defaults: Callable[[], Mapping[str, Any]] = _no_defaults

    def at(self, path: Path) -> Any:
        found = get_value(self.data, path)
        if not isinstance(found, AbsentValue):
            return self._with_references(found, path)
        default = get_value(self.defaults(), path)
        return MISSING if default is None or default in ([], {}, ()) else _to_written_form(default)

    def _with_references(self, value: Any, path: Path) -> Any:
        if path in self.references:
            return self.references[path]
        match value:
            case dict():
                return {key: self._with_references(each, (*path, key)) for key, each in value.items()}
            case list() | tuple():
                return [self._with_references(each, (*path, index)) for index, each in enumerate(value)]
        return value


def get_value(data: Any, path: Path) -> Any:
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return data


def milliseconds(duration: str) -> float:
    """Return the milliseconds of a normalised duration such as `PT30M`; infinity if it is invalid."""
    match = _ISO.fullmatch(duration)
    if match is None or duration == "P":
        return float("inf")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def _to_written_form(value: Any) -> Any:
    """Return a default as it would be written in a file: `30m` for `PT30M`."""
    if not isinstance(value, str) or not _ISO.fullmatch(value) or value == "P":
        return value
    total = round(milliseconds(value))
    size, unit = next((size, unit) for size, unit in _UNITS if total % size == 0)
    return f"{total // size}{unit}"


Change = Literal["added", "removed", "changed"]
Documents = Mapping[str, DocumentRegistry]
Texts = Mapping[tuple[str, str], SourceValues]
"""Documents as written, by kind and name."""

_REFERENCE: Final = "${"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A changed field. `path` is as in the YAML, without `spec`; `added` and `removed` are entries of a list."""

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
class DocumentPair:
    """One document before and after; one of the two may be missing."""

    kind: str
    name: str
    before: DeclaredDocument | None
    after: DeclaredDocument | None

    @property
    def about(self) -> str:
        return f"{self.kind} {self.name}"


def pair_documents(before: Documents, after: Documents) -> Iterator[DocumentPair]:
    """Yield every document of either side, by kind in the order of the newer side, then by name."""
    for kind in dict.fromkeys((*after, *before)):
        old, new = before.get(kind, {}), after.get(kind, {})
        for name in sorted({*old, *new}):
            yield DocumentPair(kind, name, old.get(name), new.get(name))


def document_change(pair: DocumentPair, before: Texts, after: Texts) -> DocumentChange | None:
    """Return the change of a document, or `None` if its data and its references are the same."""
    kind, name = pair.kind, pair.name
    if pair.before is None or pair.after is None:
        there = pair.after or pair.before
        assert there is not None, "a pair has at least one side"  # noqa: S101 - made from names of either side
        return DocumentChange("added" if pair.after else "removed", kind, name, there.position)
    old = before.get((kind, name)) or SourceValues(pair.before.data)
    new = after.get((kind, name)) or SourceValues(pair.after.data)
    fields = tuple(field_changes(pair.before.data, pair.after.data, old=old, new=new))
    return DocumentChange("changed", kind, name, pair.after.position, fields) if fields else None


def field_changes(before: Any, after: Any, *, old: SourceValues, new: SourceValues) -> Iterator[FieldChange]:
    """Yield the leaves in which two documents differ, as they are written."""
    found: set[Path] = set()
    for path in _differences(before, after, ()):
        found.add(path)
        shown = old.at(path), new.at(path)
        yield FieldChange(format_path(path), *shown, *_entries(*shown))
    for path in sorted({*old.references, *new.references}, key=str):
        reads = old.references.get(path), new.references.get(path)
        covered = any(path[: len(each)] == each for each in found)
        if reads[0] != reads[1] and not covered and any(text and _REFERENCE in text for text in reads):
            yield FieldChange(format_path(path), old.at(path), new.at(path))


def format_path(path: Path) -> str:
    """Format a path without `spec`: `trust.flags`; entries of lists are numbered: `waivers[0].until`."""
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
    elif isinstance(before, AbsentValue) or isinstance(after, AbsentValue):
        if before is not after:
            yield path
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield path


def _is_opened(before: Any, after: Any) -> bool:
    """Whether a whole mapping was added or removed: then its leaves are listed one by one."""
    sides = (before, after)
    return any(isinstance(side, AbsentValue) for side in sides) and any(
        isinstance(side, dict) and side for side in sides
    )


def _is_compared_by_entry(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(isinstance(each, dict) for each in (*before, *after))


def _entries(before: Any, after: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the entries that were added to and removed from a list; a moved entry is neither."""
    if not all(isinstance(side, list | AbsentValue) for side in (before, after)):
        return (), ()
    old: list[Any] = before if isinstance(before, list) else []
    new: list[Any] = after if isinstance(after, list) else []
    return tuple(each for each in new if each not in old), tuple(each for each in old if each not in new)
