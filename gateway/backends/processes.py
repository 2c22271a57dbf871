"""Child processes: started through the launcher in a group of their own, ended as a group, always reaped.

What a child may use is said by a `Confinement`; whether this host can enforce it, by `HostControls`.
"""

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final, Literal

from gateway.backends.grants import EVERYTHING, Grants
from gateway.backends.launcher import FAILED, NEEDED_LANDLOCK, settings_argument
from gateway.backends.refusals import excerpt
from gateway.governance.ports import BackendFailed

CHUNK: Final = 1 << 16
STDERR_KEPT: Final = 8 << 10

_LAUNCHER: Final = str(Path(__file__).with_name("launcher.py"))
_PROBE_SECONDS: Final = 10
_REFUSED: Final = re.compile(
    r"EACCES|EPERM|PermissionError|permission denied|not permitted|no module named|cannot find module"
    r"|cannot open shared object",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HostControls:
    """What the kernel lets us enforce. Asking it costs one process, so it is asked once and passed around."""

    landlock: int = 0
    network: bool = False

    @classmethod
    def of_this_host(cls) -> "HostControls":
        """Whatever cannot be found out counts as missing."""
        command = [sys.executable, "-I", "-S", _LAUNCHER, settings_argument({"probe": True})]
        try:
            # fixed words, no shell
            told = subprocess.run(command, env={}, capture_output=True, timeout=_PROBE_SECONDS, check=True)  # noqa: S603
            landlock, network = map(int, told.stdout.split())
        except (OSError, subprocess.SubprocessError, ValueError):
            return cls()
        return cls(landlock, bool(network))


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a child may use; `limits` are names of rlimits.

    `/` among folders means every folder. What is writable is readable, and so is what every program needs to run.
    """

    network: Literal["none", "host"] = "none"
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def writes_anywhere(self) -> bool:
        return EVERYTHING in self.writable

    @property
    def reads_anywhere(self) -> bool:
        return EVERYTHING in self.readable

    def grants(self, program: str, folder: str | None) -> Grants:
        """The paths of this program, to be resolved once and used for all its starts."""
        network = self.network == "host"
        return Grants.resolve(program, folder, readable=self.readable, writable=self.writable, has_network=network)

    def problems(self, host: HostControls) -> list[tuple[str, str]]:
        """What this host cannot enforce, each with what to do about it."""
        found = []
        if self.network == "none" and not host.network:
            found.append(
                (
                    "this host cannot keep a program off the network",
                    "allow user namespaces or seccomp filters, or say 'network: host' and mean it",
                )
            )
        if not self.writes_anywhere and host.landlock < NEEDED_LANDLOCK:
            found.append(
                (
                    "this host cannot keep a program from writing files",
                    "use a kernel with Landlock (6.2 or newer), or say 'writable: [/]' and mean it",
                )
            )
        if not self.reads_anywhere and host.landlock < NEEDED_LANDLOCK:
            found.append(
                (
                    "this host cannot keep a program from reading files",
                    "use a kernel with Landlock (6.2 or newer), or say 'readable: [/]' and mean it",
                )
            )
        found += [
            (f"{path} is not there", "create it, or correct 'readable'")
            for path in self.readable
            if not Path(path).exists()
        ]
        found += [
            (f"{folder} is no folder", "create it, or correct 'writable'")
            for folder in self.writable
            if not Path(folder).is_dir()
        ]
        return found

    def advice(self, complaint: str) -> str:
        """What to look at if a program complains that it was refused something, or could not even begin."""
        if self.reads_anywhere or not _REFUSED.search(complaint):
            return ""
        return " (it may read system folders and what 'sandbox.readable' lists)"


class Pipe:
    """What a child writes, read only when somebody asks, so that no more than one piece is ever in memory.

    Not a transport of the loop: those may lose track of who closes the pipe when they are cancelled while they start.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        if file is not None:
            os.set_blocking(file.fileno(), False)

    async def read(self) -> bytes:
        """The next piece; empty at the end."""
        if self._file is None or self._file.closed:
            return b""
        handle = self._file.fileno()
        await asyncio.sleep(0)  # a child that always has more must not keep the loop to itself
        while True:
            try:
                return os.read(handle, CHUNK)
            except BlockingIOError:
                await _readable(handle)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Child:
    """One running process and everything in its group. Made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, confinement: Confinement) -> None:
        self._process = process
        self.confinement = confinement
        self.stdout, self.stderr = Pipe(process.stdout), Pipe(process.stderr)
        self._mark = mark
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        _when_exited(loop, process.pid, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._exit.done()

    async def exited(self) -> int:
        """The exit status, or the negative number of the signal that ended it."""
        return await asyncio.shield(self._exit)

    async def stop(self, grace: timedelta) -> None:
        """Ask the group to stop, then make it. Cancelling this skips the asking, never the rest."""
        try:
            if self.is_running and grace:
                self.signal(signal.SIGTERM)
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace.total_seconds()):
                        await self.exited()
        finally:
            self.signal(signal.SIGKILL)
        await self.exited()

    async def end(self, grace: timedelta) -> None:
        """Stop it and let go of its pipes, which nobody may be reading any more."""
        try:
            await self.stop(grace)
        finally:
            self.stdout.close()
            self.stderr.close()

    def signal(self, number: signal.Signals) -> None:
        # not reaped yet, so the number still belongs to this group
        if self.is_running:
            _signal_group(self.pid, number)

    def check_started(self, code: int, stderr: bytes) -> None:
        """Raises if the launcher gave up before the program began."""
        if code == FAILED and stderr.startswith(self._mark.encode()):
            reason = excerpt(stderr[len(self._mark) :], limit=300)
            advice = self.confinement.advice(reason)
            raise BackendFailed("failed", f"the program could not be started: {reason}{advice}")

    def _reap(self) -> None:
        if self._exit.done():
            return
        # what the program left running goes with it; as a zombie it still holds its number, so nobody else is hit
        _signal_group(self.pid, signal.SIGKILL)
        self._exit.set_result(self._process.wait())


def start(
    argv: Sequence[str],
    confinement: Confinement,
    grants: Grants,
    *,
    environment: Mapping[str, str],
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
) -> Child:
    """Start a program through the launcher. Measured: 18 ms, against 2 ms without it: Python has to start."""
    for message, _ in grants.refusals:
        raise BackendFailed("failed", f"the program could not be started: {message}")
    mark = secrets.token_hex(16)
    settings: dict[str, object] = {
        "mark": mark,
        "environment": list(environment),
        "network": confinement.network,
        "limits": dict(confinement.limits),
        **grants.launcher_settings(),
    }
    command = [sys.executable, "-I", "-S", _LAUNCHER, settings_argument(settings), *argv]
    try:
        process = subprocess.Popen(  # noqa: S603 - no shell; the program is fixed by a reviewed document
            command,
            env=dict(environment),
            cwd=EVERYTHING,  # the launcher enters the working folder
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        raise BackendFailed("failed", "the program could not be started") from error
    return Child(process, mark, confinement)


async def beginning_of(pipe: Pipe, limit: int = STDERR_KEPT) -> bytes:
    """Reads to the end and keeps the beginning, so that a talkative program never blocks."""
    kept = bytearray()
    while chunk := await pipe.read():
        kept += chunk[: limit - len(kept)]
    return bytes(kept)


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():  # it may have been given up since
            ready.set_result(None)

    loop.add_reader(handle, wake)
    try:
        await ready
    finally:
        loop.remove_reader(handle)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # all gone, or only zombies left
        os.killpg(group, number)


def _when_exited(loop: asyncio.AbstractEventLoop, pid: int, callback: Callable[[], None]) -> None:
    """Calls back in the loop once the process has exited, and leaves it to be reaped."""
    if not hasattr(os, "pidfd_open"):
        threading.Thread(target=_wait_elsewhere, args=(loop, pid, callback), daemon=True).start()
        return
    handle = os.pidfd_open(pid)

    def exited() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        callback()

    loop.add_reader(handle, exited)


def _wait_elsewhere(loop: asyncio.AbstractEventLoop, pid: int, callback: Callable[[], None]) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(callback)
