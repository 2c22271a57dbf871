"""Catalogues: which tools an audience gets, and which combinations of abilities must not meet in one.

Selection is by name, label, flag, source and tier. Forbidden combinations are a static analysis over
the selected tools: private data, untrusted text and a way out in one catalogue is how data leaks.
A waiver names who accepted a combination, why, and until when.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from gateway.governance.globs import glob_matches


@dataclass(frozen=True, slots=True)
class GovernedTool:
    """A tool as a catalogue sees it: its effective trust and where it comes from."""

    name: str
    tier: str
    rank: int
    flags: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    upstream: str | None = None
    artifact: str | None = None


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

    def chooses(self, tool: GovernedTool) -> bool:
        return (
            _any_of(self.tools, lambda pattern: glob_matches(tool.name, pattern))
            and _any_of(self.flags, tool.flags.__contains__)
            and _any_of(self.upstreams, lambda pattern: glob_matches(tool.upstream, pattern))
            and _any_of(self.tiers, lambda tier: tier == tool.tier)
            and _any_of(self.artifacts, lambda artifact: artifact == tool.artifact)
            and all(tool.labels.get(key) == value for key, value in self.labels.items())
            and (self.max_rank is None or tool.rank <= self.max_rank)
        )


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


def select(tools: Sequence[GovernedTool], include: Sequence[Selector], exclude: Sequence[Selector] = ()) -> Selection:
    """Tools that some `include` chooses and no `exclude` does, in their own order.

    The positions of selectors that choose nothing are told: most of them are misspelled.
    """
    included = [tool for tool in tools if any(selector.chooses(tool) for selector in include)]
    remaining = tuple(tool for tool in included if not any(selector.chooses(tool) for selector in exclude))
    return Selection(remaining, _idle(include, tools), _idle(exclude, included))


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


def _idle(selectors: Sequence[Selector], tools: Sequence[GovernedTool]) -> tuple[int, ...]:
    return tuple(
        position for position, selector in enumerate(selectors) if not any(selector.chooses(tool) for tool in tools)
    )


def _any_of(given: tuple[str, ...], holds: Callable[[str], bool]) -> bool:
    return not given or any(map(holds, given))
