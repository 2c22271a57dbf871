"""What one call executes: figures that do not depend on other load of the machine.

`kI` are thousands of machine instructions of the event loop's thread per call, counted by callgrind after a warm-up;
what the thread does without calls in the same time is subtracted. The other columns come from a second gateway without
valgrind, by `sys.setprofile`: Python functions called by that thread per call, how many of them are the gateway's, how
many modules they are in, and how often a function calls one of another package (`gateway.X`, or a library). Work of
other threads and processes (the exporter, the writer, `run: thread`) is not in them.

Exits 2 if valgrind is not installed; --without-valgrind leaves its column out.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple, Protocol

from benchmarks.gateways import COMMAND
from benchmarks.load import Connection, Load, Turns
from benchmarks.rows import PLACES, ROWS, Row, choose_rows
from benchmarks.servers import exit_on_sigterm

COUNTED = ("plain", "shipped", "tools", "observed", "guarded")
"""The gateways whose rows are counted; valgrind lacks a system call that a gateway needs to start programs."""
COLUMNS = ("kI", "functions", "of gateway", "modules", "switches")
WARM_CALLS = 300
PROFILED_CALLS = 50
IDLE_SECONDS = 4.0


class Meter(Protocol):
    """Counts what a gateway executes that was started with its command."""

    @property
    def command(self) -> Sequence[str]: ...

    def count(self, name: str, pid: int, port: int, load: Load) -> dict[str, float]: ...


def main() -> None:
    if sys.argv[1:2] == ["--profiled"]:
        serve_profiled(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[], metavar="PATTERN", help="rows whose name has one of the texts")
    parser.add_argument("--calls", type=int, default=200, help="calls of one count of instructions")
    parser.add_argument("--without-valgrind", action="store_true", help="count functions alone, which takes a minute")
    parser.add_argument("--functions", type=Path, metavar="FOLDER", help="write the functions of each row there")
    options = parser.parse_args()
    if not options.without_valgrind and not (shutil.which("valgrind") and shutil.which("callgrind_control")):
        print("valgrind is not installed here; --without-valgrind counts functions alone", file=sys.stderr)
        sys.exit(2)
    exit_on_sigterm()
    rows = choose_rows([row for row in ROWS if row.place in COUNTED and not is_late(row)], options.rows)
    print(f"{'per call':42} " + " ".join(f"{column:>10}" for column in COLUMNS), flush=True)
    with TemporaryDirectory() as folder:
        meters: list[Meter] = [Functions(Path(folder), options.functions)]
        if not options.without_valgrind:
            meters.insert(0, Instructions(Path(folder), options.calls))
        for place, some in groupby(rows, lambda row: row.place):
            show(place, list(some), meters)


def is_late(row: Row) -> bool:
    """The calls before take too long under valgrind, and `serving.py` shows whether they change anything."""
    return isinstance(row.conversation, Turns) and row.conversation.at > WARM_CALLS


def show(place: str, rows: Sequence[Row], meters: Sequence[Meter]) -> None:
    found: dict[str, dict[str, float]] = {row.name: {} for row in rows}
    for meter in meters:
        print(f"\r\x1b[K{place}: {meter.command[0]}", end="", file=sys.stderr, flush=True)
        with PLACES[place](command=meter.command) as (pid, port):
            for row in rows:
                [load] = row.conversation.open(port, 1)
                send(port, load, WARM_CALLS)
                found[row.name] |= meter.count(row.name, pid, port, load)
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    for name, figures in found.items():
        cells = (f"{figures[column]:10.0f}" if column in figures else f"{'-':>10}" for column in COLUMNS)
        print(f"{name:42} {' '.join(cells)}", flush=True)


def send(port: int, load: Load, times: int) -> None:
    """Send the calls one after the other. An idle connection might be closed under valgrind, so none is kept."""
    with closing(Connection(port)) as connection:
        for _ in range(times):
            connection.send(load)


@dataclass
class Instructions:
    """Counts instructions by callgrind, which is switched on after the warm-up, because it is slow."""

    folder: Path
    calls: int
    _idle: tuple[int, float] = (0, 0.0)
    """The process, and its instructions per second without calls."""

    @property
    def command(self) -> Sequence[str]:
        options = ("--separate-threads=yes", "--instr-atstart=no", f"--callgrind-out-file={self.folder}/%p")
        return ("valgrind", "--quiet", "--tool=callgrind", *options, *COMMAND)

    def count(self, name: str, pid: int, port: int, load: Load) -> dict[str, float]:
        if self._idle[0] != pid:
            self._control(pid, "--instr=on")
            send(port, load, 1)
            self._control(pid, "--zero")
            began = time.monotonic()
            time.sleep(IDLE_SECONDS)
            self._idle = (pid, self._dump(pid) / (time.monotonic() - began))
        self._control(pid, "--zero")
        began = time.monotonic()
        send(port, load, self.calls)
        made = self._dump(pid) - self._idle[1] * (time.monotonic() - began)
        return {"kI": made / self.calls / 1000}

    def _control(self, pid: int, word: str) -> None:
        subprocess.run(["callgrind_control", word, str(pid)], check=True, capture_output=True, timeout=120)

    def _dump(self, pid: int) -> int:
        """Return the instructions of the main thread since the last dump or zero."""
        before = set(self.folder.glob(f"{pid}.*-01"))
        self._control(pid, "--dump")
        [dump] = set(self.folder.glob(f"{pid}.*-01")) - before
        found = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(encoding="utf-8"), re.MULTILINE)
        return int(found[1]) if found else 0


class Function(NamedTuple):
    """A function, how often it was called, and the module that called it."""

    module: str
    name: str
    caller: str
    times: int

    @property
    def is_switch(self) -> bool:
        return package(self.module) != package(self.caller)


def package(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "gateway" else parts[0]


@dataclass
class Functions:
    """Counts Python functions. The gateway starts and stops it on signals, and says so by the files it writes."""

    folder: Path
    lists: Path | None
    """Where to write the functions of each row."""

    @property
    def command(self) -> Sequence[str]:
        return (sys.executable, __file__, "--profiled", str(self.folder))

    def count(self, name: str, pid: int, port: int, load: Load) -> dict[str, float]:
        self._signal(pid, signal.SIGUSR1, STARTED)
        send(port, load, PROFILED_CALLS)
        functions = [Function(*each) for each in json.loads(self._signal(pid, signal.SIGUSR2, STOPPED))]
        if self.lists is not None:
            self.lists.mkdir(exist_ok=True)
            text = "".join(f"{each.times / PROFILED_CALLS:8.2f} {each.module}:{each.name}\n" for each in functions)
            (self.lists / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.txt").write_text(text, encoding="utf-8")
        ours = [each for each in functions if each.module.startswith("gateway.")]
        return {
            "functions": sum(each.times for each in functions) / PROFILED_CALLS,
            "of gateway": sum(each.times for each in ours) / PROFILED_CALLS,
            "modules": len({each.module for each in functions}),
            "switches": sum(each.times for each in functions if each.is_switch) / PROFILED_CALLS,
        }

    def _signal(self, pid: int, number: int, answer: str) -> str:
        file = self.folder / answer
        os.kill(pid, number)
        until = time.monotonic() + 60
        while not file.exists():
            if time.monotonic() > until:
                raise SystemExit("the gateway does not answer a signal")
            time.sleep(0.01)
        text = file.read_text(encoding="utf-8")
        file.unlink()
        return text


# --- in the gateway's process ---

STARTED, STOPPED = "started.json", "stopped.json"


def serve_profiled(folder: Path, words: Sequence[str]) -> None:
    """Be the gateway, and count its functions between two signals."""
    from gateway.__main__ import main as serve

    calls: Counter[tuple[str, str, str]] = Counter()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            caller = frame.f_back.f_globals.get("__name__", "") if frame.f_back else ""
            calls[frame.f_globals.get("__name__", ""), frame.f_code.co_qualname, caller] += 1

    def start(*_: object) -> None:
        calls.clear()
        write(STARTED, [])
        sys.setprofile(profile)

    def stop(*_: object) -> None:
        sys.setprofile(None)
        write(STOPPED, [[*function, times] for function, times in calls.most_common()])

    def write(name: str, content: list[Any]) -> None:
        (folder / f"{name}.new").write_text(json.dumps(content), encoding="utf-8")
        (folder / f"{name}.new").rename(folder / name)

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)
    sys.argv = ["gateway", *words]
    serve()


if __name__ == "__main__":
    main()
