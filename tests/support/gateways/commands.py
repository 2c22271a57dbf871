"""The command `gateway` in processes of its own, by the hundred: a process that has everything imported forks each.

What is forked runs the command from its first line on, with the streams, the folder and the variables that the test
names, and ends as any process does. Only the second that imports take is saved. Variables that Python itself reads when
it starts have no effect, except PYTHONPATH and PYTHONIOENCODING: tests that need others start Python.
"""

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, Final

_SIZE: Final = struct.Struct("!Q")


class ForkedCommand:
    """A command that runs. It is used as `subprocess.Popen` is."""

    def __init__(self, arguments: tuple[str, ...], pid: int, ending: int, stdout: "IO[str] | None") -> None:
        self.args = ("gateway", *arguments)
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ending], [], [], timeout)[0]:
            told = os.read(self._ending, 32)
            os.close(self._ending)
            assert told, "the process that forks commands has ended"
            self.returncode = int(told)
        return self.returncode


def run_gateway(
    *arguments: str,
    input: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> "subprocess.CompletedProcess[str]":
    """Wait for the end of a command and give what it wrote."""
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(input.encode())
        given.seek(0)
        command = start_command(*arguments, stdin=given, stdout=output, stderr=errors, cwd=cwd, env=env)
        try:
            code = command.wait(timeout)
        except BaseException:
            command.kill()
            raise
        written = []
        for each in (output, errors):
            each.seek(0)
            written.append(each.read().decode())
    return subprocess.CompletedProcess(command.args, code, *written)


def start_command(
    *arguments: str,
    stdin: "IO[Any] | int" = subprocess.DEVNULL,
    stdout: "IO[Any] | int" = subprocess.PIPE,
    stderr: "IO[Any] | int" = subprocess.STDOUT,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> ForkedCommand:
    """Start a command. What it writes to standard output can be read from it, unless a file is named."""
    reader: IO[str] | None = None
    own: list[int] = []
    if stdin == subprocess.DEVNULL:
        own.append(stdin := os.open(os.devnull, os.O_RDONLY))
    if stdout == subprocess.PIPE:
        reading, stdout = os.pipe()
        own.append(stdout)
        reader = open(reading, encoding="utf-8")  # noqa: SIM115 - whoever started the command closes it
    if stderr == subprocess.STDOUT:
        stderr = stdout
    ending, ended = os.pipe()
    own.append(ended)
    order = {
        "arguments": arguments,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
    }
    files = [each if isinstance(each, int) else each.fileno() for each in (stdin, stdout, stderr)]
    try:
        pid = _fork_server().fork(order, [*files, ended])
    finally:
        for each in own:
            os.close(each)
    return ForkedCommand(arguments, pid, ending, reader)


class _ForkServer:
    """The process that has everything imported. It ends when this one does."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        self._one_at_a_time = Lock()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def fork(self, order: Mapping[str, Any], files: list[int]) -> int:
        """The number of the new process. Threads may start several at once."""
        body = json.dumps(order).encode()
        with self._one_at_a_time:
            socket.send_fds(self._channel, [_SIZE.pack(len(body))], files)
            self._channel.sendall(body)
            return int(_SIZE.unpack(_received(self._channel, _SIZE.size))[0])

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@cache
def _fork_server() -> _ForkServer:
    server = _ForkServer()
    atexit.register(server.close)
    return server


def _received(channel: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = channel.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


# --- the process that forks ---


def _import_everything() -> None:
    import pkgutil
    from importlib import import_module

    import alembic  # noqa: F401 - databases are made without another process
    import psycopg_pool  # noqa: F401

    import gateway.cli

    for each in pkgutil.walk_packages(gateway.cli.__path__, "gateway.cli."):
        if ".templates" not in each.name:
            import_module(each.name)


def _serve_orders(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for each order until nobody orders any more. The order is returned in the process it is for."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    endings: dict[int, int] = {}
    while True:
        ready = select.select([channel.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_endings(endings)
        if channel.fileno() not in ready:
            continue
        size, files, _, _ = socket.recv_fds(channel, _SIZE.size, 4)
        if not size:
            os._exit(0)
        order = json.loads(_received(channel, _SIZE.unpack(size)[0]))
        *streams, ended = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            for each in (woken, wake, ended, *endings.values()):
                os.close(each)
            return order, streams
        for each in streams:
            os.close(each)
        endings[pid] = ended
        channel.sendall(_SIZE.pack(pid))


def _tell_endings(endings: dict[int, int]) -> None:
    while endings:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        ended = endings.pop(pid)
        try:
            os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
        except BrokenPipeError:  # nobody asks any more
            pass
        finally:
            os.close(ended)


def _become(order: Mapping[str, Any], streams: list[int], path: list[str]) -> None:
    """Take the streams, the folder, the variables and the arguments of an order."""
    for each, number in zip(streams, (0, 1, 2), strict=True):
        os.dup2(each, number)
    for each in streams:
        os.close(each)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    sys.path[:] = [order["cwd"], *_import_path(order["env"]), *path]
    sys.argv = ["gateway", *order["arguments"]]
    encoding = order["env"].get("PYTHONIOENCODING") or sys.stdout.encoding
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 - open until the process ends
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115


def _import_path(environ: Mapping[str, str]) -> list[str]:
    return [each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each]


def _main() -> None:
    import gc

    path = sys.path[1 + len(_import_path(os.environ)) :]
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    _import_everything()
    gc.collect()
    gc.freeze()  # what every process has is shared with all of them
    order, streams = _serve_orders(channel)
    _become(order, streams, path)
    os._exit(_run_to_the_end())


def _run_to_the_end() -> int:
    """Run the command, and everything that Python does before a process ends, except taking apart what is imported."""
    import threading
    import traceback

    from gateway.__main__ import main

    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined] # threads end before what was registered for the end is done
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    _main()
