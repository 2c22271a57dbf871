"""`gateway grant list` and `revoke` act on the store; requests and decisions need a gateway."""

import asyncio
import json
import os
import pwd
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.policy.grants.grant import Grant
from gateway.policy.grants.grant_service import GrantChange
from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.sql.grants import SqlGrantStore
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.policy.grants.test_lifecycle import KIM, make_grant, make_request
from tests.support.audit_log import entries

ME = f"os:{pwd.getpwuid(os.getuid()).pw_name}"
NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.db"
    pending = make_request("g-asked", requested_at=NOW, lapses_at=NOW + timedelta(hours=1))
    over = make_grant("g-over", NOW - timedelta(days=1))

    async def fill() -> None:
        store = await open_sqlite_store(path)
        notices = FileChangeSignal(path)
        grants = SqlGrantStore(store.writer, notices, clock=lambda: NOW)

        async def put(grant: Grant) -> None:
            await grants.change(lambda found: GrantChange("approve", grant, KIM, "reason", NOW))

        for each in (pending, over, make_grant("g-now", NOW - timedelta(minutes=1))):
            await put(each)
        grants.close()
        notices.close()
        await store.close()

    asyncio.run(fill())
    return path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["grant", *words])


def test_open_requests_and_grants_in_force_are_listed(database: Path) -> None:
    text = run("list", "--database", str(database))
    every = run("list", "--all", "--database", str(database), "--format", "json")

    assert text.exit_code == 0, text.output
    assert text.stdout.split()[:5] == ["id", "status", "subject", "role", "policy"]
    assert ["g-asked" in text.stdout, "g-now" in text.stdout, "g-over" in text.stdout] == [True, True, False]
    assert {each["id"]: each["status"] for each in json.loads(every.stdout)} == {
        "g-asked": "pending",
        "g-now": "in-force",
        "g-over": "ended",
    }


def test_revocation_is_done_and_logged(database: Path) -> None:
    done = run("revoke", "g-now", "--reason", "solved", "--as", "kim", "--database", str(database))
    again = run("revoke", "g-now", "--reason", "solved", "--database", str(database))
    request = run("revoke", "g-asked", "--reason", "solved", "--database", str(database), "--format", "json")
    listed = run("list", "--database", str(database))

    assert (done.exit_code, done.stdout) == (0, "g-now  role:oncall for user:kim: revoked\n")
    assert (again.exit_code, "the grant is revoked already" in again.stderr) == (1, True)
    assert json.loads(request.stdout)["revokedBy"] == ME
    assert listed.stderr.strip().endswith("no grant is in force or pending")
    [entry, _] = [each for each in entries(database) if each["event"] == "grant-revoked"]
    assert entry["caller"]["subject"] == f"{ME} as kim"
    assert entry["object"]["note"] == "role:oncall for user:kim by incidents: solved"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("revoke", "nothing", "--reason", "x"), "there is no such grant"),
        (("revoke", "g-now", "--reason", "a\nb"), "not one line of text"),
        (("revoke", "g-now", "--reason", "\u202e"), "not one line of text"),
    ],
)
def test_what_cannot_be_revoked_is_reported(words: tuple[str, ...], expected: str, database: Path) -> None:
    result = run(*words, "--database", str(database))

    assert result.exit_code == 1
    assert expected in result.stderr


def test_store_of_an_older_version_is_reported(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TABLE grants")
    connection.close()

    result = run("list", "--database", str(database))

    assert result.exit_code == 1
    assert "cannot be read as a store of this version" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("user:kim", "role:oncall", "--for", "2h", "--reason", "INC-42"),
        ("approve", "g-now"),
        ("refuse", "g-now"),
    ],
)
def test_requests_and_decisions_need_a_gateway(words: tuple[str, ...]) -> None:
    result = run(*words, "--url", "http://127.0.0.1:9")

    assert result.exit_code == 1
    assert "no gateway answers" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("user:kim", "role:oncall", "--reason", "INC-42"),
        ("user:kim", "role:oncall", "--for", "2 hours", "--reason", "INC-42"),
        ("user:kim", "role:oncall", "--for", "2h"),
        ("user:kim", "--for", "2h", "--reason", "INC-42"),
        ("kim", "role:oncall", "--for", "2h", "--reason", "INC-42"),
    ],
)
def test_wrong_use_is_refused(words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


def test_help_shows_every_use() -> None:
    shown = run("--help").stdout

    assert all(word in shown for word in ("SUBJECT ROLE", "approve", "refuse", "revoke", "list"))
