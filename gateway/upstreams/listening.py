"""Streams of an HTTP server that answer nobody: what it announces to everybody, and what it asks in a session."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from contextvars import Context
from typing import Any, Final, NamedTuple

from gateway.backends.http1 import Answer
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.upstreams.answering import Answering
from gateway.upstreams.connections import Connection, Exchange
from gateway.upstreams.messages import read
from gateway.upstreams.sessions import Session
from gateway.upstreams.wire import STREAM, HttpWire, SessionGone

_LONGEST_PAUSE: Final = 60.0
_OPENED_WITHIN: Final = 2.0
_MOST_ATTENDED: Final = 32
"""Streams of sessions that are held at once: each has a connection, and calls need some, too."""
_NO_STREAM: Final = (200, 404, 405, 406)


class Announcing(NamedTuple):
    """A stream that was asked for, and in which session."""

    answer: Answer
    session: Session | None = None


Open = Callable[[], Awaitable[Announcing | None]]
"""Asks for a stream of announcements; `None` if the server has nothing to announce."""


class Listening:
    def __init__(self, server: Connection, wire: HttpWire, answering: Answering, *, gone: Callable[[Session], None]):
        """`gone` is told of a session that the server does not know any more."""
        self._server = server
        self._wire = wire
        self._answering = answering
        self._gone = gone
        self._behind: set[asyncio.Task[Any]] = set()
        self._announcements: asyncio.Task[None] | None = None
        self._attended_now = 0

    @property
    def has_begun(self) -> bool:
        return self._announcements is not None

    def begin(self, open: Open) -> None:
        """Hear what is announced from now on; whatever was heard before is let go of."""
        if self._announcements is not None:
            self.keep(self._announcements).cancel()
        self._announcements = asyncio.create_task(self._listen(open), context=Context())  # nobody's in particular

    def in_the_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.keep(asyncio.create_task(work))

    def keep(self, task: "asyncio.Task[None]") -> "asyncio.Task[None]":
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    async def close(self) -> None:
        tasks = [*self._behind, *([self._announcements] if self._announcements else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- what a server announces to everybody ---

    async def _listen(self, open: Open) -> None:
        """A stream of announcements, for as long as the server keeps one up. That it has none is no fault."""
        pause = 1.0
        while True:
            try:
                if not await self._listened(open):
                    return
                pause = 1.0
            except (BackendFailed, SessionGone):
                pause = min(pause * 2, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _listened(self, open: Open) -> bool:
        """One stream to its end; whether another one is worth asking for."""
        opened = await open()
        if opened is None:
            return False
        answer, session = opened
        try:
            if answer.status == 404 and session is not None and session.id is not None:
                self._gone(session)
                return True
            if answer.status != 200 or answer.content_type != STREAM:
                return answer.status not in _NO_STREAM
            async with aclosing(self._wire.events(answer)) as events:
                async for event in events:
                    told = await read(event.data) if event.data.strip() else None
                    if isinstance(told, dict) and "method" in told:
                        self._answering.heard(told, None, session, self._behind)
        finally:
            answer.close()
        return True

    # --- what a server says in a session, outside of its answers ---

    async def attend(self, session: Session, exchange: Exchange) -> None:
        """Have a stream for what an older server asks there. It is asked for where somebody can answer."""
        if session.is_deaf or session.id is None or not exchange.capabilities:
            return
        if (session.listener is None or session.listener.done()) and self._attended_now < _MOST_ATTENDED:
            opened = asyncio.Event()
            attending = asyncio.create_task(self._attending(session, exchange.principal, opened), context=Context())
            session.listener = self.keep(attending)
            with suppress(TimeoutError):
                async with asyncio.timeout(_OPENED_WITHIN):
                    await opened.wait()

    async def _attending(self, session: Session, principal: Principal | None, opened: asyncio.Event) -> None:
        self._attended_now += 1
        try:
            answer = await self._wire.opened(session.headers, principal)
            opened.set()
            try:
                if answer.status != 200 or answer.content_type != STREAM:
                    session.is_deaf = True
                    return
                async with aclosing(self._wire.events(answer)) as events:
                    async for event in events:
                        message = await read(event.data) if event.data.strip() else []
                        for each in message if isinstance(message, list) else (message,):
                            self._answering.heard(each, session.only_caller, session, self._behind)
            finally:
                answer.close()
        except BackendFailed as error:
            if error.word != "unavailable":  # that a stream ends is no fault: the next call asks for another one
                self._server.complain("what it says outside of its answers cannot be heard", error.message)
        finally:
            self._attended_now -= 1
            opened.set()
