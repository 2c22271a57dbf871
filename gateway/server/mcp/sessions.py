"""Sessions of the older protocol revisions: one principal, one turn, and streams that clients can resume.

The id of a session cannot be guessed, and is valid for its principal only: for another caller the session does not
exist.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_urlsafe
from time import monotonic
from typing import Any, Final

from gateway.engine import CallerCannotAnswer, ChangeNotification, Service, Turn
from gateway.errors import GatewayError, UnknownCatalogue, UnknownTurn
from gateway.mcp import ProtocolError, RequestId, encode_notification, encode_request
from gateway.model import Principal, Question
from gateway.server.mcp.caller_channel import McpCallerChannel, validate_answer
from gateway.server.mcp.responses import EventStream, McpResponse

FIRST_PRIMED_VERSION: Final = "2025-11-25"
MAX_STREAMS: Final = 64
MAX_SESSION_SUBSCRIPTIONS: Final = 256
"""Maximum per session."""
ANSWER_TIMEOUT_SECONDS: Final = 600.0
_OWN_STREAM: Final = "0"
_LIST_CHANGED: Final = encode_notification("notifications/tools/list_changed")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    most: int = 10_000
    max_per_caller: int = 1_000
    idle: float = 1800.0
    """Seconds after which an unused session ends."""
    poll_after: float | None = 30.0
    """Seconds after which the connection of a client of 2025-11-25 is closed; it reconnects for the rest."""


class TooManySessions(Exception):
    pass


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request of a session. `is_cancelled`: by its client, or because the session has ended."""

    task: asyncio.Task[Any]
    is_cancelled: bool = False

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self.task.cancel()


@dataclass(slots=True, eq=False)
class ClientSession:
    id: str
    principal: Principal
    version: str
    capabilities: Mapping[str, Any]
    used_at: float
    opened_at: float = 0.0
    log_level: str = "info"
    info: object = None
    """`clientInfo` of the client."""
    turn_id: str | None = None
    running: dict[RequestId, RunningRequest] = field(default_factory=dict)
    asked: dict[RequestId, tuple[Question, asyncio.Future[Any]]] = field(default_factory=dict)
    own: EventStream = field(default_factory=lambda: EventStream(_OWN_STREAM))
    """Stream of messages that belong to no request."""
    readers: int = 0
    """Open GET connections."""
    _streams: OrderedDict[str, EventStream] = field(default_factory=OrderedDict)
    can_poll: bool = field(init=False)
    """Whether its client reconnects for the rest of a stream whose connection was closed."""
    subscriptions: dict[str, Callable[[], None]] = field(default_factory=dict)
    """The function that unsubscribes, by URI of the resource."""
    _count: int = 0
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_busy(self) -> bool:
        return bool(self.running) or self.readers > 0

    def __post_init__(self) -> None:
        self.can_poll = self.version >= FIRST_PRIMED_VERSION

    def next_id(self) -> int:
        self._count += 1
        return self._count

    def open_stream(self) -> EventStream:
        """Open a stream for the response to one request."""
        stream = EventStream(str(self.next_id()), primed=self.can_poll)
        self._streams[stream.name or ""] = stream
        if len(self._streams) > MAX_STREAMS:
            self._streams.popitem(last=False)
        return stream

    def stream(self, name: str) -> EventStream | None:
        return self.own if name == _OWN_STREAM else self._streams.get(name)

    def notify_list_changed(self) -> None:
        self.own.put(_LIST_CHANGED)

    def subscribe(self, uri: str, ending: Callable[[], None]) -> None:
        """Add a subscription; a repeated one changes nothing, and one too many replaces the oldest."""
        if uri in self.subscriptions:
            ending()
            return
        if len(self.subscriptions) >= MAX_SESSION_SUBSCRIPTIONS:
            self.unsubscribe(next(iter(self.subscriptions)))
        self.subscriptions[uri] = ending

    def unsubscribe(self, uri: Any) -> None:
        ending = self.subscriptions.pop(uri, None) if isinstance(uri, str) else None
        if ending is not None:
            ending()

    def resolve_answer(self, id: RequestId, response: Mapping[str, Any]) -> None:
        """Resolve a question with the client's answer; answers without a question are dropped."""
        question, answer = self.asked.pop(id, (None, None))
        if question is None or answer is None or answer.done():
            return
        try:
            if "error" in response:
                raise CallerCannotAnswer("the client answered with an error")
            answer.set_result(validate_answer(question, response["result"]))
        except (CallerCannotAnswer, ProtocolError) as error:
            answer.set_exception(CallerCannotAnswer(str(error.message)))

    async def get_turn(self, service: Service, catalogue: str) -> Turn:
        """Return the session's turn under the live revision; a new one if the old one has ended."""
        ended = self.turn_id
        if ended is not None:
            try:
                return await service.turns.find(self.principal, ended, catalogue=catalogue)
            except UnknownTurn:
                pass
        async with self._opening:
            if self.turn_id == ended:
                turn = await service.turns.open(self.principal, catalogue, is_kept=False, is_shared=True)
                self.turn_id = turn.id
                return turn
        return await self.get_turn(service, catalogue)  # another request has opened one meanwhile

    def stop(self) -> None:
        for uri in tuple(self.subscriptions):
            self.unsubscribe(uri)
        for request in self.running.values():
            request.cancel()
        for stream in (self.own, *self._streams.values()):
            stream.end()


class SessionCallerChannel(McpCallerChannel):
    """Asks with a request on the stream of the call; the client posts the answer."""

    def __init__(self, reply: McpResponse | None, session: ClientSession, *, token: RequestId | None) -> None:
        super().__init__(reply, session.capabilities, token, session.log_level)
        self._session = session

    def can_answer(self, question: Question) -> bool:
        return self.reply is not None and self.reply.can_stream and super().can_answer(question)

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        self.check_capabilities(questions)
        if self.reply is None or not self.reply.can_stream:
            raise CallerCannotAnswer("the client accepts no stream, so it cannot be asked")
        ids = {key: self._session.next_id() for key in questions}
        answers = {key: self.loop.create_future() for key in questions}
        try:
            for key, question in questions.items():
                self._session.asked[ids[key]] = (question, answers[key])
                self.reply.send_message(encode_request(ids[key], question.method, question.params))
            async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                return {key: await answer for key, answer in answers.items()}
        except TimeoutError:
            raise CallerCannotAnswer("the client did not answer in time") from None
        finally:
            for key, answer in answers.items():
                self._session.asked.pop(ids[key], None)
                answer.cancel()
                if answer.cancelled():  # no call waits for it any more
                    self.reply.send_message(encode_notification("notifications/cancelled", {"requestId": ids[key]}))


class ClientSessions:
    def __init__(
        self,
        service: Service,
        limits: SessionLimits,
        *,
        clock: Callable[[], float] = monotonic,
        may_hear: Callable[[Principal, ChangeNotification], bool] | None = None,
    ) -> None:
        """`may_hear` is whether a principal may know of a change of a resource; without it no changes are sent."""
        self.limits = limits
        self._may_hear = may_hear
        self._service = service
        self._clock = clock
        self._sessions: OrderedDict[str, ClientSession] = OrderedDict()
        self._ending: set[asyncio.Task[None]] = set()
        service.on_change.add(self._notify_list_changed)
        service.on_announcement.add(self._notify_change)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, principal: Principal, version: str, capabilities: Mapping[str, Any]) -> ClientSession:
        """Open a session. A caller with too many loses its least recently used idle one. Raises `TooManySessions`."""
        self._sweep()
        mine = [each for each in self._sessions.values() if is_same(each.principal, principal)]
        if len(mine) >= self.limits.max_per_caller:
            idle = next((each for each in mine if not each.is_busy), None)
            if idle is None:
                raise TooManySessions()
            self._end_soon(idle)
        if len(self._sessions) >= self.limits.most:
            raise TooManySessions()
        at = self._clock()
        session = ClientSession(token_urlsafe(24), principal, version, capabilities, at, opened_at=at)
        self._sessions[session.id] = session
        return session

    def find(self, id: str, principal: Principal) -> ClientSession | None:
        self._sweep()
        session = self._sessions.get(id)
        if session is None or not (session.principal is principal or is_same(session.principal, principal)):
            return None
        session.used_at = self._clock()
        self._sessions.move_to_end(id)
        return session

    async def end(self, session: ClientSession) -> None:
        self._sessions.pop(session.id, None)
        session.stop()
        if self._service.meter is not None:
            self._service.meter.record_session_end(session.version, self._clock() - session.opened_at)
        if session.turn_id is not None:
            with suppress(UnknownTurn, UnknownCatalogue):  # it has ended, or is lost to its caller
                turn = await self._service.turns.find(session.principal, session.turn_id)
                await self._service.turns.end(turn, "ack")

    def close_streams(self) -> None:
        """End the streams on which clients only listen; running calls continue."""
        for session in self._sessions.values():
            session.own.end()

    async def close(self) -> None:
        self._service.on_change.discard(self._notify_list_changed)
        self._service.on_announcement.discard(self._notify_change)
        for session in list(self._sessions.values()):
            self._end_soon(session)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _sweep(self) -> None:
        """End sessions that were unused for too long; the least recently used come first."""
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

    def _end_soon(self, session: ClientSession) -> None:
        self._sessions.pop(session.id, None)
        task = asyncio.create_task(self._end_quietly(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_quietly(self, session: ClientSession) -> None:
        try:
            await self.end(session)
        except GatewayError:  # its turn has ended or is unreachable: nothing is left to end
            return

    def _notify_change(self, announcement: ChangeNotification) -> None:
        """Forward a notification: list changes to all sessions, resource changes to sessions that subscribed."""
        uri = announcement.uri
        notification = encode_notification(announcement.method, None if uri is None else {"uri": uri})
        for session in self._sessions.values():
            if uri is None or (uri in session.subscriptions and self._may_notify(session, announcement)):
                session.own.put(notification)

    def _may_notify(self, session: ClientSession, announcement: ChangeNotification) -> bool:
        return self._may_hear is not None and self._may_hear(session.principal, announcement)

    def _notify_list_changed(self) -> None:
        for session in self._sessions.values():
            session.notify_list_changed()


def is_same(one: Principal, other: Principal) -> bool:
    return one.names == other.names and one.tenant == other.tenant
