"""What the operating system knows about this process: processor time, memory, open files and age.

What a system does not tell is left out.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gateway.telemetry import names
from gateway.telemetry.metric_instruments import Values
from gateway.telemetry.metrics import GatewayMetrics

_PROC = Path("/proc/self")
_FILES = Path("/dev/fd")


def observe_process(meters: GatewayMetrics) -> None:
    meters.observe(names.PROCESS_CPU, _read_cpu)
    meters.observe(names.PROCESS_MEMORY, _read_memory)
    meters.observe(names.PROCESS_FILES, _count_files)
    meters.observe(names.PROCESS_UPTIME, _read_uptime)


def _read_cpu() -> Iterator[tuple[Values, float]]:
    times = os.times()
    yield ("user",), times.user
    yield ("system",), times.system


def _read_memory() -> Iterator[tuple[Values, float]]:
    with suppress(OSError):
        resident = int((_PROC / "statm").read_text(encoding="ascii").split()[1])
        yield (), resident * os.sysconf("SC_PAGE_SIZE")


def _count_files() -> Iterator[tuple[Values, float]]:
    with suppress(OSError):
        yield (), len(os.listdir(_FILES)) - 1  # one is the folder itself


def _read_uptime() -> Iterator[tuple[Values, float]]:
    with suppress(OSError):
        fields = (_PROC / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        yield (), time.clock_gettime(time.CLOCK_BOOTTIME) - began
