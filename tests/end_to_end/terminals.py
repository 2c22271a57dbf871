"""What a reader does in a terminal: lines of our documents, with the environment active."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from served import ROOT

_OF_MAKE: Final = frozenset({"MAKEFLAGS", "MAKELEVEL", "MFLAGS"})
"""What tests that make has started know of it, and readers do not."""


def active(**more: str) -> dict[str, str]:
    """The variables of a terminal in which the environment is active, and whose user commits."""
    here = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    people = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**here, **people, "PATH": path, **more}


def run(command: list[str], *, folder: Path = ROOT, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """What a command prints; it has to end with the exit code."""
    answer = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env=active(**(env or {})),
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert answer.returncode == code, answer.stdout + answer.stderr
    return answer.stdout


def typed(text: str, *, folder: Path = ROOT, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """What the lines of an example print."""
    return run(["bash", "-ec", text], folder=folder, code=code, env=env)


def blocks(document: str, language: str) -> list[str]:
    """The examples of a language in a document, in their order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def block(document: str, language: str, word: str) -> str:
    """The one example of a language that has a word in it."""
    (found,) = [each for each in blocks(document, language) if word in each]
    return found
