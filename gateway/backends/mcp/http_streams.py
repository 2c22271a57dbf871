"""Streams of MCP over HTTP: responses, notifications and requests of the server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from contextvars import Context
from typing import Any, Final, NamedTuple

from gateway.backends.mcp.connection import ServerRequestHandler, UpstreamConnection
from gateway.backends.mcp.http_client import EVENT_STREAM_TYPE, UnknownSession, UpstreamHttpClient, UpstreamSession
from gateway.backends.mcp.rpc_responses import get_result
from gateway.backends.mcp.server_requests import (
    CANCELLED_NOTIFICATION,
    answer_in_background,
    answer_request,
    cancel_request,
)
from gateway.http_client import Http1Response
from gateway.mcp import Json, SseEvent, decode_message, encode_message, is_response_to
from gateway.model import BackendError, Principal

_MAX_RESUMPTIONS: Final = 100
_LONGEST_RETRY: Final = 10.0
_MAX_REQUESTS: Final = 64
"""Maximum number of server requests being answered at once on one stream."""


class ResponseReader:
    def __init__(self, server: UpstreamConnection, http: UpstreamHttpClient) -> None:
        self._server = server
        self._http = http

    async def read_result(
        self, answer: Http1Response, id: int, exchange: ServerRequestHandler | None, session: UpstreamSession | None
    ) -> Json:
        """Return the result of the request with this id. Raise `RemoteError` or another `BackendError`."""
        kind = answer.content_type
        if kind == EVENT_STREAM_TYPE:
            return await self._read_stream(answer, id, exchange, session)
        try:
            if kind != "application/json":
                raise BackendError("failed", "the upstream server did not answer with JSON")
            message = await self._http.read_message(answer)
        finally:
            answer.close()
        for each in message if isinstance(message, list) else (message,):
            if is_response_to(each, id):
                return get_result(each)
        raise BackendError("failed", "the upstream server answered another request")

    def handle_message(
        self,
        message: Any,
        exchange: ServerRequestHandler | None,
        session: UpstreamSession | None,
        tasks: set["asyncio.Task[Any]"],
    ) -> None:
        """Handle a notification or request of the server. Modern servers send requests in results instead."""
        if not isinstance(message, dict) or "method" not in message:
            self._server.log_warning("it sent a response without a request")
        elif message["method"] == CANCELLED_NOTIFICATION:
            cancel_request(tasks, message.get("params"))
        elif "id" not in message:
            self._server.dispatch_message(message.get("method"), message.get("params"), exchange)
        elif session is not None and len(tasks) >= _MAX_REQUESTS:
            self._server.log_warning("it sends more requests than can be answered")
        elif session is not None:
            answer_in_background(tasks, message, self._reply(message, exchange, session))

    async def _read_stream(
        self, answer: Http1Response, id: int, exchange: ServerRequestHandler | None, session: UpstreamSession | None
    ) -> Json:
        tasks: set[asyncio.Task[Any]] = set()
        try:
            async with aclosing(self._events(answer, exchange, session)) as events:
                async for event in events:
                    message = await decode_message(event.data)
                    for each in message if isinstance(message, list) else (message,):
                        if is_response_to(each, id):
                            return get_result(each)
                        self.handle_message(each, exchange, session, tasks)
        finally:
            for task in tasks:
                task.cancel()
        raise BackendError("unavailable", "the answer ended early")

    async def _events(
        self, answer: Http1Response, exchange: ServerRequestHandler | None, session: UpstreamSession | None
    ) -> AsyncGenerator[SseEvent, None]:
        """Yield the events with data; resume the stream of a legacy server that closes it."""
        last: str | None = None
        retry = 1.0
        for _ in range(_MAX_RESUMPTIONS):
            try:
                async with aclosing(self._http.read_events(answer)) as events:
                    async for event in events:
                        last = event.id or last
                        retry = retry if event.retry is None else min(event.retry / 1000, _LONGEST_RETRY)
                        if event.data.strip():
                            yield event
            except GeneratorExit:  # the awaited response has arrived
                answer.discard_rest()
                raise
            except BackendError as error:
                if error.word != "unavailable" or last is None or session is None:
                    raise
            finally:
                answer.close()
            if last is None or session is None:
                return
            await asyncio.sleep(retry)
            answer = await self._resume(session, last, exchange)

    async def _resume(
        self, session: UpstreamSession, last: str, exchange: ServerRequestHandler | None
    ) -> Http1Response:
        principal = None if exchange is None else exchange.principal
        answer = await self._http.open_stream({**session.headers, "last-event-id": last}, principal)
        if answer.status != 200 or answer.content_type != EVENT_STREAM_TYPE:
            answer.close()
            raise BackendError("unavailable", "the answer ended early")
        return answer

    async def _reply(self, message: Json, exchange: ServerRequestHandler | None, session: UpstreamSession) -> None:
        principal = None if exchange is None else exchange.principal
        with suppress(BackendError, UnknownSession):
            reply = await answer_request(message, exchange, self._server.slots)
            await self._http.send_notification(encode_message(reply), session.headers, principal)


_LONGEST_PAUSE: Final = 60.0
_OPENED_WITHIN: Final = 2.0
_MAX_STREAMS: Final = 32
"""Maximum number of open session streams: each occupies a connection, and calls need connections as well."""
_NO_STREAM: Final = (200, 404, 405, 406)


class NotificationStream(NamedTuple):
    """An open stream and its session."""

    answer: Http1Response
    session: UpstreamSession | None = None


Open = Callable[[], Awaitable[NotificationStream | None]]
"""Opens a notification stream; returns `None` if the server has no notifications."""


class NotificationReader:
    def __init__(
        self,
        server: UpstreamConnection,
        http: UpstreamHttpClient,
        responses: ResponseReader,
        *,
        on_lost: Callable[[UpstreamSession], None],
    ):
        """`on_lost` is called with a session that the server no longer knows."""
        self._server = server
        self._http = http
        self._responses = responses
        self._on_lost = on_lost
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._open_streams = 0

    @property
    def has_begun(self) -> bool:
        return self._listening is not None

    def begin(self, open: Open) -> None:
        """Listen for notifications from now on, replacing any earlier stream."""
        if self._listening is not None:
            self.keep_open(self._listening).cancel()
        self._listening = asyncio.create_task(self._listen(open), context=Context())  # independent of any caller

    def start_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.keep_open(asyncio.create_task(work))

    def keep_open(self, task: "asyncio.Task[None]") -> "asyncio.Task[None]":
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._listening] if self._listening else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- notifications to all clients ---

    async def _listen(self, open: Open) -> None:
        """Keep a notification stream open as long as the server offers one. A server without one is not an error."""
        pause = 1.0
        while True:
            try:
                if not await self._read_notifications(open):
                    return
                pause = 1.0
            except (BackendError, UnknownSession):
                pause = min(pause * 2, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _read_notifications(self, open: Open) -> bool:
        """Read one stream to its end; return whether to open another one."""
        opened = await open()
        if opened is None:
            return False
        answer, session = opened
        try:
            if answer.status == 404 and session is not None and session.id is not None:
                self._on_lost(session)
                return True
            if answer.status != 200 or answer.content_type != EVENT_STREAM_TYPE:
                return answer.status not in _NO_STREAM
            async with aclosing(self._http.read_events(answer)) as events:
                async for event in events:
                    message = await decode_message(event.data) if event.data.strip() else None
                    if isinstance(message, dict) and "method" in message:
                        self._responses.handle_message(message, None, session, self._tasks)
        finally:
            answer.close()
        return True

    # --- messages in a session, outside of responses ---

    async def open_session_stream(self, session: UpstreamSession, exchange: ServerRequestHandler) -> None:
        """Open a stream for requests of a legacy server, if the caller can answer any."""
        if session.has_no_stream or session.id is None or not exchange.capabilities:
            return
        if (session.listener is None or session.listener.done()) and self._open_streams < _MAX_STREAMS:
            opened = asyncio.Event()
            task = asyncio.create_task(self._read_session(session, exchange.principal, opened), context=Context())
            session.listener = self.keep_open(task)
            with suppress(TimeoutError):
                async with asyncio.timeout(_OPENED_WITHIN):
                    await opened.wait()

    async def _read_session(self, session: UpstreamSession, principal: Principal | None, opened: asyncio.Event) -> None:
        self._open_streams += 1
        try:
            answer = await self._http.open_stream(session.headers, principal)
            opened.set()
            try:
                if answer.status != 200 or answer.content_type != EVENT_STREAM_TYPE:
                    session.has_no_stream = True
                    return
                async with aclosing(self._http.read_events(answer)) as events:
                    async for event in events:
                        message = await decode_message(event.data) if event.data.strip() else []
                        for each in message if isinstance(message, list) else (message,):
                            self._responses.handle_message(each, session.only_caller, session, self._tasks)
            finally:
                answer.close()
        except BackendError as error:
            if error.word != "unavailable":  # a stream that ends is not an error: the next call opens another one
                self._server.log_warning("its session stream cannot be read", error.message)
        finally:
            self._open_streams -= 1
            opened.set()
