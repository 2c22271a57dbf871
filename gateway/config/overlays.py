"""What differs in one environment: the patches of its overlay, merged into the documents they name.

Mappings merge, lists and scalars replace, `null` removes. Every value that an overlay gives keeps the overlay's
position. Overlays of other environments are checked, too, so that a stale one is found before its environment is.
What has the wrong shape is passed over here: the check of the kind `Overlay` says what is wrong with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.config.nodes import Document, Path
from gateway.config.text import clipped
from gateway.governance.diagnostics import Diagnostic, Position, did_you_mean

KIND: Final = "Overlay"
_OUT_OF_REACH: Final = frozenset((KIND, "PolicyTest"))

_Target = tuple[str, str]


def is_overlay(document: Document) -> bool:
    return document.data.get("kind") == KIND


def apply(
    documents: Sequence[Document], overlays: Sequence[Document], *, environment: str | None
) -> tuple[list[Document], list[Diagnostic]]:
    """The documents as they are in the environment, in their order, and every problem of every overlay.

    An environment without an overlay gets the documents as they are, and a warning if others have one: what was meant
    to hold there does not. `None` applies nothing, but checks.
    """
    workbench = _Workbench(documents)
    first: dict[str, Position] = {}
    named: list[str] = []
    for overlay in overlays:
        name = _within(overlay.data, "spec", "environment")
        if not isinstance(name, str):
            continue
        position = overlay.position(("spec", "environment"))
        if name in first:
            workbench.problems.append(_second_overlay(name, position, first=first[name]))
            continue
        first[name] = position
        if ("spec", "environment") not in overlay.substituted:  # else it is not shown
            named.append(name)
        for path, patch in _patches(overlay):
            workbench.patch(overlay, path, patch, is_effective=name == environment)
    if environment is not None and first and environment not in first:
        near = did_you_mean(environment, named)
        position = next((first[name] for name in named if near and repr(name) in near), next(iter(first.values())))
        workbench.problems.append(_no_overlay(environment, position, near, others=named))
    return workbench.documents(), workbench.problems


class _Workbench:
    """The documents by kind and name; those that are patched as copies that may be changed."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.problems: list[Diagnostic] = []
        self._documents = list(documents)
        self._copies: dict[int, _Copy] = {}
        self._places: dict[_Target, list[int]] = {}
        for index, document in enumerate(documents):
            target = _identity(document)
            if target is not None:
                self._places.setdefault(target, []).append(index)

    def documents(self) -> list[Document]:
        copies = self._copies
        return [copies[index].document() if index in copies else each for index, each in enumerate(self._documents)]

    def patch(self, overlay: Document, path: Path, patch: dict[str, Any], *, is_effective: bool) -> None:
        target = _target(patch.get("target"))
        if target is None:
            return
        problem = self._misses(target, overlay, (*path, "target"))
        if problem is not None:
            self.problems.append(problem)
        elif is_effective and isinstance(patch.get("merge"), dict):
            for index in self._places[target]:
                if index not in self._copies:
                    self._copies[index] = _Copy(self._documents[index])
                self.problems += self._copies[index].merge(_Given(overlay, (*path, "merge"), patch["merge"]))

    def _misses(self, target: _Target, overlay: Document, path: Path) -> Diagnostic | None:
        kind, name = target
        if {(*path, "kind"), (*path, "name")} & overlay.substituted and target not in self._places:
            message = "the target comes from the environment, so it is not shown, and it leads to no document"
            return Diagnostic("overlay-target", message, overlay.position((*path, "name")), help="write it out")
        if kind in _OUT_OF_REACH:
            help = "overlays change what runs, never overlays or tests"
            message = f"an overlay cannot change a document of kind {kind}"
            return Diagnostic("overlay-target", message, overlay.position((*path, "kind")), help=help)
        if target in self._places:
            return None
        message = f"there is no {clipped(kind)[1:-1]} {clipped(name)} to patch"
        near = did_you_mean(name, (known for of, known in self._places if of == kind))
        kinds = [
            of
            for (of, known), places in self._places.items()
            if known == name and ("kind",) not in self._documents[places[0]].substituted
        ]
        if near is None and kinds:
            help = f"{name!r} is of kind {kinds[0]}"
            return Diagnostic("overlay-target", message, overlay.position((*path, "kind")), help=help)
        help = near or "overlays change documents, they never add one"
        return Diagnostic("overlay-target", message, overlay.position((*path, "name")), help=help)


@dataclass(frozen=True, slots=True)
class _Given:
    """A value in an overlay, and where it is there."""

    overlay: Document
    path: Path
    value: Any

    def below(self, key: str) -> "_Given":
        return _Given(self.overlay, (*self.path, key), self.value[key])


@dataclass(frozen=True, slots=True)
class _Spot:
    """A field of a mapping, and where it is in the document."""

    into: dict[str, Any]
    path: Path

    @property
    def key(self) -> Any:
        return self.path[-1]


class _Copy:
    """A document that is being patched: its own data and positions, changed in place."""

    def __init__(self, original: Document) -> None:
        self._original = original
        self._data: dict[str, Any] = _copied(original.data)
        self._positions = dict(original.positions)
        self._key_positions = dict(original.key_positions)
        self._substituted = set(original.substituted)
        self._written = dict(original.written)

    def document(self) -> Document:
        return Document(
            self._data,
            self._original.file,
            self._positions,
            self._key_positions,
            substituted=frozenset(self._substituted),
            written=self._written,
        )

    def merge(self, given: _Given) -> Iterator[Diagnostic]:
        """Merge into `spec`; the removals that found nothing."""
        if self._data.get("spec") is None:
            self._replace(_Spot(self._data, ("spec",)), _Given(given.overlay, given.path, {}))
        if isinstance(self._data["spec"], dict):
            yield from self._merge(_Spot(self._data, ("spec",)), given)

    def _merge(self, spot: _Spot, given: _Given) -> Iterator[Diagnostic]:
        into = spot.into[spot.key]
        for key, value in given.value.items():
            field, patch = _Spot(into, (*spot.path, key)), given.below(key)
            if value is None:
                if key not in into:
                    yield _nothing_to_remove(key, patch.overlay.key_position(patch.path))
                self._remove(field)
            elif isinstance(value, dict) and isinstance(into.get(key), dict):
                yield from self._merge(field, patch)
            else:
                self._replace(field, patch)

    def _remove(self, spot: _Spot) -> None:
        for path in _paths(spot.into.pop(spot.key, None), spot.path):
            self._positions.pop(path, None)
            self._key_positions.pop(path, None)
            self._substituted.discard(path)
            self._written.pop(path, None)

    def _replace(self, spot: _Spot, given: _Given) -> None:
        self._remove(spot)
        spot.into[spot.key] = _copied(given.value, without_nulls=True)
        overlay = given.overlay
        self._key_positions[spot.path] = overlay.key_position(given.path)
        for path in _paths(spot.into[spot.key], spot.path):
            origin = (*given.path, *path[len(spot.path) :])
            self._positions[path] = overlay.position(origin)
            if origin in overlay.key_positions:
                self._key_positions[path] = overlay.key_positions[origin]
            if origin in overlay.substituted:
                self._substituted.add(path)
            if origin in overlay.written:
                self._written[path] = overlay.written[origin]


def _identity(document: Document) -> _Target | None:
    kind, name = document.data.get("kind"), _within(document.data, "metadata", "name")
    return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None


def _target(written: Any) -> _Target | None:
    kind, name = _within(written, "kind"), _within(written, "name")
    return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None


def _patches(overlay: Document) -> Iterator[tuple[Path, dict[str, Any]]]:
    patches = _within(overlay.data, "spec", "patches")
    for index, patch in enumerate(patches if isinstance(patches, list) else ()):
        if isinstance(patch, dict):
            yield ("spec", "patches", index), patch


def _within(value: Any, *keys: str) -> Any:
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _paths(value: Any, path: Path) -> Iterator[Path]:
    """The path of a value and of everything below it."""
    yield path
    match value:
        case dict():
            for key, each in value.items():
                yield from _paths(each, (*path, key))
        case list():
            for index, each in enumerate(value):
                yield from _paths(each, (*path, index))


def _copied(value: Any, *, without_nulls: bool = False) -> Any:
    """A copy that shares nothing; `without_nulls` leaves out the fields a patch removes from what is not there."""
    match value:
        case dict():
            return {
                key: _copied(each, without_nulls=without_nulls)
                for key, each in value.items()
                if each is not None or not without_nulls
            }
        case list():
            return [_copied(each) for each in value]
    return value


def _second_overlay(environment: str, position: Position, *, first: Position) -> Diagnostic:
    message = f"environment {clipped(environment)} has an overlay already"
    help = "an environment has one overlay: join the two"
    return Diagnostic("overlay-duplicate", message, position, help=help, related=(("the first is here", first),))


def _no_overlay(environment: str, position: Position, near: str | None, *, others: Sequence[str]) -> Diagnostic:
    message = f"environment {clipped(environment)} has no overlay, so nothing differs there"
    listed = f"there are overlays for {', '.join(map(clipped, sorted(others)))}" if others else "add one, or name none"
    return Diagnostic("overlay-missing", message, position, severity="warning", help=near or listed)


def _nothing_to_remove(key: str, position: Position) -> Diagnostic:
    message = f"there is no {clipped(key)} to remove"
    return Diagnostic("overlay-remove", message, position, severity="warning", help="remove this line")
