"""Worker processes of one host: a parent binds the sockets, starts the workers, and replaces those that die.

The parent itself loads and serves nothing. A worker shuts down when its parent is gone.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from gateway.app.settings import Settings
from gateway.server import ABORT_SECONDS, BoundSockets, ChannelKey, ShutdownSignal, handle_signals

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0
HEALTHY_AFTER: Final = 10.0
"""Seconds after which a worker counts as healthy, so that its replacement starts without a longer delay."""

_LONGEST_MESSAGE: Final = 1 << 20
_PATIENCE: Final = ABORT_SECONDS + 10.0
"""Seconds beyond the grace period after which a worker that does not end is killed."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The argument of a worker process: its settings as JSON, and its inherited descriptors.

    `lifeline` reaches its end when the parent is gone; the worker reports on `word` that it serves. Workers connect to
    each other in `folder`, and authenticate with the key in the pipe `secret`: process arguments are public.
    """

    settings: str
    data: int
    admin: int
    lifeline: int
    word: int
    secret: int
    index: int
    folder: str
    peers: int | None = None
    goes_on: bool = False
    """Whether it replaces a worker that ended: it serves the revision of the others, whatever the folder holds."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "WorkerConfig":
        return cls(**json.loads(text))

    def close_on_exec(self) -> None:
        """Keep the descriptors from programs that the worker starts."""
        for descriptor in (self.data, self.admin, self.lifeline, self.word, self.secret, self.peers):
            if descriptor is not None:
                os.set_inheritable(descriptor, False)

    def key(self) -> ChannelKey:
        """Read the key; this works once."""
        with os.fdopen(self.secret, "rb") as file:
            return ChannelKey(file.read())

    def sockets(self) -> BoundSockets:
        data, admin = socket.socket(fileno=self.data), socket.socket(fileno=self.admin)
        return BoundSockets(data, admin, None if self.peers is None else socket.socket(fileno=self.peers))

    def report_ready(self, lines: Sequence[str]) -> None:
        with os.fdopen(self.word, "w", encoding="utf-8") as word:
            json.dump(list(lines), word)


class WorkerSupervisor:
    """Runs as many workers as the settings ask for. `say` prints the start message of the first one."""

    def __init__(
        self,
        settings: Settings,
        sockets: BoundSockets,
        *,
        module: str,
        say: Callable[[str], object],
    ) -> None:
        self._settings = settings
        self._sockets = sockets
        self._module = module
        self._say = say
        self._stopping = ShutdownSignal()
        self._running: set[asyncio.subprocess.Process] = set()
        self._up: list[asyncio.subprocess.Process] = []
        self._folder = ""
        self._key = ChannelKey.new()

    async def run(self) -> int:
        """Run until a signal requests a stop, and return the exit code."""
        with (
            handle_signals(self._request_stop, reload=self._reload),
            TemporaryDirectory(prefix="gateway-workers-") as self._folder,
        ):
            first = _WorkerSlot(0)
            tasks = [asyncio.create_task(self._run_slot(first))]
            lines = await first.message
            if lines is None:
                await asyncio.wait(tasks)
                return 0 if self._stopping.times else first.code or 1
            others = [_WorkerSlot(index) for index in range(1, self._settings.workers)]
            tasks += [asyncio.create_task(self._run_slot(each)) for each in others]
            await asyncio.gather(*(each.message for each in others))
            for line in () if self._stopping.times else lines:
                self._say(line)
            await self._stopping.asked.wait()
            await self._end(tasks)
        return 0

    def _request_stop(self) -> None:
        self._stopping.request()
        for process in self._running:
            _send(process, signal.SIGTERM)

    def _reload(self) -> None:
        """Signal one worker, which makes all of them reload. Workers that are starting read the project anyway."""
        if self._up:
            _send(next(iter(self._up)), signal.SIGHUP)

    async def _end(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        await asyncio.wait(tasks, timeout=self._settings.grace.total_seconds() + _PATIENCE)
        for process in self._running:
            _send(process, signal.SIGKILL)
        await asyncio.wait(tasks)

    async def _run_slot(self, slot: "_WorkerSlot") -> None:
        """Run one worker after the other, with growing delays if they end early."""
        delay = FIRST_DELAY
        while not self._stopping.times:
            began = monotonic()
            await self._run_worker(slot)
            if slot.never_served and slot.index == 0:  # nothing was served yet; the worker has printed the reason
                return
            delay = FIRST_DELAY if monotonic() - began > HEALTHY_AFTER else min(delay * 2, LONGEST_DELAY)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.asked.wait()
        slot.report(None)

    async def _run_worker(self, slot: "_WorkerSlot") -> None:
        lifeline, lifeline_end = os.pipe()
        reader, word = os.pipe()
        secret, key_writer = os.pipe()
        os.write(key_writer, self._key.reveal())  # a pipe holds this much without a reader
        os.close(key_writer)
        bound = [each.fileno() for each in self._sockets if each is not None]
        config = WorkerConfig(
            self._settings.model_dump_json(),
            *(bound[0], bound[1], lifeline, word, secret),
            slot.index,
            self._folder,
            peers=bound[2] if len(bound) > 2 else None,
            goes_on=slot.message.done(),
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module, config.text()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(*bound, lifeline, word, secret),
                start_new_session=True,  # the parent alone forwards an interrupt of the terminal
            )
        finally:
            for descriptor in (lifeline, word, secret):
                os.close(descriptor)
        self._running.add(process)
        if self._stopping.times:  # a stop was requested during the start
            _send(process, signal.SIGTERM)
        try:
            lines = await asyncio.to_thread(_read_message, reader)
            if lines is not None:
                self._up.append(process)
            slot.report(lines)
            slot.code = await process.wait()
        finally:
            self._running.discard(process)
            if process in self._up:
                self._up.remove(process)
            os.close(lifeline_end)


class _WorkerSlot:
    """A slot of a worker. `message` is the start message of its first worker, or `None` if it never served."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.message: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
        self.code: int | None = None

    @property
    def never_served(self) -> bool:
        return self.message.done() and self.message.result() is None

    def report(self, lines: list[str] | None) -> None:
        if not self.message.done():
            self.message.set_result(lines)


def _read_message(reader: int) -> list[str] | None:
    """Read the start message. The pipe ends with the worker at the latest: no other process holds its other end."""
    with os.fdopen(reader, "rb") as file:
        text = file.read(_LONGEST_MESSAGE)
    return [str(line) for line in json.loads(text)] if text else None


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
