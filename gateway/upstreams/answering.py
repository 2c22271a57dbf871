"""Answers of an HTTP server to a request: as JSON, or as a stream on which it tells and asks before it answers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

from gateway.backends.http1 import Answer
from gateway.governance.ports import BackendFailed
from gateway.upstreams.asking import WITHDRAWN, answer_to, begin, withdraw
from gateway.upstreams.connections import Connection, Exchange
from gateway.upstreams.messages import Json, answers, encoded, read, result_of
from gateway.upstreams.sessions import Session
from gateway.upstreams.sse import Event
from gateway.upstreams.wire import STREAM, HttpWire, SessionGone

_MOST_RESUMED: Final = 100
_LONGEST_RETRY: Final = 10.0
_MOST_ASKED: Final = 64
"""Requests of a server that are being answered at once on one stream."""


class Answering:
    def __init__(self, server: Connection, wire: HttpWire) -> None:
        self._server = server
        self._wire = wire

    async def result(self, answer: Answer, id: int, exchange: Exchange | None, session: Session | None) -> Json:
        """The result of the request of that id. Raises `RemoteError` or another `BackendFailed`."""
        kind = answer.content_type
        if kind == STREAM:
            return await self._streamed(answer, id, exchange, session)
        try:
            if kind != "application/json":
                raise BackendFailed("failed", "the upstream server answered something else than JSON")
            message = await self._wire.message(answer)
        finally:
            answer.close()
        for each in message if isinstance(message, list) else (message,):
            if answers(each, id):
                return result_of(each)
        raise BackendFailed("failed", "the upstream server answered another request than the one it was asked")

    def heard(
        self, message: Any, exchange: Exchange | None, session: Session | None, asking: set["asyncio.Task[Any]"]
    ) -> None:
        """Whatever is said besides a response. Modern servers ask nothing here: they ask in a result."""
        if not isinstance(message, dict) or "method" not in message:
            self._server.complain("it answered something that nobody asked")
        elif message["method"] == WITHDRAWN:
            withdraw(asking, message.get("params"))
        elif "id" not in message:
            self._server.pass_on(message.get("method"), message.get("params"), exchange)
        elif session is not None and len(asking) >= _MOST_ASKED:
            self._server.complain("it asks more than can be answered")
        elif session is not None:
            begin(asking, message, self._replied(message, exchange, session))

    async def _streamed(self, answer: Answer, id: int, exchange: Exchange | None, session: Session | None) -> Json:
        asking: set[asyncio.Task[Any]] = set()
        try:
            async with aclosing(self._events(answer, exchange, session)) as events:
                async for event in events:
                    message = await read(event.data)
                    for each in message if isinstance(message, list) else (message,):
                        if answers(each, id):
                            return result_of(each)
                        self.heard(each, exchange, session, asking)
        finally:
            for task in asking:
                task.cancel()
        raise BackendFailed("unavailable", "the answer ended early")

    async def _events(
        self, answer: Answer, exchange: Exchange | None, session: Session | None
    ) -> AsyncGenerator[Event, None]:
        """The events of a stream that say something, taken up again where an older server lets go of it."""
        last: str | None = None
        retry = 1.0
        for _ in range(_MOST_RESUMED):
            try:
                async with aclosing(self._wire.events(answer)) as events:
                    async for event in events:
                        last = event.id or last
                        retry = retry if event.retry is None else min(event.retry / 1000, _LONGEST_RETRY)
                        if event.data.strip():
                            yield event
            except GeneratorExit:  # the one that was waited for has come
                answer.leave()
                raise
            except BackendFailed as error:
                if error.word != "unavailable" or last is None or session is None:
                    raise
            finally:
                answer.close()
            if last is None or session is None:
                return
            await asyncio.sleep(retry)
            answer = await self._taken_up(session, last, exchange)

    async def _taken_up(self, session: Session, last: str, exchange: Exchange | None) -> Answer:
        principal = None if exchange is None else exchange.principal
        answer = await self._wire.opened({**session.headers, "last-event-id": last}, principal)
        if answer.status != 200 or answer.content_type != STREAM:
            answer.close()
            raise BackendFailed("unavailable", "the answer ended early")
        return answer

    async def _replied(self, message: Json, exchange: Exchange | None, session: Session) -> None:
        principal = None if exchange is None else exchange.principal
        with suppress(BackendFailed, SessionGone):
            reply = await answer_to(message, exchange, self._server.slots)
            await self._wire.told(encoded(reply), session.headers, principal)
