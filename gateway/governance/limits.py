"""How many calls are let through: rates and quotas as plain data, and the protocol of whoever counts.

A rate protects the system: a bucket that holds `burst` calls and fills evenly, `limit` in each `per`. It may forget in
a crash. A quota is a budget: at most `limit` calls in each window of the length `per`, counted durably; or a sum of an
argument of theirs, or bytes of their results. Windows know no calendar: they are counted from 1970-01-01 00:00 UTC, so
one of a day is a day in UTC, one of a week begins on Thursday.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Final, Literal, Protocol

from gateway.errors import Refused
from gateway.governance.principals import Principal

CountBy = Literal["subject", "tenant", "tool", "catalogue", "call"]
"""`call` tells calls of one tool apart by their arguments."""

Counts = Literal["calls", "amounts", "bytes"]
MILLIONTHS: Final = 10**6
"""Amounts are counted in millionths, rounded up, so that sums are exact."""

LARGEST_AMOUNT: Final = 10**12


@dataclass(frozen=True, slots=True)
class Rate:
    """`rule` is the name of the rule it belongs to. One that is not `enforced` is counted and stops nobody."""

    rule: str
    limit: int
    per: timedelta
    burst: int | None = None
    by: tuple[CountBy, ...] = ("subject",)
    enforced: bool = True


@dataclass(frozen=True, slots=True)
class Quota:
    """As a rate, but a budget. A change of `limit` keeps what was counted; a change of `per` or `by` begins anew."""

    rule: str
    limit: int
    per: timedelta
    by: tuple[CountBy, ...] = ("subject",)
    enforced: bool = True
    counts: Counts = "calls"
    """What is counted of each call. Bytes are only known when it has run: `Limits.charge`."""
    is_lifted: bool = False
    """Whether calls beyond the limit are let through, and counted: people have agreed, or are asked."""

    @property
    def most(self) -> int:
        """The limit in what is counted."""
        return self.limit * MILLIONTHS if self.counts == "amounts" else self.limit


Limit = Rate | Quota


@dataclass(frozen=True, slots=True)
class CountedCall:
    """What calls are told apart by. Subjects are counted within their tenant: two of one name never share a count."""

    principal: Principal
    tool: str
    catalogue: str
    fingerprint: str = ""
    amounts: Mapping[str, int] = field(default_factory=dict)
    """What it counts for quotas of amounts, by rule, in millionths."""

    def amount(self, quota: Quota) -> int:
        """What it counts for a quota when it is taken."""
        if quota.counts == "amounts":
            return self.amounts[quota.rule]
        return 1 if quota.counts == "calls" else 0


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A limit that does not let a call through, and how long it will not if nobody else calls meanwhile."""

    limit: Limit
    retry_after: timedelta


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of one call: counted by every limit in `taken`, or by none because of those in `exceeded`.

    `observed` are limits that would have refused if they were enforced; they have not counted the call.
    """

    exceeded: tuple[Exceeded, ...] = ()
    observed: tuple[Exceeded, ...] = ()
    taken: tuple[Limit, ...] = ()
    at: datetime | None = None
    """When quotas counted it, which is part of giving it back to the right window."""

    @property
    def allowed(self) -> bool:
        return not self.exceeded

    @property
    def retry_after(self) -> timedelta | None:
        """When all that refused would let it through; `None` for a call that was let through."""
        return max((each.retry_after for each in self.exceeded), default=None)


class Limits(Protocol):
    """Counts calls over all processes that serve together. Whatever cannot be counted raises `StoreUnavailable`."""

    async def take(self, limits: Sequence[Limit], call: CountedCall) -> Taken:
        """Count a call by all its limits or by none; each rule is named once. To be asked when all else allows.

        Quotas have counted durably when this returns. A call that rates refuse is not shown to quotas.
        """
        ...

    async def give_back(self, taken: Taken, call: CountedCall) -> None:
        """Take back what was counted for a call that did not run after all. To be called once at most."""
        ...

    async def charge(self, quotas: Sequence[Quota], call: CountedCall, amount: int) -> None:
        """Count what is only known when the call has run, such as its bytes; nothing is refused any more."""
        ...

    async def prune(self, *, kept: timedelta | None = None) -> int:
        """Remove counts of windows that have been over for longer than `kept`; how many went."""
        ...

    def close(self) -> None: ...


class LimitExceeded(Refused):
    """What the model reads. `seconds` is what is left to wait, rounded up, and stands in the message."""

    code = "E_QUOTA_EXCEEDED"
    status = 429
    default_message = "too many calls"

    def __init__(self, exceeded: Exceeded) -> None:
        limit = exceeded.limit
        kind = "rate" if isinstance(limit, Rate) else "quota"
        self.seconds = max(1, ceil(exceeded.retry_after.total_seconds()))
        what = f"{limit.limit} calls" if isinstance(limit, Rate) or limit.counts == "calls" else f"{limit.limit} in all"
        super().__init__(
            f"the {kind} {limit.rule!r} lets {what} through per {written(limit.per)}; try again in {self.seconds} s",
            help="wait, or make fewer calls",
        )
        self.retry_after = exceeded.retry_after


def written(per: timedelta) -> str:
    seconds = per.total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:g}s"
