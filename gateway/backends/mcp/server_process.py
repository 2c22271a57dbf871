"""The process of an MCP server over stdio: started confined, one message per line, bounded in both directions."""

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

from gateway.backends.command.backend import build_environment
from gateway.backends.command.child_process import ChildProcess, Confinement, HostControls, start_child
from gateway.backends.command.path_grants import Grants
from gateway.backends.result_conversion import excerpt
from gateway.mcp import MAX_MESSAGE, MessageTooManyValues, decode_message, message_too_large
from gateway.model import BackendError

WRITE_SECONDS: Final = 10.0
"""Maximum time that a program may leave its input unread."""
LINES_PER_MINUTE: Final = 60
"""Maximum number of stderr lines logged per minute."""

_LONGEST_LINE: Final = 500
_TAIL_BYTES: Final = 2048

_log: Final = logging.getLogger(__name__)

LogWarning = Callable[[str, str], None]

_ENDS: Final = 256
_NAMED: Final = re.compile(rb'"id"\s*:\s*([0-9]{1,15})\b')


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line with too many values. `ids` are the requests that it may answer."""

    error: MessageTooManyValues
    ids: frozenset[int]


def find_ids(line: bytes) -> frozenset[int]:
    """Return the ids found at the start and at the end of a line, where servers write them."""
    ends = line[:_ENDS] + b" " + line[-_ENDS:]
    return frozenset(int(found) for found in _NAMED.findall(ends))


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """The program of a server. It gets exactly this environment; secrets in it are read at each start."""

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
        """The limits of the process. CPU and memory are limited only if declared: servers run long and reserve much."""
        limits = {"RLIMIT_CORE": 0}
        limits |= {} if self.writable else {"RLIMIT_FSIZE": 0}
        limits |= {} if self.cpu is None else {"RLIMIT_CPU": 1 + max(1, math.ceil(self.cpu.total_seconds()))}
        limits |= {} if self.memory is None else {"RLIMIT_AS": self.memory}
        return Confinement(network=self.network, readable=self.readable, writable=self.writable, limits=limits)

    def problems(self, host: HostControls) -> list[tuple[str, str]]:
        """Return what is wrong with the program on this host, each with advice."""
        found: list[tuple[str, str]] = []
        if not (Path(self.argv[0]).is_file() and os.access(self.argv[0], os.X_OK)):
            found.append((f"{self.argv[0]} is not an executable file", "install it, or correct 'argv'"))
        if self.folder is not None and not Path(self.folder).is_dir():
            found.append((f"{self.folder} is not a folder", "create it, or correct 'workdir'"))
        return [*found, *self.confinement.problems(host), *self.grants.refusals]

    async def start(self, name: str, log_warning: LogWarning) -> "ServerProcess":
        """Start the process; the log calls it `name`. Raise `BackendError`."""
        environment, secrets = build_environment(self.environment)
        theirs, ours = os.pipe()
        try:
            child = start_child(self.argv, self.confinement, self.grants, environment=environment, stdin=theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return ServerProcess(name, child, ours, secrets=secrets, limit=self.max_message, log_warning=log_warning)


class ServerProcess:
    """A running server. Created by `ServerProgram.start`; the caller ends it."""

    def __init__(
        self, name: str, child: ChildProcess, handle: int, *, secrets: list[str], limit: int, log_warning: LogWarning
    ) -> None:
        self._name = name
        self._child = child
        self._handle = handle
        self._secrets = secrets
        self._limit = limit
        self._log_warning = log_warning
        self._writing = asyncio.Lock()
        self._tail = b""
        self._send_tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False
        os.set_blocking(handle, False)
        self._stderr_task = asyncio.create_task(self._log_errors())

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.is_running and not self._is_ending

    async def send(self, message: bytes) -> None:
        """Write one line. Raise `BackendError` if the program does not read it or has ended."""
        try:
            async with asyncio.timeout(WRITE_SECONDS), self._writing:
                await self._write(memoryview(message + b"\n"))
        except (OSError, ValueError) as error:  # a timeout is an OSError
            self._is_ending = True  # part of the line may be written, so the stream is unusable
            raise BackendError("unavailable", "the upstream server does not read its input") from error

    def send_nowait(self, message: bytes) -> None:
        async def send_quietly() -> None:
            with suppress(BackendError):
                await self.send(message)

        task = asyncio.create_task(send_quietly())
        self._send_tasks.add(task)
        task.add_done_callback(self._send_tasks.discard)

    async def messages(self) -> AsyncIterator[Any]:
        """Yield each line as JSON; others are skipped. Raise `BackendError` for a line that is too long.

        A line with too many values is yielded as `Unread`.
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
                        message = await decode_message(line)
                    except MessageTooManyValues as error:
                        yield UnreadableLine(error, find_ids(line))
                    except BackendError:
                        self._log_warning("it wrote a line that is not JSON", "")
                    else:
                        yield message
            if size > self._limit:
                raise message_too_large(self._limit)

    async def exit_reason(self) -> BackendError:
        """Return why the process ended, after it closed its output."""
        self._is_ending = True
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                code = await self._child.wait()
                await asyncio.wait([self._stderr_task])
                try:
                    self._child.check_started(code, self._tail)
                except BackendError as error:
                    return error
                how = f"with status {code}" if code >= 0 else f"by signal {-code}"
                return BackendError("unavailable", f"the upstream server has ended {how}")
        return BackendError("unavailable", "the upstream server has closed its output")

    @property
    def last_stderr_line(self) -> str:
        """The last line of stderr, for operators only, not for callers."""
        lines = [line for line in self._tail.splitlines() if line.strip()]
        if not lines:
            return ""
        last_line = excerpt(lines[-1], secrets=self._secrets, limit=_LONGEST_LINE)
        return last_line + self._child.confinement.advice(self._tail.decode("utf-8", "replace"))

    async def end(self, grace: timedelta) -> None:
        """Close the program's input; after the grace period kill it and its children."""
        self._is_ending = True
        for task in self._send_tasks:
            task.cancel()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        if self._child.is_running:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace.total_seconds() / 2):
                    await self._child.wait()
        try:
            await self._child.stop(grace / 2)
        finally:
            self._stderr_task.cancel()
            await asyncio.wait([self._stderr_task])
            await self._child.end(timedelta())

    async def _write(self, rest: memoryview) -> None:
        while rest:
            if self._handle < 0:
                raise BrokenPipeError("it has ended")
            try:
                rest = rest[os.write(self._handle, rest) :]
            except BlockingIOError:
                await _wait_writable(self._handle)

    async def _log_errors(self) -> None:
        """Log stderr: a few short lines a minute, with secrets redacted."""
        period_start, lines, rest = monotonic(), 0, b""
        while chunk := await self._child.stderr.read():
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:] if len(self._tail) >= _TAIL_BYTES else self._tail + chunk
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LONGEST_LINE:]
            if monotonic() - period_start > 60:
                period_start, lines = monotonic(), 0
            for line in whole:
                lines += 1
                if lines <= LINES_PER_MINUTE and line.strip():
                    text = excerpt(line[: 4 * _LONGEST_LINE], secrets=self._secrets, limit=_LONGEST_LINE)
                    _log.info("upstream %s, process %d, stderr: %s", self._name, self.pid, text)
                elif lines == LINES_PER_MINUTE + 1:
                    _log.info("upstream %s, process %d, stderr: further lines are not logged", self._name, self.pid)


async def _wait_writable(handle: int) -> None:
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
