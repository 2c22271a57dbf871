"""The access decision and time: rows that end, and roles that grants add for a while."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree

import pytest

from gateway.app.project import ProjectFolders, load_project
from gateway.model import Principal
from gateway.policy.access import Access
from gateway.policy.grants.grant import Grant
from gateway.review.grant_report import list_ending_rows, list_grant_access
from tests.policy.test_access import ANA, EVE, NOON, REFUND, SMALL

END = datetime(2026, 12, 1, tzinfo=UTC)
ROW = "p, role:clerk, desk, tool:*, discover|invoke, partner, allow"


def load(folder: Path, old: str, new: str) -> Access:
    copytree(SMALL, folder, dirs_exist_ok=True)
    path = folder / "policies" / "policy.csv"
    lines = [new if line.replace(" ", "") == old.replace(" ", "") else line for line in path.read_text().splitlines()]
    assert new in lines
    path.write_text("\n".join(lines))
    found = load_project(ProjectFolders.from_folder(folder), environ={}, today=NOON.date())
    assert found.access is not None, found.diagnostics
    return found.access


@pytest.fixture
def ending(tmp_path: Path) -> Access:
    return load(tmp_path / "p", ROW, f"# until 2026-11-30 OPS-1: {ROW}\n{ROW}")


@pytest.fixture(scope="module")
def access() -> Access:
    found = load_project(ProjectFolders.from_folder(SMALL), environ={}, today=NOON.date())
    assert found.access is not None
    return found.access


def grant(**changes: object) -> Grant:
    since = NOON - timedelta(hours=1)
    made = Grant(
        *("g1", "user:eve", None, "role:clerk", "incidents", timedelta(hours=2), "INC-1", EVE, since, since),
        state="approved",
        since=since,
        until=since + timedelta(hours=2),
    )
    return replace(made, **changes)  # type: ignore[arg-type] # the fields of a grant


def test_call_is_decided_with_the_rows_of_its_moment(ending: Access) -> None:
    before = ending.decide_call(replace(REFUND, at=END - timedelta(seconds=1)))
    after = ending.decide_call(replace(REFUND, at=END))

    assert (before.steps[-1].name, after.steps[-1].name, after.decision) == ("gates", "tool", "deny")


def test_revision_depends_on_the_end(ending: Access, tmp_path: Path) -> None:
    later = load(tmp_path / "q", ROW, f"# until 2026-12-31 OPS-1: {ROW}\n{ROW}")
    ticket = load(tmp_path / "r", ROW, f"# until 2026-11-30 OPS-2: {ROW}\n{ROW}")

    assert len({each.snapshot.revision for each in (ending, later, ticket)}) == 3


def test_access_without_ends_is_the_same_at_any_moment(access: Access) -> None:
    assert access.at(END) is access


def test_grant_adds_a_role_to_its_caller_only(access: Access) -> None:
    granting = access.with_grants(lambda principal: (grant(),) if principal == EVE else ())
    call = replace(REFUND, principal=EVE)

    granted, plain = granting.decide_call(call), granting.without_grants().decide_call(call)

    assert (plain.decision, plain.steps[-1].name) == ("deny", "audience")
    assert (granted.decision, granted.steps[-1].name) == ("allow", "gates")
    assert granted.steps[-2].reason.endswith(", by grant g1")
    assert granting.is_in_audience(EVE, "desk")
    assert not granting.is_in_audience(Principal("user:kim"), "nowhere")
    assert granting.roles_of(EVE) == {"user:eve"}
    assert granting.decide_call(REFUND).steps[-2].reason == access.decide_call(REFUND).steps[-2].reason


def test_granted_role_that_is_denied_something_denies_it(access: Access) -> None:
    granting = access.with_grants(lambda principal: (grant(role="role:agent"),))

    assert granting.decide_call(REFUND).decision == "deny"
    assert granting.decide_call(replace(REFUND, tool="order_read", args={"order": "A1"})).decision == "allow"


def test_granted_role_approves_nothing(access: Access) -> None:
    granting = access.with_grants(lambda principal: (grant(role="role:lead"),))
    lead = Principal("user:kim", frozenset({"role:lead"}))

    assert access.decide_approval(lead, catalogue="desk", tool="refund_pay").allowed
    assert not granting.decide_approval(EVE, catalogue="desk", tool="refund_pay").allowed


# What reports say


def test_rows_with_an_end_are_listed(tmp_path: Path) -> None:
    member = "g, user:ana, role:clerk"
    folder = tmp_path / "p"
    copytree(SMALL, folder)
    (folder / "policies" / "more.csv").write_text(
        f"# until 2026-11-30 OPS-1: {member}\n{member}\n"
        "# until 2026-11-01 OPS-2: p, role:clerk, desk, class:payment, read, internal, deny\n"
        "p, role:clerk, desk, class:payment, read, internal, deny\n"
    )
    policies = load_project(ProjectFolders.from_folder(folder), environ={}, today=NOON.date()).policies

    found = list_ending_rows(policies, NOON)

    assert [(each.text, each.kind, each.is_deny, each.ticket, each.is_over) for each in found] == [
        ("role:clerk, desk, class:payment, read, internal, deny", "permission", True, "OPS-2", True),
        ("user:ana, role:clerk", "membership", False, "OPS-1", False),
    ]
    assert found[1].position.line == 2


def test_grants_in_force_are_listed_with_what_they_add(access: Access) -> None:
    granting = access.with_grants(lambda principal: (grant(),) if principal.subject == "user:eve" else ())
    over, of_ana = grant(id="g2", state="revoked"), grant(id="g3", subject=ANA.subject)

    found = list_grant_access(granting, [of_ana, over, grant()], NOON)

    assert [(each.grant.id, each.is_in_force, each.policy) for each in found] == [
        ("g1", True, None),
        ("g3", False, None),
    ]
    assert {(each.catalogue, each.action, each.tool) for each in found[0].adds} >= {("desk", "invoke", "refund_pay")}
    assert found[1].adds == ()
