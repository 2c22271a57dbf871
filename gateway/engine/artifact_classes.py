"""Artifact classes by name: built-in ones, and declared ones with their options and queries bound.

Values that a document masks are masked in every view of an artifact, never in the stored bytes.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.artifacts import SpooledArtifact
from gateway.model import SpoolReader
from gateway.registries import ArtifactClass

Mask = Callable[[Any, Sequence[str]], Awaitable[Any]]
"""Returns another artifact whose views have the values at some paths masked."""


class ArtifactTypes:
    """Artifact classes by the name that tools and records use."""

    def __init__(self, declared: Mapping[str, ArtifactClass], *, built_in: Callable[[str], type], mask: Mask) -> None:
        self._types = {name: _bind(each) for name, each in declared.items()}
        self._declared = declared
        self._built_in = built_in
        self._mask = mask

    def get(self, name: str) -> type[SpooledArtifact]:
        """Return a declared class, or a built-in one of that name."""
        found = self._types.get(name)
        if found is None:
            found = self._types[name] = self._built_in(name)
        return found

    def get_declared(self, name: str) -> ArtifactClass | None:
        return self._declared.get(name)

    def is_masked(self, name: str) -> bool:
        declared = self._declared.get(name)
        return declared is not None and bool(declared.redact)

    async def wrap(self, name: str, reader: SpoolReader) -> Any:
        """Return an artifact of that class over stored bytes, masked for display. `stored_reader` reads the bytes."""
        declared = self._declared.get(name)
        if declared is None or not declared.redact:
            return self.wrap_unmasked(name, reader)
        artifact = await self._mask(self.get(name)(reader), declared.redact)
        artifact.stored_reader = reader
        return artifact

    def wrap_unmasked(self, name: str, reader: SpoolReader) -> Any:
        """Return the artifact of a class that masks nothing."""
        artifact: Any = self.get(name)(reader)
        artifact.stored_reader = reader
        return artifact


def _bind(declared: ArtifactClass) -> type:
    """Return a subclass of the declared class whose constructor takes only a reader."""
    base: Any = declared.constructor

    def begin(self: Any, reader: SpoolReader) -> None:
        base.__init__(self, reader, **declared.options)

    return type(base.__name__, (base,), {"__init__": begin, "queries": declared.queries, "__doc__": base.__doc__})
