"""Real gateways, many of them one after the other: a process that has everything imported forks each."""

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.support.gateways.commands import ForkedCommand, start_command
from tests.support.paths import ROOT
from tests.support.ready_databases import prepare_data_folder

STARTS_WITHIN = 60.0


@dataclass
class GatewayFork:
    """A running gateway."""

    command: ForkedCommand
    url: str
    admin_url: str
    output: Path
    peer_url: str = ""
    """The address for other gateways, if there is one."""

    @property
    def pid(self) -> int:
        return self.command.pid

    def kill(self) -> None:
        """As hard as it goes. Workers that it has end by themselves."""
        self.command.kill()
        self.wait()

    def stop(self) -> None:
        self.command.terminate()
        self.wait()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def ended(self) -> int:
        """Wait for the end; the exit code."""
        return self.command.wait(STARTS_WITHIN)

    def wait(self) -> None:
        self.command.wait(STARTS_WITHIN)


class ForkServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._commands: list[ForkedCommand] = []

    def start(
        self, project: Path | None, data: Path, *, env: Mapping[str, str], options: tuple[str, ...] = ()
    ) -> GatewayFork:
        """Its functions may be those of the modules here. Threads may start several at once."""
        data.mkdir(parents=True, exist_ok=True)
        if project is not None and "GATEWAY_DATA_DIR" in env:
            prepare_data_folder(Path(env["GATEWAY_DATA_DIR"]), project)
        path = self._folder / f"output-{next(self._numbers)}.txt"
        where = () if project is None else ("--configs", str(project))
        arguments = ("serve", *where, "--port", "0", "--admin-port", "0", *options)
        modules = os.pathsep.join([str(ROOT / "tests" / "end_to_end"), *filter(None, [os.environ.get("PYTHONPATH")])])
        with path.open("w") as output:
            known = {**os.environ, "PYTHONPATH": modules, **env}
            command = start_command(*arguments, stdout=output, cwd=data, env=known)
        self._commands.append(command)
        return _up(command, path)

    def close(self) -> None:
        for command in self._commands:
            command.kill()
            command.wait()


@contextmanager
def start_forkserver(folder: Path) -> Iterator[ForkServer]:
    """Whatever it started is gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    found = ForkServer(folder)
    try:
        yield found
    finally:
        found.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _up(command: ForkedCommand, output: Path) -> GatewayFork:
    until = time.monotonic() + STARTS_WITHIN
    while True:
        has_ended = command.poll() is not None
        said = output.read_text(encoding="utf-8")
        if "\ntry: " in said:
            break
        assert not has_ended, f"the gateway did not start:\n{said}"
        assert time.monotonic() < until, f"the gateway does not come up:\n{said}"
        time.sleep(0.005)
    url = re.search(r"REST +(\S+)/v1 ", said)
    admin = re.search(r"admin +(\S+)/readyz", said)
    assert url is not None, said
    assert admin is not None, said
    return GatewayFork(command, url[1], admin[1], output)
