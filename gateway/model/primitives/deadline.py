"""Deadlines of calls, and timestamps in microseconds.

A deadline is for backends that hang, not for people who think: it is paused (up to a limit) while a call waits for one.

Records store timestamps as microseconds since 1970. Datetimes are slower to create, so they are created on access.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Final

MAX_PAUSE_SECONDS: Final = 1800.0
"""Total seconds that a deadline can be paused: three questions of ten minutes each."""


class Deadline:
    """The deadline of a call: `at` is a time of `clock`, `outer` the enclosing deadline.

    `was_waiting`: the deadline passed before the backend was reached. `scope` is the timeout that cancels the call.
    """

    __slots__ = ("_began", "_clock", "_pauses", "_waits", "at", "outer", "scope", "was_waiting")

    def __init__(self, at: float, clock: Callable[[], float], outer: "Deadline | None" = None) -> None:
        self.at = at
        self.outer = outer
        self.scope: asyncio.Timeout | None = None
        self.was_waiting = False
        self._clock = clock
        self._waits = 0
        self._began = 0.0
        self._pauses = MAX_PAUSE_SECONDS

    @property
    def remaining_seconds(self) -> float:
        """Seconds until the deadline ends the call, including the pauses left if it is paused now."""
        return max(self.at - self._clock(), 0.0) + (self._pauses if self._waits else 0.0)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Pause the deadline and its outer ones inside the block. Must be used in the event loop of the call."""
        self._pause()
        try:
            yield
        finally:
            self._resume()

    def _pause(self) -> None:
        if self.outer is not None:
            self.outer._pause()
        if not self._waits:
            self._began = self._clock()
        self._waits += 1
        self._reschedule()

    def _resume(self) -> None:
        if self.outer is not None:
            self.outer._resume()
        self._waits -= 1
        if not self._waits:
            paused = min(self._clock() - self._began, self._pauses)
            self._pauses -= paused
            self.at += paused
        self._reschedule()

    def _reschedule(self) -> None:
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time() + self.remaining_seconds)


_CURRENT: Final[ContextVar[Deadline | None]] = ContextVar("deadline", default=None)

current_deadline: Final = _CURRENT.get
set_deadline: Final = _CURRENT.set
reset_deadline: Final = _CURRENT.reset

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def now_microseconds() -> int:
    """Microseconds since 1970."""
    return time_ns() // 1000


def to_microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // _MICROSECOND


def duration_microseconds(duration: timedelta) -> int:
    return duration // _MICROSECOND


def from_microseconds(microseconds: int) -> datetime:
    return EPOCH + microseconds * _MICROSECOND
