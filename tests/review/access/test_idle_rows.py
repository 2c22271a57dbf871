"""Rows that add nothing, against policies without them; rows that were not used, against recorded calls."""

from dataclasses import replace
from datetime import timedelta
from itertools import product
from random import Random
from typing import Any

import pytest

from gateway.model.caller import Principal
from gateway.policy.authoriser import AccessRequest
from gateway.policy.rules.gate_checks import PermissionCheck
from gateway.review.access.idle_rows import RowUse, find_redundant_rows, measure_row_use
from gateway.review.access.row_cover import RowCover
from gateway.review.access.usage import UsageTable, UseCount, UseKind
from gateway.review.plan.policy_changes import PolicyRow
from tests.review.access.random_worlds import (
    ACTIONS,
    CALLERS,
    NOW,
    ROLES,
    TOOLS,
    World,
    ask_about_config,
    ask_about_pair,
    objects_of,
    random_world,
    with_policies,
)

DAY = timedelta(days=1)


def find_redundant(world: World) -> list[PolicyRow]:
    return find_redundant_rows(world.access, RowCover(world.snapshot, world.rows))


def without_rows(world: World, rows: list[PolicyRow]) -> World:
    lines = {row.position.line for row in rows}
    left = tuple(row for row in world.policies.permissions if row.position.line not in lines)
    return with_policies(world.snapshot, replace(world.policies, permissions=left))


def list_decisions(world: World, principals: list[Principal]) -> list[Any]:
    """Every answer to the callers, and every verdict of the policy."""
    found: list[Any] = []
    for principal in principals:
        found.append(ask_about_config(world, principal))
        for catalogue in world.snapshot.catalogues.values():
            for object in objects_of(catalogue):
                found.append({action for action, _ in ask_about_pair(world, principal, catalogue.name, object)})
            found += list_verdicts(world, principal, catalogue.name)
    return found


def list_verdicts(world: World, principal: Principal, catalogue: str) -> list[bool]:
    """Ask the policy about everything that calls, reads, approvals and gate rules could ask about."""
    snapshot = world.snapshot
    named: dict[str, Any] = {**snapshot.offers, **{tool.object: tool for tool in snapshot.tools.values()}}
    objects = [(name, named[name].trust.tier.name) for name in objects_of(snapshot.catalogues[catalogue])]
    permissions = {rule.check.object for rule in snapshot.gates.values() if isinstance(rule.check, PermissionCheck)}
    shared = {*(f"class:{name}" for name in snapshot.artifacts), *(f"tool:{name}" for name in snapshot.query_names)}
    objects += product(sorted({*shared, *permissions, "config"}), sorted(snapshot.tiers))
    asked = [
        AccessRequest(principal.names, catalogue, object, action, tier)
        for (object, tier), action in product(objects, ACTIONS)
    ]
    return [world.access.authoriser.decide(each).allowed for each in asked]


@pytest.mark.parametrize("seed", range(15))
def test_rows_that_add_nothing_can_be_removed_together(seed: int) -> None:
    random = Random(seed)
    world = random_world(random)
    redundant = find_redundant(world)
    principals = [Principal(name, frozenset(random.sample(ROLES, random.randrange(4)))) for name in CALLERS]

    assert list_decisions(without_rows(world, redundant), principals) == list_decisions(world, principals)


def test_each_other_row_that_allows_something_decides_something() -> None:
    checked = 0
    for seed in range(10):
        world = random_world(Random(seed))
        reduced = without_rows(world, find_redundant(world))
        for row in reduced.rows:
            if isinstance(row, PolicyRow) and row.effect == "allow":
                holder, smaller = Principal(row.subject), without_rows(reduced, [row])
                assert any(
                    list_verdicts(reduced, holder, name) != list_verdicts(smaller, holder, name)
                    for name in world.snapshot.catalogues
                ), (seed, row)
                checked += 1
    assert checked > 20


def use(
    kind: UseKind, subject: str, tool: str, *, catalogue: str = "desk", count: int = 1, days_ago: int = 1
) -> UseCount:
    return UseCount(kind, Principal(subject), catalogue, tool, count, NOW - days_ago * DAY)


def test_row_is_used_by_the_calls_that_it_could_decide() -> None:
    for seed in range(10):
        world = random_world(Random(seed))
        cover = RowCover(world.snapshot, world.rows)
        uses = [
            use("call", subject, tool, catalogue=catalogue)
            for subject, tool, catalogue in product(CALLERS, sorted(world.snapshot.tools), ("desk", "ops"))
        ]
        for one in uses:
            found = measure_row_use(world.access, cover, UsageTable([one], NOW - 30 * DAY, NOW - 60 * DAY))
            used = {each.row.position.line for each in found if each.use is not None and each.use.count}
            tool = world.snapshot.tools[one.tool]
            decision = world.access.decide_action(one.principal, "invoke", one.catalogue, tool)
            if decision.allowed and decision.row is not None:
                assert decision.row.line in used, seed
            elif decision.row is None:
                assert not used, seed


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    return [random_world(Random(seed)) for seed in range(20)]


def measure(world: World, uses: list[UseCount]) -> list[RowUse]:
    usage = UsageTable(uses, NOW - 30 * DAY, NOW - 120 * DAY)
    return measure_row_use(world.access, RowCover(world.snapshot, world.rows), usage)


def test_row_without_recorded_actions_is_never_called_unused(worlds: list[World]) -> None:
    found = [each for world in worlds for each in measure(world, [])]

    assert {each.row.effect for each in found} == {"allow"}
    assert {each.is_unused for each in found} == {True, False}
    for each in found:
        assert each.is_unused == bool(each.row.actions & {"invoke", "approve"})


def test_calls_of_tools_that_are_gone_use_no_row(worlds: list[World]) -> None:
    found = [each for world in worlds for each in measure(world, [use("call", name, "gone") for name in CALLERS])]

    assert not any(each.use is not None and each.use.count for each in found)


def test_use_before_the_period_is_no_use_in_it(worlds: list[World]) -> None:
    uses = [use("call", name, tool, count=0, days_ago=90) for name in CALLERS for tool in TOOLS]

    found = [each for world in worlds for each in measure(world, uses)]

    known = [each for each in found if each.use is not None and each.use.last is not None]
    assert known
    assert all(each.is_unused for each in known)


def test_approval_uses_the_row_that_permits_it(worlds: list[World]) -> None:
    approved = 0
    for world, name, tool in product(worlds, CALLERS, TOOLS):
        if tool in world.snapshot.tools:
            decision = world.access.decide_approval(Principal(name), catalogue="desk", tool=tool)
            found = measure(world, [use("approve", name, tool)])
            used = {each.row.position.line for each in found if each.use is not None and each.use.count}
            if decision.allowed and decision.row is not None:
                assert decision.row.line in used
                approved += 1
    assert approved
