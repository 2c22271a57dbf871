"""Overlay: the differences of one environment, as patches merged into the documents they name.

Mappings merge, lists and scalars replace, `null` removes. An overlay changes documents and never adds one. A patched
value has the position of the overlay's value. Overlays of other environments are checked too, to find stale ones early.
Patches of the wrong shape are skipped; validation of the kind `Overlay` reports them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    JsonValue,
    NonEmptyListOf,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
)
from gateway.config.kinds.scalars import Name
from gateway.config.yaml.document import DocumentPath, YamlDocument, truncate_line
from gateway.registries import Diagnostic, Position, suggest_name

KIND: Final = "Overlay"
_OUT_OF_REACH: Final = frozenset((KIND, "PolicyTest", "Attestation"))

_Target = tuple[str, str]


def is_overlay(document: YamlDocument) -> bool:
    return document.data.get("kind") == KIND


def apply_overlays(
    documents: Sequence[YamlDocument], overlays: Sequence[YamlDocument], *, environment: str | None
) -> tuple[list[YamlDocument], list[Diagnostic]]:
    """Return the documents of the environment, in their order, and the problems of all overlays.

    An environment without an overlay gets the documents unchanged, and a warning if other environments have one.
    `None` applies no overlay and only checks them.
    """
    workbench = _Patcher(documents)
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
        if ("spec", "environment") not in overlay.substituted:  # names from the environment are not shown
            named.append(name)
        for path, patch in _patches(overlay):
            workbench.patch(overlay, path, patch, is_effective=name == environment)
    if environment is not None and first and environment not in first:
        near = suggest_name(environment, named)
        position = next((first[name] for name in named if near and repr(name) in near), next(iter(first.values())))
        workbench.problems.append(_no_overlay(environment, position, near, others=named))
    return workbench.documents(), workbench.problems


class _Patcher:
    """The documents by kind and name. Patched ones are mutable copies."""

    def __init__(self, documents: Sequence[YamlDocument]) -> None:
        self.problems: list[Diagnostic] = []
        self._documents = list(documents)
        self._copies: dict[int, _Copy] = {}
        self._places: dict[_Target, list[int]] = {}
        for index, document in enumerate(documents):
            target = _identity(document)
            if target is not None:
                self._places.setdefault(target, []).append(index)

    def documents(self) -> list[YamlDocument]:
        copies = self._copies
        return [copies[index].document() if index in copies else each for index, each in enumerate(self._documents)]

    def patch(self, overlay: YamlDocument, path: DocumentPath, patch: dict[str, Any], *, is_effective: bool) -> None:
        target = _target(patch.get("target"))
        if target is None:
            return
        problem = self._find_target_problem(target, overlay, (*path, "target"))
        if problem is not None:
            self.problems.append(problem)
        elif is_effective and isinstance(patch.get("merge"), dict):
            for index in self._places[target]:
                if index not in self._copies:
                    self._copies[index] = _Copy(self._documents[index])
                self.problems += self._copies[index].merge(_Patch(overlay, (*path, "merge"), patch["merge"]))

    def _find_target_problem(self, target: _Target, overlay: YamlDocument, path: DocumentPath) -> Diagnostic | None:
        kind, name = target
        if {(*path, "kind"), (*path, "name")} & overlay.substituted and target not in self._places:
            message = "the target does not exist; it comes from the environment, so it is not shown"
            return Diagnostic("overlay-target", message, overlay.position((*path, "name")), help="use the literal name")
        if kind in _OUT_OF_REACH:
            help = "overlays cannot change overlays, policy tests or attestations"
            message = f"an overlay cannot change a document of kind {kind}"
            return Diagnostic("overlay-target", message, overlay.position((*path, "kind")), help=help)
        if target in self._places:
            return None
        message = f"there is no {truncate_line(kind)[1:-1]} {truncate_line(name)} to patch"
        near = suggest_name(name, (known for of, known in self._places if of == kind))
        kinds = [
            of
            for (of, known), places in self._places.items()
            if known == name and ("kind",) not in self._documents[places[0]].substituted
        ]
        if near is None and kinds:
            help = f"{name!r} has the kind {kinds[0]}"
            return Diagnostic("overlay-target", message, overlay.position((*path, "kind")), help=help)
        help = near or "an overlay can only change documents that exist"
        return Diagnostic("overlay-target", message, overlay.position((*path, "name")), help=help)


@dataclass(frozen=True, slots=True)
class _Patch:
    """A value of an overlay and its path there."""

    overlay: YamlDocument
    path: DocumentPath
    value: Any

    def below(self, key: str) -> "_Patch":
        return _Patch(self.overlay, (*self.path, key), self.value[key])


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a mapping and its path in the document."""

    into: dict[str, Any]
    path: DocumentPath

    @property
    def key(self) -> Any:
        return self.path[-1]


class _Copy:
    """A document being patched: a copy of its data and positions, changed in place."""

    def __init__(self, original: YamlDocument) -> None:
        self._original = original
        self._data: dict[str, Any] = _deep_copy(original.data)
        self._positions = dict(original.positions)
        self._key_positions = dict(original.key_positions)
        self._substituted = set(original.substituted)
        self._written = dict(original.written)

    def document(self) -> YamlDocument:
        return YamlDocument(
            self._data,
            self._original.file,
            self._positions,
            self._key_positions,
            substituted=frozenset(self._substituted),
            written=self._written,
        )

    def merge(self, given: _Patch) -> Iterator[Diagnostic]:
        """Merge into `spec`. Yield a warning for each removal of a missing field."""
        if self._data.get("spec") is None:
            self._replace(_Field(self._data, ("spec",)), _Patch(given.overlay, given.path, {}))
        if isinstance(self._data["spec"], dict):
            yield from self._merge(_Field(self._data, ("spec",)), given)

    def _merge(self, spot: _Field, given: _Patch) -> Iterator[Diagnostic]:
        into = spot.into[spot.key]
        for key, value in given.value.items():
            field, patch = _Field(into, (*spot.path, key)), given.below(key)
            if value is None:
                if key not in into:
                    yield _nothing_to_remove(key, patch.overlay.key_position(patch.path))
                self._remove(field)
            elif isinstance(value, dict) and isinstance(into.get(key), dict):
                yield from self._merge(field, patch)
            else:
                self._replace(field, patch)

    def _remove(self, spot: _Field) -> None:
        for path in _paths(spot.into.pop(spot.key, None), spot.path):
            self._positions.pop(path, None)
            self._key_positions.pop(path, None)
            self._substituted.discard(path)
            self._written.pop(path, None)

    def _replace(self, spot: _Field, given: _Patch) -> None:
        self._remove(spot)
        spot.into[spot.key] = _deep_copy(given.value, without_nulls=True)
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


def _identity(document: YamlDocument) -> _Target | None:
    kind, name = document.data.get("kind"), _within(document.data, "metadata", "name")
    return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None


def _target(written: Any) -> _Target | None:
    kind, name = _within(written, "kind"), _within(written, "name")
    return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None


def _patches(overlay: YamlDocument) -> Iterator[tuple[DocumentPath, dict[str, Any]]]:
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


def _paths(value: Any, path: DocumentPath) -> Iterator[DocumentPath]:
    """Yield the path of a value and of everything below it."""
    yield path
    match value:
        case dict():
            for key, each in value.items():
                yield from _paths(each, (*path, key))
        case list():
            for index, each in enumerate(value):
                yield from _paths(each, (*path, index))


def _deep_copy(value: Any, *, without_nulls: bool = False) -> Any:
    """Return a deep copy; `without_nulls` drops `null` fields, which have nothing to remove in a new value."""
    match value:
        case dict():
            return {
                key: _deep_copy(each, without_nulls=without_nulls)
                for key, each in value.items()
                if each is not None or not without_nulls
            }
        case list():
            return [_deep_copy(each) for each in value]
    return value


def _second_overlay(environment: str, position: Position, *, first: Position) -> Diagnostic:
    message = f"environment {truncate_line(environment)} already has an overlay"
    help = "merge the two overlays: an environment has one"
    return Diagnostic("overlay-duplicate", message, position, help=help, related=(("the first is here", first),))


def _no_overlay(environment: str, position: Position, near: str | None, *, others: Sequence[str]) -> Diagnostic:
    message = f"environment {truncate_line(environment)} has no overlay, so the documents apply unchanged"
    listed = (
        f"overlays exist for {', '.join(map(truncate_line, sorted(others)))}"
        if others
        else "add an overlay, or select no environment"
    )
    return Diagnostic("overlay-missing", message, position, severity="warning", help=near or listed)


def _nothing_to_remove(key: str, position: Position) -> Diagnostic:
    message = f"there is no {truncate_line(key)} to remove"
    return Diagnostic("overlay-remove", message, position, severity="warning", help="remove this line")


OverlayKind = Literal[
    "Gateway",
    "IdentityProvider",
    "Storage",
    "Telemetry",
    "TrustFlag",
    "TrustTier",
    "ArtifactClass",
    "CollisionPolicy",
    "GateRule",
    "GrantPolicy",
    "Pipeline",
    "Tool",
    "Upstream",
    "Catalogue",
]


class OverlayTargetSpec(SpecModel):
    """The document that a patch changes."""

    kind: OverlayKind = Field(description="Its kind.")
    name: Name = Field(description="Its name.")


class PatchSpec(SpecModel):
    """A change to one document."""

    target: OverlayTargetSpec = Field(description="The document that is changed; it must exist.")
    merge: Annotated[JsonValue, Field(min_length=1)] = Field(
        description="Merged into its spec: mappings merge, lists and scalars replace, null removes."
    )


class OverlaySpec(SpecModel):
    """Changes for one environment."""

    environment: Name = Field(description="Environment that the changes apply to.")
    patches: NonEmptyListOf[PatchSpec] = Field(description="The changes, one per document.")

    def check_rules(self) -> Iterable[RuleViolation]:
        seen: set[tuple[str, str]] = set()
        for index, patch in enumerate(self.patches):
            target = (patch.target.kind, patch.target.name)
            if target in seen:
                yield RuleViolation(
                    ("patches", index, "target"), f"{'/'.join(target)} is patched twice", "merge the patches"
                )
            seen.add(target)


class OverlayDocument(DocumentModel):
    """The differences of one environment."""

    kind: Literal["Overlay"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: OverlaySpec = Field(description="The environment and its changes.")
