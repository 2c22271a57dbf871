"""Who is known by name or by role: providers and links together."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from linking_projects import TODAY

from gateway.assembly import Project, assemble
from gateway.config.linking.people import everybody_at, people_in_use, people_of
from gateway.governance.approvers import People
from gateway.governance.diagnostics import Position
from gateway.governance.rules import Approval
from gateway.snapshot import Declared, Snapshot

SMALL = Path(__file__).parent.parent / "projects" / "small"
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
    found = assemble(Project.at(SMALL), environ={}, today=date(2026, 11, 16)).access
    assert found is not None
    return found.snapshot


def people(small: Snapshot, links: list[tuple[str, str]], **providers: dict[str, Any]) -> People:
    return people_of(letting_in(small, **providers), links)


def letting_in(small: Snapshot, *in_use: str, **providers: dict[str, Any]) -> Snapshot:
    """The small project with other providers, all of them or some in use."""
    here = Position("gateway.yaml", 1)
    declared = {
        name: Declared("IdentityProvider", name, None, here, {"spec": spec}) for name, spec in providers.items()
    }
    gateway = Declared("Gateway", "small", None, here, {"spec": {"identity": list(in_use or providers)}})
    documents = {**small.documents, "IdentityProvider": declared, "Gateway": {"small": gateway}}
    return replace(small, documents=documents)


def test_everybody_is_one_principal_without_another_provider(small: Snapshot) -> None:
    found = people(small, [("user:kim", "role:lead")], local=NONE)

    assert found.members == {"user:you": {"role:clerk"}, "user:kim": {"role:lead"}}
    assert found.named == {"user:you", "user:kim"}
    assert (found.nobody, found.is_open) == ("user:you", False)


def test_tokens_name_subjects_and_roles_are_no_subjects(small: Snapshot) -> None:
    found = people(small, [("role:lead", "role:clerk"), ("user:ana", "role:lead")], tokens=TOKENS, local=NONE)

    assert found.members["agent:bot"] == {"role:agent"}
    assert found.members["user:ana"] == {"role:lead"}
    assert found.named == {"agent:bot", "user:ana", "user:you"}
    assert found.nobody is None


def test_issuer_lets_in_people_that_nobody_knows(small: Snapshot) -> None:
    found = people(small, [], corp=ISSUER, bare={"type": "jwt"})

    assert found.outside == {"role:lead"}
    assert (found.is_open, found.nobody) == (True, None)


LINKS = [("user:kim", "role:lead"), ("agent:bot", "role:lead"), ("role:boss", "role:lead")]


def test_nobody_is_there_to_approve_where_everybody_is_one_principal(small: Snapshot) -> None:
    snapshot = letting_in(small, "local", local=NONE, corp=ISSUER)

    assert people_in_use(snapshot, LINKS, today=TODAY) is None
    assert everybody_at(snapshot) == "user:you"
    assert everybody_at(letting_in(small, local=NONE, corp=ISSUER)) is None


def test_only_those_count_whom_a_provider_in_use_lets_in_today(small: Snapshot) -> None:
    found = people_in_use(letting_in(small, "tokens", tokens=TOKENS, corp=ISSUER), LINKS, today=TODAY)

    assert found is not None
    assert found.named == {"agent:bot"}
    assert found.members["agent:bot"] == {"role:agent", "role:lead"}
    assert (found.outside, found.is_open, found.nobody) == (frozenset(), False, "agent:bot")


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
    asking = replace(small, gates={rule.name: replace(rule, check=Approval(("user:zoe",), "look"))})

    found = people_in_use(letting_in(asking, corp={**ISSUER, **subject}), LINKS, today=TODAY)

    assert found is not None
    assert found.named == expected
    assert (found.outside, found.nobody) == (frozenset({"role:lead"}), None)


def test_principal_without_a_credential_is_one_of_many_beside_tokens(small: Snapshot) -> None:
    found = people_in_use(letting_in(small, local=NONE, tokens=TOKENS), [], today=TODAY)

    assert found is not None
    assert found.named == {"user:you", "agent:bot"}
    assert found.nobody is None
