"""The response to a request as middleware sees it, and the end of event streams whose caller is no longer authorized.

A stream is one request, so its caller was authenticated once, when it began. This module checks again: every second for
all streams, and before each piece of content. A revoked or expired token, an identity that was removed or has other
roles, and a principal in quarantine end the stream. The rest of the response is not sent, and the application receives
`http.disconnect`.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from gateway.engine import CallMeter
from gateway.errors import CredentialUnknown, Unauthenticated
from gateway.model import CompletedAwaitable, Principal
from gateway.server.http.admission import AdmissionControl
from gateway.server.http.asgi import Response

EVERY: Final = 1.0
"""Seconds between two checks of a stream on which nothing is sent."""

WITHIN: Final = 5.0
"""Seconds that a new verification of a credential may take; after that the stream ends."""

_STREAM: Final = b"text/event-stream"
_NAME_SIZE: Final = len(b"content-type")
"""Checked first, because it is cheap."""
_END: Final = {"type": "http.response.body", "body": b""}
_GONE: Final = {"type": "http.disconnect"}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Authenticate = Callable[[bytes | None], Awaitable[Principal]]
Recall = Callable[[bytes | None], Principal | None]
IsStopped = Callable[[Principal], bool]
"""Whether a principal is in quarantine, or that cannot be determined."""


class StreamWatch:
    """All event streams of an application, and the one timer that checks them."""

    def __init__(
        self, authenticate: Authenticate, recall: Recall, is_stopped: IsStopped, *, every: float = EVERY
    ) -> None:
        self._authenticate = authenticate
        self._recall = recall
        self._is_stopped = is_stopped
        self._every = every
        self._streams: set[ServedResponse] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: "ServedResponse") -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def remove(self, stream: "ServedResponse") -> None:
        self._streams.discard(stream)

    async def admits(self, principal: Principal, credential: bytes | None) -> bool:
        """Whether the credential still proves the same principal, and the principal is not stopped."""
        try:
            found = self._recall(credential)
            if found is None:
                async with asyncio.timeout(WITHIN):
                    found = await self._authenticate(credential)
        except (Unauthenticated, CredentialUnknown, TimeoutError):
            return False
        return found == principal and not self._is_stopped(principal)

    def _look(self) -> None:
        self._timer = None
        for stream in self._streams:  # one task each: a stream that waits for keys of an issuer holds up no other
            task = asyncio.ensure_future(stream.look())
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)
        if self._streams:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._look)


class ServedResponse:
    """The response to one request. All middleware shares it, so each message passes one `send` before the server's."""

    __slots__ = (
        "_admission",
        "_credential",
        "_has_body",
        "_left",
        "_meter",
        "_principal",
        "_receive",
        "_send",
        "_watch",
        "is_cut_off",
        "is_over",
        "is_stream",
        "status",
    )

    def __init__(self, send: Send, admission: AdmissionControl | None = None, meter: CallMeter | None = None) -> None:
        """`admission` has admitted the request; `release` gives its place back. `meter` counts an error response."""
        self._send = send
        self._admission = admission
        self._meter = meter
        self._watch: StreamWatch | None = None
        self.status = 0
        """The status that was sent; 0 before that."""
        self.is_stream = self.is_over = self.is_cut_off = False

    @staticmethod
    def of(send: Send) -> "ServedResponse":
        """Return the response that `send` belongs to, or a new one that sends with it."""
        owner = getattr(send, "__self__", None)
        return owner if isinstance(owner, ServedResponse) else ServedResponse(send)

    def authorize(self, watch: StreamWatch, principal: Principal, credential: bytes | None, receive: Receive) -> None:
        """Let `watch` check the response if it becomes an event stream, and `receive` report its end."""
        self._watch = watch
        self._principal = principal
        self._credential = credential
        self._receive = receive
        self._has_body = False
        self._left: asyncio.Future[None] | None = None

    def receive(self) -> Awaitable[Message]:
        """Return what the client sends; `http.disconnect` also if this class ended the stream."""
        if self._has_body:
            return self._wait_for_end()
        coming = self._receive()
        if isinstance(coming, CompletedAwaitable):
            self._has_body = not coming.value.get("more_body", False)
            return coming
        return self._receive_body(coming)

    async def _receive_body(self, coming: Awaitable[Message]) -> Message:
        message = await coming
        self._has_body = not message.get("more_body", False)
        return message

    async def _wait_for_end(self) -> Message:
        if self._left is None:
            self._left = asyncio.get_running_loop().create_future()
            if self.is_over:
                self._left.set_result(None)
        coming = asyncio.ensure_future(self._receive())
        try:
            waited: list[asyncio.Future[Any]] = [coming, self._left]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() else dict(_GONE)
        finally:
            coming.cancel()

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = status = message["status"]
            if status >= 400 and self._meter is not None:
                self._meter.count_rejection(status)
            for name, value in message["headers"]:
                if len(name) == _NAME_SIZE and name.lower() == b"content-type" and value.startswith(_STREAM):
                    self._begin_stream()
        elif self.is_stream and self._watch is not None:
            return self._send_checked(message)
        elif not message.get("more_body", False):
            self.is_over = True
        return self._send(message)

    async def look(self) -> None:
        """End the stream unless its caller is still authorized."""
        watch = self._watch
        if watch is not None and not self.is_over and not await watch.admits(self._principal, self._credential):
            await self._end()

    def leave(self) -> None:
        """Stop watching the stream: the request is over."""
        if self._watch is not None:
            self._watch.remove(self)

    def release(self) -> None:
        """Release the admission, once."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.release()

    async def cut_off(self, response: Response, scope: Any, receive: Receive) -> None:
        """End a response: a stream regularly, one that has not begun with `response`. A partial file stays partial."""
        if not self.status:
            await response(scope, receive, self._send)
        elif self.is_stream and not self.is_over:
            await self._send(dict(_END))

    def _begin_stream(self) -> None:
        self.is_stream = True
        self.release()  # an open stream mostly waits, so it does not count as active
        if self._watch is not None:
            self._watch.add(self)

    async def _send_checked(self, message: Message) -> None:
        if message.get("body"):
            await self.look()
        if self.is_over:
            return
        if not message.get("more_body", False):
            self.is_over = True
        await self._send(message)

    async def _end(self) -> None:
        if self.is_over:  # it ended while the credential was verified
            return
        self.is_over = True
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
        await self._send(dict(_END))
