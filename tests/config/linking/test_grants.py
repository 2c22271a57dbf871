"""Grant policies: their shape, what they link to, and mistakes that would make them useless."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.app.project import ProjectFolders, load_project
from tests.config.linking.projects import TODAY, document, linked, list_codes, problem
from tests.review.project_edits import copy_project

SPEC = {
    "description": "For incidents.",
    "roles": ["role:oncall"],
    "to": ["role:clerk"],
    "approvers": ["role:lead"],
    "maxDuration": "2h",
}


def grants(**changes: Any) -> str:
    return document("GrantPolicy", "incidents", {**SPEC, **changes})


def test_policy_is_linked_with_its_defaults() -> None:
    snapshot = linked(grants()).snapshot

    assert snapshot is not None
    found = snapshot.grants["incidents"]
    assert (found.roles, found.recipients, found.approvers) == (("role:oncall",), ("role:clerk",), ("role:lead",))
    assert (found.max_duration, found.max_total) == (timedelta(hours=2), timedelta(hours=2))
    assert (found.period, found.max_active) == (timedelta(days=1), 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"roles": []},
        {"roles": ["user:ana"]},
        {"roles": ["role:*"]},
        {"to": []},
        {"to": ["*"]},
        {"approvers": []},
        {"maxDuration": "8d", "period": "31d"},
        {"maxDuration": "0s"},
        {"maxDuration": "2d"},
        {"maxTotal": "1h"},
        {"maxTotal": "2d"},
        {"period": "32d"},
        {"maxActive": 0},
        {"maxActive": 1001},
        {"reason": "INC-42"},
    ],
)
def test_policy_of_bad_shape_is_refused(changes: dict[str, Any]) -> None:
    assert linked(grants(**changes)).snapshot is None


def test_only_approver_who_is_the_only_recipient_is_reported() -> None:
    found = linked(grants(to=["user:ana"], approvers=["user:ana"]))

    assert list_codes(found) == ["nobody-approves"]
    assert problem(found, "nobody-approves").severity == "warning"
    assert list_codes(linked(grants(to=["role:lead"], approvers=["role:lead"]))) == []
    assert list_codes(linked(grants(to=["user:ana"], approvers=["user:ana", "user:kim"]))) == []


def test_role_that_only_a_grant_gives_is_known_to_policy_rows(tmp_path: Path) -> None:
    folder = copy_project(tmp_path / "p")
    row = "p, role:oncall, desk, tool:*, invoke, internal, allow\n"
    (folder / "policies" / "more.csv").write_text(row)

    def codes() -> list[tuple[str, str]]:
        found = load_project(ProjectFolders.from_folder(folder), environ={}, today=TODAY).diagnostics
        return [(each.code, each.message) for each in found]

    without = codes()
    (folder / "configs" / "grants.yaml").write_text(grants(to=["role:clerks"]))

    assert without == [("dead-rule", "no subject holds 'role:oncall'")]
    assert codes() == [("unknown-role", "nothing grants the role 'role:clerks'")]
