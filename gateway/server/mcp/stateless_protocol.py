"""The protocol revision without sessions: each request is self-contained.

A client that disconnects cancels its request. Lists do not depend on earlier calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final

from gateway.engine import DEFAULT_HOLD_POLICY, Course, HoldPolicy, RequestObservation
from gateway.errors import Missing
from gateway.mcp import (
    HTTP_STATUS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    META_LOG_LEVEL,
    META_TURN,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    STATELESS_VERSION,
    STATELESS_VERSIONS,
    TASKS_EXTENSION,
    UNSUPPORTED_VERSION,
    ProtocolError,
    check_param_headers,
    encode_error,
    encode_result,
)
from gateway.model import Principal
from gateway.server.http.asgi import Receive
from gateway.server.mcp.call_results import dump_json, list_result_resources, read_result_resource
from gateway.server.mcp.mcp_request import McpHeaders, StatelessRequest, validate_request
from gateway.server.mcp.mcp_server import (
    McpServer,
    get_meta_text,
    get_progress_token,
    is_lost,
    observe_request,
    parse_call,
    to_protocol_error,
)
from gateway.server.mcp.responses import DisconnectMonitor, EventStream, McpResponse, Send
from gateway.server.mcp.subscriptions import Subscriptions
from gateway.server.mcp.suspended_calls import (
    Confirmations,
    StatelessCallerChannel,
    SuspendedCall,
    SuspendedCalls,
    build_input_required,
    build_state_binding,
    get_owner,
    is_confirmation_state,
)
from gateway.server.mcp.tasks import TASK_METHODS, TaskMethods, declares_tasks

_NOT_WAITING: Final = HoldPolicy(waits=False)

LIST_TTL_MS: Final = 60_000
"""How long a client may cache a list: short, because access can be revoked."""

Answer = Callable[[StatelessRequest, Principal], Awaitable[bytes]]


class StatelessProtocol:
    def __init__(
        self, served: McpServer, calls: SuspendedCalls, subscriptions: Subscriptions, tasks: TaskMethods | None = None
    ) -> None:
        """Without `tasks`, the tasks extension is not served."""
        self._served = served
        self._tasks = tasks
        self._confirmations = Confirmations(served.service, served.catalogue)
        self._suspended = calls
        self._subscriptions = subscriptions
        self._answers: dict[str, Answer] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._refuse_prompts,
        }
        if tasks is not None:
            self._answers |= dict.fromkeys(TASK_METHODS, tasks.answer)
        self._methods = frozenset({*self._answers, "tools/call", "completion/complete", "subscriptions/listen"})

    async def request(
        self, message: dict[str, Any], headers: McpHeaders, principal: Principal, receive: Receive, send: Send
    ) -> None:
        """Answer one request."""
        reply = McpResponse(send, EventStream if headers.media.takes_streams else None)
        began = perf_counter()
        observer = self._served.service.observer
        seen = (
            None
            if observer is None
            else observe_request(observer, message, headers, principal, version=STATELESS_VERSION)
        )
        try:
            request = validate_request(message, headers, self._methods)
            if request.method == "tools/call" or self._is_upstream(request):
                try:
                    answered = await self._call(request, principal, receive, reply, seen)
                finally:
                    reply.unwatch()
            elif request.method == "subscriptions/listen":
                await self._subscriptions.stream(request, receive, send, principal=principal)
                if seen is not None:
                    seen.end()
                return
            else:
                answered = await self._answers[request.method](request, principal)
        except Exception as error:
            refusal = to_protocol_error(error)
            status = HTTP_STATUS.get(refusal.code, 200)
            await reply.finish(encode_error(message["id"], refusal), status=status)
            known = method if (method := message.get("method")) in self._methods else None
            self._served.count_request(known, message.get("params"), began, code=refusal.code)
            if seen is not None:
                seen.end(code=refusal.code)
            return
        except BaseException as error:
            if not reply.is_disconnect(error):
                if seen is not None:
                    seen.abandon()
                raise
            answered = None
        if answered is None:  # the client has disconnected
            await reply.abandon()
            if seen is not None:
                seen.abandon()
            return
        try:
            await reply.finish(encode_result(request.id, answered))
        finally:
            if seen is not None:
                seen.end()
        self._served.count_request(request.method, request.params, began, STATELESS_VERSION, None, reply.is_error)

    def notification(self, headers: McpHeaders) -> None:
        """Check the version of a notification, and ignore it. Raises `ProtocolError`."""
        if headers.version not in STATELESS_VERSIONS:
            data = {"supported": list(STATELESS_VERSIONS), "requested": headers.version}
            raise ProtocolError(UNSUPPORTED_VERSION, "this protocol version is not served", data)

    # --- calls ---

    def _call(
        self,
        request: StatelessRequest,
        principal: Principal,
        receive: Receive,
        reply: McpResponse,
        seen: RequestObservation | None,
    ) -> Awaitable[bytes | None]:
        params, meta = request.params, request.meta
        if is_call := request.method == "tools/call":
            name, arguments = parse_call(params)
            if marked := self._served.listings.get_header_arguments(name):
                self._check_params(request, principal, marked, name, arguments)
        token = get_progress_token(meta) if "progressToken" in meta else None
        level = meta.get(META_LOG_LEVEL)
        state = params.get("requestState")
        if "requestState" in params and not is_confirmation_state(state):
            bound = build_state_binding(principal, self._served.catalogue, request.method, params)
            call = self._suspended.resume(state, bound, params.get("inputResponses"))
            if not call.pending_questions:
                call.exchange.attach_request(reply, progress_token=token, log_level=level)
                call.resume()
            return self._outcome(call, request, principal, receive, reply)
        task = request.headers.task
        assert task is not None  # noqa: S101 - the endpoint sets it
        exchange = StatelessCallerChannel(reply, request.capabilities, token, level, task.get_loop())
        if isinstance(given := params.get("inputResponses"), dict):
            exchange.ahead = given.copy()
        if is_call:
            calling = self._run_call(name, arguments, request, principal, exchange, state, seen)
        else:
            calling = self._relay(request, principal, exchange)
        if not (
            request.capabilities and exchange.can_be_asked
        ):  # a call that never outlives its request needs no separate task
            reply.watch(receive, task)
            return calling
        running = asyncio.create_task(calling)
        running.add_done_callback(exchange.wake)
        return self._outcome(SuspendedCall(exchange, running), request, principal, receive, reply)

    async def _outcome(
        self, call: SuspendedCall, request: StatelessRequest, principal: Principal, receive: Receive, reply: McpResponse
    ) -> bytes | None:
        """Return the result of a call that may be suspended, or the questions that it waits for."""
        if not call.pending_questions:
            if await self._wait_for_call(call, receive, reply):
                return None
            if call.task.cancelled():
                raise ProtocolError(INTERNAL_ERROR, "the call was given up")
            if call.task.done():
                return call.task.result()
        bound = build_state_binding(principal, self._served.catalogue, request.method, request.params)
        return build_input_required(
            call.pending_questions, self._suspended.suspend(call, bound, owner=get_owner(principal))
        )

    async def _run_call(
        self,
        name: str,
        arguments: dict[str, Any] | None,
        request: StatelessRequest,
        principal: Principal,
        exchange: StatelessCallerChannel,
        state: str | None,
        seen: RequestObservation | None,
    ) -> bytes:
        """Make the call; return a result, a question or a task."""
        params, served = request.params, self._served
        does_wait = not request.capabilities or self._tasks is None or not declares_tasks(request.capabilities)
        holding = DEFAULT_HOLD_POLICY if does_wait else _NOT_WAITING
        turn_id = key = None
        if state is not None:
            bound, given = (
                build_state_binding(principal, served.catalogue, request.method, params),
                params.get("inputResponses"),
            )
            answered = await self._confirmations.read_answer(state, bound, given, principal=principal, holding=holding)
            holding, turn_id, key = answered.holding, answered.turn_id, answered.key
        course = Course()
        try:
            settled = await served.call_tool(
                principal, name, arguments, request.meta, exchange, holding, turn_id, key, seen, course
            )
            content = await served.contents.render(settled)
        except Exception as error:
            if not is_lost(error, course):
                raise
            return served.render_lost(error, course)
        if settled.unconfirmed is not None:
            bound = build_state_binding(principal, served.catalogue, request.method, params)
            return self._confirmations.create_question(settled, bound)
        if settled.approvals and self._tasks is not None and not does_wait:
            return self._tasks.create(settled)
        return served.render_result(content, settled, exchange)

    async def _wait_for_call(self, call: SuspendedCall, receive: Receive, reply: McpResponse) -> bool:
        """Wait until the call ends or asks; return whether its client has disconnected instead."""
        is_gone = False

        def handle_disconnect() -> None:
            nonlocal is_gone
            is_gone = True
            call.exchange.wake()

        presence = DisconnectMonitor(receive, handle_disconnect, reply.start_stream)
        try:
            await call.exchange.wait_until_ready()
        except asyncio.CancelledError:
            call.task.cancel()
            raise
        finally:
            presence.stop()
        if is_gone and not call.task.done():
            call.task.cancel()
            await asyncio.gather(call.task, return_exceptions=True)
        return is_gone

    def _check_params(
        self, request: StatelessRequest, principal: Principal, marked: Any, name: str, arguments: Any
    ) -> None:
        """Check headers of arguments, unless the tool is hidden from the caller: the call reports that as unknown."""
        service, catalogue = self._served.service, self._served.catalogue
        tool = service.published.tool(catalogue, name)
        if (
            tool is not None
            and service.published.access.decide_discovery(principal, catalogue=catalogue, tool=tool).allowed
        ):
            check_param_headers(marked, arguments, request.headers)

    # --- other methods ---

    async def _discover(self, request: StatelessRequest, principal: Principal) -> bytes:
        capabilities = self._served.capabilities
        if self._tasks is not None:
            capabilities["extensions"] = {TASKS_EXTENSION: {}}
        result: dict[str, Any] = {"supportedVersions": list(STATELESS_VERSIONS), "capabilities": capabilities}
        if instructions := self._served.instructions:
            result["instructions"] = instructions
        return self._cacheable(result)

    async def _list_tools(self, request: StatelessRequest, principal: Principal) -> bytes:
        cursor = request.params.get("cursor")
        tools, more = await self._served.listings.get_page(principal, STATELESS_VERSION, cursor)
        rest = self._cacheable({"nextCursor": more} if more is not None else {})
        return b'{"tools":%b,%b' % (tools, rest[1:])

    async def _list_resources(self, request: StatelessRequest, principal: Principal) -> bytes:
        served = self._served
        cursor = request.params.get("cursor")
        found = await list_result_resources(served.service, principal, catalogue=served.catalogue, cursor=cursor)
        if not cursor:
            found["resources"] = [*await served.offering.resources(principal, STATELESS_VERSION), *found["resources"]]
        return self._cacheable(found, ttl_ms=0)

    async def _list_templates(self, request: StatelessRequest, principal: Principal) -> bytes:
        _refuse_cursor(request.params)
        return self._cacheable({"resourceTemplates": self._served.offering.templates(principal, STATELESS_VERSION)})

    async def _list_prompts(self, request: StatelessRequest, principal: Principal) -> bytes:
        result = self._served.offering.prompts(principal, STATELESS_VERSION)
        _refuse_cursor(request.params)
        return self._cacheable({"prompts": result})

    async def _refuse_prompts(self, request: StatelessRequest, principal: Principal) -> bytes:
        raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")

    def _is_upstream(self, request: StatelessRequest) -> bool:
        """Whether an upstream server answers the request, which may ask the client something first."""
        if request.method == "resources/read":
            return self._served.offering.has_resource(request.params.get("uri"))
        return request.method in ("prompts/get", "completion/complete")

    async def _relay(self, request: StatelessRequest, principal: Principal, exchange: StatelessCallerChannel) -> bytes:
        """Return a prompt, a resource or a completion of an upstream server."""
        served, params = self._served, request.params
        exchange.meta = request.meta
        handle = get_meta_text(request.meta, META_TURN)
        service, catalogue = served.service, served.catalogue
        turn = None if handle is None else await service.turns.find(principal, handle, catalogue=catalogue)
        try:
            if request.method == "prompts/get":
                result = await served.offering.prompt(principal, params, exchange, into=turn)
                return dump_json({**result, "resultType": "complete", "_meta": served.meta})
            if request.method == "completion/complete":
                result = await served.offering.complete(principal, params, exchange)
                return dump_json({**result, "resultType": "complete", "_meta": served.meta})
            contents = await served.offering.read(principal, params.get("uri"), exchange, into=turn)
        except Missing:
            raise ProtocolError(INVALID_PARAMS, "there is no such resource", {"uri": params.get("uri")}) from None
        except ProtocolError as error:
            if error.code == INTERNAL_ERROR and exchange.missing is not None:
                data = {"requiredCapabilities": exchange.missing}
                raise ProtocolError(MISSING_CAPABILITY, "the client lacks a capability that is needed", data) from None
            raise
        return self._cacheable({"contents": contents}, ttl_ms=0)

    async def _read_resource(self, request: StatelessRequest, principal: Principal) -> bytes:
        uri, handle = request.params.get("uri"), get_meta_text(request.meta, META_TURN)
        service, catalogue = self._served.service, self._served.catalogue
        turn = None if handle is None else await service.turns.find(principal, handle, catalogue=catalogue)
        try:
            contents = await read_result_resource(service, principal, catalogue=catalogue, uri=uri, into=turn)
        except Missing:
            raise ProtocolError(INVALID_PARAMS, "there is no such resource", {"uri": uri}) from None
        return self._cacheable({"contents": contents}, ttl_ms=0)

    def _cacheable(self, result: Mapping[str, Any], *, ttl_ms: int = LIST_TTL_MS) -> bytes:
        """Return a result that the client may cache. It is always private, because it depends on the caller."""
        cache = {"resultType": "complete", "ttlMs": ttl_ms, "cacheScope": "private", "_meta": self._served.meta}
        return dump_json({**result, **cache})


def _refuse_cursor(params: Mapping[str, Any]) -> None:
    """Raise `ProtocolError` for any cursor: the list has one page."""
    if params.get("cursor"):
        raise ProtocolError(INVALID_PARAMS, "the cursor is not valid for this list")
