"""Requests of the revision without sessions: each says all there is to know, and its connection is its life.

A client that goes away cancels what it asked for. Lists do not depend on earlier calls.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, Final

from gateway.errors import Missing
from gateway.governance.principals import Principal
from gateway.serving.course import Course
from gateway.serving.current import ORDINARY, Holding
from gateway.serving.observing import SeenRequest
from gateway.web.edge import Receive
from gateway.web.mcp.confirming import Confirmations, is_of_confirmation
from gateway.web.mcp.headers import Headers
from gateway.web.mcp.ladder import ModernRequest, climb
from gateway.web.mcp.listening import Listening
from gateway.web.mcp.messages import error_bytes, result_bytes
from gateway.web.mcp.param_headers import check_param_headers
from gateway.web.mcp.parking import ModernExchange, ParkedCall, Parking, bound_to, input_required, owner_of
from gateway.web.mcp.protocol import (
    HTTP_STATUS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    META_LOG_LEVEL,
    META_TURN,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    MODERN,
    MODERN_VERSIONS,
    UNSUPPORTED_VERSION,
    ProtocolError,
)
from gateway.web.mcp.replies import Presence, Reply
from gateway.web.mcp.resources import list_resources, read_resource
from gateway.web.mcp.results import dumped
from gateway.web.mcp.serving import Served, called, progress_token, protocol_error, request_seen, text_of
from gateway.web.mcp.streams import Send, Stream
from gateway.web.mcp.tasks import METHODS, TASKS, Tasks, declares_tasks

_NOT_WAITING: Final = Holding(waits=False)

LIST_TTL_MS: Final = 60_000
"""How long a client may keep a list: access can be taken away, and then lists should follow soon."""

Answer = Callable[[ModernRequest, Principal], Awaitable[bytes]]


class ModernWire:
    def __init__(self, served: Served, parking: Parking, listening: Listening, tasks: Tasks | None = None) -> None:
        """Without `tasks` they are not served."""
        self._served = served
        self._tasks = tasks
        self._confirmations = Confirmations(served.service, served.catalogue)
        self._parking = parking
        self._listening = listening
        self._answers: dict[str, Answer] = {
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._no_prompts,
        }
        if tasks is not None:
            self._answers |= dict.fromkeys(METHODS, tasks.answer)
        self._methods = frozenset({*self._answers, "tools/call", "completion/complete", "subscriptions/listen"})

    async def request(
        self, message: dict[str, Any], headers: Headers, principal: Principal, receive: Receive, send: Send
    ) -> None:
        """Answer one request."""
        reply = Reply(send, Stream if headers.media.takes_streams else None)
        began = perf_counter()
        observer = self._served.service.observer
        seen = None if observer is None else request_seen(observer, message, headers, principal, version=MODERN)
        try:
            request = climb(message, headers, self._methods)
            if request.method == "tools/call" or self._is_elsewhere(request):
                try:
                    answered = await self._call(request, principal, receive, reply, seen)
                finally:
                    reply.unwatch()
            elif request.method == "subscriptions/listen":
                await self._listening.listen(request, receive, send, principal=principal)
                if seen is not None:
                    seen.answered()
                return
            else:
                answered = await self._answers[request.method](request, principal)
        except Exception as error:
            refusal = protocol_error(error)
            status = HTTP_STATUS.get(refusal.code, 200)
            await reply.answer(error_bytes(message["id"], refusal), status=status)
            known = method if (method := message.get("method")) in self._methods else None
            self._served.answered(known, message.get("params"), began, code=refusal.code)
            if seen is not None:
                seen.answered(code=refusal.code)
            return
        except BaseException as error:
            if not reply.explains(error):
                if seen is not None:
                    seen.abandoned()
                raise
            answered = None
        if answered is None:  # nobody is there to be answered
            await reply.abandon()
            if seen is not None:
                seen.abandoned()
            return
        try:
            await reply.answer(result_bytes(request.id, answered))
        finally:
            if seen is not None:
                seen.answered()
        self._served.answered(request.method, request.params, began, MODERN, None, reply.is_error)

    def notification(self, headers: Headers) -> None:
        """Raises for a notification that is not accepted; there is none that means anything here."""
        if headers.version not in MODERN_VERSIONS:
            data = {"supported": list(MODERN_VERSIONS), "requested": headers.version}
            raise ProtocolError(UNSUPPORTED_VERSION, "this protocol version is not served", data)

    # --- calls ---

    def _call(
        self, request: ModernRequest, principal: Principal, receive: Receive, reply: Reply, seen: SeenRequest | None
    ) -> Awaitable[bytes | None]:
        params, meta = request.params, request.meta
        if is_call := request.method == "tools/call":
            name, arguments = called(params)
            if marked := self._served.listings.marked(name):
                self._check_params(request, principal, marked, name, arguments)
        token, level = progress_token(meta), meta.get(META_LOG_LEVEL)
        state = params.get("requestState")
        if "requestState" in params and not is_of_confirmation(state):
            bound = bound_to(principal, self._served.catalogue, request.method, params)
            call = self._parking.resume(state, bound, params.get("inputResponses"))
            if not call.unanswered:
                call.exchange.heard_as(reply, progress_token=token, log_level=level)
                call.go_on()
            return self._outcome(call, request, principal, receive, reply)
        task = request.headers.task
        assert task is not None  # noqa: S101 - the endpoint says which
        exchange = ModernExchange(reply, request.capabilities, token, level, task.get_loop())
        if isinstance(given := params.get("inputResponses"), dict):
            exchange.ahead = given.copy()
        if is_call:
            calling = self._called(name, arguments, request, principal, exchange, state, seen)
        else:
            calling = self._had(request, principal, exchange)
        if not exchange.can_be_asked:  # a call that never outlives its request needs no task of its own
            reply.watch(receive, task)
            return calling
        running = asyncio.create_task(calling)
        running.add_done_callback(exchange.turn)
        return self._outcome(ParkedCall(exchange, running), request, principal, receive, reply)

    async def _outcome(
        self, call: ParkedCall, request: ModernRequest, principal: Principal, receive: Receive, reply: Reply
    ) -> bytes | None:
        """What a call that may be parked comes to: its result, or the questions that it waits with."""
        if not call.unanswered:
            if await self._until_turned(call, receive, reply):
                return None
            if call.task.cancelled():
                raise ProtocolError(INTERNAL_ERROR, "the call was given up")
            if call.task.done():
                return call.task.result()
        bound = bound_to(principal, self._served.catalogue, request.method, request.params)
        return input_required(call.unanswered, self._parking.park(call, bound, owner=owner_of(principal)))

    async def _called(
        self,
        name: str,
        arguments: dict[str, Any] | None,
        request: ModernRequest,
        principal: Principal,
        exchange: ModernExchange,
        state: str | None,
        seen: SeenRequest | None,
    ) -> bytes:
        """Make the call, and tell what became of it: a result, a question, or a task."""
        params, served = request.params, self._served
        does_wait = self._tasks is None or not declares_tasks(request.capabilities)
        holding = ORDINARY if does_wait else _NOT_WAITING
        turn_id = key = None
        if state is not None:
            bound, given = bound_to(principal, served.catalogue, request.method, params), params.get("inputResponses")
            answered = await self._confirmations.answered(state, bound, given, principal=principal, holding=holding)
            holding, turn_id, key = answered.holding, answered.turn_id, answered.key
        course = Course()
        try:
            settled = await served.call_alone(
                principal, name, arguments, request.meta, exchange, holding, turn_id, key, seen, course
            )
            content = await served.contents.of(settled)
        except Exception as error:
            return served.lost(error, course)
        if settled.unconfirmed is not None:
            bound = bound_to(principal, served.catalogue, request.method, params)
            return self._confirmations.asked(settled, bound)
        if settled.approvals and self._tasks is not None and not does_wait:
            return self._tasks.created(settled)
        return served.told(content, settled, exchange)

    async def _until_turned(self, call: ParkedCall, receive: Receive, reply: Reply) -> bool:
        """Wait until the call is over or asks; whether its client has gone instead."""
        is_gone = False

        def gone() -> None:
            nonlocal is_gone
            is_gone = True
            call.exchange.turn()

        presence = Presence(receive, gone, reply.begin)
        try:
            await call.exchange.turned()
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
        self, request: ModernRequest, principal: Principal, marked: Any, name: str, arguments: Any
    ) -> None:
        """Not for a tool that the caller may not know of: then the call tells nothing but that."""
        service, catalogue = self._served.service, self._served.catalogue
        tool = service.published.tool(catalogue, name)
        if tool is not None and service.published.access.visibility(principal, catalogue=catalogue, tool=tool).allowed:
            check_param_headers(marked, arguments, request.headers)

    # --- everything else ---

    async def _discover(self, request: ModernRequest, principal: Principal) -> bytes:
        capabilities = self._served.capabilities
        if self._tasks is not None:
            capabilities["extensions"] = {TASKS: {}}
        told: dict[str, Any] = {"supportedVersions": list(MODERN_VERSIONS), "capabilities": capabilities}
        if instructions := self._served.instructions:
            told["instructions"] = instructions
        return self._cacheable(told)

    async def _list_tools(self, request: ModernRequest, principal: Principal) -> bytes:
        tools, more = self._served.listings.told(principal, MODERN).page(request.params.get("cursor"))
        rest = self._cacheable({"nextCursor": more} if more is not None else {})
        return b'{"tools":%b,%b' % (tools, rest[1:])

    async def _list_resources(self, request: ModernRequest, principal: Principal) -> bytes:
        served = self._served
        cursor = request.params.get("cursor")
        found = await list_resources(served.service, principal, catalogue=served.catalogue, cursor=cursor)
        if not cursor:
            found["resources"] = [*await served.offering.resources(principal, MODERN), *found["resources"]]
        return self._cacheable(found, ttl_ms=0)

    async def _list_templates(self, request: ModernRequest, principal: Principal) -> bytes:
        _refuse_cursor(request.params)
        return self._cacheable({"resourceTemplates": self._served.offering.templates(principal, MODERN)})

    async def _list_prompts(self, request: ModernRequest, principal: Principal) -> bytes:
        told = self._served.offering.prompts(principal, MODERN)
        _refuse_cursor(request.params)
        return self._cacheable({"prompts": told})

    async def _no_prompts(self, request: ModernRequest, principal: Principal) -> bytes:
        raise ProtocolError(METHOD_NOT_FOUND, "there is no such method")

    def _is_elsewhere(self, request: ModernRequest) -> bool:
        """Whether a server behind us is asked, which may want to know something first."""
        if request.method == "resources/read":
            return self._served.offering.has_resource(request.params.get("uri"))
        return request.method in ("prompts/get", "completion/complete")

    async def _had(self, request: ModernRequest, principal: Principal, exchange: ModernExchange) -> bytes:
        """A prompt, a resource or a completion of another server."""
        served, params = self._served, request.params
        exchange.meta = request.meta
        handle = text_of(request.meta, META_TURN)
        service, catalogue = served.service, served.catalogue
        turn = None if handle is None else await service.turns.find(principal, handle, catalogue=catalogue)
        try:
            if request.method == "prompts/get":
                told = await served.offering.prompt(principal, params, exchange, into=turn)
                return dumped({**told, "resultType": "complete", "_meta": served.meta})
            if request.method == "completion/complete":
                told = await served.offering.completed(principal, params, exchange)
                return dumped({**told, "resultType": "complete", "_meta": served.meta})
            contents = await served.offering.read(principal, params.get("uri"), exchange, into=turn)
        except Missing:
            raise ProtocolError(INVALID_PARAMS, "there is no such resource", {"uri": params.get("uri")}) from None
        except ProtocolError as error:
            if error.code == INTERNAL_ERROR and exchange.missing is not None:
                data = {"requiredCapabilities": exchange.missing}
                raise ProtocolError(MISSING_CAPABILITY, "the client lacks a capability that is needed", data) from None
            raise
        return self._cacheable({"contents": contents}, ttl_ms=0)

    async def _read_resource(self, request: ModernRequest, principal: Principal) -> bytes:
        uri, handle = request.params.get("uri"), text_of(request.meta, META_TURN)
        service, catalogue = self._served.service, self._served.catalogue
        turn = None if handle is None else await service.turns.find(principal, handle, catalogue=catalogue)
        try:
            contents = await read_resource(service, principal, catalogue=catalogue, uri=uri, into=turn)
        except Missing:
            raise ProtocolError(INVALID_PARAMS, "there is no such resource", {"uri": uri}) from None
        return self._cacheable({"contents": contents}, ttl_ms=0)

    def _cacheable(self, result: Mapping[str, Any], *, ttl_ms: int = LIST_TTL_MS) -> bytes:
        """Private, always: what is told depends on who asks."""
        told = {"resultType": "complete", "ttlMs": ttl_ms, "cacheScope": "private", "_meta": self._served.meta}
        return dumped({**result, **told})


def _refuse_cursor(params: Mapping[str, Any]) -> None:
    """Lists of one page have no cursor that leads anywhere."""
    if params.get("cursor"):
        raise ProtocolError(INVALID_PARAMS, "the cursor is not one of this list")
