"""When the time of a call is up, and that it stands still while the call waits for its caller.

A deadline is there for backends that hang, not for people who think. How long they may take in all is bounded, too.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

LONGEST_PAUSES: Final = 1800.0
"""Seconds that a call may wait for its caller before its time runs again: three questions of ten minutes each."""


class Deadline:
    """`at` is by the clock. `was_waiting`: it was up before the backend was reached. `outer` is one further out.

    `scope` is what ends the call then, once it waits for anything.
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
        self._pauses = LONGEST_PAUSES

    @property
    def left(self) -> float:
        """Seconds until it ends the call, if the call goes on waiting as it does."""
        return max(self.at - self._clock(), 0.0) + (self._pauses if self._waits else 0.0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time of the call stands still. Must be used in the event loop of the call."""
        self._pause()
        try:
            yield
        finally:
            self._go_on()

    def _pause(self) -> None:
        if self.outer is not None:
            self.outer._pause()
        if not self._waits:
            self._began = self._clock()
        self._waits += 1
        self._reschedule()

    def _go_on(self) -> None:
        if self.outer is not None:
            self.outer._go_on()
        self._waits -= 1
        if not self._waits:
            paused = min(self._clock() - self._began, self._pauses)
            self._pauses -= paused
            self.at += paused
        self._reschedule()

    def _reschedule(self) -> None:
        if self.scope is not None and not self.scope.expired():
            self.scope.reschedule(asyncio.get_running_loop().time() + self.left)


_CURRENT: Final[ContextVar[Deadline | None]] = ContextVar("deadline", default=None)

current_deadline: Final = _CURRENT.get
set_deadline: Final = _CURRENT.set
reset_deadline: Final = _CURRENT.reset
