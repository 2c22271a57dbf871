"""The protocol revisions with sessions: a handshake, then messages with the session's id.

A lost connection cancels nothing: the request continues, and the client can resume its stream.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final

import orjson

from gateway.engine import CallOutcome, RequestObservation, is_queryable, set_client_info
from gateway.errors import Missing
from gateway.mcp import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    NEWEST_SESSION_VERSION,
    RESOURCE_NOT_FOUND,
    SESSION_VERSIONS,
    ProtocolError,
    check_envelope,
    encode_error,
    encode_result,
    get_request_id,
)
from gateway.model import Principal
from gateway.server.http.asgi import Receive
from gateway.server.mcp.call_results import dump_json, list_result_resources, read_result_resource
from gateway.server.mcp.mcp_request import McpHeaders
from gateway.server.mcp.mcp_server import McpServer, get_progress_token, observe_request, to_protocol_error
from gateway.server.mcp.responses import (
    DisconnectMonitor,
    McpResponse,
    Send,
    SlowResponse,
    end_stream,
    parse_event_id,
    send_empty,
    send_json_error,
    start_stream,
)
from gateway.server.mcp.sessions import (
    ClientSession,
    ClientSessions,
    RunningRequest,
    SessionCallerChannel,
    TooManySessions,
)

_MAX_CLIENT_INFO: Final = 16 << 10
"""Maximum bytes of capabilities and client info, which the session stores."""

_SESSION_HEADERS: Final = frozenset({b"mcp-session-id", b"mcp-protocol-version"})
MAX_BATCH: Final = 100
BATCH_VERSIONS: Final = "2025-03-26"

Answer = Callable[[ClientSession, Mapping[str, Any]], Awaitable[bytes]]
UpstreamAnswer = Callable[[ClientSession, Mapping[str, Any], SessionCallerChannel], Awaitable[bytes]]


class _SessionRefused(Exception):
    """The request has no session that this caller may use."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def answer(self, send: Send) -> Awaitable[None]:
        return send_json_error(send, self.status, INVALID_REQUEST, str(self))


class SessionProtocol:
    def __init__(self, served: McpServer, sessions: ClientSessions) -> None:
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
        self._upstream_answers: dict[str, UpstreamAnswer] = {
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
        }

    def post(self, message: Any, headers: McpHeaders, *, principal: Principal, send: Send) -> Awaitable[None]:
        is_batch = isinstance(message, list)
        if not is_batch and message.get("method") == "initialize":
            return self._initialize(message, principal, send)
        try:
            session = self._find_session(headers, principal)
        except _SessionRefused as refused:
            return refused.answer(send)
        if is_batch:
            return self._batch(message, session, headers, send)
        if "method" not in message:
            session.resolve_answer(message["id"], message)
            return send_empty(send, 202)
        if "id" not in message:
            self._handle_notification(session, message)
            return send_empty(send, 202)
        opening = session.open_stream if headers.media.takes_streams else None
        return self._request(session, message, headers, McpResponse(send, open=opening))

    async def get(self, headers: McpHeaders, *, principal: Principal, receive: Receive, send: Send) -> None:
        """Send messages that belong to no request, or the rest of a stream whose connection was lost."""
        try:
            session = self._find_session(headers, principal)
        except _SessionRefused as refused:
            await refused.answer(send)
            return
        if not headers.media.takes_streams:
            await send_json_error(send, 406, INVALID_REQUEST, "the client must accept text/event-stream")
            return
        last = headers.get(b"last-event-id")
        event = parse_event_id(last) if last is not None else None
        stream = session.own if last is None else session.stream(event[0]) if event else None
        if stream is None or (event is not None and not stream.has_event(event[1])):
            await send_json_error(send, 400, INVALID_REQUEST, "there is no such event to resume from")
            return
        session.readers += 1
        reader = stream.attach()
        presence = DisconnectMonitor(receive, lambda: stream.detach(reader))
        try:
            await start_stream(send, session=session.id)
            await stream.send_events(send, reader, after=event[1] if event else None)
            await end_stream(send)
        finally:
            presence.stop()
            session.readers -= 1

    async def delete(self, headers: McpHeaders, *, principal: Principal, send: Send) -> None:
        try:
            session = self._find_session(headers, principal)
        except _SessionRefused as refused:
            await refused.answer(send)
            return
        await self._sessions.end(session)
        await send_empty(send, 204)

    # --- the session ---

    def _find_session(self, headers: McpHeaders, principal: Principal) -> ClientSession:
        """Return the session of a request. Raises `_SessionRefused`."""
        id, version = headers.get(b"mcp-session-id"), headers.version
        if id is None or (headers.repeated and not headers.repeated.isdisjoint(_SESSION_HEADERS)):
            raise _SessionRefused(400, "exactly one header 'mcp-session-id' is needed; start with initialize")
        session = self._sessions.find(id, principal)
        if session is None:
            raise _SessionRefused(404, "there is no such session; start again with initialize")
        if version is not None and version not in SESSION_VERSIONS:
            raise _SessionRefused(400, "this protocol version is not served")
        return session

    async def _initialize(self, message: Mapping[str, Any], principal: Principal, send: Send) -> None:
        began = perf_counter()
        id = get_request_id(message)
        params = message.get("params") or {}
        requested, capabilities = params.get("protocolVersion"), params.get("capabilities")
        if id is None or not isinstance(requested, str) or not isinstance(capabilities, dict):
            wrong = ProtocolError(INVALID_PARAMS, "initialize needs an id, protocolVersion and capabilities")
            await McpResponse(send).finish(encode_error(id, wrong), status=400 if id is None else 200)
            return
        info = params.get("clientInfo")
        if len(orjson.dumps([capabilities, info])) > _MAX_CLIENT_INFO:
            wrong = ProtocolError(
                INVALID_PARAMS, f"capabilities and clientInfo have more than {_MAX_CLIENT_INFO} bytes"
            )
            await McpResponse(send).finish(encode_error(id, wrong), status=200)
            return
        version = requested if requested in SESSION_VERSIONS else NEWEST_SESSION_VERSION
        try:
            session = self._sessions.open(principal, version, capabilities)
            session.info = info
        except TooManySessions:
            await send_json_error(send, 503, INTERNAL_ERROR, "too many sessions are open", id=id)
            return
        result: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": self._served.capabilities,
            "serverInfo": self._served.info,
        }
        if instructions := self._served.instructions:
            result["instructions"] = instructions
        reply = McpResponse(send, headers={b"mcp-session-id": session.id.encode()})
        await reply.finish(encode_result(id, dump_json(result)))
        self._served.count_request("initialize", None, began, version)

    def _handle_notification(self, session: ClientSession, message: Mapping[str, Any]) -> None:
        if message["method"] == "notifications/cancelled":
            id = (message.get("params") or {}).get("requestId")
            running = session.running.get(id) if isinstance(id, str | int) else None
            if running is not None:
                running.cancel()

    # --- requests ---

    async def _request(
        self, session: ClientSession, message: Mapping[str, Any], headers: McpHeaders, reply: McpResponse
    ) -> None:
        slow = SlowResponse(reply, self._sessions.limits.poll_after if session.can_poll else None)
        try:
            answered = await self._answer(session, message, headers, reply, headers.task)
        finally:
            slow.stop()
        if answered is not None:
            await reply.finish(answered)
        elif (stream := reply.start_stream()) is not None:  # cancelled: there is nothing to send
            stream.end()
            await reply.wait_sent()
        else:
            error = ProtocolError(INTERNAL_ERROR, "the request was cancelled")
            await reply.finish(encode_error(message["id"], error))

    async def _answer(
        self,
        session: ClientSession,
        message: Mapping[str, Any],
        headers: McpHeaders,
        reply: McpResponse,
        task: "asyncio.Task[Any] | None",
    ) -> bytes | None:
        """Return the response; `None` if the client cancelled its request. `task` is the current one."""
        id, method = message["id"], message["method"]
        observer, who = self._served.service.observer, session.principal
        seen = None
        if observer is not None:
            seen = observe_request(observer, message, headers, who, version=session.version, session=session.id)
        began = perf_counter()
        assert task is not None  # noqa: S101 - coroutines run in tasks
        running = session.running[id] = RunningRequest(task)
        params = message.get("params")
        refusal: ProtocolError | None = None
        try:
            answered = await self._result(session, method, params or {}, reply, seen)
        except asyncio.CancelledError:
            if seen is not None:
                seen.abandon()
            if not running.is_cancelled or task.uncancel():
                raise
            return None
        except Exception as error:
            refusal = to_protocol_error(error)
            answered = encode_error(id, refusal)
        else:
            answered = encode_result(id, answered)
        finally:
            if session.running.get(id) is running:
                del session.running[id]
        code = None if refusal is None else refusal.code
        if seen is not None:
            seen.end(code=code)
        is_known = method == "tools/call" or method in self._answers or method in self._upstream_answers
        is_error = refusal is None and reply.is_error
        self._served.count_request(method if is_known else None, params, began, session.version, code, is_error)
        return answered

    def _result(
        self,
        session: ClientSession,
        method: str,
        params: Mapping[str, Any],
        reply: McpResponse,
        seen: RequestObservation | None = None,
    ) -> Awaitable[bytes]:
        if method == "tools/call":
            return self._call(session, params, reply, seen)
        if method == "resources/read" and self._served.offering.has_resource(params.get("uri")):
            return self._read_upstream(session, params, self._exchange(session, params, reply))
        if method in self._upstream_answers:
            return self._upstream_answers[method](session, params, self._exchange(session, params, reply))
        answer = self._answers.get(method)
        if answer is None:
            raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")
        return answer(session, params)

    def _exchange(self, session: ClientSession, params: Mapping[str, Any], reply: McpResponse) -> SessionCallerChannel:
        meta = params.get("_meta")
        exchange = SessionCallerChannel(reply, session, token=get_progress_token(meta))
        exchange.meta = meta if isinstance(meta, dict) else {}
        return exchange

    async def _call(
        self, session: ClientSession, params: Mapping[str, Any], reply: McpResponse, seen: RequestObservation | None
    ) -> bytes:
        turn = await session.get_turn(self._served.service, self._served.catalogue)
        exchange = SessionCallerChannel(reply, session, token=get_progress_token(params.get("_meta")))
        version = session.version
        if session.info is not None:
            set_client_info(session.info)
        answered, settled = await self._served.call_in_turn(turn, params, version=version, client=exchange, seen=seen)
        if settled is not None and _adds_tools(settled):
            session.notify_list_changed()
        return answered

    async def _list_tools(self, session: ClientSession, params: Mapping[str, Any]) -> bytes:
        turn = await session.get_turn(self._served.service, self._served.catalogue)
        tools, more = await self._served.listings.get_page_of_turn(turn, session.version, params.get("cursor"))
        rest = b"" if more is None else b',"nextCursor":%b' % dump_json(more)
        return b'{"tools":%b%b}' % (tools, rest)

    async def _list_resources(self, session: ClientSession, params: Mapping[str, Any]) -> bytes:
        served = self._served
        cursor = params.get("cursor")
        found = await list_result_resources(
            served.service, session.principal, catalogue=served.catalogue, cursor=cursor
        )
        if not cursor:
            theirs = await served.offering.resources(session.principal, session.version)
            found["resources"] = [*theirs, *found["resources"]]
        return dump_json(found)

    async def _list_templates(self, session: ClientSession, params: Mapping[str, Any]) -> bytes:
        return dump_json({"resourceTemplates": self._served.offering.templates(session.principal, session.version)})

    async def _list_prompts(self, session: ClientSession, params: Mapping[str, Any]) -> bytes:
        return dump_json({"prompts": self._served.offering.prompts(session.principal, session.version)})

    async def _get_prompt(
        self, session: ClientSession, params: Mapping[str, Any], exchange: SessionCallerChannel
    ) -> bytes:
        turn = await session.get_turn(self._served.service, self._served.catalogue)
        return dump_json(await self._served.offering.prompt(session.principal, params, exchange, into=turn))

    async def _complete(
        self, session: ClientSession, params: Mapping[str, Any], exchange: SessionCallerChannel
    ) -> bytes:
        return dump_json(await self._served.offering.complete(session.principal, params, exchange))

    async def _read_upstream(
        self, session: ClientSession, params: Mapping[str, Any], exchange: SessionCallerChannel
    ) -> bytes:
        uri, turn = params.get("uri"), await session.get_turn(self._served.service, self._served.catalogue)
        try:
            contents = await self._served.offering.read(session.principal, uri, exchange, into=turn)
        except Missing:
            raise _no_resource(uri) from None
        return dump_json({"contents": contents})

    async def _subscribe(self, session: ClientSession, params: Mapping[str, Any]) -> bytes:
        uri = params.get("uri")
        try:
            ending = self._served.offering.subscribe(session.principal, uri)
        except Missing:
            raise _no_resource(uri) from None
        session.subscribe(str(uri), ending)
        return b"{}"

    async def _unsubscribe(self, session: ClientSession, params: Mapping[str, Any]) -> bytes:
        self._served.offering.require_resources()
        session.unsubscribe(params.get("uri"))
        return b"{}"

    async def _read_resource(self, session: ClientSession, params: Mapping[str, Any]) -> bytes:
        served, uri = self._served, params.get("uri")
        service, catalogue = served.service, served.catalogue
        turn = await session.get_turn(service, catalogue)
        try:
            contents = await read_result_resource(service, session.principal, catalogue=catalogue, uri=uri, into=turn)
        except Missing:
            raise _no_resource(uri) from None
        return dump_json({"contents": contents})

    # --- batches ---

    async def _batch(self, messages: list[Any], session: ClientSession, headers: McpHeaders, send: Send) -> None:
        if session.version != BATCH_VERSIONS:
            await send_json_error(send, 400, INVALID_REQUEST, f"only protocol version {BATCH_VERSIONS} has batches")
            return
        if not messages or len(messages) > MAX_BATCH:
            await send_json_error(send, 400, INVALID_REQUEST, f"a batch must have 1 to {MAX_BATCH} messages")
            return
        answers = await asyncio.gather(*(self._answer_one(session, each, headers) for each in messages))
        responses = [answer for answer in answers if answer is not None]
        if responses:
            await McpResponse(send).finish(b"[%b]" % b",".join(responses))
        else:
            await send_empty(send, 202)

    async def _answer_one(self, session: ClientSession, message: Any, headers: McpHeaders) -> bytes | None:
        try:
            check_envelope(message)
            if message.get("method") == "initialize":
                raise ProtocolError(INVALID_REQUEST, "initialize must not be part of a batch")
        except ProtocolError as error:
            return encode_error(get_request_id(message), error)
        if "method" not in message:
            session.resolve_answer(message["id"], message)
            return None
        if "id" not in message:
            self._handle_notification(session, message)
            return None
        return await self._answer(session, message, headers, McpResponse(_discard), asyncio.current_task())


def _adds_tools(settled: CallOutcome) -> bool:
    """Whether the turn has new query tools because of the result."""
    record = settled.record
    return not record.is_error and is_queryable(record)


async def _discard(message: Any) -> None:
    """Send nothing: a message of a batch has neither its own response nor a stream."""


async def _pong(session: ClientSession, params: Mapping[str, Any]) -> bytes:
    return b"{}"


async def _set_level(session: ClientSession, params: Mapping[str, Any]) -> bytes:
    level = params.get("level")
    if not isinstance(level, str) or level not in LOG_LEVELS:
        raise ProtocolError(INVALID_PARAMS, f"the level must be one of {', '.join(LOG_LEVELS)}")
    session.log_level = level
    return b"{}"


def _no_resource(uri: Any) -> ProtocolError:
    return ProtocolError(RESOURCE_NOT_FOUND, "there is no such resource", {"uri": uri})
