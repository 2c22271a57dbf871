"""Runs lines of the documents as a reader does in a terminal, with the environment active."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

_OF_MAKE: Final = frozenset({"MAKEFLAGS", "MAKELEVEL", "MFLAGS"})
"""Variables that make sets for tests and that readers do not have."""


def activate_environment(**more: str) -> dict[str, str]:
    """Return the variables of a terminal in which the environment is active and git has a user."""
    here = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    people = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**here, **people, "PATH": path, **more}


def run(command: list[str], *, folder: Path = ROOT, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Run a command, check its exit code and return its output."""
    answer = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=activate_environment(**(env or {})),
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert answer.returncode == code, answer.stdout + answer.stderr
    return answer.stdout


def run_typed_line(text: str, *, folder: Path = ROOT, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Return the output of the lines of an example."""
    return run(["bash", "-ec", text], folder=folder, code=code, env=env)


def blocks(document: str, language: str) -> list[str]:
    """Return the examples of a language in a document, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def block(document: str, language: str, word: str) -> str:
    """Return the only example of a language that contains a word."""
    (found,) = [each for each in blocks(document, language) if word in each]
    return found
