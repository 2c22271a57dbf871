"""A token bucket as one number: the moment at which it will be full again. A bucket that is full need not be kept.

Moments are nanoseconds of any clock that goes forwards. This is the generic cell rate algorithm: no refilling, no
rounding that adds up, and no call is let through before it is due.
"""

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from gateway.governance.limits import Rate

_NANOSECONDS = 1000


@dataclass(frozen=True, slots=True)
class Bucket:
    """`interval` is what one call costs, `depth` what an empty bucket lacks."""

    interval: int
    depth: int

    def wait(self, full_at: int, now: int) -> int:
        """How long the next call has to wait; 0 if it need not."""
        return max(0, self._believed(full_at, now) + self.interval - self.depth - now)

    def taken(self, full_at: int, now: int) -> int:
        """When it will be full again after one call now."""
        return max(self._believed(full_at, now), now) + self.interval

    def _believed(self, full_at: int, now: int) -> int:
        # Later than an empty bucket is full again: damaged, or the clock is another one. Nobody waits for that.
        return min(full_at, now + self.depth)


@lru_cache(maxsize=4096)
def bucket_of(rate: Rate) -> Bucket:
    per = rate.per // timedelta(microseconds=1) * _NANOSECONDS
    interval = max(1, -(-per // rate.limit))  # rounded up: never more than the limit
    return Bucket(interval, interval * (rate.burst or rate.limit))
