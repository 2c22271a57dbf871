"""The classes that results become: built-in ones, and those of documents with options and queries bound.

What a document masks is masked in every view of an artifact, never in the bytes that are kept.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.core.artifacts import SpooledArtifact
from gateway.core.spool import SpoolReader
from gateway.snapshot import ArtifactClass

Mask = Callable[[Any, Sequence[str]], Awaitable[Any]]
"""Gives another artifact whose views have the values at some paths masked."""


class ArtifactTypes:
    """Artifact classes by the name that tools and records use for them."""

    def __init__(self, declared: Mapping[str, ArtifactClass], *, built_in: Callable[[str], type], mask: Mask) -> None:
        self._types = {name: _bound(each) for name, each in declared.items()}
        self._declared = declared
        self._built_in = built_in
        self._mask = mask

    def named(self, name: str) -> type[SpooledArtifact]:
        """A declared class, or a built-in one of that name."""
        found = self._types.get(name)
        if found is None:
            found = self._types[name] = self._built_in(name)
        return found

    def declared(self, name: str) -> ArtifactClass | None:
        return self._declared.get(name)

    def is_masked(self, name: str) -> bool:
        declared = self._declared.get(name)
        return declared is not None and bool(declared.redact)

    async def over(self, name: str, reader: SpoolReader) -> Any:
        """An artifact of that class over kept bytes, as it may be shown. `stored_reader` is what reads the bytes."""
        declared = self._declared.get(name)
        if declared is None or not declared.redact:
            return self.bare(name, reader)
        artifact = await self._mask(self.named(name)(reader), declared.redact)
        artifact.stored_reader = reader
        return artifact

    def bare(self, name: str, reader: SpoolReader) -> Any:
        """The same for a class that masks nothing."""
        artifact: Any = self.named(name)(reader)
        artifact.stored_reader = reader
        return artifact


def _bound(declared: ArtifactClass) -> type:
    """A subclass of the declared class that needs nothing but a reader."""
    base: Any = declared.constructor

    def begin(self: Any, reader: SpoolReader) -> None:
        base.__init__(self, reader, **declared.options)

    return type(base.__name__, (base,), {"__init__": begin, "queries": declared.queries, "__doc__": base.__doc__})
