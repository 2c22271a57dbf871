"""Several processes that serve the same project: a parent binds the sockets, starts them, and replaces those that die.

The parent itself loads nothing and serves nothing. A worker whose parent is gone ends as if it had been asked to.
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

from gateway.runtime.peer_proof import ChannelKey
from gateway.runtime.serving import Listeners, signals
from gateway.runtime.settings import Settings
from gateway.runtime.stopping import CUT_SECONDS, Stopping

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0
SOUND_AFTER: Final = 10.0
"""Seconds of life after which a worker's end says nothing about the next one."""

_LONGEST_WORD: Final = 1 << 20
_PATIENCE: Final = CUT_SECONDS + 10.0
"""Seconds beyond the grace after which a worker that does not end is ended."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told: its settings as JSON, and which descriptors are what.

    `lifeline` reads as ended when the parent is gone; on `word` the worker tells that it is up. Workers reach each
    other in `folder`, and prove themselves with what `secret` reads: an order is seen by everybody who lists processes.
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
    """Whether it takes the place of one that ended: it serves what the others serve, whatever the folder holds."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Order":
        return cls(**json.loads(text))

    def keep_to_itself(self) -> None:
        """Programs that the worker starts must not hold its sockets, nor its word, open, nor read the secret."""
        for descriptor in (self.data, self.admin, self.lifeline, self.word, self.secret, self.peers):
            if descriptor is not None:
                os.set_inheritable(descriptor, False)

    def key(self) -> ChannelKey:
        """To be called once."""
        with os.fdopen(self.secret, "rb") as file:
            return ChannelKey(file.read())

    def sockets(self) -> Listeners:
        data, admin = socket.socket(fileno=self.data), socket.socket(fileno=self.admin)
        return Listeners(data, admin, None if self.peers is None else socket.socket(fileno=self.peers))

    def tell_up(self, lines: Sequence[str]) -> None:
        with os.fdopen(self.word, "w", encoding="utf-8") as word:
            json.dump(list(lines), word)


class Workers:
    """Keeps as many workers running as the settings ask for. `say` is told what the first one has to say."""

    def __init__(
        self,
        settings: Settings,
        sockets: Listeners,
        *,
        module: str,
        say: Callable[[str], object],
    ) -> None:
        self._settings = settings
        self._sockets = sockets
        self._module = module
        self._say = say
        self._stopping = Stopping()
        self._running: set[asyncio.subprocess.Process] = set()
        self._up: list[asyncio.subprocess.Process] = []
        self._folder = ""
        self._key = ChannelKey.new()

    async def run(self) -> int:
        """Until a signal asks to stop; the exit code."""
        with signals(self._ask, reload=self._reload), TemporaryDirectory(prefix="gateway-workers-") as self._folder:
            first = _Keeping(0)
            keepers = [asyncio.create_task(self._keep(first))]
            lines = await first.word
            if lines is None:
                await asyncio.wait(keepers)
                return 0 if self._stopping.times else first.code or 1
            others = [_Keeping(index) for index in range(1, self._settings.workers)]
            keepers += [asyncio.create_task(self._keep(each)) for each in others]
            await asyncio.gather(*(each.word for each in others))
            for line in () if self._stopping.times else lines:
                self._say(line)
            await self._stopping.asked.wait()
            await self._end(keepers)
        return 0

    def _ask(self) -> None:
        self._stopping.ask()
        for process in self._running:
            _send(process, signal.SIGTERM)

    def _reload(self) -> None:
        """One worker has all of them reload; where none is up, those that start read what is there anyway."""
        if self._up:
            _send(next(iter(self._up)), signal.SIGHUP)

    async def _end(self, keepers: Sequence["asyncio.Task[None]"]) -> None:
        await asyncio.wait(keepers, timeout=self._settings.grace.total_seconds() + _PATIENCE)
        for process in self._running:
            _send(process, signal.SIGKILL)
        await asyncio.wait(keepers)

    async def _keep(self, keeping: "_Keeping") -> None:
        """One worker after the other, each later than the last if they die young."""
        delay = FIRST_DELAY
        while not self._stopping.times:
            began = monotonic()
            await self._one(keeping)
            if keeping.never_was_up and keeping.index == 0:  # then nothing was served yet, and it has said why
                return
            delay = FIRST_DELAY if monotonic() - began > SOUND_AFTER else min(delay * 2, LONGEST_DELAY)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.asked.wait()
        keeping.tell(None)

    async def _one(self, keeping: "_Keeping") -> None:
        lifeline, held = os.pipe()
        heard, word = os.pipe()
        secret, telling = os.pipe()
        os.write(telling, self._key.reveal())  # as much as a pipe holds without a reader
        os.close(telling)
        bound = [each.fileno() for each in self._sockets if each is not None]
        order = Order(
            self._settings.model_dump_json(),
            *(bound[0], bound[1], lifeline, word, secret),
            keeping.index,
            self._folder,
            peers=bound[2] if len(bound) > 2 else None,
            goes_on=keeping.word.done(),
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self._module, order.text()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(*bound, lifeline, word, secret),
                start_new_session=True,  # a terminal's interrupt is the parent's to pass on, once
            )
        finally:
            for descriptor in (lifeline, word, secret):
                os.close(descriptor)
        self._running.add(process)
        if self._stopping.times:  # asked while it was being started
            _send(process, signal.SIGTERM)
        try:
            said = await asyncio.to_thread(_read_word, heard)
            if said is not None:
                self._up.append(process)
            keeping.tell(said)
            keeping.code = await process.wait()
        finally:
            self._running.discard(process)
            if process in self._up:
                self._up.remove(process)
            os.close(held)


class _Keeping:
    """What is known of one place: what its first worker said when it was up, or `None` if it never was."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.word: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
        self.code: int | None = None

    @property
    def never_was_up(self) -> bool:
        return self.word.done() and self.word.result() is None

    def tell(self, lines: list[str] | None) -> None:
        if not self.word.done():
            self.word.set_result(lines)


def _read_word(heard: int) -> list[str] | None:
    """Ends with the worker at the latest: nobody else holds the other end."""
    with os.fdopen(heard, "rb") as file:
        text = file.read(_LONGEST_WORD)
    return [str(line) for line in json.loads(text)] if text else None


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
