"""`gateway quarantine` and `gateway token revoke` act on the store directly and take effect at once."""

import asyncio
import json
import os
import pwd
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
ME = f"os:{pwd.getpwuid(os.getuid()).pw_name}"
DIGEST = "5e" * 32


@pytest.fixture(autouse=True)
def beside_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    async def make() -> None:
        await (await open_sqlite_store(tmp_path / "data" / "gateway.db")).close()

    asyncio.run(make())
    return tmp_path / "data" / "gateway.db"


def run(*words: str, project: Path = SMALL) -> Result:
    return CliRunner().invoke(app, [*words, "--project", str(project)])


def list_entries(group: str = "quarantine") -> list[dict[str, Any]]:
    word = "list" if group == "quarantine" else "revoked"
    result = run(group, word, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


@pytest.mark.usefixtures("database")
def test_tool_is_stopped_and_let_through_again() -> None:
    added = run("quarantine", "add", "tool:order_read", "--reason", "leaks data")

    assert (added.exit_code, added.stdout, added.stderr) == (0, "✓ tool:order_read is quarantined\n", "")
    [found] = list_entries()
    assert (found["target"], found["reason"], found["by"], found["until"]) == (
        *("tool:order_read", "leaks data", ME, None),
    )
    lifted = run("quarantine", "lift", "tool:order_read", "--reason", "fixed")
    assert (lifted.exit_code, lifted.stdout) == (0, "✓ tool:order_read is no longer quarantined\n")
    assert list_entries() == []


@pytest.mark.usefixtures("database")
def test_quarantine_for_a_while_states_until_when() -> None:
    added = run("quarantine", "add", "principal:user:ana", "--reason", "odd calls", "--for", "2h", "--as", "kim")

    [found] = list_entries()
    assert added.stdout == f"✓ principal:user:ana is quarantined until {found['until']}\n"
    assert found["by"] == f"{ME} as kim"
    text = run("quarantine", "list").stdout.splitlines()
    assert text[0].split() == ["target", "since", "until", "by", "reason"]
    assert "odd calls" in text[1]


@pytest.mark.usefixtures("database")
def test_programs_read_the_change_as_json() -> None:
    added = run("quarantine", "add", "tool:order_read", "--reason", "leaks data", "--format", "json")

    assert json.loads(added.stdout) == {"action": "add", **list_entries()[0]}


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("target", ["tool:not_yet", "upstream:not_yet"])
def test_unknown_name_is_stopped_with_a_warning(target: str) -> None:
    added = run("quarantine", "add", target, "--reason", "leaks data")

    assert added.exit_code == 0
    assert f"{target} is not configured" in added.stderr
    assert [each["target"] for each in list_entries()] == [target]


@pytest.mark.usefixtures("database")
def test_nothing_quarantined_is_a_note() -> None:
    result = run("quarantine", "list")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing is quarantined" in result.stderr


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("add", "order_read", "--reason", "x"), "write tool:NAME, upstream:NAME"),
        (("add", "tool:order_read", "--reason", " "), "give a reason in one line"),
        (("add", "tool:order_read", "--reason", "x", "--as", "a\nb"), "not one line of text"),
        (("add", "tool:order_read", "--reason", "x", "--for", "soon"), "30s, 15m, 2h or 7d"),
        (("add", "tool:order_read", "--reason", "x", "--for", "0h"), "30s, 15m, 2h or 7d"),
        (("lift", "order_read", "--reason", "x"), "write tool:NAME, upstream:NAME"),
        (("add", "tool:order_read"), "--reason"),
    ],
    ids=["target", "no-reason", "hostile-name", "time", "no-time", "lift-target", "reason-missing"],
)
def test_wrong_words_are_refused_with_help(words: tuple[str, ...], expected: str) -> None:
    result = run("quarantine", *words)

    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.replace("│", " ").split())
    assert list_entries() == []


@pytest.mark.usefixtures("database")
def test_lifting_what_is_not_quarantined_fails() -> None:
    result = run("quarantine", "lift", "tool:order_read", "--reason", "x")

    assert result.exit_code == 1
    assert "tool:order_read is not quarantined" in result.stderr


def test_project_without_records_is_reported() -> None:
    result = run("quarantine", "add", "tool:order_read", "--reason", "x")

    assert result.exit_code == 1
    assert "there are no records in data/gateway.db" in result.stderr


def test_store_of_another_version_is_reported(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TABLE quarantines")
    connection.close()

    for words in (("add", "tool:order_read", "--reason", "x"), ("list",)):
        result = run("quarantine", *words)
        assert result.exit_code == 1
        assert "this version" in result.stderr


@pytest.mark.parametrize("broken", ["tools.yaml", "gateway.yaml"])
def test_broken_configuration_is_no_reason_not_to_stop(database: Path, tmp_path: Path, broken: str) -> None:
    shutil.copytree(SMALL, tmp_path / "broken")
    (tmp_path / "broken" / "configs" / broken).write_text("kind: [")
    words = ("quarantine", "add", "tool:order_read", "--reason", "leaks data")

    result = run(*words, project=tmp_path / "broken")

    if broken == "tools.yaml":
        assert "names are not checked" in result.stderr
    else:
        assert "name the store: --database PATH" in result.stderr
        result = run(*words, "--database", str(database))
    assert result.exit_code == 0, result.output
    assert [each["target"] for each in list_entries()] == ["tool:order_read"]


# Tokens


@pytest.mark.usefixtures("database")
def test_token_is_revoked_and_restored() -> None:
    revoked = run("token", "revoke", DIGEST.upper(), "--reason", "left in a log", "--for", "7d")

    assert (revoked.exit_code, revoked.stdout) == (0, f"✓ {DIGEST.upper()} is revoked\n")
    [found] = list_entries("token")
    assert (found["token"], found["reason"], found["by"]) == (DIGEST, "left in a log", ME)
    assert DIGEST in run("token", "revoked").stdout
    restored = run("token", "restore", DIGEST, "--reason", "wrong one", "--format", "json")
    assert json.loads(restored.stdout) == {"action": "restore", **found}
    assert list_entries("token") == []
    assert "no token is revoked" in run("token", "revoked").stderr
    again = run("token", "restore", DIGEST, "--reason", "again")
    assert again.exit_code == 1
    assert "the token is not revoked" in again.stderr


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("id", "expected"),
    [("agw_secret", "give its SHA-256"), ("", "give a signed token's jti"), ("a\nb", "give a signed token's jti")],
    ids=["token-itself", "empty", "two-lines"],
)
def test_what_is_no_id_of_a_token_is_refused(id: str, expected: str) -> None:
    result = run("token", "revoke", id, "--reason", "x")

    assert result.exit_code == 2
    assert expected in result.stderr
    assert "agw_secret" not in result.output
