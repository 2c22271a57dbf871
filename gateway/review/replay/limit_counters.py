"""Counts of rates and quotas in memory, for one replay, with a clock that the replay sets.

The arithmetic is that of `gateway.policy`: token buckets and windows. Counts that no later call can see are dropped.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

from gateway.model import from_microseconds, to_microseconds
from gateway.policy import (
    ExceededLimit,
    Limit,
    LimitKey,
    LimitReservation,
    QuotaLimit,
    QuotaWindow,
    RateLimit,
    encode_limit_key,
    find_window,
)

_PRUNED_EVERY: Final = 100_000
"""Counters that are added before those that ended are dropped."""

_Counter = tuple[int, int]
"""The digest of a key, and the number of its window."""


class LimitCounters:
    """Implements `gateway.policy.LimitStore` without waiting.

    `complete_since` is the time from which every call is counted, in microseconds; `None` if nothing is missing.
    """

    def __init__(self, complete_since: int | None = None) -> None:
        self._complete_since = complete_since
        self._now = 0
        self._full_at: dict[int, int] = {}
        """When each bucket is full again, in nanoseconds."""
        self._used: dict[_Counter, int] = {}
        self._ends: dict[_Counter, int] = {}
        self._unsized: set[_Counter] = set()
        """Windows in which a call ran whose size is not known."""
        self._prune_at = _PRUNED_EVERY
        self.is_incomplete = False
        """Whether the last acquisition depends on calls that are not on record."""
        self.is_unsized = False
        """Whether it depends on the size of a result that is not on record."""

    def set_time(self, at: int) -> None:
        """Set the clock, in microseconds."""
        self._now = at

    async def acquire(self, limits: Sequence[Limit], call: LimitKey) -> LimitReservation:
        self.is_incomplete = self.is_unsized = False
        rates = [each for each in limits if isinstance(each, RateLimit)]
        refusing = self._check_rates(rates, call)
        if any(each.limit.enforced for each in refusing):  # such a call is not checked against quotas
            return _to_reservation(limits, refusing, None)
        at = from_microseconds(self._now)
        refusing += self._check_quotas([each for each in limits if isinstance(each, QuotaLimit)], call, at)
        result = _to_reservation(limits, refusing, at)
        for each in result.taken:
            self._count(each, call, at)
        if len(self._full_at) + len(self._used) >= self._prune_at:
            self._drop_ended()
        return result

    async def release(self, taken: LimitReservation, call: LimitKey) -> None:
        for each in taken.taken:
            if isinstance(each, RateLimit):
                key = _digest(each, call)
                if key in self._full_at:
                    self._full_at[key] -= each.bucket.interval
            elif taken.at is not None:
                counter = (_digest(each, call), find_window(taken.at, each.per).number)
                if counter in self._used:
                    self._used[counter] = max(0, self._used[counter] - call.amount(each))

    async def charge(self, quotas: Sequence[QuotaLimit], call: LimitKey, amount: int) -> None:
        at = from_microseconds(self._now)
        for each in quotas:
            self._add(each, call, find_window(at, each.per), amount)

    def charge_unknown(self, quotas: Sequence[QuotaLimit], call: LimitKey) -> None:
        """Note that a call ran whose bytes are not known."""
        at = from_microseconds(self._now)
        self._unsized.update((_digest(each, call), find_window(at, each.per).number) for each in quotas)

    async def prune(self, *, kept: timedelta | None = None) -> int:
        before = len(self._full_at) + len(self._used)
        self._drop_ended()
        return before - len(self._full_at) - len(self._used)

    def close(self) -> None:
        self._full_at.clear()
        self._used.clear()

    def _check_rates(self, rates: Sequence[RateLimit], call: LimitKey) -> list[ExceededLimit]:
        refusing = []
        now = self._now * 1000
        for each in rates:
            wait = each.bucket.wait_time(self._full_at.get(_digest(each, call), 0), now)
            if wait:
                refusing.append(ExceededLimit(each, timedelta(microseconds=-(-wait // 1000))))
            elif self._complete_since is not None and now - each.bucket.depth < self._complete_since * 1000:
                self.is_incomplete = True
        return refusing

    def _check_quotas(self, quotas: Sequence[QuotaLimit], call: LimitKey, at: datetime) -> list[ExceededLimit]:
        refusing = []
        for each in quotas:
            window = find_window(at, each.per)
            counter = (_digest(each, call), window.number)
            used = self._used.get(counter, 0)
            if each.is_lifted or (used < each.most and used + call.amount(each) <= each.most):
                begins = to_microseconds(window.end - each.per)
                self.is_incomplete |= self._complete_since is not None and begins < self._complete_since
                self.is_unsized |= counter in self._unsized
            else:
                refusing.append(ExceededLimit(each, window.end - at))
        return refusing

    def _count(self, limit: Limit, call: LimitKey, at: datetime) -> None:
        if isinstance(limit, RateLimit):
            key = _digest(limit, call)
            self._full_at[key] = limit.bucket.take(self._full_at.get(key, 0), self._now * 1000)
        else:
            self._add(limit, call, find_window(at, limit.per), call.amount(limit))

    def _add(self, quota: QuotaLimit, call: LimitKey, window: QuotaWindow, amount: int) -> None:
        counter = (_digest(quota, call), window.number)
        self._used[counter] = self._used.get(counter, 0) + amount
        self._ends[counter] = to_microseconds(window.end)

    def _drop_ended(self) -> None:
        now = self._now
        self._full_at = {key: full_at for key, full_at in self._full_at.items() if full_at > now * 1000}
        self._ends = {counter: end for counter, end in self._ends.items() if end > now}
        self._used = {counter: used for counter, used in self._used.items() if counter in self._ends}
        self._unsized &= self._ends.keys()
        self._prune_at = 2 * (len(self._full_at) + len(self._used)) + _PRUNED_EVERY


def _to_reservation(
    limits: Sequence[Limit], refusing: Sequence[ExceededLimit], at: datetime | None
) -> LimitReservation:
    exceeded = tuple(each for each in refusing if each.limit.enforced)
    observed = tuple(each for each in refusing if not each.limit.enforced)
    if exceeded:
        return LimitReservation(exceeded, observed)
    against = {id(each.limit) for each in observed}
    return LimitReservation((), observed, tuple(each for each in limits if id(each) not in against), at)


def _digest(limit: Limit, call: LimitKey) -> int:
    return int.from_bytes(blake2b(encode_limit_key(limit, call), digest_size=8).digest(), "little")
