"""Worker processes for functions that must not share the gateway's memory, secrets or fate.

A worker serves one call at a time and is used again; one that was given up on is killed with all it started. It sees
none of the gateway's environment except what says nothing, and, where the kernel has Landlock, cannot look into the
gateway's process either. Files that the gateway's user can read, it can read.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from subprocess import DEVNULL
from typing import Any, Final

from gateway.backends.processes import CHUNK, Child, Confinement, beginning_of, start
from gateway.backends.refusals import excerpt
from gateway.core.bounded_json import check_values
from gateway.governance.ports import BackendFailed

HARMLESS: Final = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "PATH", "TZ")
"""What a worker gets of the gateway's own environment."""

_PROGRAM: Final = str(Path(__file__).with_name("worker.py"))
_ANYTHING: Final = Confinement(network="host", readable=("/",), writable=("/",))
_GRANTS: Final = _ANYTHING.grants(sys.executable, None)
_MAX_HEAD: Final = 1 << 20
_LENGTH: Final = 8
_AT_ONCE: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker said: a head it wrote, to be read with suspicion, and the bytes that belong to it."""

    head: Mapping[str, Any]
    parts: tuple[bytes, ...]


class Workers:
    """Up to `size` processes for one function; further calls wait."""

    def __init__(self, module: str, name: str, *, size: int, limit: int, environment: Mapping[str, str]) -> None:
        self._hello = {"module": module, "name": name, "limit": limit}
        self._limit = limit
        self._environment = environment
        self._slots = asyncio.Semaphore(size)
        self._idle: list[_Worker] = []
        self._closed = False

    async def call(self, args: Mapping[str, Any]) -> Answer:
        request = _request(args)
        async with self._slots:
            worker = await self._worker()
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

    async def _worker(self) -> "_Worker":
        while self._idle:
            worker = self._idle.pop()
            if worker.is_running:
                return worker
            await worker.end()
        environment = {**{name: os.environ[name] for name in HARMLESS if name in os.environ}, **self._environment}
        worker = await _Worker.started(environment, limit=self._limit)
        try:
            answer = await worker.ask(_framed({**self._hello, "path": sys.path}))
        except BaseException:
            await worker.end()
            raise
        if answer.head.get("kind") != "ready":
            await worker.end()
            cause = RuntimeError(str(answer.head.get("traceback")))
            raise BackendFailed("failed", "the function's module cannot be imported in a worker process") from cause
        return worker


class _Worker:
    def __init__(self, child: Child, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], *, limit: int) -> None:
        self._child = child
        self._reader, self._writer = stream
        self._limit = limit
        self._complaints: asyncio.Task[bytes] = asyncio.create_task(beginning_of(child.stderr))

    @classmethod
    async def started(cls, environment: Mapping[str, str], *, limit: int) -> "_Worker":
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-I", _PROGRAM]
            child = start(argv, _ANYTHING, _GRANTS, environment=environment, stdin=theirs.fileno(), stdout=DEVNULL)
        try:
            return cls(child, await asyncio.open_connection(sock=ours, limit=CHUNK), limit=limit)
        except BaseException:
            ours.close()
            await child.end(_AT_ONCE)
            raise

    @property
    def is_running(self) -> bool:
        return self._child.is_running and not self._reader.at_eof()

    async def ask(self, request: bytes) -> Answer:
        try:
            self._writer.write(request)
            await self._writer.drain()
            head = await self._head()
            sizes = head["sizes"]
            if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError("sizes are whole numbers")
            if sum(sizes) > self._limit:
                raise too_large(self._limit)
            return Answer(head, tuple([await self._exactly(size) for size in sizes]))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._died() from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BackendFailed("failed", "the worker process answered something else than a result") from error

    async def end(self) -> None:
        self._child.signal(SIGKILL)
        self._complaints.cancel()
        self._writer.close()
        try:
            await asyncio.wait([self._complaints])
        finally:
            await self._child.end(_AT_ONCE)
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _head(self) -> dict[str, Any]:
        length = int.from_bytes(await self._reader.readexactly(_LENGTH), "big")
        if length > _MAX_HEAD:
            raise ValueError("the head is too long")
        content = await self._exactly(length)
        check_values(content)
        head = json.loads(content)
        if not isinstance(head, dict):
            raise ValueError("the head is an object")
        return head

    async def _exactly(self, size: int) -> bytes:
        return await self._reader.readexactly(size)

    async def _died(self) -> BackendFailed:
        self._child.signal(SIGKILL)
        code, said = await self._child.exited(), await self._complaints
        self._child.check_started(code, said)
        failed = BackendFailed("failed", "the function's process ended without a result")
        failed.__cause__ = RuntimeError(f"status {code}: {excerpt(said)}")
        return failed


def too_large(limit: int) -> BackendFailed:
    return BackendFailed("failed", f"the tool returned more than {limit} bytes")


def _request(args: Mapping[str, Any]) -> bytes:
    try:
        return _framed({"args": dict(args)})
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendFailed("invalid", "the arguments cannot be sent to a worker process") from error


def _framed(value: Any) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(_LENGTH, "big") + text
