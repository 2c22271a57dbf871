"""What verification has to say: what is wrong with which entry, and how far each shard was followed."""

from dataclasses import dataclass
from typing import Literal

Fault = Literal[
    "altered",
    "unlinked",
    "missing",
    "repeated",
    "misplaced",
    "mistimed",
    "malformed",
    "rewritten",
    "truncated",
    "succession",
    "anchor-forged",
    "anchor-key",
    "anchor-malformed",
    "anchor-missing",
    "anchor-absent",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, by the first entry it is wrong with. Faults of anchors also name a `line` of their file."""

    fault: Fault
    shard: str
    seq: int
    detail: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.shard}:{self.seq} {self.fault}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ShardReport:
    """How far a shard was followed without a fault. `anchored` is the last entry of it that an anchor confirms."""

    shard: str
    first: int
    last: int
    head: str
    anchored: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found. `findings` has the first fault of every shard, in the order they were come upon."""

    entries: int
    shards: tuple[ShardReport, ...]
    findings: tuple[Finding, ...]
    anchors: int
    notes: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.findings

    @property
    def unanchored(self) -> int:
        """How many good entries no anchor confirms."""
        return sum(each.last - max(each.anchored or 0, each.first - 1) for each in self.shards)
