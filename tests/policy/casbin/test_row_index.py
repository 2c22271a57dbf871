"""The index skips only rows that the matcher would refuse, and preserves their order."""

from random import Random

from gateway.policy.casbin.policy_files import PermissionRow
from gateway.policy.casbin.policy_index import (
    RowIndex,
    build_role_graph,
    find_parents,
    has_role,
    matches_action,
    matches_catalogue,
    matches_object,
)
from tests.policy.casbin.policy_samples import policy_set, random_policies, random_request


def lines(
    index: RowIndex, *who: str, catalogue: str = "eng", object: str = "tool:log", action: str = "invoke"
) -> list[int]:
    found = index.find_candidates(frozenset(who), catalogue=catalogue, object=object, action=action)
    return [row.position.line for row in found]


def test_rows_are_found_by_each_column() -> None:
    rows = [
        "role:a, *, tool:log, invoke, internal, allow",
        "role:b, *, tool:log, invoke, internal, allow",
        "role:a, ops, tool:log, invoke, internal, allow",
        "role:a, *, tool:pay, invoke, internal, allow",
        "role:a, *, tool:log, read, internal, allow",
        "role:a, eng, tool:l*, read|invoke, quarantine, deny",
        "role:a, eng, tool:*t, invoke, internal, allow",
        "role:a, eng, class:text, invoke, internal, allow",
        "role:a, eng, class:t*, invoke, internal, allow",
    ]
    groups = {"tool:log": frozenset({"class:text"})}

    index = RowIndex(policy_set(rows).permissions, groups)

    assert lines(index, "role:a") == [1, 6, 8, 9]
    assert lines(index, "role:a", "role:b") == [1, 2, 6, 8, 9]
    assert lines(index, "role:a", catalogue="ops") == [1, 3]
    assert lines(index, "role:a", action="read") == [5, 6]
    assert lines(index, "role:a", object="tool:pay") == [4]
    assert lines(index, "role:c") == []
    assert lines(index) == []


def _firsts(rows: list[PermissionRow]) -> list[PermissionRow]:
    """The rows without repetitions of earlier ones."""
    first: dict[tuple[str, ...], PermissionRow] = {}
    for row in rows:
        subject, catalogue, object, _, tier, effect = row.texts
        first.setdefault((subject, catalogue, object, tier, effect), row)
    return list(first.values())


def test_index_finds_what_the_functions_find() -> None:
    random = Random(7)
    for _ in range(200):
        policies = random_policies(random)
        groups = find_parents(build_role_graph(policies.objects))
        index = RowIndex(policies.permissions, groups)
        for _ in range(20):
            asked = random_request(random)
            expected = [
                row
                for row in policies.permissions
                if has_role(asked.names, row.subject.text)
                and matches_catalogue(asked.catalogue, row.catalogue.text)
                and matches_object(asked.object, row.object.text, groups)
                and matches_action(asked.action, row.actions.text)
            ]

            found = index.find_candidates(
                asked.names, catalogue=asked.catalogue, object=asked.object, action=asked.action
            )

            assert found == _firsts(expected)
            quick = index.find_any(asked.names, catalogue=asked.catalogue, object=asked.object, action=asked.action)
            assert set(quick) == set(_firsts(expected))
