"""Sessions of the older revisions: one principal, one turn, and streams that can be taken up again.

A session is found by an id that nobody can guess and only together with its principal; another caller's session is as
unknown as one that never was.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_urlsafe
from time import monotonic
from typing import Any, Final

from gateway.errors import GatewayError, UnknownTurn
from gateway.governance.principals import Principal
from gateway.serving.asking import CallerCannotAnswer
from gateway.serving.current import Question
from gateway.serving.offers import Announcement
from gateway.serving.service import Service
from gateway.serving.turns import Turn
from gateway.web.mcp.exchanges import Exchange, checked_answer
from gateway.web.mcp.messages import RequestId, notification_bytes, request_bytes
from gateway.web.mcp.protocol import ProtocolError
from gateway.web.mcp.replies import Reply
from gateway.web.mcp.streams import Stream

PRIMED_SINCE: Final = "2025-11-25"
KEPT_STREAMS: Final = 64
MOST_SUBSCRIPTIONS: Final = 256
"""Of one session."""
ANSWER_WITHIN: Final = 600.0
_OWN_STREAM: Final = "0"


@dataclass(frozen=True, slots=True)
class SessionLimits:
    most: int = 10_000
    most_per_caller: int = 1_000
    idle: float = 1800.0
    """Seconds after which a session that nobody uses is ended."""
    poll_after: float | None = 30.0
    """Seconds after which a client of 2025-11-25 is let go, to come back for the rest of its stream."""


class TooManySessions(Exception):
    pass


@dataclass(slots=True, eq=False)
class Session:
    id: str
    principal: Principal
    version: str
    capabilities: Mapping[str, Any]
    used_at: float
    opened_at: float = 0.0
    log_level: str = "info"
    info: object = None
    """What the client says of itself."""
    turn: Turn | None = None
    running: dict[RequestId, asyncio.Task[Any]] = field(default_factory=dict)
    asked: dict[RequestId, tuple[Question, asyncio.Future[Any]]] = field(default_factory=dict)
    own: Stream = field(default_factory=lambda: Stream(_OWN_STREAM))
    """For what belongs to no request."""
    readers: int = 0
    """Connections that are open now."""
    _streams: OrderedDict[str, Stream] = field(default_factory=OrderedDict)
    subscriptions: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What ends each, by the resource whose changes are told."""
    _count: int = 0
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_busy(self) -> bool:
        return bool(self.running) or self.readers > 0

    @property
    def can_poll(self) -> bool:
        return self.version >= PRIMED_SINCE

    def next_id(self) -> int:
        self._count += 1
        return self._count

    def open_stream(self) -> Stream:
        """A stream for the answer to one request."""
        stream = Stream(str(self.next_id()), primed=self.can_poll)
        self._streams[stream.name or ""] = stream
        if len(self._streams) > KEPT_STREAMS:
            self._streams.popitem(last=False)
        return stream

    def stream(self, name: str) -> Stream | None:
        return self.own if name == _OWN_STREAM else self._streams.get(name)

    def tell_changed(self) -> None:
        self.own.put(notification_bytes("notifications/tools/list_changed"))

    def subscribe(self, uri: str, ending: Callable[[], None]) -> None:
        """A second time is once; the oldest is given up for one too many."""
        if uri in self.subscriptions:
            ending()
            return
        if len(self.subscriptions) >= MOST_SUBSCRIPTIONS:
            self.unsubscribe(next(iter(self.subscriptions)))
        self.subscriptions[uri] = ending

    def unsubscribe(self, uri: Any) -> None:
        ending = self.subscriptions.pop(uri, None) if isinstance(uri, str) else None
        if ending is not None:
            ending()

    def answered(self, id: RequestId, response: Mapping[str, Any]) -> None:
        """The client answers what it was asked; answers to nothing are dropped."""
        question, answer = self.asked.pop(id, (None, None))
        if question is None or answer is None or answer.done():
            return
        try:
            if "error" in response:
                raise CallerCannotAnswer("the client answered with an error")
            answer.set_result(checked_answer(question, response["result"]))
        except (CallerCannotAnswer, ProtocolError) as error:
            answer.set_exception(CallerCannotAnswer(str(error.message)))

    async def its_turn(self, service: Service, catalogue: str) -> Turn:
        """The session's turn as it is published now; a new one where the old one is over."""
        async with self._opening:
            if self.turn is not None:
                try:
                    self.turn = await service.turns.find(self.principal, self.turn.id, catalogue=catalogue)
                except UnknownTurn:
                    self.turn = None
            if self.turn is None:
                self.turn = await service.turns.open(self.principal, catalogue, is_kept=False, is_shared=True)
            return self.turn

    def stop(self) -> None:
        for uri in tuple(self.subscriptions):
            self.unsubscribe(uri)
        for task in self.running.values():
            task.cancel()
        for stream in (self.own, *self._streams.values()):
            stream.end()


class LegacyExchange(Exchange):
    """Asks with a request of its own on the stream of the call; the answer is posted."""

    def __init__(self, reply: Reply | None, session: Session, *, token: RequestId | None) -> None:
        super().__init__(reply, session.capabilities, token, session.log_level)
        self._session = session

    def can_answer(self, question: Question) -> bool:
        return self.reply is not None and self.reply.can_stream and super().can_answer(question)

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        self.check(questions)
        if self.reply is None or not self.reply.can_stream:
            raise CallerCannotAnswer("the client takes no stream, so it cannot be asked")
        ids = {key: self._session.next_id() for key in questions}
        answers = {key: self.loop.create_future() for key in questions}
        try:
            for key, question in questions.items():
                self._session.asked[ids[key]] = (question, answers[key])
                self.reply.say(request_bytes(ids[key], question.method, question.params))
            async with asyncio.timeout(ANSWER_WITHIN):
                return {key: await answer for key, answer in answers.items()}
        except TimeoutError:
            raise CallerCannotAnswer("the client did not answer in time") from None
        finally:
            for key, answer in answers.items():
                self._session.asked.pop(ids[key], None)
                answer.cancel()
                if answer.cancelled():  # nobody waits for it any more
                    self.reply.say(notification_bytes("notifications/cancelled", {"requestId": ids[key]}))


class Sessions:
    def __init__(
        self,
        service: Service,
        limits: SessionLimits,
        *,
        clock: Callable[[], float] = monotonic,
        may_hear: Callable[[Principal, Announcement], bool] | None = None,
    ) -> None:
        """`may_hear` says whether somebody may know of a change of a resource; without it nobody is told of any."""
        self.limits = limits
        self._may_hear = may_hear
        self._service = service
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        service.on_change.add(self._tell_changed)
        service.on_announcement.add(self._announced)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, principal: Principal, version: str, capabilities: Mapping[str, Any]) -> Session:
        """A new session. A caller with too many loses the one it used least recently. Raises `TooManySessions`."""
        self._sweep()
        mine = [each for each in self._sessions.values() if is_same(each.principal, principal)]
        if len(mine) >= self.limits.most_per_caller:
            idle = next((each for each in mine if not each.is_busy), None)
            if idle is None:
                raise TooManySessions()
            self._end_soon(idle)
        if len(self._sessions) >= self.limits.most:
            raise TooManySessions()
        at = self._clock()
        session = Session(token_urlsafe(24), principal, version, capabilities, at, opened_at=at)
        self._sessions[session.id] = session
        return session

    def find(self, id: str, principal: Principal) -> Session | None:
        self._sweep()
        session = self._sessions.get(id)
        if session is None or not is_same(session.principal, principal):
            return None
        session.used_at = self._clock()
        self._sessions.move_to_end(id)
        return session

    async def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        session.stop()
        if self._service.meter is not None:
            self._service.meter.session_ended(session.version, self._clock() - session.opened_at)
        if session.turn is not None:
            await self._service.turns.end(session.turn, "ack")

    def hush(self) -> None:
        """End the streams on which clients only listen; what was called goes on."""
        for session in self._sessions.values():
            session.own.end()

    async def close(self) -> None:
        self._service.on_change.discard(self._tell_changed)
        self._service.on_announcement.discard(self._announced)
        for session in list(self._sessions.values()):
            self._end_soon(session)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _sweep(self) -> None:
        """End what nobody used for too long; the least recently used stand first."""
        before = self._clock() - self.limits.idle
        while self._sessions:
            id, session = next(iter(self._sessions.items()))
            if session.used_at > before:
                return
            if session.is_busy:
                session.used_at = self._clock()
                self._sessions.move_to_end(id)
                continue
            self._end_soon(session)

    def _end_soon(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        task = asyncio.create_task(self._ended(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _ended(self, session: Session) -> None:
        try:
            await self.end(session)
        except GatewayError:  # its turn is over or cannot be reached: nothing is left to end
            return

    def _announced(self, announcement: Announcement) -> None:
        """Passed on as it came: that a list changed to everybody, of a resource to whoever subscribed to it."""
        uri = announcement.uri
        told = notification_bytes(announcement.method, None if uri is None else {"uri": uri})
        for session in self._sessions.values():
            if uri is None or (uri in session.subscriptions and self._hears(session, announcement)):
                session.own.put(told)

    def _hears(self, session: Session, announcement: Announcement) -> bool:
        return self._may_hear is not None and self._may_hear(session.principal, announcement)

    def _tell_changed(self) -> None:
        for session in self._sessions.values():
            session.tell_changed()


def is_same(one: Principal, other: Principal) -> bool:
    return one.names == other.names and one.tenant == other.tenant
