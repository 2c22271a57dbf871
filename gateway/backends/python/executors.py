"""Executors for Python tools: worker processes, and a bounded pool of threads for functions that block.

A worker process shares neither memory nor secrets with the gateway, and its crash does not affect the gateway. It
serves one call at a time and is reused; after a cancelled call or a broken reply it is killed with all its children. It
gets only harmless variables of the gateway's environment and, where the kernel has Landlock, cannot inspect the
gateway's process. It can read all files that the gateway's user can read.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from signal import SIGKILL
from subprocess import DEVNULL
from threading import Thread
from typing import Any, Final

from gateway.backends.command.child_process import CHUNK, ChildProcess, Confinement, read_prefix, start_child
from gateway.backends.result_conversion import excerpt
from gateway.model import BackendError, check_values

Job = Callable[[], None]
NO_TRACE: Final[Mapping[str, str]] = {}


class ThreadExecutor:
    """A bounded pool of daemon threads, started on demand.

    A running function cannot be stopped: after a cancellation its thread stays busy until the function returns.
    """

    def __init__(self, name: str, *, size: int, waiting: int) -> None:
        self._name = name
        self._size = size
        self._max_pending = size + waiting
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started = 0
        self._pending = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        if self._pending >= self._max_pending:
            raise BackendError("unavailable", "too many calls of this tool are waiting", help="try again later")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        context = copy_context()

        def job() -> None:
            # the caller may have been cancelled meanwhile; then the function must not run
            result = (None, None) if outcome.cancelled() else context.run(_run_captured, function)
            # if the loop is closed, no caller waits for the result
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._set_outcome, outcome, result)

        self._pending += 1
        if self._started < min(self._size, self._pending):
            self._started += 1
            Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._jobs.put(job)
        value, error = await outcome
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _set_outcome(self, outcome: asyncio.Future[Any], result: tuple[Any, BaseException | None]) -> None:
        self._pending -= 1
        if not outcome.done():
            outcome.set_result(result)


def _run_captured(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return (result, exception). Never raises: a future rejects some exceptions, and the thread must survive all."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


INHERITED_VARIABLES: Final = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "PATH", "TZ")
"""Variables of the gateway's environment that a worker inherits."""

_PROGRAM: Final = str(Path(__file__).with_name("worker_script.py"))
_UNCONFINED: Final = Confinement(network="host", readable=("/",), writable=("/",))
_GRANTS: Final = _UNCONFINED.grants(sys.executable, None)
_MAX_HEAD: Final = 1 << 20
_LENGTH: Final = 8
_NO_GRACE: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The reply of a worker: its head, which is untrusted, and the bytes that belong to it."""

    head: Mapping[str, Any]
    parts: tuple[bytes, ...]


class ProcessExecutor:
    """Up to `size` processes for one function; further calls wait."""

    def __init__(self, module: str, name: str, *, size: int, limit: int, environment: Mapping[str, str]) -> None:
        self._setup = {"module": module, "name": name, "limit": limit}
        self._limit = limit
        self._environment = environment
        self._slots = asyncio.Semaphore(size)
        self._idle: list[_Worker] = []
        self._closed = False

    async def call(self, args: Mapping[str, Any], *, trace: Mapping[str, str] = NO_TRACE) -> WorkerReply:
        """Call the function. `trace` are the trace headers of the call, whose span is the current one meanwhile."""
        request = _encode_request(args, trace)
        async with self._slots:
            worker = await self._acquire_worker()
            try:
                answer = await worker.ask(request)
            except BaseException:
                await worker.end()
                raise
            if self._closed:
                await worker.end()
            else:
                self._idle.append(worker)
            return answer

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().end()

    async def _acquire_worker(self) -> "_Worker":
        while self._idle:
            worker = self._idle.pop()
            if worker.is_running:
                return worker
            await worker.end()
        environment = {
            **{name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ},
            **self._environment,
        }
        worker = await _Worker.start(environment, limit=self._limit)
        try:
            answer = await worker.ask(_to_frame({**self._setup, "path": sys.path}))
        except BaseException:
            await worker.end()
            raise
        if answer.head.get("kind") != "ready":
            await worker.end()
            cause = RuntimeError(str(answer.head.get("traceback")))
            raise BackendError("failed", "the function's module cannot be imported in a worker process") from cause
        return worker


class _Worker:
    def __init__(
        self, child: ChildProcess, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], *, limit: int
    ) -> None:
        self._child = child
        self._reader, self._writer = stream
        self._limit = limit
        self._stderr: asyncio.Task[bytes] = asyncio.create_task(read_prefix(child.stderr))

    @classmethod
    async def start(cls, environment: Mapping[str, str], *, limit: int) -> "_Worker":
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-I", _PROGRAM]
            child = start_child(
                argv, _UNCONFINED, _GRANTS, environment=environment, stdin=theirs.fileno(), stdout=DEVNULL
            )
        try:
            return cls(child, await asyncio.open_connection(sock=ours, limit=CHUNK), limit=limit)
        except BaseException:
            ours.close()
            await child.end(_NO_GRACE)
            raise

    @property
    def is_running(self) -> bool:
        return self._child.is_running and not self._reader.at_eof()

    async def ask(self, request: bytes) -> WorkerReply:
        try:
            self._writer.write(request)
            await self._writer.drain()
            head = await self._read_head()
            sizes = head["sizes"]
            if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError("sizes are whole numbers")
            if sum(sizes) > self._limit:
                raise reply_too_large(self._limit)
            return WorkerReply(head, tuple([await self._read_exactly(size) for size in sizes]))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._exit_error() from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BackendError("failed", "the worker process did not answer with a result") from error

    async def end(self) -> None:
        self._child.signal(SIGKILL)
        self._stderr.cancel()
        self._writer.close()
        try:
            await asyncio.wait([self._stderr])
        finally:
            await self._child.end(_NO_GRACE)
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _read_head(self) -> dict[str, Any]:
        length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
        if length > _MAX_HEAD:
            raise ValueError("the head is too long")
        content = await self._read_exactly(length)
        check_values(content)
        head = json.loads(content)
        if not isinstance(head, dict):
            raise ValueError("the head is an object")
        return head

    async def _read_exactly(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    async def _exit_error(self) -> BackendError:
        self._child.signal(SIGKILL)
        code, stderr = await self._child.wait(), await self._stderr
        self._child.check_started(code, stderr)
        failed = BackendError("failed", "the function's process ended without a result")
        failed.__cause__ = RuntimeError(f"status {code}: {excerpt(stderr)}")
        return failed


def reply_too_large(limit: int) -> BackendError:
    return BackendError("failed", f"the tool returned more than {limit} bytes")


def _encode_request(args: Mapping[str, Any], trace: Mapping[str, str]) -> bytes:
    try:
        return _to_frame({"args": dict(args), "trace": dict(trace)})
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendError("invalid", "the arguments cannot be sent to a worker process") from error


def _to_frame(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(_LENGTH, "big") + text
