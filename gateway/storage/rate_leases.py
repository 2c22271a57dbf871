"""Leases of rate buckets: calls that one process may count in memory, because a shared store has counted them already.

A lease moves a bucket ahead by several calls at once. `reserved` is the time at which the store says that the bucket is
full again, `full_at` the same for the calls that were really made. The next call is counted in memory if `full_at`
stays within `reserved`.

- All processes together never admit more than the limit: each call moves `full_at` as it would move the bucket itself,
  so a reserved call that is not made in time is gone when the bucket has refilled. It cannot be saved for a burst.
- A process that alone uses a bucket is refused exactly where it would be without leases: what it did not use goes back
  to the store before the next lease is made.

A refusal is believed for a moment, too, so that a caller who goes on is refused in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from gateway.policy import ExceededLimit, LimitReservation, RateLimit, TokenBucket

IDLE_AFTER: Final = 100_000_000
"""Nanoseconds after which an unused lease is returned. The next lease is twice as large as one that did not last so
long, so that it is about what the process has needed in that time.
"""

_REMEMBERED_FOR: Final = 1_000_000_000
"""Nanoseconds for which the size of the last lease counts."""

BELIEVED_FOR: Final = 20_000_000
"""Nanoseconds for which a refusal holds without another look: other processes may have returned a lease since."""

MOST_LEASES: Final = 4096
_PART_ALONE: Final = 10
_PART_SHARED: Final = 100
"""A lease is at most that part of a bucket, which a process uses alone or which others use, too."""


@dataclass(slots=True)
class BucketLease:
    full_at: int = 0
    reserved: int = 0
    calls: int = 0
    leased_at: int = 0
    used_at: int = 0
    refused_at: int = -BELIEVED_FOR
    refused_full_at: int = 0

    def count_unused(self, now: int) -> int:
        """Return the part of the lease that can be returned, as time."""
        return max(0, self.reserved - max(self.full_at, now))


class RateLeases:
    def __init__(self) -> None:
        self._leases: dict[bytes, BucketLease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, rates: Sequence[RateLimit], keys: Sequence[bytes], now: int) -> LimitReservation | None:
        """Count a call in memory; `None` if that needs the store."""
        refusing: list[ExceededLimit] = []
        used: list[tuple[BucketLease, int]] = []
        for rate, key in zip(rates, keys, strict=True):
            lease = self._leases.get(key)
            if lease is None:
                return None
            bucket = rate.bucket
            full_at = max(lease.full_at, now) + bucket.interval
            if full_at <= lease.reserved:
                used.append((lease, full_at))
                continue
            wait = bucket.wait_time(lease.refused_full_at, now)
            if not wait or not 0 <= now - lease.refused_at < BELIEVED_FOR:
                return None
            refusing.append(ExceededLimit(rate, round_up(wait)))
        result = to_reservation(rates, refusing)
        if result.is_allowed:
            for lease, full_at in used:
                lease.full_at, lease.used_at = full_at, now
        return result

    def give_back(self, key: bytes, bucket: TokenBucket, now: int) -> bool:
        """Give a call back to the lease; false if it must go to the store, and the lease is over."""
        lease = self._leases.get(key)
        if lease is None or lease.calls < 2 or lease.reserved <= now:
            self._leases.pop(key, None)
            return False
        lease.full_at -= bucket.interval
        lease.refused_at = -BELIEVED_FOR
        return True

    def count_unused(self, key: bytes, now: int) -> int:
        lease = self._leases.get(key)
        return 0 if lease is None else lease.count_unused(now)

    def refuse(self, key: bytes, full_at: int, now: int) -> None:
        """Remember that the store refused a call."""
        lease = self._leases.setdefault(key, BucketLease())
        lease.refused_full_at, lease.refused_at, lease.used_at = full_at, now, now

    def build(self, key: bytes, rate: RateLimit, *, stored: int, full_at: int, now: int) -> BucketLease:
        """Return the next lease of a bucket that allows a call now, with this call made.

        `stored` is when the store says the bucket is full, `full_at` the same without the rest of the lease before.
        """
        bucket, earlier, calls = rate.bucket, self._leases.get(key), 1
        first = bucket.take(full_at, now)
        if earlier is not None and now - earlier.leased_at < _REMEMBERED_FOR:
            is_shared = stored > max(earlier.reserved, now)
            size = min(bucket.depth // bucket.interval, rate.limit)
            left = 1 + (now + bucket.depth - first) // bucket.interval
            part = size // (_PART_SHARED if is_shared else _PART_ALONE)
            wanted = earlier.calls * (2 if now - earlier.leased_at < IDLE_AFTER else 1)
            calls = max(1, min(wanted, part, left))
        return BucketLease(first, first + (calls - 1) * bucket.interval, calls, leased_at=now, used_at=now)

    def add(self, leases: Iterable[tuple[bytes, BucketLease]]) -> None:
        self._leases.update(leases)

    def pop_idle(self, now: int) -> Iterator[tuple[bytes, int]]:
        """Remove the leases that are not used any more. Yield the keys of those with a rest, and the rest."""
        return self._pop([key for key, lease in self._leases.items() if now - lease.used_at >= IDLE_AFTER], now)

    def pop_all(self, now: int) -> Iterator[tuple[bytes, int]]:
        return self._pop(list(self._leases), now)

    def clear(self) -> None:
        self._leases.clear()

    def _pop(self, keys: Iterable[bytes], now: int) -> Iterator[tuple[bytes, int]]:
        for key in keys:
            unused = self._leases.pop(key).count_unused(now)
            if unused:
                yield key, unused


def to_reservation(rates: Sequence[RateLimit], refusing: Sequence[ExceededLimit]) -> LimitReservation:
    """Return the result for a call by the limits that refuse it."""
    if not refusing:
        return LimitReservation((), (), tuple(rates))
    exceeded = tuple([each for each in refusing if each.limit.enforced])
    observed = tuple([each for each in refusing if not each.limit.enforced])
    if exceeded:
        return LimitReservation(exceeded, observed)
    against = {each.limit.rule for each in observed}
    return LimitReservation((), observed, tuple([rate for rate in rates if rate.rule not in against]))


def round_up(nanoseconds: int) -> timedelta:
    return timedelta(microseconds=-(-nanoseconds // 1000))
