"""An MCP server that is a program on this host: confined, given the declared environment alone, ended as a group.

One process answers everybody. When it ends, whatever waits for it is told so, and the next request starts it again,
after a pause that grows while it keeps ending. What it writes to its error output is on the log, a little of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from gateway.backends.processes import HostControls
from gateway.backends.refusals import BackendUnusable
from gateway.governance.ports import BackendFailed
from gateway.upstreams.asking import WITHDRAWN, answer_to, begin, withdraw
from gateway.upstreams.connections import Connection, Exchange, Propagate
from gateway.upstreams.introductions import Introduction, discovered, shaken_hands
from gateway.upstreams.messages import Era, Json, RemoteError, answers, client_info, encoded, result_of
from gateway.upstreams.programs import Program, RunningProgram, Unread
from gateway.web.mcp.protocol import LEVELS, NEWEST_LEGACY, UNSUPPORTED_VERSION

PROBE_WAITS: Final = 20.0
"""Seconds that a program has to start, and to answer what only modern ones understand; others answer with an error."""
START_WAITS: Final = 40.0
LONGEST_PAUSE: Final = 30.0
STEADY_AFTER: Final = 60.0
"""Seconds after which a program that ends had been running well."""

_RELAYED: Final[Mapping[str, Any]] = {
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
}
"""What an older program is told that clients can do: it is told once, for every caller to come."""


@dataclass(slots=True, eq=False)
class _Waiting:
    answer: "asyncio.Future[Json]"
    exchange: Exchange | None


@dataclass(slots=True, eq=False)
class _Run:
    """One process from its start to its end."""

    program: RunningProgram
    begun: float
    waiting: dict[int, _Waiting] = field(default_factory=dict)
    reading: "asyncio.Task[None] | None" = None
    asking: "set[asyncio.Task[None]]" = field(default_factory=set)
    level: str | None = None
    listening: "asyncio.Task[None] | None" = None


class StdioConnection(Connection):
    transport = "stdio"

    def __init__(
        self,
        name: str,
        program: Program,
        host: HostControls,
        *,
        ids: Iterator[int],
        propagate: Propagate | None = None,
        grace: timedelta = timedelta(seconds=1),
    ) -> None:
        """Raises `BackendUnusable` for a program, or for limits, that this host does not have."""
        super().__init__(name, ids=ids, propagate=propagate)
        for message, help in program.problems(host):
            raise BackendUnusable(message, help=help)
        self._program = program
        self._grace = grace
        self._run: _Run | None = None
        self._starting: asyncio.Task[_Run] | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._known_era: Era | None = None
        self._pause = 0.0
        self._not_before = 0.0

    @property
    def address(self) -> str:
        return self._program.argv[0]

    @property
    def pid(self) -> int | None:
        """The number of the process, while there is one."""
        return None if self._run is None else self._run.program.pid

    async def close(self) -> None:
        await super().close()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._run is not None:
            await self._end(self._run, BackendFailed("unavailable", "the gateway is letting go of this server"))
        if self._readers:  # of processes that are being ended already
            await asyncio.wait(self._readers)

    async def _introduced(self) -> Introduction:
        await self._running()
        assert self.introduction is not None, "whoever runs has introduced itself"  # noqa: S101 - set by `_start`
        return self.introduction

    async def connect(self) -> Introduction:
        """Anew for every process: another one may be another program by now."""
        return await self._introduced()

    async def _requested(self, method: str, params: Mapping[str, Any], exchange: Exchange | None) -> Json:
        run = await self._running()
        era: Era = self.era or "legacy"
        if era == "legacy":
            await self._levelled(run, exchange)
        return await self._asked(run, method, params, exchange, era=era)

    async def _notified(self, method: str, params: Mapping[str, Any]) -> None:
        run = await self._running()
        await run.program.send(encoded({"jsonrpc": "2.0", "method": method, "params": params}))

    # --- starting and ending ---

    async def _running(self) -> _Run:
        run = self._run
        if run is not None and run.program.is_running:
            return run
        self._refuse_closed()
        if self._starting is None or self._starting.done():
            # its own task: a caller who does not wait that long must not end what others wait for
            self._starting = asyncio.create_task(self._start(), context=Context())
            self._starting.add_done_callback(_seen)
        return await asyncio.shield(self._starting)

    async def _start(self) -> _Run:
        try:
            async with asyncio.timeout(START_WAITS):
                return await self._started()
        except TimeoutError as error:
            self._rest()
            raise BackendFailed("unavailable", "the upstream server does not answer what it is greeted with") from error

    async def _started(self) -> _Run:
        now = monotonic()
        if now < self._not_before:
            left = self._not_before - now
            raise BackendFailed("unavailable", f"the upstream server keeps ending; it is started again in {left:.0f} s")
        for _ in range(2):
            run = _Run(await self._program.started(self.name, self.complain), now)
            run.reading = asyncio.create_task(self._read(run))
            self._readers.add(run.reading)
            run.reading.add_done_callback(self._readers.discard)
            try:
                self.introduction = await self._met(run)
                self._known_era = self.introduction.era
                self._run = run
                self._listen_anew()
                if self.era == "legacy" and self._subscribed:
                    await self._subscribed_again(self._subscribing(run))
                return run
            except BackendFailed:
                is_over = not run.program.is_running
                await self._end(run, None)
                if is_over and self._known_era is None:
                    self._known_era = "legacy"  # it did not survive the question of which era it is of
                    continue
                self._rest()
                raise
            except BaseException:
                await self._end(run, None)
                raise
        raise BackendFailed("unavailable", "the upstream server ends when it is spoken to")

    def _listen_anew(self) -> None:
        run, known = self._run, self.introduction
        if run is None or known is None or known.era != "modern" or not self._hearers:
            return
        if run.listening is not None:
            run.listening.cancel()
            run.listening = None
        if announces := self._announces(known):
            run.listening = asyncio.create_task(self._listen(run, announces))
            run.asking.add(run.listening)
            run.listening.add_done_callback(run.asking.discard)

    async def _listen(self, run: _Run, announces: Mapping[str, Any]) -> None:
        """A modern program announces what it was asked to, until it ends."""
        with suppress(BackendFailed):
            await self._asked(run, "subscriptions/listen", {"notifications": announces}, None, era="modern")

    def _subscribing(self, run: _Run) -> Callable[[str], Awaitable[Json]]:
        return lambda uri: self._asked(run, "resources/subscribe", {"uri": uri}, None, era="legacy")

    def _rest(self) -> None:
        self._pause = min(max(self._pause * 2, 0.5), LONGEST_PAUSE)
        self._not_before = monotonic() + self._pause

    async def _met(self, run: _Run) -> Introduction:
        if self._known_era != "legacy":
            try:
                async with asyncio.timeout(PROBE_WAITS):
                    return discovered(await self._asked(run, "server/discover", {}, None, era="modern"))
            except RemoteError as error:
                if error.number == UNSUPPORTED_VERSION:
                    raise
            except TimeoutError:
                pass
        params = {"protocolVersion": NEWEST_LEGACY, "capabilities": _RELAYED, "clientInfo": client_info()}
        found = shaken_hands(await self._asked(run, "initialize", params, None, era="legacy"))
        await run.program.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return found

    async def _end(self, run: _Run, why: BackendFailed | None) -> None:
        if self._run is run:
            self._run = None
        reading = run.reading
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
            await asyncio.wait([reading])
        self._abandon(run, why or BackendFailed("unavailable", "the upstream server has ended"))
        await run.program.end(self._grace)

    def _abandon(self, run: _Run, why: BackendFailed) -> None:
        for task in run.asking:
            task.cancel()
        for waiting in run.waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(why)
        run.waiting.clear()

    # --- talking ---

    async def _asked(
        self, run: _Run, method: str, params: Mapping[str, Any], exchange: Exchange | None, *, era: Era
    ) -> Json:
        id = next(self._ids)
        message = encoded(self._message(id, method, params, exchange, era=era))
        waiting = run.waiting[id] = _Waiting(asyncio.get_running_loop().create_future(), exchange)
        try:
            await run.program.send(message)
            return result_of(await waiting.answer)
        except asyncio.CancelledError:
            if run.program.is_running and method != "initialize":
                told = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
                run.program.send_soon(encoded(told))
            raise
        finally:
            run.waiting.pop(id, None)

    async def _levelled(self, run: _Run, exchange: Exchange | None) -> None:
        """Older servers know one level of messages: the most talkative that anybody asked for."""
        wanted = None if exchange is None else exchange.log_level
        if wanted is None or wanted not in LEVELS or "logging" not in self.capabilities:
            return
        if run.level is None or LEVELS[wanted] < LEVELS[run.level]:
            run.level = wanted
            with suppress(RemoteError):
                await self._asked(run, "logging/setLevel", {"level": wanted}, None, era="legacy")

    async def _read(self, run: _Run) -> None:
        """What the program says, until it ends."""
        why = BackendFailed("unavailable", "the upstream server has ended")
        try:
            async for message in run.program.messages():
                self._heard(run, message)
            why = await run.program.farewell()
        except BackendFailed as error:
            why = error
        if monotonic() - run.begun > STEADY_AFTER:
            self._pause = 0.0
        elif self._pause or self.introduction is None:
            self._rest()
        else:
            self._pause = 0.25  # the first time it ends early, it is started again at once
        self.standing.failed(why.message, enough=2)
        words = run.program.last_words
        self.complain("it has ended", f"{why.message}: {words}" if words else why.message)
        self._abandon(run, why)
        await self._end(run, why)

    def _heard(self, run: _Run, message: Any) -> None:
        if isinstance(message, Unread):
            self._failed(run, message)
        elif not isinstance(message, dict):
            self.complain("it wrote a line that is no message")
        elif "method" in message:
            self._told(run, message)
        else:
            id = message.get("id")
            waiting = run.waiting.get(id) if type(id) is int else None
            if waiting is None or type(id) is not int or not answers(message, id):
                self.complain("it answered something that nobody asked")
            elif not waiting.answer.done():
                waiting.answer.set_result(message)

    def _failed(self, run: _Run, unread: Unread) -> None:
        """A line that is not read may be the answer to any request that it names. Others wait on."""
        self.complain("it wrote a line of too many values")
        for id in unread.ids & run.waiting.keys():
            if not run.waiting[id].answer.done():
                run.waiting[id].answer.set_exception(unread.error)

    def _told(self, run: _Run, message: Json) -> None:
        if "id" in message:
            begin(run.asking, message, self._replied(run, message))
            return
        params = message.get("params")
        if message.get("method") == WITHDRAWN:
            withdraw(run.asking, params)
            return
        self.pass_on(message.get("method"), params, self._meant(run, params))

    def _meant(self, run: _Run, params: Any) -> Exchange | None:
        """Whom a message is for. A program that works for several at once does not say, unless it is progress."""
        token = params.get("progressToken") if isinstance(params, dict) else None
        if type(token) is int and token in run.waiting:
            return run.waiting[token].exchange
        callers = [each.exchange for each in run.waiting.values() if each.exchange is not None]
        return callers[0] if len(callers) == 1 else None

    async def _replied(self, run: _Run, message: Json) -> None:
        answer = await answer_to(message, self._meant(run, None), self.slots)
        with suppress(BackendFailed):
            await run.program.send(encoded(answer))


def _seen(starting: "asyncio.Task[_Run]") -> None:
    """Whoever waited may have gone; how it ended is in the standing."""
    if not starting.cancelled():
        starting.exception()
