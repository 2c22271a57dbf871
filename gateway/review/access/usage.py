"""The use of access as the records of calls show it. A command reads it from the store and passes it in.

Calls that were denied are no use. Reads of stored results, prompts and resources, listings, and administration leave no
record of a call, so nothing is said about their use.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gateway.model import Principal

UseKind = Literal["call", "approve"]
"""Whether the principal made calls of a tool, or decided about calls of others."""


@dataclass(frozen=True, slots=True)
class UseCount:
    """How often a principal used a tool in a catalogue within the period, and when last, within it or before.

    `tool` is the name in policies; it may no longer be declared.
    """

    kind: UseKind
    principal: Principal
    catalogue: str
    tool: str
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class UsageTable:
    """All recorded use. `since` is the start of the period, `oldest` the time of the oldest record in the store.

    Records are deleted after some time. If `oldest` is later than `since`, what happened before it is unknown.
    """

    uses: Sequence[UseCount]
    since: datetime
    oldest: datetime | None = None

    @property
    def covers_period(self) -> bool:
        """Whether the store has records from the start of the period or before."""
        return self.oldest is not None and self.oldest <= self.since


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The use of one tool: how often within the period, and when last."""

    count: int = 0
    last: datetime | None = None

    def __add__(self, other: "ToolUse") -> "ToolUse":
        moments = [each for each in (self.last, other.last) if each is not None]
        return ToolUse(self.count + other.count, max(moments, default=None))


NEVER = ToolUse()


@dataclass(frozen=True, slots=True)
class UseIndex:
    """Sums of the recorded calls: by subject and by tool of a catalogue."""

    by_subject: Mapping[tuple[str, str, str], ToolUse] = field(default_factory=dict)
    """By subject or role, catalogue and tool. A role was used by each call of a caller that holds it."""
    by_tool: Mapping[tuple[str, str], ToolUse] = field(default_factory=dict)
    """By catalogue and tool."""

    def find(self, name: str, catalogue: str, tool: str) -> ToolUse:
        """Return the use by a subject or role."""
        return self.by_subject.get((name, catalogue, tool), NEVER)


def index_uses(uses: Iterable[UseCount], *, roles_of: Callable[[Principal], Iterable[str]]) -> UseIndex:
    """Sum the calls. `roles_of` returns the names of a caller and every role that these hold."""
    by_subject: dict[tuple[str, str, str], ToolUse] = {}
    by_tool: dict[tuple[str, str], ToolUse] = {}
    for each in uses:
        if each.kind == "call":
            found = ToolUse(each.count, each.last)
            tool = (each.catalogue, each.tool)
            by_tool[tool] = by_tool.get(tool, NEVER) + found
            for name in {each.principal.subject, *roles_of(each.principal)}:
                by_subject[name, *tool] = by_subject.get((name, *tool), NEVER) + found
    return UseIndex(by_subject, by_tool)
