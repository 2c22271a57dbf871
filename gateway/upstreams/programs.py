"""A program that speaks MCP over its standard streams: started confined, one message per line, bounded both ways."""

import asyncio
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final, Literal

from gateway.backends.command import environment_of
from gateway.backends.grants import Grants
from gateway.backends.processes import Child, Confinement, HostControls, start
from gateway.backends.refusals import excerpt
from gateway.governance.ports import BackendFailed
from gateway.upstreams.messages import MAX_MESSAGE, MessageTooManyValues, read, too_large

WRITE_SECONDS: Final = 10.0
"""How long a program may leave what we write unread."""
LINES_PER_MINUTE: Final = 60
"""Lines of its error output that are on the log."""

_LONGEST_LINE: Final = 500
_LAST_WORDS: Final = 2048

_log: Final = logging.getLogger(__name__)

Complain = Callable[[str, str], None]

_ENDS: Final = 256
_NAMED: Final = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\b')


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that has too many values. `ids` are the requests that it may answer."""

    error: MessageTooManyValues
    ids: frozenset[int]


def ids_in(line: bytes) -> frozenset[int]:
    """Servers write the id of an answer at its beginning or at its end."""
    ends = line[:_ENDS] + b" " + line[-_ENDS:]
    return frozenset(int(found) for found in _NAMED.findall(ends))


@dataclass(frozen=True, slots=True)
class Program:
    """What is started. The environment is exactly this one; secrets in it are read at each start."""

    argv: tuple[str, ...]
    environment: Mapping[str, str | Callable[[], str]] = field(default_factory=dict, repr=False)
    folder: str | None = None
    network: Literal["none", "host"] = "none"
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    cpu: timedelta | None = None
    memory: int | None = None
    max_message: int = MAX_MESSAGE
    grants: Grants = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grants", self.confinement.grants(self.argv[0], self.folder))

    @property
    def confinement(self) -> Confinement:
        """A server runs for long and may reserve much: processor and memory are bounded only where that was asked."""
        limits = {"RLIMIT_CORE": 0}
        limits |= {} if self.writable else {"RLIMIT_FSIZE": 0}
        limits |= {} if self.cpu is None else {"RLIMIT_CPU": 1 + max(1, math.ceil(self.cpu.total_seconds()))}
        limits |= {} if self.memory is None else {"RLIMIT_AS": self.memory}
        return Confinement(network=self.network, readable=self.readable, writable=self.writable, limits=limits)

    def problems(self, host: HostControls) -> list[tuple[str, str]]:
        """What is wrong with it on this host, each with what to do about it."""
        found: list[tuple[str, str]] = []
        if not (Path(self.argv[0]).is_file() and os.access(self.argv[0], os.X_OK)):
            found.append((f"{self.argv[0]} is no program", "install it, or correct 'argv'"))
        if self.folder is not None and not Path(self.folder).is_dir():
            found.append((f"{self.folder} is no folder", "create it, or correct 'workdir'"))
        return [*found, *self.confinement.problems(host), *self.grants.refusals]

    async def started(self, name: str, complain: Complain) -> "RunningProgram":
        """`name` is the upstream's, for the log. Raises `BackendFailed`."""
        environment, secrets = environment_of(self.environment)
        theirs, ours = os.pipe()
        try:
            child = start(self.argv, self.confinement, self.grants, environment=environment, stdin=theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return RunningProgram(name, child, ours, secrets=secrets, limit=self.max_message, complain=complain)


class RunningProgram:
    """One process. Made by `Program.started`; whoever has it ends it."""

    def __init__(
        self, name: str, child: Child, handle: int, *, secrets: list[str], limit: int, complain: Complain
    ) -> None:
        self._name = name
        self._child = child
        self._handle = handle
        self._secrets = secrets
        self._limit = limit
        self._complain = complain
        self._writing = asyncio.Lock()
        self._last = b""
        self._later: set[asyncio.Task[None]] = set()
        self._is_ending = False
        os.set_blocking(handle, False)
        self._complaints = asyncio.create_task(self._log_errors())

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.is_running and not self._is_ending

    async def send(self, message: bytes) -> None:
        """Write one line. Raises `BackendFailed` if the program does not read, or is gone."""
        try:
            async with asyncio.timeout(WRITE_SECONDS), self._writing:
                await self._written(memoryview(message + b"\n"))
        except (OSError, ValueError) as error:  # a timeout is an OSError
            self._is_ending = True  # half a line may be written, so nothing else can be
            raise BackendFailed("unavailable", "the upstream server does not read what it is sent") from error

    def send_soon(self, message: bytes) -> None:
        async def sent() -> None:
            with suppress(BackendFailed):
                await self.send(message)

        task = asyncio.create_task(sent())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def messages(self) -> AsyncIterator[Any]:
        """Each line as JSON; those that are none are skipped. Raises `BackendFailed` for one that is too long.

        A line of too many values comes as `Unread`.
        """
        parts: list[bytes] = []
        size = 0
        while chunk := await self._child.stdout.read():
            first, *others = chunk.split(b"\n")
            parts.append(first)
            size += len(first)
            for each in others:
                line = b"".join(parts)
                parts, size = [each], len(each)
                if line.strip():
                    try:
                        message = await read(line)
                    except MessageTooManyValues as error:
                        yield Unread(error, ids_in(line))
                    except BackendFailed:
                        self._complain("it wrote a line that is not JSON", "")
                    else:
                        yield message
            if size > self._limit:
                raise too_large(self._limit)

    async def farewell(self) -> BackendFailed:
        """Why it ended, once it closed its output."""
        self._is_ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                code = await self._child.exited()
                await asyncio.wait([self._complaints])
                try:
                    self._child.check_started(code, self._last)
                except BackendFailed as error:
                    return error
                how = f"with status {code}" if code >= 0 else f"by signal {-code}"
                return BackendFailed("unavailable", f"the upstream server has ended {how}")
        return BackendFailed("unavailable", "the upstream server has closed its output")

    @property
    def last_words(self) -> str:
        """The last line of its error output, for operators: it is not for those who call."""
        lines = [line for line in self._last.splitlines() if line.strip()]
        if not lines:
            return ""
        words = excerpt(lines[-1], secrets=self._secrets, limit=_LONGEST_LINE)
        return words + self._child.confinement.advice(self._last.decode("utf-8", "replace"))

    async def end(self, grace: timedelta) -> None:
        """Ask it to end by closing its input, then make it and everything it has started."""
        self._is_ending = True
        for task in self._later:
            task.cancel()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._child.is_running:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace.total_seconds() / 2):
                    await self._child.exited()
        try:
            await self._child.stop(grace / 2)
        finally:
            self._complaints.cancel()
            await asyncio.wait([self._complaints])
            await self._child.end(timedelta())

    async def _written(self, rest: memoryview) -> None:
        while rest:
            if self._handle < 0:
                raise BrokenPipeError("it has ended")
            try:
                rest = rest[os.write(self._handle, rest) :]
            except BlockingIOError:
                await _writable(self._handle)

    async def _log_errors(self) -> None:
        """Its error output on the log: a few lines a minute, each in one short line, secrets gone."""
        begun, lines, rest = monotonic(), 0, b""
        while chunk := await self._child.stderr.read():
            self._last = (self._last + chunk)[-_LAST_WORDS:] if len(self._last) >= _LAST_WORDS else self._last + chunk
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LONGEST_LINE:]
            if monotonic() - begun > 60:
                begun, lines = monotonic(), 0
            for line in whole:
                lines += 1
                if lines <= LINES_PER_MINUTE and line.strip():
                    told = excerpt(line[: 4 * _LONGEST_LINE], secrets=self._secrets, limit=_LONGEST_LINE)
                    _log.info("upstream %s, process %d, says: %s", self._name, self.pid, told)
                elif lines == LINES_PER_MINUTE + 1:
                    _log.info("upstream %s, process %d, says more than is logged", self._name, self.pid)


async def _writable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(handle, wake)
    try:
        await ready
    finally:
        loop.remove_writer(handle)
