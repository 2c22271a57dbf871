"""Rates and quotas: plain data, the protocol of their store, and the limiter that applies all limits of a call.

A rate protects the system: a bucket that holds `burst` calls and refills evenly, `limit` in each `per`. A crash may
lose its count. A quota is a budget: at most `limit` calls in each window of length `per`, counted durably; or a sum of
an argument, or bytes of results. Windows ignore the calendar: they are counted from 1970-01-01 00:00 UTC, so a daily
window is a day in UTC and a weekly one begins on Thursday.

A token bucket is stored as one number, the time at which it will be full again; a full bucket need not be stored.
Times are nanoseconds of any monotonic clock. This is the generic cell rate algorithm: no refilling, no accumulated
rounding, and no call is allowed before it is due.

The key of a counter is bytes that are different for different lists of names, whatever the names contain.

Rates are checked first, because they cost nothing; then quotas, which write. This module knows neither files nor
databases: the stores are passed in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import ceil
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol

from gateway.errors import Refused
from gateway.model import Principal

CountBy = Literal["subject", "tenant", "tool", "catalogue", "call"]
"""`call` counts calls of one tool separately by their arguments."""

Counts = Literal["calls", "amounts", "bytes"]
MILLIONTHS: Final = 10**6
"""Amounts are counted in millionths, rounded up, so that sums are exact."""

LARGEST_AMOUNT: Final = 10**12


_NANOSECONDS: Final = 1000


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """`interval` is the cost of one call, `depth` the time that an empty bucket needs to be full."""

    interval: int
    depth: int

    def wait_time(self, full_at: int, now: int) -> int:
        """Return how long the next call has to wait; 0 if it need not."""
        return max(0, self._cap(full_at, now) + self.interval - self.depth - now)

    def take(self, full_at: int, now: int) -> int:
        """Return when the bucket will be full again after one call now."""
        return max(self._cap(full_at, now), now) + self.interval

    def _cap(self, full_at: int, now: int) -> int:
        # A later time than an empty bucket needs means damaged data or another clock: cap it, so that no call waits.
        return min(full_at, now + self.depth)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`rule` is the name of the rule it belongs to. If not `enforced`, it counts calls but refuses none."""

    rule: str
    limit: int
    per: timedelta
    burst: int | None = None
    by: tuple[CountBy, ...] = ("subject",)
    enforced: bool = True
    bucket: TokenBucket = field(init=False, repr=False, compare=False)
    key_prefix: str = field(init=False, repr=False, compare=False)
    """The part of the key of a counter that all calls share."""

    def __post_init__(self) -> None:
        per = self.per // timedelta(microseconds=1) * _NANOSECONDS
        interval = max(1, -(-per // self.limit))  # rounded up: never more than the limit
        object.__setattr__(self, "bucket", TokenBucket(interval, interval * (self.burst or self.limit)))
        numbers = f"rate {self.limit} {self.per} {self.burst}"
        object.__setattr__(self, "key_prefix", _frame_all(numbers, ",".join(self.by), self.rule))


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """A budget. A change of `limit` keeps the counts; a change of `per` or `by` starts new ones."""

    rule: str
    limit: int
    per: timedelta
    by: tuple[CountBy, ...] = ("subject",)
    enforced: bool = True
    counts: Counts = "calls"
    """What each call adds to the count. Bytes are only known after the call has run: `LimitStore.charge`."""
    is_lifted: bool = False
    """Whether calls beyond the limit are allowed, and counted: an approver agreed, or is asked."""
    key_prefix: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = f"quota {self.per}" if self.counts == "calls" else f"quota {self.per} {self.counts}"
        object.__setattr__(self, "key_prefix", _frame_all(numbers, ",".join(self.by), self.rule))

    @property
    def most(self) -> int:
        """The limit in the unit that is counted."""
        return self.limit * MILLIONTHS if self.counts == "amounts" else self.limit


Limit = RateLimit | QuotaLimit


NO_AMOUNTS: Final[Mapping[str, int]] = MappingProxyType({})


class LimitKey(NamedTuple):
    """The values that limits count by. Subjects are counted within their tenant: equal names never share a count."""

    principal: Principal
    tool: str
    catalogue: str
    fingerprint: str = ""
    amounts: Mapping[str, int] = NO_AMOUNTS
    """How much the call adds to quotas of amounts, by rule, in millionths."""

    def amount(self, quota: QuotaLimit) -> int:
        """Return how much the call adds to a quota when it is taken."""
        if quota.counts == "amounts":
            return self.amounts[quota.rule]
        return 1 if quota.counts == "calls" else 0


@dataclass(frozen=True, slots=True)
class ExceededLimit:
    """A limit that refuses a call, and for how long if there are no other calls meanwhile."""

    limit: Limit
    retry_after: timedelta

    @property
    def seconds(self) -> int:
        """The time left to wait, rounded up."""
        return max(1, ceil(self.retry_after.total_seconds()))


class LimitReservation(NamedTuple):
    """The result for one call: counted by every limit in `taken`, or by none because of those in `exceeded`.

    `observed` are limits that are not enforced but would have refused; they have not counted the call.
    """

    exceeded: tuple[ExceededLimit, ...] = ()
    observed: tuple[ExceededLimit, ...] = ()
    taken: tuple[Limit, ...] = ()
    at: datetime | None = None
    """When quotas counted the call; needed to give it back to the right window."""

    @property
    def is_allowed(self) -> bool:
        return not self.exceeded

    @property
    def retry_after(self) -> timedelta | None:
        """How long until no limit would refuse the call; `None` if it was allowed."""
        return max((each.retry_after for each in self.exceeded), default=None)


class LimitStore(Protocol):
    """Counts calls over all processes that serve together. Raises `StoreUnavailable` if a call cannot be counted."""

    async def acquire(self, limits: Sequence[Limit], call: LimitKey) -> LimitReservation:
        """Count a call by all its limits or by none; each rule occurs once. Call it after every other check allows.

        Quotas are counted durably when this returns. A call that a rate refuses is not checked against quotas.
        """
        ...

    async def release(self, taken: LimitReservation, call: LimitKey) -> None:
        """Take back the count of a call that did not run after all. Call it at most once."""
        ...

    async def charge(self, quotas: Sequence[QuotaLimit], call: LimitKey, amount: int) -> None:
        """Count what is only known after the call has run, such as its bytes; this refuses nothing."""
        ...

    async def prune(self, *, kept: timedelta | None = None) -> int:
        """Remove counts of windows that ended longer than `kept` ago; return how many."""
        ...

    def close(self) -> None: ...


class LimitExceeded(Refused):
    """The error for the model. `seconds`, the time left to wait, rounded up, is part of the message."""

    code = "E_QUOTA_EXCEEDED"
    status = 429
    default_message = "too many calls"

    def __init__(self, exceeded: ExceededLimit) -> None:
        limit = exceeded.limit
        kind = "rate" if isinstance(limit, RateLimit) else "quota"
        self.seconds = exceeded.seconds
        what = (
            f"{limit.limit} calls"
            if isinstance(limit, RateLimit) or limit.counts == "calls"
            else f"{limit.limit} in all"
        )
        super().__init__(
            f"the {kind} {limit.rule!r} lets {what} through per {format_period(limit.per)}; "
            f"try again in {self.seconds} s",
            help="wait, or make fewer calls",
        )
        self.retry_after = exceeded.retry_after


def format_period(per: timedelta) -> str:
    seconds = per.total_seconds()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds % length == 0:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds:g}s"


def encode_limit_key(limit: Limit, call: LimitKey) -> bytes:
    """Return the key of a counter. Its length grows with the names, so stores use a digest of it."""
    principal, by = call.principal, limit.by
    fingerprint = call.fingerprint if "call" in by else ""
    return _encode_key(
        limit.key_prefix, by, principal.tenant, principal.subject, call.tool, call.catalogue, fingerprint
    )


@lru_cache(maxsize=4096)  # most callers call again
def _encode_key(
    prefix: str,
    by: tuple[CountBy, ...],
    tenant: str | None,
    subject: str,
    tool: str,
    catalogue: str,
    fingerprint: str,
) -> bytes:
    parts: dict[CountBy, tuple[str | None, ...]] = {
        "subject": (tenant, subject),
        "tenant": (tenant,),
        "call": (tool, fingerprint),
        "tool": (tool,),
        "catalogue": (catalogue,),
    }
    return (prefix + "".join(_frame_all(*parts[each]) for each in by)).encode("utf-8", "surrogatepass")


def _frame_all(*names: str | None) -> str:
    return "".join("-" if name is None else f"{len(name)}:{name}" for name in names)


_NOTHING: Final = LimitReservation()


class RateStore(Protocol):
    """Counts rates in memory, without waiting; a crash may lose the counts."""

    def take(self, rates: Sequence[RateLimit], call: LimitKey) -> LimitReservation: ...

    def give_back(self, rates: Sequence[RateLimit], call: LimitKey) -> None: ...

    def close(self) -> None: ...


class QuotaStore(Protocol):
    """Counts quotas; its methods return when the counts are durable. A cancelled caller has taken nothing."""

    async def take(self, quotas: Sequence[QuotaLimit], call: LimitKey) -> LimitReservation: ...

    async def give_back(self, quotas: Sequence[QuotaLimit], call: LimitKey, *, at: datetime) -> None: ...

    async def charge(self, quotas: Sequence[QuotaLimit], call: LimitKey, amount: int) -> None: ...

    async def prune(self, *, kept: timedelta | None = None) -> int: ...


class Limiter:
    """A `LimitStore` over a store of rates and a store of quotas."""

    def __init__(self, rates: RateStore, quotas: QuotaStore) -> None:
        self._rates = rates
        self._quotas = quotas

    async def acquire(self, limits: Sequence[Limit], call: LimitKey) -> LimitReservation:
        rates = [limit for limit in limits if isinstance(limit, RateLimit)]
        by_rates = self._rates.take(rates, call) if rates else _NOTHING
        if by_rates.exceeded or len(rates) == len(limits):
            return by_rates
        quotas = [limit for limit in limits if isinstance(limit, QuotaLimit)]
        try:
            by_quotas = await self._quotas.take(quotas, call)
        except BaseException:
            self._give_back_rates(by_rates, call)
            raise
        observed = by_rates.observed + by_quotas.observed
        if not by_quotas.is_allowed:
            self._give_back_rates(by_rates, call)
            return LimitReservation(by_quotas.exceeded, observed)
        return LimitReservation((), observed, by_rates.taken + by_quotas.taken, by_quotas.at)

    async def release(self, taken: LimitReservation, call: LimitKey) -> None:
        self._give_back_rates(taken, call)
        quotas = [limit for limit in taken.taken if isinstance(limit, QuotaLimit)]
        if quotas and taken.at is not None:
            await self._quotas.give_back(quotas, call, at=taken.at)

    async def charge(self, quotas: Sequence[QuotaLimit], call: LimitKey, amount: int) -> None:
        await self._quotas.charge(quotas, call, amount)

    async def prune(self, *, kept: timedelta | None = None) -> int:
        return await self._quotas.prune(kept=kept)

    def close(self) -> None:
        self._rates.close()

    def _give_back_rates(self, taken: LimitReservation, call: LimitKey) -> None:
        rates = [limit for limit in taken.taken if isinstance(limit, RateLimit)]
        if rates:
            self._rates.give_back(rates, call)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QuotaWindow:
    number: int
    end: datetime


def find_window(at: datetime, per: timedelta) -> QuotaWindow:
    """Return the window of a time. If the clock is set back, the earlier window is found with its counts."""
    number = (at - _EPOCH) // per
    return QuotaWindow(number, _EPOCH + (number + 1) * per)
