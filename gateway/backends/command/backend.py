"""Tools that are programs on this host: started without a shell, confined, their output streamed into the spool.

`launcher` documents how each limit is enforced and what it does not cover. Building the backend fails if this host
cannot enforce a limit; a document lifts limits explicitly: `network: host`, `readable: [/]`, `writable: [/]`. All
processes in the program's session end with the call; a process that it starts in another session can survive.

The arguments are a fixed list in which whole entries are replaced by values of the call. No value is split, joined or
interpreted by a shell. A value that could be read as an option is refused at any position: not every program stops
reading options at `--`.
"""

import asyncio
import json
import math
import os
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import time_ns
from typing import Any, Final, Literal

from gateway.backends.command.child_process import ChildProcess, Confinement, HostControls, read_prefix, start_child
from gateway.backends.command.path_grants import Grants
from gateway.backends.result_conversion import (
    EXCERPT,
    BackendUnusable,
    MediaTemplate,
    enforce_deadline,
    excerpt,
    parse_json_result,
    read_all,
)
from gateway.model import BackendError, Invocation

MAX_ARGUMENT: Final = 100_000
"""Bytes. The kernel's limit is slightly higher, but its error message is worse."""

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")


def find_argv_problems(argv: tuple[str, ...]) -> Iterator[str]:
    if not argv or not argv[0].startswith("/") or ".." in argv[0].split("/") or _PLACEHOLDER.search(argv[0]):
        yield "the program is a fixed absolute path"
    for entry in argv:
        if "\x00" in entry:
            yield "an argument cannot hold NUL"
        if _PLACEHOLDER.search(entry) and not _PLACEHOLDER.fullmatch(entry):
            yield f"{entry!r} is not a whole placeholder"


def fill_argv(argv: tuple[str, ...], args: Mapping[str, Any], *, schema: Mapping[str, Any]) -> list[str]:
    """Return argv with each placeholder replaced by one value. Raise `BackendError` for an unusable value."""
    return [
        _to_text(found[1], args.get(found[1]), schema=schema) if (found := _PLACEHOLDER.fullmatch(entry)) else entry
        for entry in argv
    ]


def _to_text(name: str, value: Any, *, schema: Mapping[str, Any]) -> str:
    if value is None:
        raise _invalid_argument(name, "was not given")
    if not isinstance(value, str | int | float):
        raise _invalid_argument(name, "is not a text, a number or a boolean")
    text = value if isinstance(value, str) else json.dumps(value)
    if "\x00" in text:
        raise _invalid_argument(name, "holds NUL")
    if text.startswith("-") and not _is_listed(value, schema, name=name):
        raise _invalid_argument(name, "starts with '-' and could be taken for an option")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _invalid_argument(name, "contains an unpaired surrogate") from None
    if size > MAX_ARGUMENT:
        raise _invalid_argument(name, f"has more than {MAX_ARGUMENT} bytes")
    return text


def _is_listed(value: Any, schema: Mapping[str, Any], *, name: str) -> bool:
    """Whether the tool's schema lists exactly this value."""
    properties = schema.get("properties")
    of_argument = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(of_argument, Mapping):
        return False
    listed = [*(of_argument.get("enum") or ()), *([of_argument["const"]] if "const" in of_argument else [])]
    return any(type(item) is type(value) and item == value for item in listed)


def _invalid_argument(name: str, what: str) -> BackendError:
    return BackendError("invalid", f"argument {name!r} {what}")


_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGXCPU: "it used more processor time than it may",
    signal.SIGXFSZ: "it wrote a larger file than it may",
}
_LONGEST_SECRET: Final = 1024


@dataclass(frozen=True, slots=True)
class Command:
    """A program and what it may use. It gets exactly this environment; secrets in it are read at each call."""

    argv: tuple[str, ...]
    schema: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | Callable[[], str]] = field(default_factory=dict, repr=False)
    folder: str | None = None
    output: Literal["text", "json"] = "text"
    ok: tuple[int, ...] = (0,)
    failed: tuple[int, ...] = ()
    network: Literal["none", "host"] = "none"
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    cpu: timedelta = timedelta(seconds=60)
    memory: int = 1 << 30
    max_file: int = 1 << 30
    max_json: int = 16 << 20
    media: MediaTemplate | None = None
    timeout: timedelta | None = None
    grace: timedelta = timedelta(milliseconds=200)

    @property
    def confinement(self) -> Confinement:
        limits = {
            "RLIMIT_CPU": 1 + max(1, math.ceil(self.cpu.total_seconds())),
            "RLIMIT_AS": self.memory,
            "RLIMIT_FSIZE": self.max_file if self.writable else 0,
            "RLIMIT_CORE": 0,
        }
        return Confinement(network=self.network, readable=self.readable, writable=self.writable, limits=limits)

    @property
    def grants(self) -> Grants:
        return self.confinement.grants(self.argv[0], self.folder)


class CommandBackend:
    def __init__(self, command: Command, host: HostControls) -> None:
        for message, help in _find_problems(command, host):
            raise BackendUnusable(message, help=help)
        grants = command.grants
        for message, help in grants.refusals:
            raise BackendUnusable(message, help=help)
        self._command = command
        self._confinement = command.confinement
        self._grants = grants
        self._running: set[ChildProcess] = set()

    async def run(self, call: Invocation) -> Any:
        since = time_ns()
        try:
            return await self._run(call)
        finally:
            if call.hops is not None:
                call.hops.record_step("backend command", since=since)

    async def _run(self, call: Invocation) -> Any:
        command = self._command
        argv = fill_argv(command.argv, call.args, schema=command.schema)
        environment, secrets = build_environment(command.environment)
        async with (
            enforce_deadline(command.timeout),
            self._start_child(argv, environment) as child,
            _collect_stderr(child) as stderr_task,
            aclosing(_stream_output(command, child, stderr_task=stderr_task, secrets=secrets)) as chunks,
        ):
            if command.media is not None:
                return command.media.media(await read_all(chunks, limit=command.max_json))
            if command.output == "text":
                return await call.keep(chunks)
            content = await read_all(chunks, limit=command.max_json)
            await parse_json_result(content)
            return await call.keep([content])

    async def close(self) -> None:
        for child in tuple(self._running):
            await child.stop(self._command.grace)

    @asynccontextmanager
    async def _start_child(self, argv: list[str], environment: Mapping[str, str]) -> AsyncIterator[ChildProcess]:
        child = start_child(argv, self._confinement, self._grants, environment=environment)
        self._running.add(child)
        try:
            yield child
        finally:
            self._running.discard(child)
            await child.end(self._command.grace)


def _find_problems(command: Command, host: HostControls) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = [(problem, None) for problem in find_argv_problems(command.argv)]
    if not found and not (Path(command.argv[0]).is_file() and os.access(command.argv[0], os.X_OK)):
        found.append((f"{command.argv[0]} is not an executable file", "install it, or correct 'argv'"))
    if command.folder is not None and not Path(command.folder).is_dir():
        found.append((f"{command.folder} is not a folder", "create it, or correct 'workdir'"))
    return [*found, *command.confinement.problems(host)]


def build_environment(declared: Mapping[str, str | Callable[[], str]]) -> tuple[dict[str, str], list[str]]:
    """Return the environment and the secrets in it."""
    try:
        secrets = {name: value() for name, value in declared.items() if callable(value)}
    except Exception as error:  # a secret store may fail in any way
        raise BackendError("unavailable", "a secret of the tool cannot be read") from error
    fixed = {name: value for name, value in declared.items() if isinstance(value, str)}
    return {**fixed, **secrets}, list(secrets.values())


@asynccontextmanager
async def _collect_stderr(child: ChildProcess) -> AsyncIterator["asyncio.Task[bytes]"]:
    stderr_task = asyncio.create_task(read_prefix(child.stderr))
    try:
        yield stderr_task
    finally:
        stderr_task.cancel()
        await asyncio.wait([stderr_task])


async def _stream_output(
    command: Command, child: ChildProcess, *, stderr_task: "asyncio.Task[bytes]", secrets: list[str]
) -> AsyncGenerator[bytes, None]:
    """Yield the program's output. Raise at the end if the program failed, so that no output of a failure is stored."""
    head = bytearray()
    while chunk := await child.stdout.read():
        head += chunk[: EXCERPT + _LONGEST_SECRET - len(head)]
        yield chunk
    code, stderr = await child.wait(), await stderr_task
    child.check_started(code, stderr)
    if code in command.ok:
        return
    if code in command.failed:
        message = excerpt(bytes(head), secrets=secrets) or excerpt(stderr, secrets=secrets)
        raise BackendError("failed", message or f"the program failed with status {code}")
    why = f"it ended with status {code}" if code >= 0 else _SIGNALS.get(-code, f"signal {-code} ended it")
    message = excerpt(stderr, secrets=secrets)
    advice = child.confinement.advice(message)
    raise BackendError("failed", f"the program failed: {why}{': ' if message else ''}{message}{advice}")
