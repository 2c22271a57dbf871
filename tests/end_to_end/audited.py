"""The decision log of a gateway, read and verified as an operator does."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from gateway.cli import app


def audit(*words: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


def assert_good(database: Path, *more: object) -> None:
    answer = audit("verify", "--database", database, *more)
    assert answer.exit_code == 0, answer.output


def entries(database: Path) -> list[dict[str, Any]]:
    """Bodies of all shards, in the order they came about."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        rows = opened.execute("SELECT body FROM audit ORDER BY at, shard, seq").fetchall()
    return [json.loads(body) for [body] in rows]


def of_calls(database: Path) -> list[tuple[str, str, str, str]]:
    """Event, tool, effect and reason of everything that was said of calls."""
    return [
        (each["event"], each["target"]["tool"], each["decision"]["effect"], each["decision"]["reason"])
        for each in entries(database)
        if each["event"].startswith("call-")
    ]


def shards(database: Path) -> dict[str, list[str]]:
    """The names of all shards, and of those that each follows."""
    opened = [each["log"]["opened"] for each in entries(database) if each["event"] == "shard-opened"]
    return {each["shard"]: [mark["shard"] for mark in each.get("predecessors", ())] for each in opened}


def ends_of_calls(database: Path) -> Counter[tuple[str, str]]:
    """How often each call, by turn and id, was said to have ended."""
    ends = ("call-settled", "call-decided", "call-unknown")
    found = [each["call"] for each in entries(database) if each["event"] in ends]
    return Counter((each["turn"], each["id"]) for each in found)
