"""The end of a server: what was begun may finish, nothing new begins, and whatever is left is cut off with an answer.

It knows requests and calls as things that run; what they are about is not its business.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Final, Protocol

from gateway.runtime.admitting import Admission
from gateway.runtime.wire import CONNECTION
from gateway.web.edge import TASK, App, Receive, Scope, Send
from gateway.web.problems import problem_response

CUT_SECONDS: Final = 5.0
"""How long those that were cut off may take to write down what became of them."""

_POLL: Final = 0.02
_HEALTH: Final = frozenset({"/livez", "/readyz"})
_STREAM: Final = b"text/event-stream"
_REFUSAL: Final = problem_response(
    503,
    "the gateway is stopping",
    code="E_STOPPING",
    help="send the request again; another process or the next one takes it",
    headers={b"retry-after": b"1", b"connection": b"close", b"cache-control": b"no-store"},
)
_OVERLOADED: Final = tuple(
    problem_response(
        503,
        "the gateway has more requests than it can work on",
        code="E_OVERLOADED",
        help="wait as long as Retry-After says, then send the request again",
        headers={b"retry-after": b"%d" % seconds, b"cache-control": b"no-store"},
    )
    for seconds in (1, 2, 3)
)
"""One after the other, so that those who were refused together do not come back together."""

_REST_SECONDS: Final = 0.25
"""How long nothing is read from a client that was refused: those who do not wait cost those who do."""

_READ_CUT_OFF: Final = problem_response(
    503,
    "the gateway stopped before the request was answered",
    code="E_CUT_OFF",
    help="send the request again; another process or the next one takes it",
    headers={b"retry-after": b"1", b"connection": b"close", b"cache-control": b"no-store"},
)
_CALL_CUT_OFF: Final = problem_response(
    424,
    "the gateway stopped before the request was answered",
    code="E_CUT_OFF",
    help="look at the records of your calls before you send it again",
    headers={b"connection": b"close", b"cache-control": b"no-store"},
)
"""For whatever may have had an effect: a proxy that sees 503 would send it again."""
_READS: Final = frozenset({"GET", "HEAD"})


@dataclass(slots=True)
class Stopping:
    """Whether a stop was asked for; the second time it is meant at once."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    times: int = 0

    def ask(self) -> None:
        self.times += 1
        self.asked.set()


class Calls(Protocol):
    """Calls that run, with or without a request that waits for them."""

    def __len__(self) -> int: ...

    def cancel(self) -> None: ...


class Draining:
    """The data plane, wrapped: it counts what is being answered, and refuses everything once a stop was asked for."""

    def __init__(
        self, app: App, stopping: Stopping, refused: Callable[[str], None], admission: Admission | None = None
    ) -> None:
        """`refused` is told the method of every request that is not answered, because of the stop or for want of room.

        Without an admission nothing is refused: whoever passes something on has admitted it.
        """
        self._app = app
        self._admission = admission
        self._stopping = stopping
        self._refused = refused
        self._requests: dict[asyncio.Task[Any], _Request] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _HEALTH:
            await self._app(scope, receive, send)
            return
        if self._stopping.times:
            self._refused(scope["method"])
            await _REFUSAL(scope, receive, send)
            return
        admission = self._admission
        if admission is not None:
            if admission.active < admission.limit and not admission.queued:
                admission.active += 1
            elif not await admission.enter(scope):
                await self._turned_away(admission.refused, scope, receive, send)
                return
        request = _Request(scope["method"], send, admission)
        task = scope.get(TASK) or asyncio.current_task()
        assert task is not None  # noqa: S101 - servers run requests in tasks
        self._requests[task] = request
        try:
            await self._app(scope, receive, request.send)
        except asyncio.CancelledError:
            if not request.is_cut_off:
                raise
            if not request.has_begun:
                self._refused(scope["method"])
            await request.finish(scope, receive)
        finally:
            del self._requests[task]
            request.leave()
            if admission is not None and admission.queued:
                admission.learn(scope)

    async def _turned_away(self, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        self._refused(scope["method"])
        if self._stopping.times:
            await _REFUSAL(scope, receive, send)
            return
        connection = scope.get("state", {}).get(CONNECTION)
        if connection is not None:
            connection.rest_for(_REST_SECONDS)
        await _OVERLOADED[number % len(_OVERLOADED)](scope, receive, send)

    @property
    def is_busy(self) -> bool:
        """Whether anybody waits for an answer. Who only listens hears the end of it when the others are done."""
        return any(not request.only_listens for request in self._requests.values())

    @property
    def is_empty(self) -> bool:
        return not self._requests

    def cut_off(self) -> None:
        for task, request in tuple(self._requests.items()):
            request.is_cut_off = True
            task.cancel()


async def drained(planes: Sequence[Draining], calls: Calls, *, grace: timedelta, stopping: Stopping) -> bool:
    """Let what runs finish, for as long as the grace lasts and nobody asks twice; cut off the rest.

    Whether everything came to its own end.
    """

    def is_busy() -> bool:
        return any(plane.is_busy for plane in planes) or len(calls) > 0

    until = monotonic() + grace.total_seconds()
    while is_busy() and stopping.times < 2 and monotonic() < until:
        await asyncio.sleep(_POLL)
    is_done = not is_busy()
    for plane in planes:
        plane.cut_off()
    calls.cancel()
    await _until(lambda: all(plane.is_empty for plane in planes) and not len(calls), seconds=CUT_SECONDS)
    return is_done


async def _until(is_so: Callable[[], bool], *, seconds: float) -> None:
    until = monotonic() + seconds
    while not is_so() and monotonic() < until:
        await asyncio.sleep(_POLL)


class _Request:
    """One request that is being answered, and how far its answer is."""

    __slots__ = ("_admission", "_is_over", "_is_stream", "_method", "_send", "has_begun", "is_cut_off")

    def __init__(self, method: str, send: Callable[[Any], Awaitable[None]], admission: Admission | None = None) -> None:
        self.has_begun = self.is_cut_off = False
        self._is_over = self._is_stream = False
        self._admission = admission
        self._method = method
        self._send = send

    @property
    def only_listens(self) -> bool:
        return self._is_stream and self._method == "GET"

    def leave(self) -> None:
        """Give its place to the next."""
        if self._admission is not None:
            self._admission.leave()
            self._admission = None

    def send(self, message: Any) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.has_begun = True
            for name, value in message["headers"]:
                if name == b"content-type" and value.startswith(_STREAM):
                    self._is_stream = True
                    self.leave()  # from now on it waits for something else than for us
        elif not message.get("more_body", False):
            self._is_over = True
        return self._send(message)

    async def finish(self, scope: Scope, receive: Receive) -> None:
        """The end of an answer that was cut off. A stream ends whole; half a file must not look like one."""
        if not self.has_begun:
            response = _READ_CUT_OFF if self._method in _READS else _CALL_CUT_OFF
            await response(scope, receive, self._send)
        elif self._is_stream and not self._is_over:
            await self._send({"type": "http.response.body", "body": b""})
