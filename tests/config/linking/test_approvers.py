"""Which approvers are known by name or by role, from providers and links together."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from gateway.app.project import ProjectFolders, load_project
from gateway.policy.approver_directory import (
    ApproverDirectory,
    build_active_approver_directory,
    build_approver_directory,
    find_common_subject,
)
from gateway.policy.rules.gate_checks import ApprovalCheck
from gateway.registries.diagnostics import Position
from gateway.registries.snapshot import DeclaredDocument, Snapshot
from tests.config.linking.projects import TODAY
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
NONE = {"type": "none", "subject": "user:you", "roles": ["role:clerk"]}
TOKENS = {
    "type": "token",
    "tokens": [
        {"subject": "agent:bot", "roles": ["role:agent"], "expires": "2026-11-16"},
        {"subject": "user:ana", "expires": "2026-11-15"},
    ],
}
ISSUER = {"type": "jwt", "roles": {"claim": "groups", "map": {"leads": "role:lead"}}}


@pytest.fixture(scope="module")
def small() -> Snapshot:
    found = load_project(ProjectFolders.from_folder(SMALL), environ={}, today=date(2026, 11, 16)).access
    assert found is not None
    return found.snapshot


def people(small: Snapshot, links: list[tuple[str, str]], **providers: dict[str, Any]) -> ApproverDirectory:
    return build_approver_directory(use_providers(small, **providers), links)


def use_providers(small: Snapshot, *in_use: str, **providers: dict[str, Any]) -> Snapshot:
    """The small project with other providers, of which all or some are in use."""
    here = Position("gateway.yaml", 1)
    declared = {
        name: DeclaredDocument("IdentityProvider", name, None, here, {"spec": spec}) for name, spec in providers.items()
    }
    gateway = DeclaredDocument("Gateway", "small", None, here, {"spec": {"identity": list(in_use or providers)}})
    documents = {**small.documents, "IdentityProvider": declared, "Gateway": {"small": gateway}}
    return replace(small, documents=documents)


def test_all_callers_are_one_principal_without_another_provider(small: Snapshot) -> None:
    found = people(small, [("user:kim", "role:lead")], local=NONE)

    assert found.members == {"user:you": {"role:clerk"}, "user:kim": {"role:lead"}}
    assert found.named == {"user:you", "user:kim"}
    assert (found.common_subject, found.is_open) == ("user:you", False)


def test_tokens_name_subjects_and_roles_are_no_subjects(small: Snapshot) -> None:
    found = people(small, [("role:lead", "role:clerk"), ("user:ana", "role:lead")], tokens=TOKENS, local=NONE)

    assert found.members["agent:bot"] == {"role:agent"}
    assert found.members["user:ana"] == {"role:lead"}
    assert found.named == {"agent:bot", "user:ana", "user:you"}
    assert found.common_subject is None


def test_issuer_lets_in_unknown_people(small: Snapshot) -> None:
    found = people(small, [], corp=ISSUER, bare={"type": "jwt"})

    assert found.outside == {"role:lead"}
    assert (found.is_open, found.common_subject) == (True, None)


LINKS = [("user:kim", "role:lead"), ("agent:bot", "role:lead"), ("role:boss", "role:lead")]


def test_single_principal_has_no_approver(small: Snapshot) -> None:
    snapshot = use_providers(small, "local", local=NONE, corp=ISSUER)

    assert build_active_approver_directory(snapshot, LINKS, today=TODAY) is None
    assert find_common_subject(snapshot) == "user:you"
    assert find_common_subject(use_providers(small, local=NONE, corp=ISSUER)) is None


def test_only_those_count_whom_a_provider_in_use_lets_in_today(small: Snapshot) -> None:
    found = build_active_approver_directory(
        use_providers(small, "tokens", tokens=TOKENS, corp=ISSUER), LINKS, today=TODAY
    )

    assert found is not None
    assert found.named == {"agent:bot"}
    assert found.members["agent:bot"] == {"role:agent", "role:lead"}
    assert (found.outside, found.is_open, found.common_subject) == (frozenset(), False, "agent:bot")


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        pytest.param({}, {"user:kim", "user:zoe"}, id="people"),
        pytest.param({"subject": {"claim": "sub"}}, {"user:kim", "user:zoe"}, id="no-prefix"),
        pytest.param({"subject": {"prefix": "agent:"}}, {"agent:bot"}, id="agents"),
    ],
)
def test_issuer_in_use_lets_in_whom_links_and_rules_name(
    small: Snapshot, subject: dict[str, Any], expected: set[str]
) -> None:
    [rule] = small.gates.values()
    asking = replace(small, gates={rule.name: replace(rule, check=ApprovalCheck(("user:zoe",), "look"))})

    found = build_active_approver_directory(use_providers(asking, corp={**ISSUER, **subject}), LINKS, today=TODAY)

    assert found is not None
    assert found.named == expected
    assert (found.outside, found.common_subject) == (frozenset({"role:lead"}), None)


def test_principal_without_a_credential_is_one_of_many_beside_tokens(small: Snapshot) -> None:
    found = build_active_approver_directory(use_providers(small, local=NONE, tokens=TOKENS), [], today=TODAY)

    assert found is not None
    assert found.named == {"user:you", "agent:bot"}
    assert found.common_subject is None
