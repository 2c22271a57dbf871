"""`gateway plan` on real edits in a real Git repository."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.project.plan import app
from tests.review.project_edits import SMALL, edit
from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden" / "plans"
DAY = ("--on", "2026-11-16")
WAIVER = (
    "  waivers:\n    - {forbidTogether: [private-data, egress], until: '2027-01-31', by: team-security, "
    "because: The order carries no address}\n  publish:"
)
MAIL = """
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: order_mail, owner: team-orders}
spec:
  version: 1.0.0
  description: Mails an order.
  trust: {tier: internal, flags: [egress]}
  input: {schema: {type: object, required: [order], properties: {order: {type: string}}}}
  backend: {type: http, method: POST, url: "http://127.0.0.1:9000/mails", body: {from: arguments}}
"""


def git(folder: Path, *args: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ("-c", "user.name=Ana", "-c", "user.email=ana@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(folder), *who, *args], check=True, capture_output=True, env=environ)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The small project, committed, in a folder inside a repository."""
    folder = tmp_path / "repository" / "project"
    shutil.copytree(SMALL, folder)
    git(tmp_path / "repository", "init", "-q")
    git(tmp_path / "repository", "add", "-A")
    git(tmp_path / "repository", "commit", "-q", "-m", "One")
    return folder


@dataclass(frozen=True)
class Answer:
    returncode: int
    stdout: str
    stderr: str


def arguments(*args: str, against: str | None) -> list[str]:
    return [*(() if against is None else (f"--against={against}",)), *DAY, *args]


def run(folder: Path, *args: str, against: str | None = "HEAD") -> Answer:
    """Run in this process: starting another one takes longer than the plan."""
    with chdir(folder):
        result = CliRunner().invoke(app, arguments(*args, against=against))
    return Answer(result.exit_code, result.stdout, result.stderr)


def run_apart(folder: Path, *args: str) -> Answer:
    ended = run_gateway("plan", *arguments(*args, against="HEAD"), cwd=folder)
    return Answer(ended.returncode, ended.stdout, ended.stderr)


def without_revisions(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{12}\b", "…", text)


def flip_tier(folder: Path) -> None:
    edit(folder, "configs/tools.yaml", "tier: partner,", "tier: internal,")


def remove_gate(folder: Path) -> None:
    (folder / "configs/gates.yaml").unlink()
    edit(folder, "policies/tests/desk.yaml", ", because: {gate: large-refunds}", "")


def widen_role(folder: Path) -> None:
    edit(
        folder, "policies/roles.csv", "g, user:kim,    role:lead", "g, user:kim,    role:lead\ng, role:lead, role:clerk"
    )


def add_egress(folder: Path) -> None:
    edit(folder, "configs/tools.yaml", "flags: [writes]", "flags: [writes, egress]")
    edit(folder, "configs/catalogues.yaml", "    - [private-data, egress]\n", "    - [destructive, egress]\n")


def observe(folder: Path) -> None:
    edit(folder, "configs/gates.yaml", "  when:", "  mode: observe\n  when:")


def raise_ceiling(folder: Path) -> None:
    edit(
        folder, "configs/tools.yaml", "tier: internal, flags: [private-data]", "tier: community, flags: [private-data]"
    )
    git(folder, "commit", "-q", "-a", "-m", "Two")
    edit(folder, "policies/policy.csv", "discover|invoke, partner,    allow", "discover|invoke, community,  allow")


def remove_deny(folder: Path) -> None:
    edit(
        folder, "policies/policy.csv", "p, role:agent, *,         class:payment, invoke,         quarantine, deny\n", ""
    )


def add_waiver(folder: Path) -> None:
    edit(folder, "configs/tools.yaml", "flags: [writes]", "flags: [writes, egress]")
    edit(folder, "configs/catalogues.yaml", "  publish:", WAIVER)


def add_tool(folder: Path) -> None:
    path = folder / "configs/tools.yaml"
    path.write_text(path.read_text(encoding="utf-8") + MAIL, encoding="utf-8")
    edit(folder, "configs/catalogues.yaml", "  publish:", WAIVER)


def hide_nothing(folder: Path) -> None:
    edit(folder, "configs/catalogues.yaml", '["order_*", refund_pay]', '["order_*"]')


Edit = Callable[[Path], None]
EDITS: dict[str, tuple[Edit, str, set[str], set[tuple[str, str, str, str]]]] = {
    # The edit, the risk, the findings, and who gains or loses what.
    "flip-tier": (flip_tier, "high", {"tool-more-trusted"}, set()),
    "remove-gate": (remove_gate, "high", {"gate-removed", "tests-fail", "test-changed"}, set()),
    "widen-role": (
        widen_role,
        "medium",
        {"role-widened", "access-gained"},
        {(who, tool, "sees", "calls") for who in ("role:lead", "user:kim") for tool in ("order_read", "refund_pay")},
    ),
    "add-egress": (add_egress, "high", {"flag-egress", "combination-allowed"}, set()),
    "observe": (observe, "high", {"gate-not-enforced", "tests-fail"}, set()),
    "raise-ceiling": (
        raise_ceiling,
        "medium",
        {"ceiling-raised", "access-gained", "access-seen"},
        {(who, "order_read", "none", "calls") for who in ("role:clerk", "user:ana", "agent:bot")}
        | {("user:you", "order_read", "sees", "calls")},
    ),
    "remove-deny": (
        remove_deny,
        "high",
        {"deny-removed", "access-gained", "tests-fail"},
        {("agent:bot", "refund_pay", "sees", "calls")},
    ),
    "add-waiver": (add_waiver, "high", {"flag-egress", "waiver-added"}, set()),
    "add-tool": (
        add_tool,
        "high",
        {"tool-hazardous", "waiver-added", "access-gained", "access-seen"},
        {(who, "order_mail", "none", "calls") for who in ("role:clerk", "user:ana", "agent:bot", "user:you")}
        | {(who, "order_mail", "none", "sees") for who in ("role:lead", "user:kim")},
    ),
    "remove-tool": (
        hide_nothing,
        "high",
        {"access-lost", "tests-fail"},
        {(who, "refund_pay", "calls", "none") for who in ("role:clerk", "user:ana", "user:you")}
        | {(who, "refund_pay", "sees", "none") for who in ("role:lead", "user:kim", "agent:bot")},
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_edit_is_named_with_who_and_what_it_touches(project: Path, name: str) -> None:
    change, risk, codes, access = EDITS[name]
    change(project)

    text, data = run(project), run(project, "--output", "json")

    assert (text.returncode, data.returncode) == (2, 2), text.stderr
    plan = json.loads(data.stdout)
    found = {each["code"] for each in plan["findings"]} - {"changed"}
    assert (plan["risk"], found - {"access-seen"}) == (risk, codes - {"access-seen"})
    assert {(each["caller"], each["tool"], each["before"], each["after"]) for each in plan["access"]} == access
    kept = GOLDEN / f"{name}.txt"
    shown = without_revisions(text.stdout)
    if os.environ.get("GATEWAY_UPDATE_GOLDEN"):
        kept.write_text(shown, encoding="utf-8")
    assert shown == kept.read_text(encoding="utf-8")


def rename_file(folder: Path) -> None:
    (folder / "configs/gates.yaml").rename(folder / "configs/rules.yaml")
    (folder / "policies/roles.csv").rename(folder / "policies/members.csv")


def reorder_keys(folder: Path) -> None:
    edit(
        folder,
        "configs/tools.yaml",
        "{tier: internal, flags: [private-data]}",
        "{flags: [private-data], tier: internal}",
    )
    path = folder / "policies/policy.csv"
    path.write_text("".join(reversed(path.read_text(encoding="utf-8").splitlines(keepends=True))), encoding="utf-8")


def split_documents(folder: Path) -> None:
    path = folder / "configs/tools.yaml"
    for number, document in enumerate(path.read_text(encoding="utf-8").split("---\n")):
        (folder / f"configs/part-{number}.yaml").write_text(document, encoding="utf-8")
    path.unlink()


def comment(folder: Path) -> None:
    edit(folder, "configs/gates.yaml", "spec:", "# what it is for\nspec:")
    edit(folder, "policies/policy.csv", "p, role:lead", "# leads\np, role:lead")


@pytest.mark.parametrize("change", [rename_file, reorder_keys, split_documents, comment])
def test_edit_that_means_the_same_is_no_change(project: Path, change: Edit) -> None:
    change(project)

    answer = run(project)

    assert (answer.returncode, without_revisions(answer.stdout)) == (0, "no changes   …\n"), answer.stdout


def test_folder_can_be_compared_with(project: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(SMALL, older)
    observe(project)

    from_folder, from_commit = run(project, against=str(older)), run(project)

    assert from_folder.returncode == 2
    assert from_folder.stdout == from_commit.stdout


def test_accepted_risk_is_still_a_change(project: Path) -> None:
    observe(project)

    answer = run(project, "--accept", "high")

    assert answer.returncode == 2
    assert answer.stdout.endswith("risk: high — accepted\n")


def test_graver_risk_than_accepted_is_an_error(project: Path) -> None:
    observe(project)

    answer = run(project, "--accept", "medium")

    assert answer.returncode == 1
    assert answer.stdout.endswith("risk: high — needs --accept high\n")
    assert answer.stderr == "error: the risk is high, and only medium is accepted; give --accept high\n"


def test_accepting_is_no_error_where_nothing_changes(project: Path) -> None:
    assert run(project, "--accept", "low").returncode == 0


@pytest.mark.parametrize(
    ("against", "message"),
    [
        pytest.param("nowhere", "there is no folder and no commit 'nowhere'", id="unknown"),
        pytest.param("-rf", "'-rf' is not the name of a commit", id="option"),
        pytest.param("--output=x", "'--output=x' is not the name of a commit", id="long-option"),
        pytest.param("HEAD~7", "there is no folder and no commit 'HEAD~7'", id="before-the-first"),
        pytest.param("", "there is nothing to compare with", id="empty"),
        pytest.param("https://gateway.internal", "comparing with a running gateway is not supported", id="url"),
        pytest.param(None, "there is nothing to compare with", id="missing"),
    ],
)
def test_what_cannot_be_compared_with_is_one_line(project: Path, against: str | None, message: str) -> None:
    answer = run(project, against=against)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"error: {message}")
    assert answer.stderr.count("\n") == 1


def test_repository_without_a_project_is_reported_as_such(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "commit", "-q", "--allow-empty", "-m", "One")

    answer = run(outer)

    assert answer.returncode == 1
    assert "there is no folder ../policies; name the folder of the project" in answer.stderr


@pytest.mark.parametrize("args", [("--acept", "high"), ("--accept", "huge"), ("--on", "yesterday")])
def test_wrong_option_is_not_taken_for_a_change(project: Path, args: tuple[str, ...]) -> None:
    assert run(project, *args).returncode == 1


def test_missing_folder_is_not_taken_for_a_change(project: Path) -> None:
    assert run(project, "elsewhere").returncode == 1


def test_project_outside_a_repository_reports_it(tmp_path: Path) -> None:
    shutil.copytree(SMALL, tmp_path / "loose")

    answer = run(tmp_path / "loose")

    assert answer.returncode == 1
    assert "is not in a Git repository" in answer.stderr


def test_project_that_the_commit_does_not_have_reports_it(project: Path) -> None:
    shutil.copytree(SMALL, project.parent / "new")

    answer = run(project.parent / "new")

    assert answer.returncode == 1
    assert answer.stderr.startswith("error: new/configs is not in HEAD; ")


def test_errors_of_the_newer_side_are_shown(project: Path) -> None:
    edit(project, "configs/tools.yaml", "tier: internal,", "tier: nowhere,")

    answer = run(project)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("the project has errors:\nconfigs/tools.yaml:7:17: ")


def test_errors_of_the_older_side_name_it_and_its_lines(project: Path) -> None:
    edit(project, "configs/tools.yaml", "tier: internal,", "tier: nowhere,")
    git(project, "commit", "-q", "-a", "-m", "Broken")
    edit(project, "configs/tools.yaml", "tier: nowhere,", "tier: internal,")

    answer = run(project)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("HEAD has errors:\nconfigs/tools.yaml:7:17: ")
    assert "7 |   trust: {tier: nowhere, flags: [private-data]}" in answer.stderr
    assert "the project is valid, but HEAD has errors" in answer.stderr


def test_attributes_of_a_commit_hide_nothing(project: Path) -> None:
    (project / ".gitattributes").write_text("policies/policy.csv export-ignore\n", encoding="utf-8")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Attributes")
    remove_deny(project)

    assert "a denial disappears" in run(project).stdout


def test_link_out_of_the_folder_is_refused(project: Path) -> None:
    (project / "configs" / "outside.yaml").symlink_to("/etc/hostname")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "Link")
    (project / "configs" / "outside.yaml").unlink()

    answer = run(project)

    assert answer.returncode == 1
    assert "has a link outside.yaml that leaves its folder" in answer.stderr


def test_variables_of_hooks_lead_nowhere_else(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    observe(project)

    assert run(project).returncode == 2


def test_command_has_no_escapes_outside_a_terminal(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    observe(project)

    answer = run_apart(project)

    assert answer.returncode == 2
    assert answer.stdout.endswith("risk: high — needs --accept high\n")
    assert "\x1b" not in answer.stdout + answer.stderr
