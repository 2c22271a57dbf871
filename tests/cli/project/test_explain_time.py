"""`gateway explain call` says which rows and memberships end, and what grants of the store add."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.model import Principal
from gateway.policy.grants.grant import Grant
from gateway.policy.grants.grant_service import GrantChange
from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.sql.grants import SqlGrantStore
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.config.linking.projects import document
from tests.review.project_edits import copy_project, edit

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
ROW = "p, role:clerk, desk,      tool:*,       discover|invoke, partner,    allow"
MEMBER = "g, user:ana,    role:clerk"
EVE = Principal("user:eve", frozenset({"role:guest"}))
KIM = Principal("user:kim")
POLICY = {
    "description": "For incidents.",
    "roles": ["role:clerk"],
    "to": ["user:eve"],
    "approvers": ["role:lead"],
    "maxDuration": "2h",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_DATA_DIR", str(tmp_path / "data"))
    return copy_project(tmp_path / "p")


def explain(project: Path, subject: str = "user:ana", at: datetime = NOON) -> tuple[str, list[str], str]:
    """Return the decision, the notes, and the text for people."""
    words = ["explain", "call", "order_read", str(project), "--as", subject, "--with", "order=A1"]
    words += ["--at", at.isoformat()]
    data = CliRunner().invoke(app, [*words, "--output", "json"], env={"COLUMNS": "400"})
    text = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    assert (data.exit_code, text.exit_code) == (0, 0), data.output
    found = json.loads(data.stdout)
    return found["decision"], found["notes"], text.stdout


def test_rows_about_the_caller_that_end_are_named(project: Path) -> None:
    edit(project, "policies/policy.csv", ROW, f"# until 2026-11-30 OPS-1: {ROW}\n{ROW}")
    edit(project, "policies/roles.csv", MEMBER, f"# until 2026-12-31 OPS-2: {MEMBER}\n{MEMBER}")
    of_kim = "g, user:kim,    role:lead"
    edit(project, "policies/roles.csv", of_kim, f"# until 2026-12-31 OPS-3: {of_kim}\n{of_kim}")

    before, notes, text = explain(project)
    later, ended, _ = explain(project, at=datetime(2026, 12, 5, tzinfo=UTC))

    row, member = f"{project}/policies/policy.csv:3", f"{project}/policies/roles.csv:3"
    assert (before, later) == ("allow", "deny")
    assert notes == [
        f"{row} is in force until 2026-12-01T00:00:00Z (OPS-1)",
        f"user:ana is role:clerk until 2027-01-01T00:00:00Z (OPS-2), by {member}",
    ]
    assert f"note: {notes[0]}" in text
    assert ended == [notes[0].replace("is in force", "was in force"), notes[1]]


def test_project_without_ends_and_grants_has_no_notes(project: Path) -> None:
    assert explain(project)[1] == []


def put_grant(path: Path) -> None:
    since = NOON - timedelta(minutes=30)
    grant = Grant(
        *("g1", "user:eve", None, "role:clerk", "incidents", timedelta(hours=1), "INC-1", EVE, since, since),
        state="approved",
        decider=KIM,
        since=since,
        until=since + timedelta(hours=1),
    )

    async def fill() -> None:
        store = await open_sqlite_store(path)
        notices = FileChangeSignal(path)
        grants = SqlGrantStore(store.writer, notices, clock=lambda: NOON)
        await grants.change(lambda found: GrantChange("approve", grant, KIM, "INC-1", NOON))
        grants.close()
        notices.close()
        await store.close()

    asyncio.run(fill())


def test_grant_of_the_store_is_named_where_it_decides(project: Path, tmp_path: Path) -> None:
    (project / "configs" / "grants.yaml").write_text(document("GrantPolicy", "incidents", POLICY))
    without = explain(project, "user:eve")
    path = tmp_path / "data" / "gateway.db"
    os.makedirs(path.parent, exist_ok=True)
    put_grant(path)

    during = explain(project, "user:eve")
    after = explain(project, "user:eve", NOON + timedelta(minutes=30))

    assert (without[0], during[0], after[0]) == ("deny", "allow", "deny")
    assert without[1][0].startswith("grants are not considered: there are no records in")
    assert during[1] == ["user:eve is role:clerk until 2026-11-16T12:30:00+00:00, by grant g1 of incidents: INC-1"]
    assert ", by grant g1" in during[2]
    assert after[1] == []
