"""Reads and verifies a gateway's decision log as an operator does."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from gateway.cli.main import app


def run_audit_command(*words: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, words)])


def assert_good(database: Path, *more: object) -> None:
    answer = run_audit_command("verify", "--database", database, *more)
    assert answer.exit_code == 0, answer.output


def entries(database: Path) -> list[dict[str, Any]]:
    """Return the bodies of all shards in order of time."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        rows = opened.execute("SELECT body FROM audit ORDER BY at, shard, seq").fetchall()
    return [json.loads(body) for [body] in rows]


def filter_call_entries(database: Path) -> list[tuple[str, str, str, str]]:
    """Return event, tool, effect and reason of all entries about calls."""
    return [
        (each["event"], each["target"]["tool"], each["decision"]["effect"], each["decision"]["reason"])
        for each in entries(database)
        if each["event"].startswith("call-")
    ]


def shards(database: Path) -> dict[str, list[str]]:
    """Return the names of all shards with those of their predecessors."""
    opened = [each["log"]["opened"] for each in entries(database) if each["event"] == "shard-opened"]
    return {each["shard"]: [mark["shard"] for mark in each.get("predecessors", ())] for each in opened}


def ends_of_calls(database: Path) -> Counter[tuple[str | None, str]]:
    """Return how many end entries each call has, by turn and id; a call of an unknown tool may have no turn."""
    ends = ("call-settled", "call-decided", "call-unknown")
    found = [each["call"] for each in entries(database) if each["event"] in ends]
    return Counter((each.get("turn"), each["id"]) for each in found)
