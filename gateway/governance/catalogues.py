"""Catalogues: which tools an audience gets, and which combinations of abilities must not meet in one.

Selection is by name, label, flag, source and tier. Forbidden combinations are a static analysis over
the selected tools: private data, untrusted text and a way out in one catalogue is how data leaks.
A waiver names who accepted a combination, why, and until when.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from typing import Final, Literal

from gateway.governance.globs import glob_matches

QUERY_PREFIX: Final = "artifact_"
"""How the names of query tools begin, and of nothing else."""


@dataclass(frozen=True, slots=True)
class GovernedTool:
    """A tool as selectors see it: its effective trust and where it comes from."""

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
    """Chooses tools. Everything that is given must hold; of several entries under one of them, any."""

    tools: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    max_rank: int | None = None
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def chooses(self, tool: GovernedTool) -> bool:
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
        """Names of one kind leave out the others; without any, all are meant."""
        if not (self.tools or self.prompts or self.resources):
            return True
        return any(glob_matches(tool.name, pattern) for pattern in self._meant(tool))

    def singles_out(self, tool: GovernedTool) -> bool:
        """Whether its names are meant for what is read: a pattern for query tools begins with `artifact_`."""
        meant = self._meant(tool)
        if tool.kind == "query":
            meant = tuple(pattern for pattern in meant if pattern.startswith(QUERY_PREFIX))
        return any(glob_matches(tool.name, pattern) for pattern in meant)

    def _meant(self, tool: GovernedTool) -> tuple[str, ...]:
        if tool.kind == "prompt":
            return self.prompts
        return self.resources if tool.kind == "resource" else self.tools


@dataclass(frozen=True, slots=True)
class Waiver:
    """Accepts one forbidden combination until the end of a day."""

    flags: frozenset[str]
    until: date
    by: str
    because: str


@dataclass(frozen=True, slots=True)
class Combination:
    """A forbidden combination that a catalogue completes, with the tools that bring each flag."""

    flags: frozenset[str]
    brought_by: Mapping[str, tuple[str, ...]]
    waiver: Waiver | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """The tools of a catalogue, and what deserves a word about how they were chosen."""

    tools: tuple[GovernedTool, ...]
    idle_includes: tuple[int, ...] = ()
    idle_excludes: tuple[int, ...] = ()


class Shelf:
    """Tools to choose from many times: found by the start of their names, given in their own order."""

    def __init__(self, tools: Iterable[GovernedTool]) -> None:
        self.tools = tuple(tools)
        self._names = sorted((tool.name, number) for number, tool in enumerate(self.tools))

    def chosen(self, selector: Selector) -> set[int]:
        """The numbers of the tools that the selector chooses."""
        return {number for number in self._candidates(selector) if selector.chooses(self.tools[number])}

    def _candidates(self, selector: Selector) -> Iterator[int]:
        if not (selector.tools or selector.prompts or selector.resources):
            yield from range(len(self.tools))
        for pattern in (*selector.tools, *selector.prompts, *selector.resources):
            head = pattern.partition("*")[0]
            for name, number in islice(self._names, bisect_left(self._names, (head,)), None):
                if not name.startswith(head):
                    break
                yield number


def select(shelf: Shelf, include: Sequence[Selector], exclude: Sequence[Selector] = ()) -> Selection:
    """Tools that some `include` chooses and no `exclude` does, in their own order.

    The positions of selectors that choose nothing are told: most of them are misspelled.
    """
    chosen = [shelf.chosen(selector) for selector in include]
    included = set[int]().union(*chosen)
    excluded = [shelf.chosen(selector) & included for selector in exclude]
    remaining = sorted(included.difference(*excluded))
    return Selection(tuple(shelf.tools[number] for number in remaining), _empty(chosen), _empty(excluded))


def forbidden_combinations(
    tools: Iterable[GovernedTool],
    forbidden: Iterable[frozenset[str]],
    waivers: Sequence[Waiver] = (),
    *,
    today: date,
) -> list[Combination]:
    """The forbidden combinations that the tools complete together; an expired waiver waives nothing."""
    listed = list(tools)
    found = []
    for flags in forbidden:
        brought_by = {flag: tuple(tool.name for tool in listed if flag in tool.flags) for flag in sorted(flags)}
        if all(brought_by.values()):
            found.append(Combination(flags, brought_by, _waiver_for(flags, waivers, today)))
    return found


def _waiver_for(flags: frozenset[str], waivers: Sequence[Waiver], today: date) -> Waiver | None:
    return next((waiver for waiver in waivers if waiver.flags == flags and today <= waiver.until), None)


def _empty(choices: Sequence[set[int]]) -> tuple[int, ...]:
    return tuple(position for position, chosen in enumerate(choices) if not chosen)
