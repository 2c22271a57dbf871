"""The classes that results become: built-in ones, and those of documents with options, queries and masks bound."""

from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.artifacts import SpooledArtifact
from gateway.core.spool import SpoolReader
from gateway.snapshot import ArtifactClass

Mask = Callable[[SpoolReader, tuple[str, ...]], SpoolReader]
"""Gives a reader whose view of the bytes has the values at some paths masked; the bytes stay."""


class ArtifactTypes:
    """Artifact classes by the name that tools and records use for them."""

    def __init__(self, declared: Mapping[str, ArtifactClass], *, built_in: Callable[[str], type], mask: Mask) -> None:
        self._types = {name: _bound(each, mask) for name, each in declared.items()}
        self._declared = declared
        self._built_in = built_in

    def named(self, name: str) -> type[SpooledArtifact]:
        """A declared class, or a built-in one of that name."""
        if name not in self._types:
            self._types[name] = self._built_in(name)
        found: type[SpooledArtifact] = self._types[name]
        return found

    def declared(self, name: str) -> ArtifactClass | None:
        return self._declared.get(name)


def _bound(declared: ArtifactClass, mask: Mask) -> type:
    """A subclass of the declared class: what a document says of its artifacts holds for every way of reading them."""
    base: Any = declared.constructor

    def begin(self: Any, reader: SpoolReader) -> None:
        base.__init__(self, mask(reader, declared.redact) if declared.redact else reader, **declared.options)
        self.stored_reader = reader

    return type(base.__name__, (base,), {"__init__": begin, "queries": declared.queries, "__doc__": base.__doc__})
