"""A gateway does not start if no approver could ever decide a held call, or if a port is needed twice."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.app.settings import Settings
from gateway.app.startup_checks import (
    StartRefused,
    find_unreachable_approvals,
    refuse_shared_port,
    self_approval_warning,
)
from gateway.policy.rules.gate_checks import ApprovalCheck
from gateway.registries.snapshot import Snapshot
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
NONE = "spec: {type: none, subject: user:you, roles: [role:clerk, role:lead]}"
TOKEN = "{{subject: {subject}, sha256: {{fromEnv: X}}, expires: '{expires}'}}"


def with_provider(folder: Path, spec: str, *, mode: str = "enforce") -> LoadedProject:
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    for path, old, new in (
        (folder / "configs" / "gateway.yaml", NONE, f"spec: {spec}"),
        (folder / "configs" / "gates.yaml", "  when:", f"  mode: {mode}\n  when:"),
    ):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    found = load_project(ProjectFolders.from_folder(folder), environ={}, today=date(2026, 11, 16))
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
def test_gate_with_a_possible_approver_starts(tmp_path: Path, spec: str) -> None:
    assert find_unreachable_approvals(with_provider(tmp_path, spec)) == ()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            tokens("agent:bot", "user:ana"),
            "no one can approve: no provider in use accepts a subject that is or holds role:lead",
            id="nobody",
        ),
        pytest.param(
            tokens("user:kim", expires="2026-11-15"),
            "no one can approve: no provider in use accepts a subject that is or holds role:lead",
            id="past-its-last-day",
        ),
        pytest.param(
            tokens("user:kim"),
            "only user:kim could approve, but every caller is user:kim and requesters never approve",
            id="only-the-requester",
        ),
        pytest.param(
            issuer(", subject: {prefix: 'service:'}"),
            "no one can approve: no provider in use accepts a subject that is or holds role:lead",
            id="issuer-of-services",
        ),
    ],
)
def test_gate_without_a_possible_approver_is_an_error(tmp_path: Path, spec: str, message: str) -> None:
    found = with_provider(tmp_path, spec)

    [refused] = find_unreachable_approvals(found)

    assert (refused.code, refused.message, refused.is_error) == ("nobody-approves", message, True)
    assert refused.position.file.endswith("gates.yaml")
    assert [each.severity for each in found.diagnostics if each.code == "nobody-approves"] == ["warning"]


@pytest.mark.parametrize("mode", ["observe", "disabled"])
def test_rule_that_holds_nothing_needs_no_approver(tmp_path: Path, mode: str) -> None:
    assert find_unreachable_approvals(with_provider(tmp_path, tokens("agent:bot", "user:ana"), mode=mode)) == ()


def test_project_with_errors_is_reported_by_another_check(tmp_path: Path) -> None:
    found = load_project(ProjectFolders.from_folder(tmp_path), environ={}, today=date(2026, 11, 16))

    assert found.access is None
    assert find_unreachable_approvals(found) == ()


def snapshot_of(found: LoadedProject) -> Snapshot:
    assert found.access is not None
    return found.access.snapshot


def test_single_principal_is_only_a_warning(tmp_path: Path) -> None:
    found = with_provider(tmp_path, "{type: none, subject: user:you, roles: [role:clerk]}")

    assert find_unreachable_approvals(found) == ()
    assert self_approval_warning(snapshot_of(found)) == (
        "all callers are user:you and self-approval is not allowed, so calls held by large-refunds "
        "can never be approved"
    )


def test_nothing_is_in_vain_where_callers_differ_or_nothing_is_held(tmp_path: Path) -> None:
    differing = snapshot_of(with_provider(tmp_path / "a", tokens("agent:bot", "user:kim")))
    observing = snapshot_of(with_provider(tmp_path / "b", "{type: none, subject: user:you}", mode="observe"))
    [rule] = observing.gates.values()

    assert self_approval_warning(differing) is None
    assert self_approval_warning(observing) is None
    assert isinstance(rule.check, ApprovalCheck)
    assert self_approval_warning(replace(observing, gates={})) is None


@pytest.mark.parametrize(
    ("host", "peers", "is_refused"),
    [
        ("10.0.0.5", "http://10.0.0.5:8080", True),
        ("0.0.0.0", "http://10.0.0.5:8080", True),
        ("10.0.0.5", "http://10.0.0.5:8081", False),
        ("127.0.0.1", "http://127.0.0.1:8081", True),
        ("127.0.0.1", "http://10.0.0.5:8080", False),
        ("0.0.0.0", "http://10.0.0.5:8079", False),
    ],
)
def test_port_of_callers_is_not_that_of_other_gateways(host: str, peers: str, is_refused: bool) -> None:
    settings = Settings.model_validate({"host": host, "peer_url": peers})

    with pytest.raises(StartRefused, match="cannot serve both callers") if is_refused else nullcontext():
        refuse_shared_port(settings)
