"""A call that is held is decided by somebody: a project in which nobody could does not start."""

import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from gateway.assembly import Assembled, Project, assemble
from gateway.governance.rules import Approval
from gateway.runtime.channels import approvals_in_vain, unreachable_approvals
from gateway.snapshot import Snapshot

SMALL = Path(__file__).parent.parent / "projects" / "small"
NONE = "spec: {type: none, subject: user:you, roles: [role:clerk, role:lead]}"
TOKEN = "{{subject: {subject}, sha256: {{fromEnv: X}}, expires: '{expires}'}}"


def with_provider(folder: Path, spec: str, *, mode: str = "enforce") -> Assembled:
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    for path, old, new in (
        (folder / "configs" / "gateway.yaml", NONE, f"spec: {spec}"),
        (folder / "configs" / "gates.yaml", "  when:", f"  mode: {mode}\n  when:"),
    ):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    found = assemble(Project.at(folder), environ={}, today=date(2026, 11, 16))
    assert found.access is not None, found.diagnostics
    return found


def tokens(*subjects: str, expires: str = "2027-01-01") -> str:
    listed = ", ".join(TOKEN.format(subject=each, expires=expires) for each in subjects)
    return f"{{type: token, tokens: [{listed}]}}"


def issuer(rest: str) -> str:
    return (
        "{type: jwt, issuer: https://login.example.com, audience: [gateway], algorithms: [RS256], "
        f"keys: {{fromFile: keys.json}}{rest}}}"
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(tokens("agent:bot", "user:kim"), id="token-of-a-lead"),
        pytest.param(issuer(""), id="issuer-of-people"),
        pytest.param(issuer(", roles: {claim: groups, map: {leads: role:lead}}"), id="issuer-that-gives-the-role"),
        pytest.param(
            issuer(", subject: {prefix: 'agent:'}, roles: {claim: groups, map: {leads: role:lead}}"),
            id="role-of-agents",
        ),
    ],
)
def test_gate_with_somebody_to_decide_starts(tmp_path: Path, spec: str) -> None:
    assert unreachable_approvals(with_provider(tmp_path, spec)) == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            tokens("agent:bot", "user:ana"),
            "nobody can approve: no provider in use lets in anybody who is or holds role:lead",
            id="nobody",
        ),
        pytest.param(
            tokens("user:kim", expires="2026-11-15"),
            "nobody can approve: no provider in use lets in anybody who is or holds role:lead",
            id="past-its-last-day",
        ),
        pytest.param(
            tokens("user:kim"),
            "only user:kim could approve, who is also everybody that calls: a requester never approves",
            id="only-the-requester",
        ),
        pytest.param(
            issuer(", subject: {prefix: 'service:'}"),
            "nobody can approve: no provider in use lets in anybody who is or holds role:lead",
            id="issuer-of-services",
        ),
    ],
)
def test_gate_without_anybody_to_decide_is_an_error(tmp_path: Path, spec: str, message: str) -> None:
    found = with_provider(tmp_path, spec)

    [refused] = unreachable_approvals(found)

    assert (refused.code, refused.message, refused.is_error) == ("nobody-approves", message, True)
    assert refused.position.file.endswith("gates.yaml")
    assert [each.severity for each in found.diagnostics if each.code == "nobody-approves"] == ["warning"]


@pytest.mark.parametrize("mode", ["observe", "disabled"])
def test_rule_that_holds_nothing_needs_nobody(tmp_path: Path, mode: str) -> None:
    assert unreachable_approvals(with_provider(tmp_path, tokens("agent:bot", "user:ana"), mode=mode)) == ()


def test_project_with_errors_is_told_elsewhere(tmp_path: Path) -> None:
    found = assemble(Project.at(tmp_path), environ={}, today=date(2026, 11, 16))

    assert found.access is None
    assert unreachable_approvals(found) == ()


def snapshot_of(found: Assembled) -> Snapshot:
    assert found.access is not None
    return found.access.snapshot


def test_where_everybody_is_one_principal_that_is_a_warning(tmp_path: Path) -> None:
    found = with_provider(tmp_path, "{type: none, subject: user:you, roles: [role:clerk]}")

    assert unreachable_approvals(found) == ()
    assert approvals_in_vain(snapshot_of(found)) == (
        "everybody is user:you, and nobody approves their own calls: what large-refunds holds is not let through"
    )


def test_nothing_is_in_vain_where_callers_differ_or_nothing_is_held(tmp_path: Path) -> None:
    differing = snapshot_of(with_provider(tmp_path / "a", tokens("agent:bot", "user:kim")))
    observing = snapshot_of(with_provider(tmp_path / "b", "{type: none, subject: user:you}", mode="observe"))
    [rule] = observing.gates.values()

    assert approvals_in_vain(differing) is None
    assert approvals_in_vain(observing) is None
    assert isinstance(rule.check, Approval)
    assert approvals_in_vain(replace(observing, gates={})) is None
