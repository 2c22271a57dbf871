"""The use of access as the records of calls show it. A command reads it from the store and passes it in.

Calls that were denied are no use. Reads of stored results, prompts and resources, listings, and administration leave no
record of a call, so nothing is said about their use.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    """By subject, catalogue and tool."""
    by_tool: Mapping[tuple[str, str], ToolUse] = field(default_factory=dict)
    """By catalogue and tool."""

    def find(self, subject: str, catalogue: str, tool: str) -> ToolUse:
        return self.by_subject.get((subject, catalogue, tool), NEVER)


def index_uses(uses: Iterable[UseCount]) -> UseIndex:
    by_subject: dict[tuple[str, str, str], ToolUse] = {}
    by_tool: dict[tuple[str, str], ToolUse] = {}
    for each in uses:
        if each.kind == "call":
            found = ToolUse(each.count, each.last)
            subject, tool = (each.principal.subject, each.catalogue, each.tool), (each.catalogue, each.tool)
            by_subject[subject] = by_subject.get(subject, NEVER) + found
            by_tool[tool] = by_tool.get(tool, NEVER) + found
    return UseIndex(by_subject, by_tool)
