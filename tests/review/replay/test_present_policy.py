"""The policy that was in force decides recorded calls as it did: of every kind of rule, made by a real gateway.

`REPLAY_CALLS` sets the number of calls.
"""

import asyncio
import os
from pathlib import Path

from gateway.app.stores.recorded_calls import read_recorded_calls
from gateway.app.stores.recorded_entries import open_exported_calls
from gateway.audit.export import export_entries
from gateway.review.replay.differences import ReplayResult
from gateway.review.replay.recorded_calls import EVERY_CALL
from gateway.review.replay.replay import replay_calls
from gateway.review.replay.replay_text import replay_data
from gateway.storage.sql.read_only.read_only_store import SqliteAuditReader
from tests.review.replay.every_rule import load, serving, write_every_rule

CALLS = int(os.environ.get("REPLAY_CALLS", "1500"))
VALUES = {"arguments": "values"}


def replay_again(project: Path, database: Path) -> ReplayResult:
    access = load(project).access
    assert access is not None
    with read_recorded_calls(database, EVERY_CALL, looks_back=True) as history:
        return replay_calls(history, access)


def replay_export(project: Path, database: Path, log: Path) -> ReplayResult:
    """Replay the exported decision log, which has no arguments."""
    access = load(project).access
    assert access is not None
    with SqliteAuditReader(database) as rows:
        log.write_bytes(b"".join(export_entries(rows, "jsonl", version="1")))
    with open_exported_calls(log) as history:
        return replay_calls(history, access)


def test_present_policy_decides_every_recorded_call_as_it_did(tmp_path: Path) -> None:
    project = write_every_rule(tmp_path / "p", replay=VALUES)

    async def make_calls() -> None:
        async with serving(project, tmp_path / "data") as callers:
            await callers.make_calls(CALLS)

    asyncio.run(make_calls())
    result = replay_again(project, tmp_path / "data" / "gateway.db")

    assert result.groups == (), replay_data(result)
    assert result.same > 0.95 * CALLS, replay_data(result)

    exported = replay_export(project, tmp_path / "data" / "gateway.db", tmp_path / "log.jsonl")

    assert exported.groups == (), replay_data(exported)
    assert exported.calls == result.calls
    assert {each.obstacle for each in exported.unreplayed} == {"arguments", "turn", "source"}
