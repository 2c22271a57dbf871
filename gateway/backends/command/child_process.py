"""Child processes: started by the launcher in their own group, ended as a group, always reaped.

A `Confinement` declares what a child may use; `HostControls` whether this host can enforce it.
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

from gateway.backends.command.launcher import FAILED, NEEDED_LANDLOCK, settings_argument
from gateway.backends.command.path_grants import EVERYTHING, Grants
from gateway.backends.result_conversion import excerpt
from gateway.model import BackendError

CHUNK: Final = 1 << 16
MAX_STDERR_BYTES: Final = 8 << 10

_LAUNCHER: Final = str(Path(__file__).with_name("launcher.py"))
_PROBE_SECONDS: Final = 10
_REFUSED: Final = re.compile(
    r"EACCES|EPERM|PermissionError|permission denied|not permitted|no module named|cannot find module"
    r"|cannot open shared object",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class HostControls:
    """The limits that the kernel can enforce. Detecting them costs one process, so it is done once."""

    landlock: int = 0
    network: bool = False

    @classmethod
    def detect(cls) -> "HostControls":
        """Run the launcher to detect the controls. A control that cannot be detected counts as missing."""
        command = [sys.executable, "-I", "-S", _LAUNCHER, settings_argument({"probe": True})]
        try:
            # no shell
            probe = subprocess.run(command, env={}, capture_output=True, timeout=_PROBE_SECONDS, check=True)  # noqa: S603
            landlock, network = map(int, probe.stdout.split())
        except (OSError, subprocess.SubprocessError, ValueError):
            return cls()
        return cls(landlock, bool(network))


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a child may use; `limits` maps names of rlimits to values.

    `/` among folders means every folder. Writable folders and the paths that every program needs are readable.
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
        """Resolve the paths of this program, once for all its starts."""
        network = self.network == "host"
        return Grants.resolve(program, folder, readable=self.readable, writable=self.writable, has_network=network)

    def problems(self, host: HostControls) -> list[tuple[str, str]]:
        """Return the limits and paths that this host cannot provide, each with advice."""
        found = []
        if self.network == "none" and not host.network:
            found.append(
                (
                    "this host cannot keep a program off the network",
                    "allow user namespaces or seccomp filters, or permit the network with 'network: host'",
                )
            )
        if not self.writes_anywhere and host.landlock < NEEDED_LANDLOCK:
            found.append(
                (
                    "this host cannot keep a program from writing files",
                    "use a kernel with Landlock (6.2 or newer), or permit all writes with 'writable: [/]'",
                )
            )
        if not self.reads_anywhere and host.landlock < NEEDED_LANDLOCK:
            found.append(
                (
                    "this host cannot keep a program from reading files",
                    "use a kernel with Landlock (6.2 or newer), or permit all reads with 'readable: [/]'",
                )
            )
        found += [
            (f"{path} does not exist", "create it, or correct 'readable'")
            for path in self.readable
            if not Path(path).exists()
        ]
        found += [
            (f"{folder} is not a folder", "create it, or correct 'writable'")
            for folder in self.writable
            if not Path(folder).is_dir()
        ]
        return found

    def advice(self, error_text: str) -> str:
        """Return a hint to append if the program's error text looks like a refused access; else an empty text."""
        if self.reads_anywhere or not _REFUSED.search(error_text):
            return ""
        return " (it may read system folders and what 'sandbox.readable' lists)"


class OutputPipe:
    """The output of a child, read on demand, so that at most one chunk is in memory.

    It is no asyncio transport: those may leave the pipe open when they are cancelled while they start.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        if file is not None:
            os.set_blocking(file.fileno(), False)

    async def read(self) -> bytes:
        """Return the next chunk; empty at the end."""
        if self._file is None or self._file.closed:
            return b""
        handle = self._file.fileno()
        await asyncio.sleep(0)  # a child that always has output must not block the loop
        while True:
            try:
                return os.read(handle, CHUNK)
            except BlockingIOError:
                await _wait_readable(handle)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class ChildProcess:
    """A running process and its process group. Created by `start_child`."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, confinement: Confinement) -> None:
        self._process = process
        self.confinement = confinement
        self.stdout, self.stderr = OutputPipe(process.stdout), OutputPipe(process.stderr)
        self._mark = mark
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        _call_on_exit(loop, process.pid, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return not self._exit.done()

    async def wait(self) -> int:
        """Return the exit status, or the negative number of the signal that ended the process."""
        return await asyncio.shield(self._exit)

    async def stop(self, grace: timedelta) -> None:
        """Send SIGTERM, wait for the grace period, send SIGKILL. Cancellation skips the wait, never the SIGKILL."""
        try:
            if self.is_running and grace:
                self.signal(signal.SIGTERM)
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace.total_seconds()):
                        await self.wait()
        finally:
            self.signal(signal.SIGKILL)
        await self.wait()

    async def end(self, grace: timedelta) -> None:
        """Stop the process and close its pipes."""
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
        """Raise if the launcher failed before the program started."""
        if code == FAILED and stderr.startswith(self._mark.encode()):
            reason = excerpt(stderr[len(self._mark) :], limit=300)
            advice = self.confinement.advice(reason)
            raise BackendError("failed", f"the program could not be started: {reason}{advice}")

    def _reap(self) -> None:
        if self._exit.done():
            return
        # end what the program left running; its zombie still holds the group's number, so no other group is hit
        _signal_group(self.pid, signal.SIGKILL)
        self._exit.set_result(self._process.wait())


def start_child(
    argv: Sequence[str],
    confinement: Confinement,
    grants: Grants,
    *,
    environment: Mapping[str, str],
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
) -> ChildProcess:
    """Start a program through the launcher, which takes 18 ms instead of 2 ms because Python has to start."""
    for message, _ in grants.refusals:
        raise BackendError("failed", f"the program could not be started: {message}")
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
        raise BackendError("failed", "the program could not be started") from error
    return ChildProcess(process, mark, confinement)


async def read_prefix(pipe: OutputPipe, limit: int = MAX_STDERR_BYTES) -> bytes:
    """Read to the end and return the beginning, so that a program with much output never blocks."""
    prefix = bytearray()
    while chunk := await pipe.read():
        prefix += chunk[: limit - len(prefix)]
    return bytes(prefix)


async def _wait_readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():  # the reader may have been cancelled
            ready.set_result(None)

    loop.add_reader(handle, wake)
    try:
        await ready
    finally:
        loop.remove_reader(handle)


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # all ended, or only zombies left
        os.killpg(group, number)


def _call_on_exit(loop: asyncio.AbstractEventLoop, pid: int, callback: Callable[[], None]) -> None:
    """Call back in the loop once the process has exited; the callback reaps it."""
    if not hasattr(os, "pidfd_open"):
        threading.Thread(target=_wait_in_thread, args=(loop, pid, callback), daemon=True).start()
        return
    handle = os.pidfd_open(pid)

    def on_exit() -> None:
        loop.remove_reader(handle)
        os.close(handle)
        callback()

    loop.add_reader(handle, on_exit)


def _wait_in_thread(loop: asyncio.AbstractEventLoop, pid: int, callback: Callable[[], None]) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(callback)
