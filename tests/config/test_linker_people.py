"""Who is known by name or by role: providers and links together."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from gateway.assembly import Project, assemble
from gateway.config.linking.people import people_of
from gateway.governance.approvers import People
from gateway.governance.diagnostics import Position
from gateway.snapshot import Declared, Snapshot

SMALL = Path(__file__).parent.parent / "projects" / "small"
NONE = {"type": "none", "subject": "user:you", "roles": ["role:clerk"]}
TOKENS = {"type": "token", "tokens": [{"subject": "agent:bot", "roles": ["role:agent"]}, {"subject": "user:ana"}]}
ISSUER = {"type": "jwt", "roles": {"claim": "groups", "map": {"leads": "role:lead"}}}


@pytest.fixture(scope="module")
def small() -> Snapshot:
    found = assemble(Project.at(SMALL), environ={}, today=date(2026, 11, 16)).access
    assert found is not None
    return found.snapshot


def people(small: Snapshot, links: list[tuple[str, str]], **providers: dict[str, Any]) -> People:
    here = Position("gateway.yaml", 1)
    declared = {
        name: Declared("IdentityProvider", name, None, here, {"spec": spec}) for name, spec in providers.items()
    }
    gateway = Declared("Gateway", "small", None, here, {"spec": {"identity": list(providers)}})
    documents = {**small.documents, "IdentityProvider": declared, "Gateway": {"small": gateway}}
    return people_of(replace(small, documents=documents), links)


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
