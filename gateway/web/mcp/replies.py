"""The answer to one POST: plain JSON, unless something has to be told before the answer is there.

The first message that comes earlier, or a long silence, turns the answer into a stream. Until then an error can still
have its own HTTP status.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from gateway.web.edge import Receive
from gateway.web.mcp.streams import Send, Stream, end_stream, start_stream

SILENCE: Final = 10.0
"""Seconds after which an answer is given as a stream, so that nothing on the way takes the connection for dead."""
WATCH_AFTER: Final = 0.05
"""Seconds after which, or twice that, somebody looks whether the client is there: what is over by then needs nobody."""

_MOST_WAITING: Final = 64
_NO_HEADERS: Final[Mapping[bytes, bytes]] = {}


class Reply:
    _receive: Receive
    _task: asyncio.Task[Any] | None = None
    _is_left = False

    def __init__(
        self, send: Send, open: Callable[[], Stream] | None = None, headers: Mapping[bytes, bytes] = _NO_HEADERS
    ) -> None:
        """`open` gives the stream, if the client takes one."""
        self._send = send
        self._open = open
        self._headers = headers
        self._stream: Stream | None = None
        self._pump: asyncio.Task[None] | None = None
        self._watch: _Watch | None = None
        self.is_error = False
        """Whether the result that is answered says that a tool failed or refused."""

    @property
    def can_stream(self) -> bool:
        return self._open is not None

    @property
    def stream(self) -> Stream | None:
        return self._stream

    def begin(self) -> Stream | None:
        """Make it a stream now."""
        if self._stream is None and self._open is not None:
            self._stream = self._open()
            self._pump = asyncio.create_task(self._pumped(self._stream, self._stream.take()))
        return self._stream

    def say(self, message: bytes, *, can_be_dropped: bool = False) -> bool:
        """Send a message ahead of the answer; whether there was a way to."""
        stream = self.begin()
        if stream is None or (can_be_dropped and stream.backlog > _MOST_WAITING):
            return False
        stream.put(message)
        return True

    async def answer(self, message: bytes, *, status: int = 200) -> None:
        """The last thing that is sent."""
        if self._stream is None or self._pump is None:
            length = str(len(message)).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", length), *self._headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": message})
            return
        self._stream.put(message, final=True)
        await self._pump

    def watch(self, receive: Receive, task: "asyncio.Task[Any]") -> None:
        """Have the task cancelled if the client goes away; the reply explains that then."""
        self._task = task
        self._receive = receive
        _ROUNDS.add(self, task.get_loop())

    def look(self) -> None:
        self._watch = _Watch(self._receive, self._leave, self.begin)

    def unwatch(self) -> None:
        _ROUNDS.remove(self)
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def explains(self, error: BaseException) -> bool:
        """Whether it is nothing but that the client has gone."""
        is_ours = self._is_left and isinstance(error, asyncio.CancelledError)
        return is_ours and self._task is not None and not self._task.uncancel()

    def _leave(self) -> None:
        self._is_left = True
        if self._task is not None:
            self._task.cancel()

    async def finished(self) -> None:
        """Wait until a stream that has ended was sent."""
        if self._pump is not None:
            await self._pump

    async def abandon(self) -> None:
        """Nobody is there any more: stop, and send nothing."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    async def _pumped(self, stream: Stream, reader: int) -> None:
        session = self._headers.get(b"mcp-session-id")
        await start_stream(self._send, session=session.decode() if session else None)
        await stream.pump(self._send, reader)
        await end_stream(self._send)


class Presence:
    """Tells when the client of a request has gone, and when it has heard nothing for long.

    It begins to look only after a moment: most requests are answered by then.
    """

    _watch: "_Watch | None" = None

    def __init__(self, receive: Receive, gone: Callable[[], None], silent: Callable[[], object] | None = None) -> None:
        self._receive = receive
        self._gone = gone
        self._silent = silent
        _ROUNDS.add(self, asyncio.get_running_loop())

    def look(self) -> None:
        self._watch = _Watch(self._receive, self._gone, self._silent)

    def stop(self) -> None:
        _ROUNDS.remove(self)
        if self._watch is not None:
            self._watch.stop()


class _Watch:
    """Looks for whether a client is there, from now on."""

    _timer: asyncio.TimerHandle | None = None

    def __init__(self, receive: Receive, gone: Callable[[], None], silent: Callable[[], object] | None) -> None:
        self._task = asyncio.create_task(self._watched(receive, gone))
        if silent is not None:
            self._timer = asyncio.get_running_loop().call_later(SILENCE, silent)

    def stop(self) -> None:
        self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()

    async def _watched(self, receive: Receive, gone: Callable[[], None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()


class _Waiting(Protocol):
    def look(self) -> None: ...


class _Rounds:
    """Has those look that were there a round ago and still are: one timer for all, as most are over by then."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._round = 0
        self._waiting: dict[_Waiting, int] = {}
        """Each with the round it came in. Nothing is kept of what is over: it would be cold when somebody looked."""

    def add(self, waiting: _Waiting, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:  # the first of a loop; rounds of a loop that has ended never come
            self._loop, self._waiting = loop, {}
            loop.call_later(WATCH_AFTER, self._go_round)
        self._waiting[waiting] = self._round

    def remove(self, waiting: _Waiting) -> None:
        self._waiting.pop(waiting, None)

    def _go_round(self) -> None:
        late = [each for each, came in self._waiting.items() if came < self._round]
        self._round += 1
        for each in late:
            del self._waiting[each]
            each.look()
        if self._waiting:
            asyncio.get_running_loop().call_later(WATCH_AFTER, self._go_round)
        else:
            self._loop = None


_ROUNDS: Final = _Rounds()
