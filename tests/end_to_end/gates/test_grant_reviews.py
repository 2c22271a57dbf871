"""What reviews say of access that ends: replays of calls that grants allowed, and what grants add."""

import json
import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.app import ProjectFolders, load_project
from gateway.app.stores.recorded_calls import read_recorded_calls
from gateway.app.stores.recorded_entries import open_exported_calls
from gateway.policy.access import Access
from gateway.review.replay.differences import ReplayResult
from gateway.review.replay.recorded_calls import EVERY_CALL
from gateway.review.replay.replay import replay_calls
from tests.end_to_end.gates.test_grants import pay, start_grant_gateway, was_paid
from tests.end_to_end.gates.test_workers import command, run_command
from tests.support.gateways.commands import run_gateway
from tests.support.gateways.gate_projects import LIZ
from tests.support.gateways.grant_projects import (
    GRANT_PEOPLE,
    GRANT_ROWS,
    MIA,
    change_grant,
    get_grant,
    grant_documents,
    write_grant_project,
)
from tests.support.gateways.projects import environ_of, write_project

pytestmark = pytest.mark.anyio

RECORDED = [False, True, True, False]


async def record_calls(tmp_path: Path) -> Path:
    """Make calls before, with and after a grant; return the database."""
    async with start_grant_gateway(tmp_path) as (gateway, _):
        mia, liz = gateway.caller(MIA), gateway.caller(LIZ)
        before = await pay(mia)
        id = await get_grant(mia, liz)
        during = [await pay(mia) for _ in range(2)]
        await change_grant(mia, id, "revoke")
        after = await pay(mia)
    assert [was_paid(each) for each in (before, *during, after)] == RECORDED
    return tmp_path / "data" / "gateway.db"


def load_access(tmp_path: Path, **changes: Any) -> Access:
    project = write_grant_project(tmp_path, 1, **changes)
    folders = ProjectFolders.from_folder(project)
    found = load_project(folders, environ=environ_of(GRANT_PEOPLE), today=datetime.now(UTC).date())
    assert found.access is not None, found.diagnostics
    return found.access


def replay(database: Path, access: Access) -> ReplayResult:
    with read_recorded_calls(database, EVERY_CALL, looks_back=True) as history:
        return replay_calls(history, access)


async def test_calls_are_decided_with_the_grants_of_their_time(tmp_path: Path) -> None:
    database = await record_calls(tmp_path)

    same = replay(database, load_access(tmp_path / "same"))
    stricter = replay(database, load_access(tmp_path / "stricter", approvers=["role:ops"]))

    assert (same.groups, same.unreplayed, same.same) == ((), (), 2)  # others may not know the catalogue
    [group] = stricter.groups
    assert (group.change, group.calls, stricter.same) == ("allow-to-deny", 2, 0)


async def test_call_whose_grant_is_not_stored_any_more_is_not_replayable(tmp_path: Path) -> None:
    database = await record_calls(tmp_path)
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM grants")

    result = replay(database, load_access(tmp_path / "same"))

    assert result.groups == ()
    assert [(each.obstacle, each.calls) for each in result.unreplayed] == [("grant", 2)]


async def test_export_names_grants_and_does_not_have_them(tmp_path: Path) -> None:
    database = await record_calls(tmp_path)
    export = tmp_path / "log.jsonl"
    done = command("audit", "export", "--database", str(database), env={})
    assert done.returncode == 0, done.stderr
    export.write_text(done.stdout, encoding="utf-8")

    with open_exported_calls(export) as history:
        result = replay_calls(history, load_access(tmp_path / "same"))

    assert result.groups == ()
    assert ("grant", 2) in [(each.obstacle, each.calls) for each in result.unreplayed]


async def test_access_review_shows_what_a_grant_adds_until_it_ends(tmp_path: Path) -> None:
    env = {**environ_of(GRANT_PEOPLE), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
    async with start_grant_gateway(tmp_path) as (gateway, _):
        mia, liz = gateway.caller(MIA), gateway.caller(LIZ)
        id = await get_grant(mia, liz)
        during = await run_command("access", str(tmp_path / "p"), env=env)
        data = json.loads(await run_command("access", str(tmp_path / "p"), "--output", "json", env=env))
        await change_grant(mia, id, "revoke")
        after = await run_command("access", str(tmp_path / "p"), env=env)

    [grant] = data["grants"]
    assert (grant["id"], grant["subject"], grant["role"], grant["inForce"]) == (id, "user:mia", "role:agent", True)
    assert ("desk", "invoke", "pay") in [(each["catalogue"], each["action"], each["tool"]) for each in grant["adds"]]
    assert id in during
    assert id not in after


def test_access_review_leaves_out_rows_that_have_ended(tmp_path: Path) -> None:
    row = "p, role:agent, *, tool:*, discover|invoke|read, community, allow"
    ending = GRANT_ROWS.replace(row, f"# until 2026-11-30 OPS-1: {row}\n{row}")
    project = write_project(tmp_path / "p", grant_documents(1), policy=ending)
    env = {**os.environ, **environ_of(GRANT_PEOPLE), "GATEWAY_DATA_DIR": str(tmp_path)}

    def calls_on(day: str) -> list[str]:
        done = run_gateway("access", str(project), "--on", day, "--output", "json", env=env)
        assert done.returncode == 0, done.stderr
        found = [each for each in json.loads(done.stdout)["access"] if "user:ana" in each["callers"]]
        return [right["action"] for each in found for right in each["rights"]]

    assert "call" in calls_on("2026-11-30")
    assert "call" not in calls_on("2026-12-01")


async def test_report_shows_what_a_grant_adds_and_replays_its_calls(tmp_path: Path) -> None:
    env = {**environ_of(GRANT_PEOPLE), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
    async with start_grant_gateway(tmp_path) as (gateway, _):
        mia, liz = gateway.caller(MIA), gateway.caller(LIZ)
        id = await get_grant(mia, liz)
        assert was_paid(await pay(mia))
        stored = ["--database", str(tmp_path / "data" / "gateway.db"), "--replay", "7d"]
        await run_command("report", str(tmp_path / "p"), *stored, "--output", str(tmp_path / "review.html"), env=env)

    data = json.loads((tmp_path / "review.json").read_text(encoding="utf-8"))
    [grant] = data["grants"]["grants"]
    assert (grant["id"], grant["inForce"], grant["approver"]) == (id, True, "user:liz")
    assert "invoke pay in desk" in grant["adds"]
    assert id in (tmp_path / "review.html").read_text(encoding="utf-8")
    assert data["replay"]["same"] == 1
