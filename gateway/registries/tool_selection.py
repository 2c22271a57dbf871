"""Selection of the tools of a catalogue, by name, label, flag, upstream and tier."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from gateway.model import glob_matches

QUERY_PREFIX: Final = "artifact_"
"""Prefix of the names of query tools, which no other tool has."""


@dataclass(frozen=True, slots=True)
class GovernedTool:
    """The properties of a tool that selectors use: its effective trust and its source."""

    name: str
    tier: str
    rank: int
    flags: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    upstream: str | None = None
    artifact: str | None = None
    kind: Literal["tool", "query", "prompt", "resource"] = "tool"


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects tools that match all given criteria; within a criterion, any entry matches."""

    tools: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    max_rank: int | None = None
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def matches(self, tool: GovernedTool) -> bool:
        return (
            (self.max_rank is None or tool.rank <= self.max_rank)
            and (not self.labels or all(tool.labels.get(key) == value for key, value in self.labels.items()))
            and (not self.flags or not tool.flags.isdisjoint(self.flags))
            and (not self.tiers or tool.tier in self.tiers)
            and (not self.artifacts or tool.artifact in self.artifacts)
            and (not self.upstreams or any(glob_matches(tool.upstream, pattern) for pattern in self.upstreams))
            and self._names(tool)
        )

    def _names(self, tool: GovernedTool) -> bool:
        """Whether the names match. A selector that names one kind excludes the others; without names, all match."""
        if not (self.tools or self.prompts or self.resources):
            return True
        return any(glob_matches(tool.name, pattern) for pattern in self._patterns_for(tool))

    def singles_out(self, tool: GovernedTool) -> bool:
        """Whether a name of the selector targets the tool: a pattern for query tools starts with `artifact_`."""
        meant = self._patterns_for(tool)
        if tool.kind == "query":
            meant = tuple(pattern for pattern in meant if pattern.startswith(QUERY_PREFIX))
        return any(glob_matches(tool.name, pattern) for pattern in meant)

    def _patterns_for(self, tool: GovernedTool) -> tuple[str, ...]:
        if tool.kind == "prompt":
            return self.prompts
        return self.resources if tool.kind == "resource" else self.tools


@dataclass(frozen=True, slots=True)
class CatalogueSelection:
    """The tools of a catalogue, and the indexes of selectors that match nothing."""

    tools: tuple[GovernedTool, ...]
    idle_includes: tuple[int, ...] = ()
    idle_excludes: tuple[int, ...] = ()


class ToolIndex:
    """An index of tools for repeated selections: searched by name prefix, returned in the original order."""

    def __init__(self, tools: Iterable[GovernedTool]) -> None:
        self.tools = tuple(tools)
        self._names = sorted((tool.name, number) for number, tool in enumerate(self.tools))

    def select(self, selector: Selector) -> set[int]:
        """Return the indexes of the tools that the selector matches."""
        return {number for number in self._candidates(selector) if selector.matches(self.tools[number])}

    def _candidates(self, selector: Selector) -> Iterator[int]:
        if not (selector.tools or selector.prompts or selector.resources):
            yield from range(len(self.tools))
        for pattern in (*selector.tools, *selector.prompts, *selector.resources):
            head = pattern.partition("*")[0]
            for name, number in islice(self._names, bisect_left(self._names, (head,)), None):
                if not name.startswith(head):
                    break
                yield number


def select_tools(index: ToolIndex, include: Sequence[Selector], exclude: Sequence[Selector] = ()) -> CatalogueSelection:
    """Select tools that an `include` matches and no `exclude` does, in their original order.

    The result also has the indexes of selectors that match nothing, which are usually misspelled.
    """
    chosen = [index.select(selector) for selector in include]
    included = set[int]().union(*chosen)
    excluded = [index.select(selector) & included for selector in exclude]
    remaining = sorted(included.difference(*excluded))
    return CatalogueSelection(tuple(index.tools[number] for number in remaining), _empty(chosen), _empty(excluded))


def _empty(choices: Sequence[set[int]]) -> tuple[int, ...]:
    return tuple(position for position, chosen in enumerate(choices) if not chosen)
