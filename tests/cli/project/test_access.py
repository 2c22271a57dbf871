"""`gateway access` and `gateway access attest`, on the small project and its store."""

import json
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.cells import cell_len
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.model.caller import Principal
from gateway.model.primitives.deadline import to_microseconds
from gateway.storage.call_store import StoredCall, StoredTurn
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

SMALL = ROOT / "tests" / "projects" / "small"
ANA = Principal("user:ana")
ZOE = Principal("user:zoe", frozenset({"role:lead"}))
DAY = timedelta(days=1)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small project; its store is below the working directory and does not exist yet."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "project"
    shutil.copytree(SMALL, folder)
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["access", *words])


def run_well(*words: str) -> str:
    answer = run(*words)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def read_json(*words: str) -> Any:
    return json.loads(run_well(*words, "--output", "json"))


def attest(project: Path, *words: str, owner: str = "team-finance", until: str = "2099-12-31") -> Result:
    return run("attest", str(project), "--owner", owner, "--until", until, "--by", "Kim", *words)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def check(project: Path, *words: str) -> list[tuple[str, str]]:
    answer = CliRunner().invoke(app, ["check", str(project), "--output", "json", *words])
    return [(each["code"], each["message"]) for each in json.loads(answer.stdout)]


@pytest.fixture
async def records(project: Path) -> AsyncIterator[SqliteStore]:
    """Calls of the last days by two callers, of whom policies know one, and an open store as of a running gateway."""
    store = await open_sqlite_store(Path("data/gateway.db"))
    at = datetime.now(UTC)
    made = [(ANA, "order_read", 1), (ANA, "order_read", 2), (ANA, "refund_pay", 40), (ZOE, "order_read", 3)]
    for number, (principal, tool, days) in enumerate(made):
        created = to_microseconds(at - days * DAY)
        turn = StoredTurn(f"t{number}", principal, "desk", "r", b"s", created, created + 1)
        call = StoredCall(f"c{number}", turn.id, tool, tool, {}, "c" * 64, principal, "desk", "r", created)
        call.status, call.decision, call.completed = "settled", "allow", created + 1
        await store.record_single_call(call, turn)
    yield store
    await store.close()


def test_table_has_a_line_for_each_caller_and_catalogue(project: Path) -> None:
    answer = run(str(project))

    assert answer.exit_code == 0
    assert answer.stdout == (
        "caller     catalogue  see  call  read  approve\n"
        "agent:bot  desk       2    1     1\n"
        "user:ana   desk       2    2     2\n"
        "user:kim   desk       2                2\n"
        "user:you   desk       2    2     2     2\n"
        "\n"
        "agents and services without an owner: agent:bot\n"
    )
    assert answer.stderr == "note: use is unknown: there are no records in data/gateway.db\n"


def test_roles_and_tools_have_tables_of_their_own(project: Path) -> None:
    assert run_well(str(project), "--by", "role").splitlines()[:3] == [
        "role        catalogue  see  call  read  approve",
        "role:clerk  desk       2    2     2",
        "role:lead   desk       2                2",
    ]
    assert run_well(str(project), "--by", "tool").splitlines()[:3] == [
        "tool        catalogue  tier      callers  roles  readers  approvers",
        "order_read  desk       internal  3        1      3        2",
        "refund_pay  desk       partner   2        1      2        2",
    ]


def test_one_caller_is_shown_with_rows_and_gate_rules(project: Path) -> None:
    lines = run_well(str(project), "--as", "user:ana").splitlines()

    assert lines[0].split() == ["caller", "catalogue", "tool", "may", "up", "to", "row", "gates"]
    assert [line.split()[2:6] for line in lines[1:]] == [
        ["order_read", "see,", "call,", "read"],
        ["refund_pay", "see,", "call,", "read"],
    ]
    assert all(f"  {project}/policies/policy.csv:2" in line for line in lines[1:])
    assert lines[2].endswith("large-refunds may hold")


def test_caller_with_the_roles_of_a_token_is_described_by_options(project: Path) -> None:
    found = read_json(str(project), "--as", "user:eve", "--role", "role:lead", "--tool", "refund_pay")

    assert [each["name"] for each in found["callers"]] == ["user:eve as role:lead"]
    [block] = found["access"]
    assert (block["objects"], [right["action"] for right in block["rights"]]) == (
        ["tool:refund_pay"],
        ["see", "approve"],
    )
    assert read_json(str(project), "--as", "user:eve")["access"] == []
    assert "there is no access to show" in run(str(project), "--as", "user:eve").stderr


def test_one_tool_is_shown_with_its_callers(project: Path) -> None:
    lines = run_well(str(project), "--tool", "refund_pay").splitlines()

    assert [line.split()[0] for line in lines[1:]] == [
        *("agent:bot", "role:clerk", "role:lead", "user:ana", "user:kim", "user:you"),
    ]


async def test_use_is_joined_while_a_gateway_runs(project: Path, records: SqliteStore) -> None:
    answer = run(str(project))

    assert answer.exit_code == 0, answer.output
    lines = {line.split()[0]: line.split() for line in answer.stdout.splitlines() if line}
    yesterday = f"{datetime.now(UTC) - DAY:%Y-%m-%d}"
    assert lines["caller"][-4:] == ["used", "calls", "last", "call"]
    assert lines["user:ana"] == ["user:ana", "desk", "2", "2", "2", "1", "2", yesterday]
    assert lines["user:you"][-1] == "never"
    assert lines["user:zoe"][:2] == ["user:zoe", "desk"], "a caller that only the records know"
    assert answer.stderr == ""


async def test_unused_access_is_listed(project: Path, records: SqliteStore) -> None:
    lines = run_well(str(project), "--unused", "30d").splitlines()

    assert lines[:4] == [
        "caller     catalogue  unused  tools",
        "agent:bot  desk       1       order_read",
        "user:ana   desk       1       refund_pay",
        "user:you   desk       2       order_read, refund_pay",
    ]
    assert "rows that were not used:" in lines
    assert "role:lead may approve|discover tool:* everywhere, up to quarantine" in lines[-1]
    by_tool = run_well(str(project), "--unused", "30d", "--by", "tool").splitlines()
    assert by_tool[1].split(maxsplit=3) == ["order_read", "desk", "2", "agent:bot, user:you"]
    by_role = run_well(str(project), "--unused", "30d", "--by", "role").splitlines()
    assert by_role[1].split(maxsplit=3) == ["role:clerk", "desk", "1", "refund_pay"]
    assert "user:ana" not in "\n".join(run_well(str(project), "--unused", "60d").splitlines()[:3])


async def test_note_says_how_far_the_records_go_back(project: Path, records: SqliteStore) -> None:
    answer = run(str(project), "--unused", "90d")

    oldest = f"{datetime.now(UTC) - 40 * DAY:%Y-%m-%d}"
    assert f"the store goes back to {oldest} only" in answer.stderr


async def test_json_has_everything(project: Path, records: SqliteStore) -> None:
    found = read_json(str(project))

    assert set(found) == {
        *("project", "revision", "at", "use", "callers", "access", "owners", "rows", "grants", "callersWithoutOwner"),
    }
    assert found["use"]["coversPeriod"] is True
    assert {"caller": "user:zoe", "catalogue": "desk", "tool": "order_read", "count": 1} in [
        {key: value for key, value in each.items() if key != "last"} for each in found["use"]["calls"]
    ]
    assert {"user:you"} <= {name for each in found["use"]["unused"] for name in each["callers"]}
    assert found["rows"]["addNothing"] == []
    [row] = found["rows"]["unused"]
    assert (row["subject"], row["upTo"], row["last"]) == ("role:lead", "quarantine", None)
    assert found["owners"]["tool:refund_pay"] == "team-finance"
    [block] = [
        each for each in found["access"] if "user:ana" in each["callers"] and "tool:refund_pay" in each["objects"]
    ]
    assert block["gates"][0]["rule"] == "large-refunds"
    assert block["rights"][1] == {
        "action": "call",
        "row": f"{project}/policies/policy.csv:2",
        "subject": "role:clerk",
        "upTo": "partner",
    }


def test_nothing_is_called_unused_without_a_store(project: Path) -> None:
    found = read_json(str(project))
    assert (found["use"], found["rows"]["unused"]) == (None, None)

    refused = run(str(project), "--unused", "30d")
    assert refused.exit_code == 1
    assert "nothing can be called unused" in refused.stderr


@pytest.mark.parametrize("content", [b"no database", b""], ids=["text", "empty"])
def test_store_that_cannot_be_read_makes_use_unknown(project: Path, content: bytes) -> None:
    Path("data").mkdir()
    Path("data/gateway.db").write_bytes(content)

    answer = run(str(project))

    assert answer.exit_code == 0
    assert "use is unknown" in answer.stderr
    assert "never" not in answer.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        pytest.param(["--tool", "refund_pya"], 2, "did you mean 'refund_pay'?", id="tool"),
        pytest.param(["--owner", "team-finanze"], 2, "did you mean 'team-finance'?", id="owner"),
        pytest.param(["--as", "ana"], 2, "is not a subject", id="caller"),
        pytest.param(["--unused", "soon"], 2, "write a time", id="time"),
        pytest.param(["--by", "team"], 2, "'team'", id="grouping"),
        pytest.param(["attest", "--owner", "team-finance", "--until", "soon"], 2, "write a day", id="day"),
        pytest.param(["attest", "--owner", "team-finance", "--until", "2020-01-01"], 2, "has passed", id="past"),
        pytest.param(["attest", "--owner", "nobody", "--until", "2099-01-01"], 2, "owns no published tool", id="who"),
    ],
)
def test_wrong_use_is_refused(project: Path, words: list[str], code: int, message: str) -> None:
    at = 1 if words[0] == "attest" else 0
    answer = run(*words[:at], str(project), *words[at:])

    assert answer.exit_code == code
    assert message in answer.output


def test_project_with_errors_is_refused(project: Path) -> None:
    (project / "configs" / "trust.yaml").write_text("kind: [", encoding="utf-8")

    assert run(str(project)).exit_code == 1
    assert attest(project).exit_code == 1


async def test_hostile_names_are_shown_visibly(project: Path, records: SqliteStore) -> None:
    hostile = "user:\u202eeve\x1b[31m\u200b"
    with sqlite3.connect("data/gateway.db") as connection:
        connection.execute("UPDATE fresh SET owner = ?, subject = ?", (json.dumps([None, hostile]), hostile))

    for words in ([], ["--by", "tool"], ["--unused", "1d"], ["--tool", "order_read"], ["--output", "json"]):
        shown = run(str(project), *words).output
        assert not any(sign in shown for sign in "\u202e\x1b\u200b"), words


def test_scope_of_an_owner_has_the_digest_that_is_attested(project: Path) -> None:
    shown = read_json(str(project), "--owner", "team-finance")
    assert run_well(str(project), "--owner", "team-finance").splitlines()[-1] == f"digest {shown['digest']}"

    assert attest(project, "--seen", f"sha256:{'0' * 64}").exit_code == 1
    assert not (project / "configs/attestations").exists()
    answer = attest(project, "--seen", shown["digest"])

    assert answer.exit_code == 0, answer.output
    written = yaml.safe_load((project / "configs/attestations/team-finance.yaml").read_text(encoding="utf-8"))
    assert written["metadata"] == {"name": "team-finance", "owner": "team-finance"}
    assert written["spec"]["digest"] == shown["digest"]
    assert written["spec"]["access"] == shown["access"]
    assert (written["spec"]["by"], written["spec"]["date"]) == ("Kim", f"{datetime.now(UTC):%Y-%m-%d}")
    assert {object for each in written["spec"]["access"] for object in each["objects"]} == {"tool:refund_pay"}
    assert check(project) == []


def test_attestation_is_no_new_revision(project: Path) -> None:
    before = CliRunner().invoke(app, ["check", str(project)]).stdout.split("revision ")[1]
    attest(project)

    assert CliRunner().invoke(app, ["check", str(project)]).stdout.split("revision ")[1] == before


def test_growth_is_a_warning_and_shrinking_is_none(project: Path) -> None:
    attest(project)
    roles = project / "policies" / "roles.csv"
    edit(roles, "g, user:ana,    role:clerk\n", "")
    assert check(project) == []

    edit(roles, "g, user:kim,    role:lead\n", "g, user:kim,    role:lead\ng, user:kim,    role:clerk\n")
    [(code, message)] = check(project)
    assert code == "access-grown"
    assert "user:kim can call and read refund_pay in desk" in message
    assert CliRunner().invoke(app, ["check", str(project), "--strict"]).exit_code == 1

    again = attest(project)
    assert "new since the last attestation: user:kim can call and read refund_pay in desk" in again.stderr
    assert check(project) == []


def test_dropped_gate_rule_is_growth(project: Path) -> None:
    attest(project)
    (project / "policies" / "tests" / "desk.yaml").unlink()
    edit(
        project / "configs" / "gates.yaml",
        "  when: args.amount > 500\n",
        "  mode: observe\n  when: args.amount > 500\n",
    )

    [(code, message)] = check(project)

    assert code == "access-grown"
    assert "user:ana calls refund_pay in desk without large-refunds" in message


def test_attestation_ends(project: Path) -> None:
    attest(project, "--on", "2026-11-16", until="2026-12-31")

    assert check(project, "--on", "2026-12-31") == []
    [(code, message)] = check(project, "--on", "2027-01-01")
    assert (code, message) == ("attestation-expired", "the last day of the attestation was 2026-12-31")


def test_edited_list_is_reported(project: Path) -> None:
    attest(project)
    path = project / "configs/attestations/team-finance.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("user:kim", "user:kai"), encoding="utf-8")

    assert [code for code, _ in check(project)] == ["attestation-altered"]


def test_gateway_can_require_attestations(project: Path) -> None:
    edit(project / "configs/gateway.yaml", "  storage: main\n", "  storage: main\n  accessReview: {every: 90d}\n")
    codes = [code for code, _ in check(project)]
    assert codes == ["attestation-missing"] * 3, "of the owners of both tools and of the Gateway"

    refused = attest(project)
    assert (refused.exit_code, "90 days at most" in refused.stderr) == (1, True)
    last = datetime.now(UTC).date() + 90 * DAY
    assert attest(project, until=last.isoformat()).exit_code == 0
    assert [code for code, _ in check(project)] == ["attestation-missing"] * 2
    edit(project / "configs/gateway.yaml", "{every: 90d}", "{every: 90d, owners: [team-finance]}")
    assert check(project) == []
    assert [code for code, _ in check(project, "--on", (last + DAY).isoformat())] == ["attestation-expired"]


OVERLAY = """
apiVersion: gateway/v1
kind: Overlay
metadata: {name: prod, owner: team-platform}
spec:
  environment: prod
  patches:
    - {target: {kind: IdentityProvider, name: local}, merge: {subject: "user:me"}}
"""


def test_attestation_without_an_environment_is_for_all_that_have_no_own(project: Path) -> None:
    (project / "configs" / "prod.yaml").write_text(OVERLAY, encoding="utf-8")
    attest(project)
    assert [code for code, _ in check(project, "--environment", "prod")] == ["access-grown"]

    assert attest(project, "--environment", "prod").exit_code == 0

    assert (project / "configs/attestations/team-finance-prod.yaml").exists()
    assert check(project, "--environment", "prod") == []
    assert check(project) == []


def test_owners_of_callers_are_declared_in_the_provider(project: Path) -> None:
    edit(
        project / "configs/gateway.yaml",
        "spec: {type: none, subject: user:you, roles: [role:clerk, role:lead]}",
        "spec: {type: none, subject: agent:bot, roles: [role:clerk], owners: {agent:bot: team-bots}}",
    )

    assert read_json(str(project))["callersWithoutOwner"] == []
    found = read_json(str(project), "--owner", "team-bots")
    assert {name for each in found["access"] for name in each["callers"]} == {"agent:bot"}
    edit(project / "configs/gateway.yaml", "{agent:bot: team-bots}", "{agent:bat: team-bots}")
    [(code, message)] = check(project)
    assert (code, message) == ("wrong-value", "no caller of this provider has the subject")


def test_person_is_the_user_of_git_by_default(project: Path) -> None:
    words = ("attest", str(project), "--owner", "team-finance", "--until", "2099-12-31")
    outside = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "HOME": "/nonexistent"}
    refused = CliRunner().invoke(app, ["access", *words], env=outside)
    assert (refused.exit_code, "name the person" in refused.stderr) == (2, True)

    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    subprocess.run(["git", "-C", str(project), "config", "user.name", "Lea: [x]\u202e"], check=True)
    assert CliRunner().invoke(app, ["access", *words], env=outside).exit_code == 0
    path = project / "configs/attestations/team-finance.yaml"
    assert "\u202e" not in path.read_text(encoding="utf-8")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["by"] == "Lea: [x]\u202e"


def test_file_in_place_of_the_folder_is_named(project: Path) -> None:
    (project / "configs" / "attestations").write_text("", encoding="utf-8")

    answer = attest(project)

    assert (answer.exit_code, "cannot be written" in answer.stderr) == (1, True)


def test_plan_shows_an_attestation_without_its_list(project: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(project, older)
    attest(project)

    added = CliRunner().invoke(app, ["plan", str(project), "--against", str(older)])
    removed = CliRunner().invoke(app, ["plan", str(older), "--against", str(project)])

    assert added.exit_code == removed.exit_code == 2
    assert "+ Attestation team-finance" in added.stdout
    assert "risk: low" in added.stdout
    assert "- Attestation team-finance" in removed.stdout
    assert "an owner no longer attests the access to what it owns" in removed.stdout
    assert "refund_pay" not in added.stdout


def test_help_has_examples() -> None:
    for words in (["--help"], ["attest", "--help"]):
        shown = run_well(*words)
        assert "team-finance" in shown
        assert max(map(cell_len, shown.splitlines())) <= 80
