"""Whoever made a call, as the server that works on it may reach them: what it tells and asks is passed on.

How a question travels to the caller, and how the server asked it, are two things: either side may be of either era.
"""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from contextvars import Context, copy_context
from typing import Any, Final, TypeGuard, get_args
from urllib.parse import urlsplit

import orjson

from gateway.core.deadlines import Deadline
from gateway.governance.ports import BackendFailed
from gateway.governance.principals import Principal
from gateway.serving.current import AskMethod, Client, LogLevel, Question
from gateway.serving.relayed import foreign_meta
from gateway.upstreams.connections import Connection
from gateway.upstreams.messages import Json, RemoteError
from gateway.upstreams.tasks import EXTENSION, give_up, has_tasks, outcome_of, pause_of, task_id
from gateway.web.mcp.protocol import INVALID_PARAMS, LEVELS, METHOD_NOT_FOUND, ProtocolError

MOST_ROUNDS: Final = 32
MAX_BESIDE: Final = 16 << 10
"""Bytes of what a caller sends along."""
MOST_QUESTIONS: Final = 32

_METHODS: Final = frozenset(get_args(AskMethod))
_NOTHING: Final[Mapping[str, Any]] = {}
_NOT_PASSED_ON: Final = frozenset({"progressToken", "traceparent", "tracestate", "baggage"})


class Relay:
    """The `Exchange` of one call. Without a client, nobody is there to be told."""

    __slots__ = ("_client", "_context", "_deadline", "capabilities", "log_level", "principal", "wants_progress")

    def __init__(self, client: Client | None, principal: Principal | None, deadline: Deadline | None = None) -> None:
        """The time of `deadline` stands still while the caller is asked."""
        self._client = client
        self._deadline = deadline
        self.principal = principal
        self.capabilities = _NOTHING if client is None else relayed(client.capabilities)
        self.wants_progress = client is not None and client.wants_progress
        self.log_level = None if client is None else client.log_level
        # what a server says may be read in a task of somebody else's, but is said in the name of this call's tool
        self._context: Context | None = None if client is None else copy_context()

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        if self._client is None or self._context is None:
            return
        if method == "notifications/progress":
            self._context.run(_progressed, self._client, params)
        else:
            self._context.run(_logged, self._client, params)

    async def asked(self, method: str, params: Mapping[str, Any]) -> Any:
        question = question_of(method, params)
        if self._client is None or not self._client.can_answer(question):
            raise ProtocolError(METHOD_NOT_FOUND, "whoever calls did not say that they can answer that")
        return (await self._answered(self._client, {"question": question}))["question"]

    async def answers(self, requests: Mapping[str, Question]) -> Mapping[str, Any]:
        """One answer for each. Raises `CallerCannotAnswer` for what the client did not say it can do."""
        if self._client is None:
            raise BackendFailed("failed", "the upstream server asks something, and nobody is there to answer")
        return await self._answered(self._client, requests)

    async def _answered(self, client: Client, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        with nullcontext() if self._deadline is None else self._deadline.paused():
            return await client.ask(questions)

    @property
    def meta(self) -> dict[str, Any]:
        """What a caller sends along that is neither ours, nor the protocol's, nor that of a trace."""
        if self._client is None:
            return {}
        found = {key: value for key, value in foreign_meta(self._client.meta).items() if key not in _NOT_PASSED_ON}
        return found if found and len(orjson.dumps(found)) <= MAX_BESIDE else {}

    def knows_tasks(self) -> None:
        """We wait for tasks, whoever calls."""
        self.capabilities = {**self.capabilities, "extensions": {EXTENSION: {}}}

    def lacks(self, needed: Mapping[str, Any]) -> None:
        if self._client is not None:
            self._client.lacks(needed)


async def conversed(
    connection: Connection, method: str, params: Mapping[str, Any], relay: Relay, *, timeout: float | None = None
) -> Json:
    """A result that asks for nothing more: whatever the server needs is asked of the caller, round by round.

    `timeout` is for each round; the whole has a deadline of whoever calls this.
    """
    if method == "tools/call" and has_tasks(connection):
        relay.knows_tasks()
    given = params
    for _ in range(MOST_ROUNDS):
        try:
            result = await connection.request(method, given, exchange=relay, timeout=timeout)
        except RemoteError as error:
            if (needed := error.lacking) is not None:
                relay.lacks(needed)
            raise
        if result.get("resultType", "complete") == "complete":
            return result
        if result["resultType"] == "task" and method == "tools/call":
            return await _worked_out(connection, result, relay, timeout=timeout)
        if result["resultType"] != "input_required":
            raise BackendFailed("failed", "the upstream server answered with a kind of result that is not known here")
        questions = questions_of(result.get("inputRequests"))
        given = {**params, "inputResponses": await relay.answers(questions)} if questions else dict(params)
        if isinstance(state := result.get("requestState"), str):
            given["requestState"] = state
    raise BackendFailed("failed", "the upstream server does not stop asking")


async def _worked_out(connection: Connection, task: Json, relay: Relay, *, timeout: float | None) -> Json:
    """The result of a modern server's task, looked at until it is over; what it asks is asked of the caller."""
    params = {"taskId": task_id(task)}
    answered: set[str] = set()
    said: Any = None
    try:
        while (outcome := outcome_of(task)) is None:
            if (message := task.get("statusMessage")) != said:
                said = message
                relay.notified("notifications/message", {"level": "info", "data": message})
            asked = questions_of(task.get("inputRequests"))
            if questions := {key: each for key, each in asked.items() if key not in answered}:
                given = {**params, "inputResponses": await relay.answers(questions)}
                await connection.request("tasks/update", given, exchange=relay, timeout=timeout)
                answered |= questions.keys()
            await asyncio.sleep(pause_of(task))
            task = await connection.request("tasks/get", params, exchange=relay, timeout=timeout)
    except BaseException as error:
        if not isinstance(error, RemoteError):  # else it is over, or not known over there
            give_up(connection, params["taskId"], relay)
        raise
    return outcome


def relayed(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """What of a caller's capabilities holds for a server behind us: what can be asked through us, and nothing else."""
    found: dict[str, Any] = {}
    for name, parts in (("elicitation", ("form", "url")), ("sampling", ("tools",)), ("roots", ())):
        declared = capabilities.get(name)
        if isinstance(declared, dict):
            found[name] = {part: {} for part in parts if isinstance(declared.get(part), dict)}
    return found


def questions_of(requests: Any) -> dict[str, Question]:
    """What a modern server needs to know. Raises `BackendFailed` for what is no question."""
    if requests is None:
        return {}
    if not isinstance(requests, dict) or len(requests) > MOST_QUESTIONS:
        raise BackendFailed("failed", "the upstream server asks too much at once, or nothing that can be asked")
    found = {}
    for key, each in requests.items():
        method = each.get("method") if isinstance(each, dict) else None
        params = each.get("params") if isinstance(each, dict) else None
        try:
            found[key] = question_of(str(method), params if isinstance(params, dict) else {})
        except ProtocolError as error:
            raise BackendFailed(
                "failed", f"the upstream server asks what cannot be passed on: {error.message}"
            ) from error
    return found


def question_of(method: str, params: Mapping[str, Any]) -> Question:
    """Raises `ProtocolError` for what must not be asked: a page to open is one on the web, not a program."""
    if method not in _METHODS:
        raise ProtocolError(METHOD_NOT_FOUND, "that cannot be asked of whoever calls")
    if method == "elicitation/create" and params.get("mode") == "url" and not _is_web(params.get("url")):
        raise ProtocolError(INVALID_PARAMS, "only pages of http and https can be opened")
    asked: Any = method
    return Question(asked, {key: value for key, value in params.items() if key != "_meta"})


def _is_web(url: Any) -> bool:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()
    except ValueError:
        return False


def _progressed(client: Client, params: Mapping[str, Any]) -> None:
    progress, total, message = params.get("progress"), params.get("total"), params.get("message")
    if _is_number(progress):
        client.progress(progress, total if _is_number(total) else None, message if isinstance(message, str) else None)


def _logged(client: Client, params: Mapping[str, Any]) -> None:
    level, logger = params.get("level"), params.get("logger")
    if isinstance(level, str) and level in LEVELS:
        known: LogLevel = level  # type: ignore[assignment]  # one of them, as was just asked
        client.log(known, params.get("data"), logger if isinstance(logger, str) else None)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
