"""Plans show ends of rows and grant policies: what grants for longer, what denies for less long."""

from pathlib import Path

import pytest

from gateway.review.plan.builder import Plan
from gateway.review.plan.renderer import plan_data
from tests.review.project_edits import copy_project, edit, plan_edit

ALLOW = "p, role:clerk, desk, class:order, read, internal, allow"
SPACED = "p, role:clerk, desk,      class:order,  read,            internal,   allow"
DENY = "p, role:agent, *,         class:payment, invoke,         quarantine, deny"
DENIED = "p, role:agent, *, class:payment, invoke, quarantine, deny"
MEMBER = "g, user:kim,    role:lead"
OF_AGENTS = "g, agent:bot,   role:agent"
POLICY = """
---
apiVersion: gateway/v1
kind: GrantPolicy
metadata: {name: incidents, owner: team-security}
spec:
  description: For incidents.
  roles: [role:lead]
  to: [role:clerk]
  approvers: [role:lead]
  maxDuration: 2h
"""


def ended(row: str, moment: str) -> str:
    return f"# until {moment} OPS-1: {row}\n{row}"


def plan_row(tmp_path: Path, file: str, row: str, before: str, after: str) -> Plan:
    """Plan a row that had one end, or none, and gets another."""
    sides = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder, moment in zip(sides, (before, after), strict=True):
        if moment:
            edit(folder, f"policies/{file}", row, ended(row, moment))
    return plan_edit(*sides)


SOON, LATER = "2026-12-31", "2027-12-31"


@pytest.mark.parametrize(
    ("file", "row", "before", "after", "code"),
    [
        ("policy.csv", SPACED, SOON, LATER, "row-prolonged"),
        ("policy.csv", SPACED, SOON, "", "row-prolonged"),
        ("policy.csv", SPACED, LATER, SOON, None),
        ("policy.csv", SPACED, "", SOON, None),
        ("roles.csv", MEMBER, SOON, LATER, "row-prolonged"),
        ("roles.csv", MEMBER, "", SOON, None),
        ("policy.csv", DENY, "", SOON, "deny-ends"),
        ("policy.csv", DENY, LATER, SOON, "deny-ends"),
        ("policy.csv", DENY, SOON, LATER, None),
        ("policy.csv", DENY, SOON, "", None),
        ("roles.csv", OF_AGENTS, "", SOON, "deny-ends"),
    ],
)
def test_changed_end_is_weighed(file: str, row: str, before: str, after: str, code: str | None, tmp_path: Path) -> None:
    plan = plan_row(tmp_path, file, row, before, after)

    [change] = plan.policies
    assert change.change == "changed"
    assert [each.code for each in plan.findings if each.code != "changed"] == ([code] if code else [])


def test_changed_end_is_shown(tmp_path: Path) -> None:
    [row] = plan_row(tmp_path / "a", "policy.csv", SPACED, SOON, "").policies
    [member] = plan_row(tmp_path / "b", "roles.csv", MEMBER, "", SOON).policies
    data = plan_data(plan_row(tmp_path / "c", "roles.csv", MEMBER, SOON, LATER))

    assert str(row) == "role:clerk until 2027-01-01T00:00:00Z (OPS-1) → without an end, on class:order in desk"
    assert str(member) == "user:kim is role:lead until 2027-01-01T00:00:00Z (OPS-1); before without an end"
    [change] = data["policies"]
    assert change["before"] == ["g", "user:kim", "role:lead", "until 2027-01-01T00:00:00Z (OPS-1)"]
    assert change["after"][-1] == "until 2028-01-01T00:00:00Z (OPS-1)"


def test_new_row_shows_its_end(tmp_path: Path) -> None:
    sides = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    new = "p, role:clerk, desk, tool:*, read, internal, allow"
    edit(sides[1], "policies/policy.csv", DENY, f"{DENY}\n{ended(new, SOON)}")

    [change] = plan_edit(*sides).policies

    assert str(change) == ("role:clerk may read tool:* in desk, up to internal until 2027-01-01T00:00:00Z (OPS-1)")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("roles: [role:lead]", "roles: [role:lead, role:clerk]", "grant-widened"),
        ("to: [role:clerk]", "to: [role:clerk, user:eve]", "grant-widened"),
        ("approvers: [role:lead]", "approvers: [role:lead, user:eve]", "grant-approvers-widened"),
        ("maxDuration: 2h", "maxDuration: 3h", "grant-longer"),
        ("maxDuration: 2h", "maxDuration: 2h\n  maxTotal: 4h", "grant-longer"),
        ("maxDuration: 2h", "maxDuration: 2h\n  period: 2h", "grant-longer"),
        ("maxDuration: 2h", "maxDuration: 2h\n  maxActive: 6", "grant-longer"),
        ("maxDuration: 2h", "maxDuration: 1h", None),
        ("maxDuration: 2h", "maxDuration: 2h\n  maxActive: 1", None),
        ("maxDuration: 2h", "maxDuration: 2h\n  period: 7d", None),
        ("maxDuration: 2h", "maxDuration: 2h\n  period: 1d", None),
    ],
)
def test_grant_policy_that_grants_more_is_found(old: str, new: str, code: str | None, tmp_path: Path) -> None:
    sides = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder in sides:
        path = folder / "configs" / "gates.yaml"
        path.write_text(path.read_text() + POLICY)
    edit(
        sides[1],
        "configs/gates.yaml",
        old if old.startswith("maxDuration") else f"  {old}",
        new if old.startswith("maxDuration") else f"  {new}",
    )

    found = {each.code for each in plan_edit(*sides).findings} - {"changed"}

    assert found == ({code} if code else set())


def test_new_grant_policy_is_found(tmp_path: Path) -> None:
    sides = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    path = sides[1] / "configs" / "gates.yaml"
    path.write_text(path.read_text() + POLICY)

    found = [each for each in plan_edit(*sides).findings if each.code != "changed"]

    assert [(each.code, each.weight, each.note) for each in found] == [("grant-policy-added", "high", "role:lead")]
