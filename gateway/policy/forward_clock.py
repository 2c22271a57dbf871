"""A clock that never goes back: what has ended in a process stays ended if the host's clock is set back."""

from collections.abc import Callable
from datetime import datetime
from threading import Lock
from typing import Final

from gateway.model import now


class ForwardClock:
    """Returns the latest moment that its clock has shown. May be read from any number of threads."""

    def __init__(self, clock: Callable[[], datetime] = now) -> None:
        self._clock = clock
        self._latest = clock()
        self._lock = Lock()

    def __call__(self) -> datetime:
        moment = self._clock()
        if moment > self._latest:
            with self._lock:
                self._latest = max(moment, self._latest)
        return self._latest


forward_now: Final = ForwardClock()
"""The clock of this process for everything that ends; a reload keeps it."""
