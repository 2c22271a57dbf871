"""Stages for backends that hang, fail or are overloaded: timeout, retry, circuit breaker, bulkhead.

They look only at `BackendError` and its word. Clock, randomness and pauses are passed in; the builder of the chain
decides what may be run twice.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import timedelta
from time import time_ns
from types import CoroutineType
from typing import Any, Final, Literal

from gateway.model import (
    BackendError,
    BackendErrorKind,
    CallPipeline,
    CompletedAwaitable,
    Deadline,
    EagerCoroutine,
    Invocation,
    current_deadline,
    reset_deadline,
    set_deadline,
)

Clock = Callable[[], float]
CircuitState = Literal["closed", "open", "half-open"]

QUEUED_PER_SLOT: Final = 2
MAX_RETRY_DELAY: Final = timedelta(seconds=30)


class CallRejected(BackendError):
    """The backend was not called: its circuit is open, or too many calls already wait for it.

    This is no evidence about the backend, so no stage counts it as a failure or retries because of it.
    """

    code = "E_BACKEND_NOT_ASKED"
    status = 503

    def __init__(self, message: str, *, retry_after: timedelta | None = None) -> None:
        super().__init__("unavailable", message)
        self.retry_after = retry_after


class BulkheadFull(CallRejected):
    """Too many calls wait for the backend."""

    status = 429


class Timeout:
    """A deadline for everything the stage wraps, including slow bytes. The shortest of several limits counts.

    It is paused while a tool waits for an answer of its caller.
    """

    def __init__(self, after: timedelta, *shorter: timedelta | None, clock: Clock) -> None:
        self.after = min([after, *(each for each in shorter if each is not None)])
        self._seconds = self.after.total_seconds()
        self._clock = clock

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        deadline = Deadline(self._clock() + self._seconds, self._clock, current_deadline())
        token = set_deadline(deadline)
        try:
            started = run(call)
            if type(started) is CompletedAwaitable:
                return started.value
            running = EagerCoroutine(started if isinstance(started, CoroutineType) else _to_coroutine(started))
            return running.value if running.is_over else await self._in_time(running, deadline)
        finally:
            reset_deadline(token)

    async def _in_time(self, running: EagerCoroutine[Any], deadline: Deadline) -> Any:
        try:
            async with asyncio.timeout(deadline.remaining_seconds) as scope:
                deadline.scope = scope
                return await running
        except TimeoutError as error:
            if not scope.expired():  # another timeout
                raise
            raise BackendError("unavailable", f"no answer within {to_seconds(self.after)}") from error
        finally:
            deadline.scope = None  # tasks that the call left behind may still ask the caller


class Retry:
    """Retries after failures with certain causes, after a random pause of up to `delay`, twice that, and so on.

    A call that is not safe to repeat, or that has begun to store bytes, has one attempt; so has one whose pause would
    last past its deadline. `random` returns numbers from 0 to 1.
    """

    def __init__(
        self,
        attempts: int,
        causes: Collection[BackendErrorKind],
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

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        has_kept = False

        def keep(content: Any) -> Any:
            nonlocal has_kept
            has_kept = True
            return call.keep(content)

        if self._attempts == 1:
            return await run(call)
        watched = call.with_keep(keep)
        for attempt in range(1, self._attempts):
            try:
                return await run(watched)
            except BackendError as failure:
                pause = self._pause(attempt)
                if has_kept or not self._may_help(failure) or not self._is_in_time(pause):
                    raise
            since = time_ns()
            await self._sleep(pause)
            if call.hops is not None:
                call.hops.record_step("retry", since=since)
        return await run(watched)

    def _may_help(self, failure: BackendError) -> bool:
        return failure.word in self._causes and not isinstance(failure, CallRejected)

    def _pause(self, attempt: int) -> float:
        longest = min(self._delay * (1 << attempt - 1), MAX_RETRY_DELAY)
        return longest.total_seconds() * self._random()

    def _is_in_time(self, pause: float) -> bool:
        deadline = current_deadline()
        return deadline is None or self._clock() + pause < deadline.at


class CircuitBreaker:
    """Stops calling a backend that keeps failing: closed, then open, then half-open with a single call as its probe.

    A failure is `unavailable`, or a deadline that passed while the backend was working; any other response shows that
    the backend is up. Calls that began before the state changed do not change it again.
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

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        is_probe = False
        if self._opened_at is not None:
            self.refuse()
            is_probe = self._is_probing = True
        era = self._era
        is_down: bool | None = None
        try:
            result = await run(call)
            is_down = False
        except CallRejected:
            raise
        except BackendError as failure:
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
        """Raise `CallRejected` while the circuit is open."""
        if self._opened_at is None:
            return
        rest = self._rest()
        if rest > 0 or self._is_probing:
            wait = timedelta(seconds=max(rest, 0) or self._probe_after)
            message = f"the backend keeps failing and is not asked for a while; try again in {to_seconds(wait)}"
            raise CallRejected(message, retry_after=wait)

    def _rest(self) -> float:
        """Return the seconds until an open circuit may be probed."""
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


class Bulkhead:
    """A bulkhead: `limit` calls run at once, twice as many wait in line, and further ones are refused."""

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

    async def __call__(self, call: Invocation, run: CallPipeline) -> Any:
        since = 0 if self._free else time_ns()
        await self._enter()
        if since and call.hops is not None:
            call.hops.record_step("queue", since=since)
        try:
            return await run(call)
        finally:
            self._leave()

    def refuse(self) -> None:
        """Raise `Crowded` if no further call may wait."""
        if len(self._line) >= QUEUED_PER_SLOT * self.limit:
            raise BulkheadFull(f"{self.limit} calls are running and {len(self._line)} are waiting; try again later")

    async def _enter(self) -> None:
        if self._free:  # a slot is free only while no call waits for one
            self._free -= 1
            return
        self.refuse()
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):  # `_leave` may have removed it
                    self._line.remove(turn)
            else:  # the slot was handed over at the same moment
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


def to_seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g}s"


def _ran_out_of_time() -> bool:
    """Whether the deadline caused a cancellation while the backend was working; clients cancel, too."""
    deadline = current_deadline()
    if deadline is None or deadline.scope is None:
        return False
    return deadline.scope.expired() and not deadline.was_waiting


async def _to_coroutine(running: Awaitable[Any]) -> Any:
    return await running
