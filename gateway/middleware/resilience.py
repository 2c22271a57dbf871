"""Stages for backends that hang, fail or drown: a deadline, another attempt, a circuit breaker, a bulkhead.

Only `BackendFailed` and its word are looked at. Clock, randomness and pauses are passed in; what a tool is, and
whether it may be run twice, is decided by whoever builds the chain.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import CoroutineType
from typing import Any, Final, Literal

from gateway.core.beginning import Begun, Done
from gateway.core.deadlines import Deadline, current_deadline, reset_deadline, set_deadline
from gateway.governance.ports import BackendFailed, ErrorWord, Invocation
from gateway.middleware.chain import Run

Clock = Callable[[], float]
CircuitState = Literal["closed", "open", "half-open"]

QUEUED_PER_SLOT: Final = 2
LONGEST_PAUSE: Final = timedelta(seconds=30)


class NotAsked(BackendFailed):
    """The backend was spared: it is resting, or too many calls are waiting for it already.

    That says nothing about how it is, so no stage counts it as a failure or tries again because of it.
    """

    code = "E_BACKEND_NOT_ASKED"
    status = 503

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__("unavailable", message)
        self.retry_after = retry_after


class Crowded(NotAsked):
    """More calls wait for the backend than may."""

    status = 429


class Timeout:
    """A deadline for all that the stage wraps, bytes that trickle in included. The shorter of several limits counts.

    It stands still while a tool waits for an answer of its caller.
    """

    def __init__(self, after: timedelta, *shorter: timedelta | None, clock: Clock) -> None:
        self.after = min([after, *(each for each in shorter if each is not None)])
        self._seconds = self.after.total_seconds()
        self._clock = clock

    async def __call__(self, call: Invocation, run: Run) -> Any:
        deadline = Deadline(self._clock() + self._seconds, self._clock, current_deadline())
        token = set_deadline(deadline)
        try:
            begun = run(call)
            if type(begun) is Done:
                return begun.value
            running = Begun(begun if isinstance(begun, CoroutineType) else _awaited(begun))
            return running.value if running.is_over else await self._in_time(running, deadline)
        finally:
            reset_deadline(token)

    async def _in_time(self, running: Begun[Any], deadline: Deadline) -> Any:
        try:
            async with asyncio.timeout(deadline.left) as scope:
                deadline.scope = scope
                return await running
        except TimeoutError as error:
            if not scope.expired():  # somebody else's
                raise
            raise BackendFailed("unavailable", f"no answer within {in_seconds(self.after)}") from error
        finally:
            deadline.scope = None  # whatever the call has left behind may still ask somebody


class Retry:
    """Other attempts after failures for certain causes, after a random pause of up to `delay`, twice that, and so on.

    A call that is not safe to repeat, or that has begun to keep bytes, has one attempt; so has one whose pause would
    last past its deadline. `random` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        attempts: int,
        causes: Collection[ErrorWord],
        *,
        is_safe: bool,
        delay: timedelta,
        clock: Clock,
        random: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._attempts = attempts if is_safe else 1
        self._causes = frozenset(causes)
        self._delay = delay
        self._clock = clock
        self._random = random
        self._sleep = sleep

    async def __call__(self, call: Invocation, run: Run) -> Any:
        has_kept = False

        def keep(content: Any) -> Any:
            nonlocal has_kept
            has_kept = True
            return call.keep(content)

        watched = replace(call, keep=keep)
        for attempt in range(1, self._attempts):
            try:
                return await run(watched)
            except BackendFailed as failure:
                pause = self._pause(attempt)
                if has_kept or not self._may_help(failure) or not self._is_in_time(pause):
                    raise
            await self._sleep(pause)
        return await run(watched)

    def _may_help(self, failure: BackendFailed) -> bool:
        return failure.word in self._causes and not isinstance(failure, NotAsked)

    def _pause(self, attempt: int) -> float:
        longest = min(self._delay * (1 << attempt - 1), LONGEST_PAUSE)
        return longest.total_seconds() * self._random()

    def _is_in_time(self, pause: float) -> bool:
        deadline = current_deadline()
        return deadline is None or self._clock() + pause < deadline.at


class CircuitBreaker:
    """Stops asking a backend that keeps failing: closed, then open, then half-open with a single call as its probe.

    A failure is `unavailable`, or a deadline that passed while the backend was at work; whatever else it answers shows
    that it is there. Calls that began before the state changed do not change it again.
    """

    def __init__(self, open_after: int, *, within: timedelta, probe_after: timedelta, clock: Clock) -> None:
        self._open_after = open_after
        self._within = within.total_seconds()
        self._probe_after = probe_after.total_seconds()
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=open_after)
        self._opened_at: float | None = None
        self._is_probing = False
        self._era = 0

    @property
    def state(self) -> CircuitState:
        if self._opened_at is None:
            return "closed"
        return "half-open" if self._is_probing or self._rest() <= 0 else "open"

    async def __call__(self, call: Invocation, run: Run) -> Any:
        self.refuse()
        era = self._era
        is_probe = self._is_probing = self.state == "half-open"
        is_down: bool | None = None
        try:
            result = await run(call)
            is_down = False
        except NotAsked:
            raise
        except BackendFailed as failure:
            is_down = failure.word == "unavailable"
            raise
        except asyncio.CancelledError:
            is_down = True if _ran_out_of_time() else None
            raise
        except Exception:
            is_down = False
            raise
        finally:
            if is_probe:
                self._is_probing = False
            if era == self._era:
                self._learn(is_down)
        return result

    def refuse(self) -> None:
        """Raise `NotAsked` while the circuit is open."""
        if self._opened_at is None:
            return
        rest = self._rest()
        if rest > 0 or self._is_probing:
            wait = timedelta(seconds=max(rest, 0) or self._probe_after)
            message = f"the backend keeps failing and is not asked for a while; try again in {in_seconds(wait)}"
            raise NotAsked(message, retry_after=wait)

    def _rest(self) -> float:
        """Seconds until an open circuit may be probed."""
        return (self._opened_at or 0) + self._probe_after - self._clock()

    def _learn(self, is_down: bool | None) -> None:
        if is_down:
            self._count()
        elif is_down is False and self._opened_at is not None:
            self._opened_at = None
            self._era += 1

    def _count(self) -> None:
        now = self._clock()
        self._failures.append(now)
        is_too_often = len(self._failures) == self._open_after and now - self._failures[0] <= self._within
        if self._opened_at is not None or is_too_often:
            self._opened_at = now
            self._era += 1
            self._failures.clear()


class Concurrency:
    """A bulkhead: so many calls run at once, twice as many wait in line, and more are refused at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def running(self) -> int:
        return self.limit - self._free

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def __call__(self, call: Invocation, run: Run) -> Any:
        await self._enter()
        try:
            return await run(call)
        finally:
            self._leave()

    def refuse(self) -> None:
        """Raise `Crowded` while no further call may wait."""
        if len(self._line) >= QUEUED_PER_SLOT * self.limit:
            raise Crowded(f"{self.limit} calls are running and {len(self._line)} are waiting; try again later")

    async def _enter(self) -> None:
        if self._free:  # a slot is only ever free while nobody waits for one
            self._free -= 1
            return
        self.refuse()
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # whoever left last may have dropped it
                    self._line.remove(turn)
            else:  # the slot was handed over in the same moment
                self._leave()
            if deadline := current_deadline():
                deadline.was_waiting = True
            raise

    def _leave(self) -> None:
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def in_seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g}s"


def _ran_out_of_time() -> bool:
    """Whether a cancellation is that of the deadline, while the backend was at work; clients cancel, too."""
    deadline = current_deadline()
    if deadline is None or deadline.scope is None:
        return False
    return deadline.scope.expired() and not deadline.was_waiting


async def _awaited(running: Awaitable[Any]) -> Any:
    return await running
