"""The programs of Prometheus: those of this machine, or those of Debian's package, unpacked into a cache.

Nothing is installed and no service is started. Without Debian's tools or its mirror, a test is skipped with the reason.
"""

import fcntl
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-gateway-tests" / "prometheus"
_SECONDS = 120


def find_prometheus_program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Skip the test if there is none."""
    found = shutil.which(name)
    if found is not None:
        return found
    problem = _unpack()
    if problem:
        pytest.skip(f"{name} is not installed, and Debian's package prometheus cannot be fetched: {problem}")
    return str(CACHE / "usr" / "bin" / name)


@cache
def _unpack() -> str:
    """Fetch the package and unpack it, once for all processes. Return why that is not possible, or nothing."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "this is not a Debian system"
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with (CACHE.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (CACHE / "usr" / "bin" / "promtool").exists():
            return ""
        fetched = CACHE.with_name("prometheus.fetched")
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir()
        try:
            _run("apt-get", "-q", "download", "prometheus", folder=fetched)
            [package] = fetched.glob("prometheus_*.deb")
            _run("dpkg-deb", "-x", package.name, "unpacked", folder=fetched)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        (fetched / "unpacked").rename(CACHE)
        shutil.rmtree(fetched)
    return ""


def _run(*words: str, folder: Path) -> None:
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=_SECONDS)
