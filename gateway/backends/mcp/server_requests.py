"""Relay requests and notifications of an upstream server to the caller during a call, and poll its tasks.

The server and the caller may be of different eras, so how a server asks is independent of how the caller is asked. A
task is awaited and looks like one call to its caller. The call's timeout applies; when it expires or the caller
cancels, the task is cancelled at the server.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, TypeGuard, get_args
from urllib.parse import urlsplit

import orjson

from gateway.backends.mcp.connection import PROBE_SECONDS, ConcurrencyLimit, ServerRequestHandler, UpstreamConnection
from gateway.backends.mcp.rpc_responses import RemoteError, to_remote_error
from gateway.errors import GatewayError
from gateway.mcp import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    Json,
    ProtocolError,
    filter_foreign_meta,
)
from gateway.model import (
    BackendError,
    CallerChannel,
    Deadline,
    LogLevel,
    OutboundRequest,
    Principal,
    Question,
    QuestionMethod,
)

CANCELLED_NOTIFICATION: Final = "notifications/cancelled"


def answer_in_background(
    tasks: set["asyncio.Task[Any]"], message: Mapping[str, Any], reply: Coroutine[Any, Any, None]
) -> None:
    """Answer in a task, which is in `tasks` until it is done."""
    task = asyncio.create_task(reply, name=_task_name(message.get("id")))
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def cancel_request(tasks: set["asyncio.Task[Any]"], params: Any) -> None:
    """Cancel a request that the server has cancelled."""
    id = params.get("requestId") if isinstance(params, dict) else None
    for task in tuple(tasks):
        if task.get_name() == _task_name(id):
            task.cancel()


def _task_name(id: Any) -> str:
    return f"asked as {id!r}"[:200]


async def answer_request(
    message: Mapping[str, Any], exchange: ServerRequestHandler | None, slots: ConcurrencyLimit
) -> Json:
    """Return the response to a request of the server: its result or an error."""
    id, method, params = message.get("id"), message.get("method"), message.get("params")
    if method == "ping":
        return {"jsonrpc": "2.0", "id": id, "result": {}}
    try:
        if exchange is None or not isinstance(method, str) or not isinstance(params, dict | None):
            raise ProtocolError(METHOD_NOT_FOUND, "no caller can answer that")
        slots.release()  # the call does not use the server while the caller decides
        try:
            return {"jsonrpc": "2.0", "id": id, "result": await exchange.handle_request(method, params or {})}
        finally:
            slots.reacquire()
    except ProtocolError as error:
        refused = error
    except GatewayError as error:
        refused = ProtocolError(INTERNAL_ERROR, error.message)
    return {"jsonrpc": "2.0", "id": id, "error": {"code": refused.code, "message": refused.message}}


EXTENSION: Final = "io.modelcontextprotocol/tasks"
LONGEST_ID: Final = 2_048
SHORTEST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0
_DEFAULT_POLL_MS: Final = 500
"""Default poll interval in milliseconds."""

_cancellations: Final[set["asyncio.Task[None]"]] = set()


def declare_tasks(connection: UpstreamConnection) -> bool:
    """Whether a modern server may answer a call with a task if the client declares support."""
    extensions = connection.capabilities.get("extensions")
    return connection.era == "modern" and isinstance(extensions, dict) and EXTENSION in extensions


def supports_legacy_tasks(connection: UpstreamConnection) -> bool:
    """Whether a legacy server supports tool calls as tasks."""
    found: Any = connection.capabilities
    for part in ("tasks", "requests", "tools", "call"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return connection.era == "legacy" and found is not None


def task_id(task: Any) -> str:
    id = task.get("taskId") if isinstance(task, dict) else None
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
        raise BackendError("failed", "the upstream server created a task without an id")
    return id


def get_poll_interval(task: Json) -> float:
    """Return the poll interval in seconds, as the server suggests within limits."""
    interval = task.get("pollIntervalMs")
    known = interval if isinstance(interval, int | float) and not isinstance(interval, bool) else _DEFAULT_POLL_MS
    return min(max(known / 1000, SHORTEST_PAUSE), LONGEST_PAUSE)


def get_task_result(task: Json) -> Json | None:
    """Return the result of a completed task, or `None`. Raise `BackendError` for a failed one."""
    match task.get("status"):
        case "working" | "input_required":
            return None
        case "completed" if isinstance(result := task.get("result"), dict):
            return result
        case "failed":
            raise to_remote_error(task.get("error"))
        case "cancelled":
            raise BackendError("failed", "the upstream server has cancelled the call")
    _raise_unknown()


async def fetch_legacy_result(connection: UpstreamConnection, created: Json, exchange: ServerRequestHandler) -> Json:
    """Return the result of a legacy server's task with one request, which is answered when the task is completed."""
    id = task_id(created.get("task"))
    try:
        return await connection.request("tasks/result", {"taskId": id}, exchange=exchange, timeout=None)
    except asyncio.CancelledError:
        cancel_task(connection, id, exchange)
        raise


def cancel_task(connection: UpstreamConnection, id: str, exchange: ServerRequestHandler) -> None:
    """Cancel a task at the server, in the background because the caller has been cancelled."""

    async def send_cancel() -> None:
        with suppress(BackendError):
            await connection.request("tasks/cancel", {"taskId": id}, exchange=exchange, timeout=PROBE_SECONDS)

    task = asyncio.create_task(send_cancel())
    _cancellations.add(task)
    task.add_done_callback(_cancellations.discard)


def _raise_unknown() -> NoReturn:
    raise BackendError("failed", "the upstream server's task has an unknown status")


MAX_ROUNDS: Final = 32
MAX_META_BYTES: Final = 16 << 10
"""Maximum size of metadata that a caller sends along."""
MAX_QUESTIONS: Final = 32

_METHODS: Final = frozenset(get_args(QuestionMethod))
_NOTHING: Final[Mapping[str, Any]] = {}
_NOT_PASSED_ON: Final = frozenset({"progressToken", "traceparent", "tracestate", "baggage"})


class CallerRelay:
    """The `ServerRequestHandler` of one call. Without a client, notifications are dropped."""

    __slots__ = ("_client", "_context", "_deadline", "capabilities", "hop", "log_level", "principal", "wants_progress")

    def __init__(
        self, client: CallerChannel | None, principal: Principal | None, deadline: Deadline | None = None
    ) -> None:
        """`deadline` is paused while the caller is asked."""
        self._client = client
        self._deadline = deadline
        self.hop: OutboundRequest | None = None
        self.principal = principal
        self.capabilities = _NOTHING if client is None else filter_capabilities(client.capabilities)
        self.wants_progress = client is not None and client.wants_progress
        self.log_level = None if client is None else client.log_level
        # another call's task may read the message, but it belongs to this call and tool
        self._context: Context | None = None if client is None else copy_context()

    def handle_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if self._client is None or self._context is None:
            return
        if method == "notifications/progress":
            self._context.run(_send_progress, self._client, params)
        else:
            self._context.run(_send_log, self._client, params)

    async def handle_request(self, method: str, params: Mapping[str, Any]) -> Any:
        question = parse_question(method, params)
        if self._client is None or not self._client.can_answer(question):
            raise ProtocolError(METHOD_NOT_FOUND, "the caller did not declare that it can answer that")
        return (await self._ask_client(self._client, {"question": question}))["question"]

    async def ask_caller(self, requests: Mapping[str, Question]) -> Mapping[str, Any]:
        """Return one answer for each question. Raise `CallerCannotAnswer` if the client lacks a capability."""
        if self._client is None:
            raise BackendError("failed", "the upstream server asks a question, but there is no client to answer it")
        return await self._ask_client(self._client, requests)

    async def _ask_client(self, client: CallerChannel, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        with nullcontext() if self._deadline is None else self._deadline.pause():
            return await client.ask(questions)

    @property
    def meta(self) -> dict[str, Any]:
        """The caller's metadata, without keys of the gateway, the protocol and the trace."""
        if self._client is None:
            return {}
        found = {
            key: value for key, value in filter_foreign_meta(self._client.meta).items() if key not in _NOT_PASSED_ON
        }
        return found if found and len(orjson.dumps(found)) <= MAX_META_BYTES else {}

    def declare_tasks(self) -> None:
        """Declare support of tasks, which does not depend on the caller."""
        self.capabilities = {**self.capabilities, "extensions": {EXTENSION: {}}}

    def report_missing(self, needed: Mapping[str, Any]) -> None:
        if self._client is not None:
            self._client.report_missing(needed)


async def resolve_input_requests(
    connection: UpstreamConnection,
    method: str,
    params: Mapping[str, Any],
    relay: CallerRelay,
    *,
    timeout: float | None = None,
) -> Json:
    """Send the request until the result is complete: each round asks the caller what the server needs.

    `timeout` applies to each round; the caller of this function sets a deadline for all of them.
    """
    if method == "tools/call" and declare_tasks(connection):
        relay.declare_tasks()
    body = params
    for _ in range(MAX_ROUNDS):
        try:
            result = await connection.request(method, body, exchange=relay, timeout=timeout)
        except RemoteError as error:
            if (needed := error.missing_capabilities) is not None:
                relay.report_missing(needed)
            raise
        if result.get("resultType", "complete") == "complete":
            return result
        if result["resultType"] == "task" and method == "tools/call":
            return await _poll_task(connection, result, relay, timeout=timeout)
        if result["resultType"] != "input_required":
            raise BackendError("failed", "the upstream server answered with an unknown type of result")
        questions = parse_questions(result.get("inputRequests"))
        body = {**params, "inputResponses": await relay.ask_caller(questions)} if questions else dict(params)
        if isinstance(state := result.get("requestState"), str):
            body["requestState"] = state
    raise BackendError("failed", "the upstream server asks too many rounds of questions")


async def _poll_task(connection: UpstreamConnection, task: Json, relay: CallerRelay, *, timeout: float | None) -> Json:
    """Poll a modern server's task until it is completed; relay its questions to the caller."""
    params = {"taskId": task_id(task)}
    answered: set[str] = set()
    last_message: Any = None
    try:
        while (outcome := get_task_result(task)) is None:
            if (message := task.get("statusMessage")) != last_message:
                last_message = message
                relay.handle_notification("notifications/message", {"level": "info", "data": message})
            found = parse_questions(task.get("inputRequests"))
            if questions := {key: each for key, each in found.items() if key not in answered}:
                body = {**params, "inputResponses": await relay.ask_caller(questions)}
                await connection.request("tasks/update", body, exchange=relay, timeout=timeout)
                answered |= questions.keys()
            await asyncio.sleep(get_poll_interval(task))
            task = await connection.request("tasks/get", params, exchange=relay, timeout=timeout)
    except BaseException as error:
        if not isinstance(error, RemoteError):  # otherwise the task has ended or is unknown to the server
            cancel_task(connection, params["taskId"], relay)
        raise
    return outcome


def filter_capabilities(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the caller's capabilities that the gateway can relay to a server."""
    found: dict[str, Any] = {}
    for name, parts in (("elicitation", ("form", "url")), ("sampling", ("tools",)), ("roots", ())):
        declared = capabilities.get(name)
        if isinstance(declared, dict):
            found[name] = {part: {} for part in parts if isinstance(declared.get(part), dict)}
    return found


def parse_questions(requests: Any) -> dict[str, Question]:
    """Parse the questions of a modern server. Raise `BackendError` for anything else."""
    if requests is None:
        return {}
    if not isinstance(requests, dict) or len(requests) > MAX_QUESTIONS:
        raise BackendError("failed", "the upstream server asks too many questions, or none that is well-formed")
    found = {}
    for key, each in requests.items():
        method = each.get("method") if isinstance(each, dict) else None
        params = each.get("params") if isinstance(each, dict) else None
        try:
            found[key] = parse_question(str(method), params if isinstance(params, dict) else {})
        except ProtocolError as error:
            raise BackendError(
                "failed", f"the upstream server asks a question that cannot be relayed: {error.message}"
            ) from error
    return found


def parse_question(method: str, params: Mapping[str, Any]) -> Question:
    """Raise `ProtocolError` for a request that callers must not get, such as a URL that is not http or https."""
    if method not in _METHODS:
        raise ProtocolError(METHOD_NOT_FOUND, "this request cannot be relayed to the caller")
    if method == "elicitation/create" and params.get("mode") == "url" and not _is_web(params.get("url")):
        raise ProtocolError(INVALID_PARAMS, "only http and https URLs can be opened")
    found: Any = method
    return Question(found, {key: value for key, value in params.items() if key != "_meta"})


def _is_web(url: Any) -> bool:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()
    except ValueError:
        return False


def _send_progress(client: CallerChannel, params: Mapping[str, Any]) -> None:
    progress, total, message = params.get("progress"), params.get("total"), params.get("message")
    if _is_number(progress):
        client.send_progress(
            progress, total if _is_number(total) else None, message if isinstance(message, str) else None
        )


def _send_log(client: CallerChannel, params: Mapping[str, Any]) -> None:
    level, logger = params.get("level"), params.get("logger")
    if isinstance(level, str) and level in LOG_LEVELS:
        known: LogLevel = level  # type: ignore[assignment]  # checked above
        client.send_log(known, params.get("data"), logger if isinstance(logger, str) else None)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
