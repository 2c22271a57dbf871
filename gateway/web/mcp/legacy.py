"""Requests of the revisions with sessions: a handshake, then messages that know each other by the session's id.

A lost connection cancels nothing: what was asked goes on, and its stream can be taken up again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final

import orjson

from gateway.errors import Missing
from gateway.governance.principals import Principal
from gateway.serving.keeping import is_queryable
from gateway.serving.observing import SeenRequest
from gateway.serving.origins import calls_itself
from gateway.serving.settled import Settled
from gateway.web.edge import Receive
from gateway.web.mcp.headers import Headers
from gateway.web.mcp.messages import check_envelope, error_bytes, request_id, result_bytes
from gateway.web.mcp.protocol import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LEGACY_VERSIONS,
    LEVELS,
    METHOD_NOT_FOUND,
    NEWEST_LEGACY,
    RESOURCE_NOT_FOUND,
    ProtocolError,
)
from gateway.web.mcp.replies import SILENCE, Presence, Reply
from gateway.web.mcp.resources import list_resources, read_resource
from gateway.web.mcp.responses import empty, json_error
from gateway.web.mcp.results import dumped
from gateway.web.mcp.serving import Served, progress_token, protocol_error, request_seen
from gateway.web.mcp.sessions import LegacyExchange, Session, Sessions, TooManySessions
from gateway.web.mcp.streams import Send, end_stream, event_of, start_stream

_LONGEST_INTRODUCTION: Final = 16 << 10
"""Bytes of what a client says of itself. Its session keeps them."""

MOST_IN_A_BATCH: Final = 100
BATCHING: Final = "2025-03-26"

Answer = Callable[[Session, Mapping[str, Any]], Awaitable[bytes]]


Relayed = Callable[[Session, Mapping[str, Any], LegacyExchange], Awaitable[bytes]]


class LegacyWire:
    def __init__(self, served: Served, sessions: Sessions) -> None:
        self._served = served
        self._sessions = sessions
        self._answers: dict[str, Answer] = {
            "ping": _pong,
            "logging/setLevel": _set_level,
            "tools/list": self._list_tools,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "prompts/list": self._list_prompts,
        }
        self._elsewhere: dict[str, Relayed] = {
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }

    async def post(self, message: Any, headers: Headers, *, principal: Principal, send: Send) -> None:
        if isinstance(message, dict) and message.get("method") == "initialize":
            await self._initialize(message, principal, send)
            return
        session = await self._session(headers, principal, send)
        if session is None:
            return
        if isinstance(message, list):
            await self._batch(message, session, headers, send)
            return
        if "method" not in message:
            session.answered(message["id"], message)
            await empty(send, 202)
        elif "id" not in message:
            self._notified(session, message)
            await empty(send, 202)
        else:
            opening = session.open_stream if headers.media.takes_streams else None
            await self._request(session, message, headers, Reply(send, open=opening))

    async def get(self, headers: Headers, *, principal: Principal, receive: Receive, send: Send) -> None:
        """Messages that belong to no request, or the rest of a stream that was lost."""
        session = await self._session(headers, principal, send)
        if session is None:
            return
        if not headers.media.takes_streams:
            await json_error(send, 406, INVALID_REQUEST, "the client must accept text/event-stream")
            return
        last = headers.get(b"last-event-id")
        event = event_of(last) if last is not None else None
        stream = session.own if last is None else session.stream(event[0]) if event else None
        if stream is None or (event is not None and not stream.has_event(event[1])):
            await json_error(send, 400, INVALID_REQUEST, "there is no such event to go on from")
            return
        session.readers += 1
        reader = stream.take()
        presence = Presence(receive, lambda: stream.leave(reader))
        try:
            await start_stream(send, session=session.id)
            await stream.pump(send, reader, after=event[1] if event else None)
            await end_stream(send)
        finally:
            presence.stop()
            session.readers -= 1

    async def delete(self, headers: Headers, *, principal: Principal, send: Send) -> None:
        session = await self._session(headers, principal, send)
        if session is not None:
            await self._sessions.end(session)
            await empty(send, 204)

    # --- the session ---

    async def _session(self, headers: Headers, principal: Principal, send: Send) -> Session | None:
        """The session of a request; `None` if the request was refused."""
        id, version = headers.get(b"mcp-session-id"), headers.version
        if id is None or not headers.repeated.isdisjoint({b"mcp-session-id", b"mcp-protocol-version"}):
            await json_error(send, 400, INVALID_REQUEST, "one header 'mcp-session-id' is needed; begin with initialize")
            return None
        session = self._sessions.find(id, principal)
        if session is None:
            await json_error(send, 404, INVALID_REQUEST, "there is no such session; begin again with initialize")
        elif version is not None and version not in LEGACY_VERSIONS:
            await json_error(send, 400, INVALID_REQUEST, "this protocol version is not served")
            return None
        return session

    async def _initialize(self, message: Mapping[str, Any], principal: Principal, send: Send) -> None:
        began = perf_counter()
        id = request_id(message)
        params = message.get("params") or {}
        asked, capabilities = params.get("protocolVersion"), params.get("capabilities")
        if id is None or not isinstance(asked, str) or not isinstance(capabilities, dict):
            wrong = ProtocolError(INVALID_PARAMS, "initialize needs an id, protocolVersion and capabilities")
            await Reply(send).answer(error_bytes(id, wrong), status=400 if id is None else 200)
            return
        info = params.get("clientInfo")
        if len(orjson.dumps([capabilities, info])) > _LONGEST_INTRODUCTION:
            wrong = ProtocolError(
                INVALID_PARAMS, f"capabilities and clientInfo have more than {_LONGEST_INTRODUCTION} bytes"
            )
            await Reply(send).answer(error_bytes(id, wrong), status=200)
            return
        version = asked if asked in LEGACY_VERSIONS else NEWEST_LEGACY
        try:
            session = self._sessions.open(principal, version, capabilities)
            session.info = info
        except TooManySessions:
            await json_error(send, 503, INTERNAL_ERROR, "too many sessions are open", id=id)
            return
        told: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": self._served.capabilities,
            "serverInfo": self._served.info,
        }
        if instructions := self._served.instructions:
            told["instructions"] = instructions
        reply = Reply(send, headers={b"mcp-session-id": session.id.encode()})
        await reply.answer(result_bytes(id, dumped(told)))
        self._served.answered("initialize", None, began, version)

    def _notified(self, session: Session, message: Mapping[str, Any]) -> None:
        if message["method"] == "notifications/cancelled":
            wanted = (message.get("params") or {}).get("requestId")
            task = session.running.get(wanted) if isinstance(wanted, str | int) else None
            if task is not None:
                task.cancel()

    # --- requests ---

    async def _request(self, session: Session, message: Mapping[str, Any], headers: Headers, reply: Reply) -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(SILENCE, reply.begin)]
        if session.can_poll and self._sessions.limits.poll_after is not None:
            timers.append(loop.call_later(self._sessions.limits.poll_after, _let_go, reply))
        try:
            answered = await self._answered(session, message, headers, reply)
        finally:
            for timer in timers:
                timer.cancel()
        if answered is not None:
            await reply.answer(answered)
        elif (stream := reply.begin()) is not None:  # cancelled: there is nothing to say
            stream.end()
            await reply.finished()
        else:
            given_up = ProtocolError(INTERNAL_ERROR, "the request was cancelled")
            await reply.answer(error_bytes(message["id"], given_up))

    async def _answered(
        self, session: Session, message: Mapping[str, Any], headers: Headers, reply: Reply
    ) -> bytes | None:
        """The response; `None` if the client took its request back."""
        id, method = message["id"], message["method"]
        observer, who = self._served.service.observer, session.principal
        seen = None
        if observer is not None:
            seen = request_seen(observer, message, headers, who, version=session.version, session=session.id)
        began = perf_counter()
        task = asyncio.create_task(self._result(session, method, message.get("params") or {}, reply, seen))
        session.running[id] = task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            if seen is not None:
                seen.abandoned()
            raise
        finally:
            if session.running.get(id) is task:
                del session.running[id]
        if task.cancelled():
            if seen is not None:
                seen.abandoned()
            return None
        is_known = method in self._answers or method in self._elsewhere or method == "tools/call"
        known = method if is_known else None
        counted = partial(self._served.answered, known, message.get("params"), began=began, version=session.version)
        error = task.exception()
        refusal = protocol_error(error) if isinstance(error, Exception) else None
        if seen is not None:
            seen.answered(code=None if refusal is None else refusal.code)
        if refusal is not None:
            counted(code=refusal.code)
            return error_bytes(id, refusal)
        counted(is_error=reply.is_error)
        return result_bytes(id, task.result())

    async def _result(
        self,
        session: Session,
        method: str,
        params: Mapping[str, Any],
        reply: Reply,
        seen: SeenRequest | None = None,
    ) -> bytes:
        if method == "tools/call":
            return await self._call(session, params, reply, seen)
        if method == "resources/read" and self._served.offering.has_resource(params.get("uri")):
            return await self._read_elsewhere(session, params, self._exchange(session, params, reply))
        if method in self._elsewhere:
            return await self._elsewhere[method](session, params, self._exchange(session, params, reply))
        answer = self._answers.get(method)
        if answer is None:
            raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
        return await answer(session, params)

    def _exchange(self, session: Session, params: Mapping[str, Any], reply: Reply) -> LegacyExchange:
        meta = params.get("_meta")
        exchange = LegacyExchange(reply, session, token=progress_token(meta))
        exchange.meta = meta if isinstance(meta, dict) else {}
        return exchange

    async def _call(self, session: Session, params: Mapping[str, Any], reply: Reply, seen: SeenRequest | None) -> bytes:
        turn = await session.its_turn(self._served.service, self._served.catalogue)
        exchange = LegacyExchange(reply, session, token=progress_token(params.get("_meta")))
        version = session.version
        calls_itself(session.info)
        answered, settled = await self._served.call_in(turn, params, version=version, client=exchange, seen=seen)
        if settled is not None and _brings_tools(settled):
            session.tell_changed()
        return answered

    async def _list_tools(self, session: Session, params: Mapping[str, Any]) -> bytes:
        turn = await session.its_turn(self._served.service, self._served.catalogue)
        tools, more = self._served.listings.told_in(turn, session.version).page(params.get("cursor"))
        rest = b"" if more is None else b',"nextCursor":%b' % dumped(more)
        return b'{"tools":%b%b}' % (tools, rest)

    async def _list_resources(self, session: Session, params: Mapping[str, Any]) -> bytes:
        served = self._served
        cursor = params.get("cursor")
        found = await list_resources(served.service, session.principal, catalogue=served.catalogue, cursor=cursor)
        if not cursor:
            theirs = await served.offering.resources(session.principal, session.version)
            found["resources"] = [*theirs, *found["resources"]]
        return dumped(found)

    async def _list_templates(self, session: Session, params: Mapping[str, Any]) -> bytes:
        return dumped({"resourceTemplates": self._served.offering.templates(session.principal, session.version)})

    async def _list_prompts(self, session: Session, params: Mapping[str, Any]) -> bytes:
        return dumped({"prompts": self._served.offering.prompts(session.principal, session.version)})

    async def _get_prompt(self, session: Session, params: Mapping[str, Any], exchange: LegacyExchange) -> bytes:
        turn = await session.its_turn(self._served.service, self._served.catalogue)
        return dumped(await self._served.offering.prompt(session.principal, params, exchange, into=turn))

    async def _complete(self, session: Session, params: Mapping[str, Any], exchange: LegacyExchange) -> bytes:
        return dumped(await self._served.offering.completed(session.principal, params, exchange))

    async def _read_elsewhere(self, session: Session, params: Mapping[str, Any], exchange: LegacyExchange) -> bytes:
        uri, turn = params.get("uri"), await session.its_turn(self._served.service, self._served.catalogue)
        try:
            contents = await self._served.offering.read(session.principal, uri, exchange, into=turn)
        except Missing:
            raise _no_resource(uri) from None
        return dumped({"contents": contents})

    async def _subscribe(self, session: Session, params: Mapping[str, Any]) -> bytes:
        uri = params.get("uri")
        try:
            ending = self._served.offering.subscribed(session.principal, uri)
        except Missing:
            raise _no_resource(uri) from None
        session.subscribe(str(uri), ending)
        return b"{}"

    async def _unsubscribe(self, session: Session, params: Mapping[str, Any]) -> bytes:
        self._served.offering.require_resources()
        session.unsubscribe(params.get("uri"))
        return b"{}"

    async def _read_resource(self, session: Session, params: Mapping[str, Any]) -> bytes:
        served, uri = self._served, params.get("uri")
        service, catalogue = served.service, served.catalogue
        turn = await session.its_turn(service, catalogue)
        try:
            contents = await read_resource(service, session.principal, catalogue=catalogue, uri=uri, into=turn)
        except Missing:
            raise _no_resource(uri) from None
        return dumped({"contents": contents})

    # --- batches ---

    async def _batch(self, messages: list[Any], session: Session, headers: Headers, send: Send) -> None:
        if session.version != BATCHING:
            await json_error(send, 400, INVALID_REQUEST, f"batches are of {BATCHING} only")
            return
        if not messages or len(messages) > MOST_IN_A_BATCH:
            await json_error(send, 400, INVALID_REQUEST, f"a batch has 1 to {MOST_IN_A_BATCH} messages")
            return
        answers = await asyncio.gather(*(self._of_batch(session, each, headers) for each in messages))
        told = [answer for answer in answers if answer is not None]
        if told:
            await Reply(send).answer(b"[%b]" % b",".join(told))
        else:
            await empty(send, 202)

    async def _of_batch(self, session: Session, message: Any, headers: Headers) -> bytes | None:
        try:
            check_envelope(message)
            if message.get("method") == "initialize":
                raise ProtocolError(INVALID_REQUEST, "initialize is never part of a batch")
        except ProtocolError as error:
            return error_bytes(request_id(message), error)
        if "method" not in message:
            session.answered(message["id"], message)
            return None
        if "id" not in message:
            self._notified(session, message)
            return None
        return await self._answered(session, message, headers, Reply(_unused))


def _brings_tools(settled: Settled) -> bool:
    """Whether there is something new to ask about."""
    record = settled.record
    return not record.is_error and is_queryable(record)


async def _unused(message: Any) -> None:
    """One of a batch is not answered by itself, and has no stream."""


def _let_go(reply: Reply) -> None:
    """End the connection of a request that takes long; its stream goes on without it."""
    if (stream := reply.begin()) is not None:
        stream.release()


async def _pong(session: Session, params: Mapping[str, Any]) -> bytes:
    return b"{}"


async def _set_level(session: Session, params: Mapping[str, Any]) -> bytes:
    level = params.get("level")
    if not isinstance(level, str) or level not in LEVELS:
        raise ProtocolError(INVALID_PARAMS, f"the level is one of {', '.join(LEVELS)}")
    session.log_level = level
    return b"{}"


def _no_resource(uri: Any) -> ProtocolError:
    return ProtocolError(RESOURCE_NOT_FOUND, "there is no such resource", {"uri": uri})
