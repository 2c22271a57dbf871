"""Real gateways, many of them one after the other: a process that has everything imported forks each.

What is forked runs the command `gateway` from its first line on; only the second that imports take is saved.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock

STARTS_WITHIN = 60.0


@dataclass
class Forked:
    """A gateway that is up."""

    pid: int
    url: str
    admin_url: str
    output: Path
    peer_url: str = ""
    """How other gateways reach it, if they do."""

    def kill(self) -> None:
        """As hard as it goes. Workers that it has end by themselves."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        self.wait()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        self.wait()
        return int(_code_file(self.output).read_text(encoding="ascii"))

    def wait(self) -> None:
        until = time.monotonic() + STARTS_WITHIN
        while is_alive(self.pid):
            assert time.monotonic() < until, "the gateway does not end"
            time.sleep(0.005)


class Forking:
    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._numbers = count()
        self._pids: list[int] = []
        self._one_at_a_time = Lock()

    def start(
        self, project: Path | None, data: Path, *, env: Mapping[str, str], options: tuple[str, ...] = ()
    ) -> Forked:
        data.mkdir(parents=True, exist_ok=True)
        output = self._folder / f"output-{next(self._numbers)}.txt"
        where = () if project is None else ("--configs", str(project))
        argv = ["gateway", "serve", *where, "--port", "0", "--admin-port", "0", *options]
        order = {"argv": argv, "env": dict(env), "cwd": str(data), "output": str(output)}
        return _up(self._forked(order), output)

    def _forked(self, order: Mapping[str, object]) -> int:
        """Threads may start several at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            pid = int(self._process.stdout.readline())
        self._pids.append(pid)
        return pid

    def close(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def forking(folder: Path) -> Iterator[Forking]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found = Forking(process, folder)
    try:
        yield found
    finally:
        found.close()


def _code_file(output: Path) -> Path:
    return output.with_suffix(".code")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _up(pid: int, output: Path) -> Forked:
    until = time.monotonic() + STARTS_WITHIN
    while True:
        said = output.read_text(encoding="utf-8") if output.exists() else ""
        if "\ntry: " in said:
            break
        assert is_alive(pid), f"the gateway did not start:\n{said}"
        assert time.monotonic() < until, f"the gateway does not come up:\n{said}"
        time.sleep(0.005)
    url = re.search(r"REST +(\S+)/v1 ", said)
    admin = re.search(r"admin +(\S+)/readyz", said)
    assert url is not None, said
    assert admin is not None, said
    return Forked(pid, url[1], admin[1], output)


def _fork_what_is_asked_for() -> None:
    import gateway.cli.serving  # noqa: F401 - here, so that only the process that forks pays for it
    from gateway.cli import main

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is gone at once
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for file, number in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(file, number)
            os.environ.update(order["env"])
            os.chdir(order["cwd"])
            sys.argv = order["argv"]
            code: object = 0
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
            sys.stdout.flush()
            _code_file(Path(order["output"])).write_text(str(code), encoding="ascii")
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    _fork_what_is_asked_for()
