"""Stops by an operator are logged in the same transaction, whether or not a gateway is running on the store."""

import asyncio
import os
import pwd
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.support.audit_log import assert_good, entries, shards
from tests.support.gateways.gate_projects import ANA, pay, start_gate_project

pytestmark = pytest.mark.anyio

ME = f"os:{pwd.getpwuid(os.getuid()).pw_name}"
DIGEST = "5e" * 32


def run(database: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--database", str(database)])


def run_successfully(database: Path, *words: str) -> None:
    answer = run(database, *words)
    assert answer.exit_code == 0, answer.output


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "gateway.db"

    async def make() -> None:
        await (await open_sqlite_store(path)).close()

    asyncio.run(make())
    return path


def acts(database: Path) -> list[tuple[str, str, str, str]]:
    return [
        (each["event"], each["object"]["kind"], each["object"]["name"], each["object"]["note"])
        for each in entries(database)
        if "object" in each
    ]


def test_each_change_is_an_entry_with_operator_and_reason(database: Path) -> None:
    run_successfully(database, "quarantine", "add", "tool:pay", "--reason", "leaks", "--for", "1h")
    run_successfully(database, "quarantine", "lift", "tool:pay", "--reason", "mended", "--as", "kim")
    run_successfully(database, "token", "revoke", DIGEST, "--reason", "lost")
    run_successfully(database, "token", "restore", DIGEST, "--reason", "found")

    assert acts(database) == [
        ("quarantine-added", "tool", "pay", "leaks"),
        ("quarantine-lifted", "tool", "pay", "mended"),
        ("token-revoked", "token", DIGEST, "lost"),
        ("token-restored", "token", DIGEST, "found"),
    ]
    written = [each for each in entries(database) if "object" in each]
    assert {each["caller"]["subject"] for each in written[:1]} == {ME}
    assert "kim" in written[1]["caller"]["subject"]
    assert written[0]["object"]["until"] > written[0]["at"]
    assert_good(database)


def test_each_command_follows_the_one_before(database: Path) -> None:
    for number in range(3):
        run_successfully(database, "quarantine", "add", f"tool:pay{number}", "--reason", "leaks")

    found = shards(database)
    names = sorted(found)
    assert [found[name] for name in names] == [[], names[:1], names[1:2]]


def test_change_that_is_refused_leaves_no_entry(database: Path) -> None:
    assert run(database, "quarantine", "lift", "tool:pay", "--reason", "mended").exit_code == 1
    assert run(database, "token", "restore", DIGEST, "--reason", "found").exit_code == 1

    assert entries(database) == []


@pytest.mark.parametrize("group", ["quarantine", "token"])
def test_without_a_log_nothing_is_changed(group: str, database: Path) -> None:
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("ALTER TABLE audit RENAME TO away")
    words = {
        "quarantine": ("quarantine", "add", "tool:pay", "--reason", "leaks"),
        "token": ("token", "revoke", DIGEST, "--reason", "lost"),
    }
    answer = run(database, *words[group])

    assert answer.exit_code == 1
    assert "log" in answer.stderr
    with closing(sqlite3.connect(database)) as opened:
        for table in ("quarantines", "revocations"):
            assert opened.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def test_change_under_a_gateway_that_serves_is_in_the_log_beside_the_calls_it_stops(tmp_path: Path) -> None:
    database = tmp_path / "data" / "gateway.db"
    async with start_gate_project(tmp_path) as (gateway, backend):
        ana = gateway.caller(ANA)
        await pay(ana)
        await asyncio.to_thread(run_successfully, database, "quarantine", "add", "tool:pay", "--reason", "leaks")
        await pay(ana)
        await asyncio.to_thread(run_successfully, database, "quarantine", "lift", "tool:pay", "--reason", "mended")
        await pay(ana)

        assert backend.paths == ["/pay", "/pay"]
    assert_good(database)
    events = [
        each.get("decision", {}).get("reason", each["event"])
        for each in entries(database)
        if each["event"] in ("call-settled", "call-decided", "quarantine-added", "quarantine-lifted")
    ]
    assert events == ["permitted", "quarantine-added", "quarantined", "quarantine-lifted", "permitted"]
