"""Tools that are programs on this host: started without a shell, confined, streamed into the spool, ended as a group.

`launcher` says how each limit is enforced and what it does not cover. A limit that this host cannot enforce is refused
when the backend is built; a document that wants to go without says so: `network: host`, `readable: [/]`,
`writable: [/]`. A program that starts another one in a session of its own can leave it behind; everything in its own
session ends with the call.
"""

import asyncio
import math
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from gateway.backends.argv import argv_problems, filled
from gateway.backends.grants import Grants
from gateway.backends.processes import Child, Confinement, HostControls, beginning_of, start
from gateway.backends.refusals import EXCERPT, BackendUnusable, excerpt, within
from gateway.backends.results import MediaTemplate, collected, parsed_json
from gateway.governance.ports import BackendFailed, Invocation

_SIGNALS: Final[Mapping[int, str]] = {
    signal.SIGXCPU: "it used more processor time than it may",
    signal.SIGXFSZ: "it wrote a larger file than it may",
}
_LONGEST_SECRET: Final = 1024


@dataclass(frozen=True, slots=True)
class Command:
    """A program and what it may use. The environment is exactly this one; secrets in it are read at each call."""

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
        for message, help in _problems(command, host):
            raise BackendUnusable(message, help=help)
        grants = command.grants
        for message, help in grants.refusals:
            raise BackendUnusable(message, help=help)
        self._command = command
        self._confinement = command.confinement
        self._grants = grants
        self._running: set[Child] = set()

    async def run(self, call: Invocation) -> Any:
        command = self._command
        argv = filled(command.argv, call.args, schema=command.schema)
        environment, secrets = environment_of(command.environment)
        async with (
            within(command.timeout),
            self._child(argv, environment) as child,
            _complaints(child) as said,
            aclosing(_output(command, child, said=said, secrets=secrets)) as chunks,
        ):
            if command.media is not None:
                return command.media.media(await collected(chunks, limit=command.max_json))
            if command.output == "text":
                return await call.keep(chunks)
            content = await collected(chunks, limit=command.max_json)
            await parsed_json(content)
            return await call.keep([content])

    async def close(self) -> None:
        for child in tuple(self._running):
            await child.stop(self._command.grace)

    @asynccontextmanager
    async def _child(self, argv: list[str], environment: Mapping[str, str]) -> AsyncIterator[Child]:
        child = start(argv, self._confinement, self._grants, environment=environment)
        self._running.add(child)
        try:
            yield child
        finally:
            self._running.discard(child)
            await child.end(self._command.grace)


def _problems(command: Command, host: HostControls) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = [(problem, None) for problem in argv_problems(command.argv)]
    if not found and not (Path(command.argv[0]).is_file() and os.access(command.argv[0], os.X_OK)):
        found.append((f"{command.argv[0]} is no program", "install it, or correct 'argv'"))
    if command.folder is not None and not Path(command.folder).is_dir():
        found.append((f"{command.folder} is no folder", "create it, or correct 'workdir'"))
    return [*found, *command.confinement.problems(host)]


def environment_of(declared: Mapping[str, str | Callable[[], str]]) -> tuple[dict[str, str], list[str]]:
    """The environment and the secrets in it."""
    try:
        secrets = {name: value() for name, value in declared.items() if callable(value)}
    except Exception as error:  # a store of secrets is somebody else's and may fail in any way
        raise BackendFailed("unavailable", "a secret of the tool cannot be read") from error
    fixed = {name: value for name, value in declared.items() if isinstance(value, str)}
    return {**fixed, **secrets}, list(secrets.values())


@asynccontextmanager
async def _complaints(child: Child) -> AsyncIterator["asyncio.Task[bytes]"]:
    said = asyncio.create_task(beginning_of(child.stderr))
    try:
        yield said
    finally:
        said.cancel()
        await asyncio.wait([said])


async def _output(
    command: Command, child: Child, *, said: "asyncio.Task[bytes]", secrets: list[str]
) -> AsyncGenerator[bytes, None]:
    """What the program prints. It ends in an error unless the program ended well, so nothing of a failure is kept."""
    head = bytearray()
    while chunk := await child.stdout.read():
        head += chunk[: EXCERPT + _LONGEST_SECRET - len(head)]
        yield chunk
    code, complaints = await child.exited(), await said
    child.check_started(code, complaints)
    if code in command.ok:
        return
    if code in command.failed:
        told = excerpt(bytes(head), secrets=secrets) or excerpt(complaints, secrets=secrets)
        raise BackendFailed("failed", told or f"the program failed with status {code}")
    why = f"it ended with status {code}" if code >= 0 else _SIGNALS.get(-code, f"signal {-code} ended it")
    told = excerpt(complaints, secrets=secrets)
    advice = child.confinement.advice(told)
    raise BackendFailed("failed", f"the program failed: {why}{': ' if told else ''}{told}{advice}")
