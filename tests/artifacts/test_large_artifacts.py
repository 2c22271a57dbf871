"""Memory stays flat for content far larger than it: each probe runs in its own process and is measured there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ALLOWED_EXTRA = 64 << 20
NEEDED_DISK = 3 << 30

MEASURE = """
import asyncio, json, resource, sys

from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.artifacts.indexed_reader import limit_answer
from gateway.artifacts.spool_stores import FileStore
from gateway.errors import AnswerTooLarge

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

async def refused(query):
    try:
        await query
    except AnswerTooLarge as error:
        return error.code

async def main():
    store = FileStore(sys.argv[1])
    before = peak()
    await store.write("large", content())
    artifact = SpooledArtifact(await store.read("large"))
    answers = await ask(artifact)
    print(json.dumps({**answers, "extra": peak() - before}))
"""

MANY_LINES = """
def content():
    chunk = b"x\\n" * (2 << 20)
    for _ in range(256):
        yield chunk
    yield b"needle-42\\nlast"

async def ask(artifact):
    with limit_answer(16 << 20):
        return {
            "bytes": await artifact.byte_length(),
            "lines": await artifact.line_count(),
            "head": await artifact.head(2),
            "middle": await artifact.cat(500_000_000, 500_000_003),
            "end": await artifact.cat(2**29 - 1, 2**29 + 1),
            "tail": await artifact.tail(3),
            "grep": await artifact.grep(r"needle-\\d+$"),
            "everything": await refused(artifact.cat()),
            "every line": await refused(artifact.grep("x")),
        }

asyncio.run(main())
"""

ONE_LINE = """
def content():
    chunk = b"x" * (4 << 20)
    for _ in range(75):
        yield chunk

async def ask(artifact):
    with limit_answer(16 << 20):
        return {
            "bytes": await artifact.byte_length(),
            "lines": await artifact.line_count(),
            "head": await refused(artifact.head(1)),
            "tail": await refused(artifact.tail(1)),
            "grep": await refused(artifact.grep("y")),
        }

asyncio.run(main())
"""


GARBAGE = """
def content():
    yield b"first\\n"
    yield "😀".encode() + b"x" * ((16 << 20) - 1000) + b"\\xff\\n"
    yield b"\\xff\\xf0\\x9f" * (8 << 20) + b"\\n"
    for _ in range(20):
        yield bytes(range(256)) * (1 << 14) + b"\\n"

async def ask(artifact):
    with limit_answer(4 << 20):
        return {
            "first": await artifact.grep("first", limit=1),
            "long": await refused(artifact.grep("x", from_line=1)),
            "garbage": await refused(artifact.grep("x", from_line=2)),
            "after": len(await artifact.grep("\\ufffd", from_line=3, limit=5)),
            "lines": await artifact.line_count(),
        }

asyncio.run(main())
"""


def probe(script: str, folder: Path) -> dict[str, Any]:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_DISK:
        pytest.skip(f"only {free >> 20} MiB of disk are free, and {NEEDED_DISK >> 20} are needed")
    spool = folder / "spool"
    try:
        command = [sys.executable, "-c", MEASURE + script, str(spool)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
    finally:
        shutil.rmtree(spool, ignore_errors=True)  # retained test folders would fill the disk
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_gigabyte_of_tiny_lines_is_queried_in_flat_memory(tmp_path: Path) -> None:
    answers = probe(MANY_LINES, tmp_path)

    assert answers.pop("extra") <= ALLOWED_EXTRA
    assert answers == {
        "bytes": (1 << 30) + 14,
        "lines": 2**29 + 2,
        "head": ["x", "x"],
        "middle": ["x", "x", "x"],
        "end": ["x", "needle-42"],
        "tail": ["x", "needle-42", "last"],
        "grep": ["needle-42"],
        "everything": "E_ANSWER_TOO_LARGE",
        "every line": "E_ANSWER_TOO_LARGE",
    }


def test_line_of_300_megabytes_is_refused_in_flat_memory(tmp_path: Path) -> None:
    answers = probe(ONE_LINE, tmp_path)

    assert answers.pop("extra") <= ALLOWED_EXTRA
    assert answers == {
        "bytes": 300 << 20,
        "lines": 1,
        "head": "E_ANSWER_TOO_LARGE",
        "tail": "E_ANSWER_TOO_LARGE",
        "grep": "E_ANSWER_TOO_LARGE",
    }


def test_long_lines_of_garbage_are_searched_in_flat_memory(tmp_path: Path) -> None:
    answers = probe(GARBAGE, tmp_path)

    assert answers.pop("extra") <= ALLOWED_EXTRA
    assert answers == {
        "first": ["first"],
        "long": "E_ANSWER_TOO_LARGE",
        "garbage": "E_ANSWER_TOO_LARGE",
        "after": 5,
        "lines": 3 + 20 * ((1 << 14) + 1) + 1,
    }
