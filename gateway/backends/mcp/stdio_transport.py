"""MCP over stdio: a server that is a confined program on this host with only the declared environment.

One process serves all callers. When it ends, pending requests fail, and the next request starts it again after a pause
that grows while it keeps ending early. A bounded number of lines of its stderr is logged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from gateway.backends.command.child_process import HostControls
from gateway.backends.mcp.connection import ServerRequestHandler, UpstreamConnection
from gateway.backends.mcp.rpc_responses import (
    RemoteError,
    ServerInfo,
    client_info,
    get_result,
    parse_discovery,
    parse_initialize,
)
from gateway.backends.mcp.server_process import ServerProcess, ServerProgram, UnreadableLine
from gateway.backends.mcp.server_requests import (
    CANCELLED_NOTIFICATION,
    answer_in_background,
    answer_request,
    cancel_request,
)
from gateway.backends.result_conversion import BackendUnusable
from gateway.mcp import (
    LOG_LEVELS,
    NEWEST_SESSION_VERSION,
    UNSUPPORTED_VERSION,
    Era,
    Json,
    encode_message,
    is_response_to,
)
from gateway.model import BackendError

PROBE_WAITS: Final = 20.0
"""Seconds that a program has to start and to answer `server/discover`; legacy servers answer it with an error."""
START_WAITS: Final = 40.0
LONGEST_PAUSE: Final = 30.0
STEADY_AFTER: Final = 60.0
"""Seconds after which the run of a program counts as stable."""

_CAPABILITIES: Final[Mapping[str, Any]] = {
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
}
"""Client capabilities sent to a legacy program: it gets them once, for all future callers."""


@dataclass(slots=True, eq=False)
class _PendingRequest:
    answer: "asyncio.Future[Json]"
    exchange: ServerRequestHandler | None


@dataclass(slots=True, eq=False)
class _ServerRun:
    """One process from its start to its end."""

    program: ServerProcess
    begun: float
    waiting: dict[int, _PendingRequest] = field(default_factory=dict)
    reading: "asyncio.Task[None] | None" = None
    asking: "set[asyncio.Task[None]]" = field(default_factory=set)
    level: str | None = None
    listening: "asyncio.Task[None] | None" = None


class StdioConnection(UpstreamConnection):
    transport = "stdio"

    def __init__(
        self,
        name: str,
        program: ServerProgram,
        host: HostControls,
        *,
        ids: Iterator[int],
        grace: timedelta = timedelta(seconds=1),
    ) -> None:
        """Raise `BackendUnusable` if this host lacks the program or cannot enforce its limits."""
        super().__init__(name, ids=ids)
        for message, help in program.problems(host):
            raise BackendUnusable(message, help=help)
        self._program = program
        self._grace = grace
        self._run: _ServerRun | None = None
        self._starting: asyncio.Task[_ServerRun] | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._known_era: Era | None = None
        self._pause = 0.0
        self._not_before = 0.0

    @property
    def address(self) -> str:
        return self._program.argv[0]

    @property
    def pid(self) -> int | None:
        """The PID of the process while it runs."""
        return None if self._run is None else self._run.program.pid

    async def close(self) -> None:
        await super().close()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._run is not None:
            await self._end(self._run, BackendError("unavailable", "the gateway is closing this server's connection"))
        if self._readers:  # readers of processes that are already ending
            await asyncio.wait(self._readers)

    async def _fetch_info(self) -> ServerInfo:
        await self._ensure_running()
        assert self.introduction is not None, "a running process has been introduced"  # noqa: S101 - set by `_start`
        return self.introduction

    async def connect(self) -> ServerInfo:
        """Return the info of the running process, read at each start because the program may have changed."""
        return await self._fetch_info()

    async def _request(self, method: str, params: Mapping[str, Any], exchange: ServerRequestHandler | None) -> Json:
        run = await self._ensure_running()
        era: Era = self.era or "legacy"
        if era == "legacy":
            await self._set_log_level(run, exchange)
        return await self._exchange(run, method, params, exchange, era=era)

    async def _send_notification(self, method: str, params: Mapping[str, Any]) -> None:
        run = await self._ensure_running()
        await run.program.send(encode_message({"jsonrpc": "2.0", "method": method, "params": params}))

    # --- starting and ending ---

    async def _ensure_running(self) -> _ServerRun:
        run = self._run
        if run is not None and run.program.is_running:
            return run
        self._check_open()
        if self._starting is None or self._starting.done():
            # a separate task, so that a cancelled caller does not cancel the start for others
            self._starting = asyncio.create_task(self._start(), context=Context())
            self._starting.add_done_callback(_ignore_exception)
        return await asyncio.shield(self._starting)

    async def _start(self) -> _ServerRun:
        try:
            async with asyncio.timeout(START_WAITS):
                return await self._start_process()
        except TimeoutError as error:
            self._back_off()
            raise BackendError("unavailable", "the upstream server does not answer its first request") from error

    async def _start_process(self) -> _ServerRun:
        now = monotonic()
        if now < self._not_before:
            left = self._not_before - now
            raise BackendError("unavailable", f"the upstream server keeps ending; it is started again in {left:.0f} s")
        for _ in range(2):
            run = _ServerRun(await self._program.start(self.name, self.log_warning), now)
            run.reading = asyncio.create_task(self._read(run))
            self._readers.add(run.reading)
            run.reading.add_done_callback(self._readers.discard)
            try:
                self.introduction = await self._handshake(run)
                self._known_era = self.introduction.era
                self._run = run
                self._renew_listening()
                if self.era == "legacy" and self._subscriptions:
                    await self._resubscribe(self._subscribe_with(run))
                return run
            except BackendError:
                is_over = not run.program.is_running
                await self._end(run, None)
                if is_over and self._known_era is None:
                    self._known_era = "legacy"  # it did not survive `server/discover`
                    continue
                self._back_off()
                raise
            except BaseException:
                await self._end(run, None)
                raise
        raise BackendError("unavailable", "the upstream server ends after its first request")

    def _renew_listening(self) -> None:
        run, known = self._run, self.introduction
        if run is None or known is None or known.era != "modern" or not self._listeners:
            return
        if run.listening is not None:
            run.listening.cancel()
            run.listening = None
        if announces := self._notification_filter(known):
            run.listening = asyncio.create_task(self._listen(run, announces))
            run.asking.add(run.listening)
            run.listening.add_done_callback(run.asking.discard)

    async def _listen(self, run: _ServerRun, announces: Mapping[str, Any]) -> None:
        """Keep a modern program's subscription open until it ends."""
        with suppress(BackendError):
            await self._exchange(run, "subscriptions/listen", {"notifications": announces}, None, era="modern")

    def _subscribe_with(self, run: _ServerRun) -> Callable[[str], Awaitable[Json]]:
        return lambda uri: self._exchange(run, "resources/subscribe", {"uri": uri}, None, era="legacy")

    def _back_off(self) -> None:
        self._pause = min(max(self._pause * 2, 0.5), LONGEST_PAUSE)
        self._not_before = monotonic() + self._pause

    async def _handshake(self, run: _ServerRun) -> ServerInfo:
        if self._known_era != "legacy":
            try:
                async with asyncio.timeout(PROBE_WAITS):
                    return parse_discovery(await self._exchange(run, "server/discover", {}, None, era="modern"))
            except RemoteError as error:
                if error.number == UNSUPPORTED_VERSION:
                    raise
            except TimeoutError:
                pass
        params = {"protocolVersion": NEWEST_SESSION_VERSION, "capabilities": _CAPABILITIES, "clientInfo": client_info()}
        found = parse_initialize(await self._exchange(run, "initialize", params, None, era="legacy"))
        await run.program.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return found

    async def _end(self, run: _ServerRun, why: BackendError | None) -> None:
        if self._run is run:
            self._run = None
        reading = run.reading
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
            await asyncio.wait([reading])
        self._fail_pending(run, why or BackendError("unavailable", "the upstream server has ended"))
        await run.program.end(self._grace)

    def _fail_pending(self, run: _ServerRun, why: BackendError) -> None:
        for task in run.asking:
            task.cancel()
        for waiting in run.waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(why)
        run.waiting.clear()

    # --- messages ---

    async def _exchange(
        self,
        run: _ServerRun,
        method: str,
        params: Mapping[str, Any],
        exchange: ServerRequestHandler | None,
        *,
        era: Era,
    ) -> Json:
        id = next(self._ids)
        message = encode_message(self._message(id, method, params, exchange, era=era))
        waiting = run.waiting[id] = _PendingRequest(asyncio.get_running_loop().create_future(), exchange)
        try:
            await run.program.send(message)
            return get_result(await waiting.answer)
        except asyncio.CancelledError:
            if run.program.is_running and method != "initialize":
                cancellation = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
                run.program.send_nowait(encode_message(cancellation))
            raise
        finally:
            run.waiting.pop(id, None)

    async def _set_log_level(self, run: _ServerRun, exchange: ServerRequestHandler | None) -> None:
        """Set the log level of a legacy server, which has only one: the most verbose that any caller requested."""
        level = None if exchange is None else exchange.log_level
        if level is None or level not in LOG_LEVELS or "logging" not in self.capabilities:
            return
        if run.level is None or LOG_LEVELS[level] < LOG_LEVELS[run.level]:
            run.level = level
            with suppress(RemoteError):
                await self._exchange(run, "logging/setLevel", {"level": level}, None, era="legacy")

    async def _read(self, run: _ServerRun) -> None:
        """Handle the program's messages until it ends."""
        why = BackendError("unavailable", "the upstream server has ended")
        try:
            async for message in run.program.messages():
                self._handle_line(run, message)
            why = await run.program.exit_reason()
        except BackendError as error:
            why = error
        if monotonic() - run.begun > STEADY_AFTER:
            self._pause = 0.0
        elif self._pause or self.introduction is None:
            self._back_off()
        else:
            self._pause = 0.25  # after the first early end it restarts at once
        self.health.record_failure(why.message, enough=2)
        last_line = run.program.last_stderr_line
        self.log_warning("it has ended", f"{why.message}: {last_line}" if last_line else why.message)
        self._fail_pending(run, why)
        await self._end(run, why)

    def _handle_line(self, run: _ServerRun, message: Any) -> None:
        if isinstance(message, UnreadableLine):
            self._fail_unread(run, message)
        elif not isinstance(message, dict):
            self.log_warning("it wrote a line that is not a message")
        elif "method" in message:
            self._handle_message(run, message)
        else:
            id = message.get("id")
            waiting = run.waiting.get(id) if type(id) is int else None
            if waiting is None or type(id) is not int or not is_response_to(message, id):
                self.log_warning("it sent a response without a request")
            elif not waiting.answer.done():
                waiting.answer.set_result(message)

    def _fail_unread(self, run: _ServerRun, unread: UnreadableLine) -> None:
        """Fail the requests that an unreadable line may answer; others keep waiting."""
        self.log_warning("it wrote a line with too many values")
        for id in unread.ids & run.waiting.keys():
            if not run.waiting[id].answer.done():
                run.waiting[id].answer.set_exception(unread.error)

    def _handle_message(self, run: _ServerRun, message: Json) -> None:
        if "id" in message:
            answer_in_background(run.asking, message, self._reply(run, message))
            return
        params = message.get("params")
        if message.get("method") == CANCELLED_NOTIFICATION:
            cancel_request(run.asking, params)
            return
        self.dispatch_message(message.get("method"), params, self._find_caller(run, params))

    def _find_caller(self, run: _ServerRun, params: Any) -> ServerRequestHandler | None:
        """Return the caller of a message: by its progress token, or the only caller; `None` if that is ambiguous."""
        token = params.get("progressToken") if isinstance(params, dict) else None
        if type(token) is int and token in run.waiting:
            return run.waiting[token].exchange
        callers = [each.exchange for each in run.waiting.values() if each.exchange is not None]
        return callers[0] if len(callers) == 1 else None

    async def _reply(self, run: _ServerRun, message: Json) -> None:
        answer = await answer_request(message, self._find_caller(run, None), self.slots)
        with suppress(BackendError):
            await run.program.send(encode_message(answer))


def _ignore_exception(starting: "asyncio.Task[_ServerRun]") -> None:
    """Consume the exception: all waiting callers may be gone, and the connection's health records it."""
    if not starting.cancelled():
        starting.exception()
