"""A gigabyte passes through a backend without ever being in memory."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="this system does not tell peaks of memory"
)


def measure(kind: str) -> tuple[int, int, str]:
    """Stored bytes, kilobytes of memory used, and the error output."""
    program = Path(__file__).with_name("large_output.py")
    run = subprocess.run([sys.executable, program, kind], capture_output=True, text=True, timeout=120, check=True)
    size, kilobytes = map(int, run.stdout.split())
    return size, kilobytes, run.stderr


@pytest.mark.parametrize("kind", ["command", "http"])
def test_large_result_is_streamed(kind: str) -> None:
    size, kilobytes, _ = measure(kind)

    assert size == 1 << 30
    assert kilobytes <= 64 << 10


def test_bomb_is_stopped_long_before_it_hurts() -> None:
    size, kilobytes, complaint = measure("bomb")

    assert size <= 16 << 20
    assert kilobytes <= 64 << 10
    assert "grows out of proportion" in complaint
