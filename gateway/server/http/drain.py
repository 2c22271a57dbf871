"""Shutdown: running requests and calls may finish, new ones are refused, and the rest is cut off with a response."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic, perf_counter
from typing import Any, Final, Protocol

from gateway.engine import CallMeter
from gateway.server.http.admission import AdmissionControl
from gateway.server.http.asgi import SCOPE_STARTED, SCOPE_TASK, AsgiApp, Receive, Scope, Send, problem_response
from gateway.server.http.http1_protocol import SCOPE_CONNECTION
from gateway.server.http.served_response import ServedResponse

ABORT_SECONDS: Final = 5.0
"""Seconds that requests and calls that were cut off may take to record their outcome."""

_POLL: Final = 0.02
_HEALTH: Final = frozenset({"/livez", "/readyz"})
_REFUSAL: Final = problem_response(
    503,
    "the gateway is stopping",
    code="E_STOPPING",
    help="send the request again; another process or the restarted one answers it",
    headers={b"retry-after": b"1", b"connection": b"close", b"cache-control": b"no-store"},
)
_OVERLOADED: Final = tuple(
    problem_response(
        503,
        "the gateway has more requests than it can work on",
        code="E_OVERLOADED",
        help="wait for the seconds in Retry-After, then send the request again",
        headers={b"retry-after": b"%d" % seconds, b"cache-control": b"no-store"},
    )
    for seconds in (1, 2, 3)
)
"""Used in rotation, so that callers refused at the same time do not retry at the same time."""

_REST_SECONDS: Final = 0.25
"""Seconds for which nothing is read from a refused client: clients that retry at once would slow down the others."""

_READ_CUT_OFF: Final = problem_response(
    503,
    "the gateway stopped before the request was answered",
    code="E_CUT_OFF",
    help="send the request again; another process or the restarted one answers it",
    headers={b"retry-after": b"1", b"connection": b"close", b"cache-control": b"no-store"},
)
_CALL_CUT_OFF: Final = problem_response(
    424,
    "the gateway stopped before the request was answered",
    code="E_CUT_OFF",
    help="check the records of your calls before you send it again",
    headers={b"connection": b"close", b"cache-control": b"no-store"},
)
"""For requests that may have had an effect: a proxy would send them again after 503."""
_READS: Final = frozenset({"GET", "HEAD"})


@dataclass(slots=True)
class ShutdownSignal:
    """Records how often a stop was requested; the second request ends the grace period."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    times: int = 0

    def request(self) -> None:
        self.times += 1
        self.asked.set()


class CancellableCalls(Protocol):
    """The running calls, with or without a request that waits for them."""

    def __len__(self) -> int: ...

    def cancel(self) -> None: ...


class DrainMiddleware:
    """Tracks the requests in progress, admits new ones, and refuses all of them once a stop was requested."""

    def __init__(
        self,
        app: AsgiApp,
        stopping: ShutdownSignal,
        refused: Callable[[str], None],
        admission: AdmissionControl | None = None,
        meter: CallMeter | None = None,
    ) -> None:
        """`refused` is called with the method of every request that is refused or cut off.

        `meter` counts all other responses with a status of 400 or more. Without `admission`, no request is refused for
        load: the process that forwarded it has admitted it already.
        """
        self._app = app
        self._admission = admission
        self._meter = meter
        self._stopping = stopping
        self._refused = refused
        self._requests: dict[asyncio.Task[Any], tuple[str, ServedResponse]] = {}
        """Methods and responses of the requests in progress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in _HEALTH:
            await self._app(scope, receive, ServedResponse(send, meter=self._meter).send)
            return
        if self._stopping.times:
            self._refused(scope["method"])
            await _REFUSAL(scope, receive, send)
            return
        admission = self._admission
        if admission is not None:
            if admission.active < admission.limit and not admission.queued:
                admission.active += 1
            elif not await admission.acquire(scope):
                await self._refuse_overload(admission.refused, scope, receive, send)
                return
        scope[SCOPE_STARTED] = perf_counter()
        method, response = scope["method"], ServedResponse(send, admission, self._meter)
        task = scope.get(SCOPE_TASK) or asyncio.current_task()
        assert task is not None  # noqa: S101 - servers run requests in tasks
        self._requests[task] = method, response
        try:
            await self._app(scope, receive, response.send)
        except asyncio.CancelledError:
            if not response.is_cut_off:
                raise
            if not response.status:
                self._refused(method)
            await response.cut_off(_READ_CUT_OFF if method in _READS else _CALL_CUT_OFF, scope, receive)
        finally:
            del self._requests[task]
            response.release()
            if admission is not None and admission.queued:
                admission.set_tenant(scope)

    async def _refuse_overload(self, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        self._refused(scope["method"])
        if self._stopping.times:
            await _REFUSAL(scope, receive, send)
            return
        connection = scope.get("state", {}).get(SCOPE_CONNECTION)
        if connection is not None:
            connection.pause_reading(_REST_SECONDS)
        await _OVERLOADED[number % len(_OVERLOADED)](scope, receive, send)

    @property
    def is_busy(self) -> bool:
        """Whether a client waits for a response. GET event streams do not count: they end after all others."""
        return any(method != "GET" or not response.is_stream for method, response in self._requests.values())

    @property
    def is_empty(self) -> bool:
        return not self._requests

    def abort(self) -> None:
        for task, (_, response) in tuple(self._requests.items()):
            response.is_cut_off = True
            task.cancel()


async def drain(
    planes: Sequence[DrainMiddleware], calls: CancellableCalls, *, grace: timedelta, stopping: ShutdownSignal
) -> bool:
    """Wait until nothing runs, the grace is over or a second stop is requested; then cut off the rest.

    Return whether everything finished by itself.
    """

    def is_busy() -> bool:
        return any(plane.is_busy for plane in planes) or len(calls) > 0

    until = monotonic() + grace.total_seconds()
    while is_busy() and stopping.times < 2 and monotonic() < until:
        await asyncio.sleep(_POLL)
    is_done = not is_busy()
    for plane in planes:
        plane.abort()
    calls.cancel()
    await _wait_until(lambda: all(plane.is_empty for plane in planes) and not len(calls), seconds=ABORT_SECONDS)
    return is_done


async def _wait_until(is_met: Callable[[], bool], *, seconds: float) -> None:
    until = monotonic() + seconds
    while not is_met() and monotonic() < until:
        await asyncio.sleep(_POLL)
