"""A lock: what each upstream brought when somebody last looked, and where from. Knows no file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.governance.diagnostics import Position
from gateway.governance.imports import KINDS, DefinitionKind, ImportedDefinition

Source = tuple[str, ...]
"""Where definitions come from, as the Upstream document says it: the transport, then its address or its program."""

ANYWHERE: Final = "default"
"""Stands for no environment, and for every one that has no source of its own."""


@dataclass(frozen=True, slots=True)
class LockedUpstream:
    """An upstream as it was locked. `server` is what it said of itself, for readers only."""

    name: str
    sources: Mapping[str, Source]
    server: Mapping[str, str] = field(default_factory=dict)
    confirmed: str | None = None
    """When somebody last said of definitions that had turned into others and back that they are to be served."""
    position: Position | None = None

    def is_from(self, source: Source, *, environment: str | None) -> bool:
        """Whether definitions of that source are the ones that were looked at."""
        return self.sources.get(environment or ANYWHERE, self.sources.get(ANYWHERE)) == source


@dataclass(frozen=True, slots=True)
class Lock:
    """Everything locked: upstreams by name, definitions in one order."""

    upstreams: Mapping[str, LockedUpstream] = field(default_factory=dict)
    definitions: tuple[ImportedDefinition, ...] = ()

    def of(self, upstream: str) -> tuple[ImportedDefinition, ...]:
        return tuple(each for each in self.definitions if each.upstream == upstream)

    def find(self, upstream: str, kind: DefinitionKind, name: str) -> ImportedDefinition | None:
        return next((each for each in self.of(upstream) if (each.kind, each.name) == (kind, name)), None)

    def with_upstream(self, upstream: LockedUpstream, definitions: Iterable[ImportedDefinition]) -> "Lock":
        """The lock with what one upstream brings now in place of what it brought."""
        kept = [each for each in self.definitions if each.upstream != upstream.name]
        found = in_order([*kept, *(replace(each, is_pinned=True, position=None) for each in definitions)])
        return Lock({**self.upstreams, upstream.name: upstream}, found)

    def only(self, upstreams: Iterable[str]) -> "Lock":
        """Without upstreams that are declared no more."""
        kept = set(upstreams)
        return Lock(
            {name: each for name, each in self.upstreams.items() if name in kept},
            tuple(each for each in self.definitions if each.upstream in kept),
        )


def in_order(definitions: Iterable[ImportedDefinition]) -> tuple[ImportedDefinition, ...]:
    return tuple(sorted(definitions, key=lambda each: (each.upstream, KINDS.index(each.kind), each.name)))
