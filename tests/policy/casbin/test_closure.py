"""Membership through links: closure, depth and cycles."""

from gateway.policy.casbin.policy_index import (
    RoleGraph,
    build_role_graph,
    find_ancestors,
    find_cycles,
    find_parents,
    role_depths,
)
from tests.policy.casbin.policy_samples import policy_set


def links(*rows: str) -> RoleGraph:
    return build_role_graph(policy_set(members=rows).members)


def test_closure_follows_every_link() -> None:
    direct = links("user:ana, role:a", "role:a, role:b", "role:a, role:c", "user:bo, role:d")

    assert find_ancestors(["user:ana"], direct) == {"user:ana", "role:a", "role:b", "role:c"}


def test_groups_above_a_member_are_not_the_member_itself() -> None:
    direct = links("user:ana, role:a", "role:a, role:b")

    assert find_parents(direct) == {"user:ana": {"role:a", "role:b"}, "role:a": {"role:b"}}


def test_unknown_names_reach_only_themselves() -> None:
    direct = links("user:ana, role:a")

    assert find_ancestors(["user:eve"], direct) == {"user:eve"}
    assert find_ancestors([], direct) == frozenset()
    assert set(direct) == {"user:ana"}


def test_closure_of_a_circle_ends() -> None:
    assert find_ancestors(["role:a"], links("role:a, role:b", "role:b, role:a")) == {"role:a", "role:b"}


def test_chain_of_ten_thousand_links_is_followed() -> None:
    direct = links(*(f"role:{number}, role:{number + 1}" for number in range(10_000)))

    assert len(find_ancestors(["role:0"], direct)) == 10_001
    assert role_depths(direct)["role:0"] == 10_000
    assert find_cycles(direct) == []


def test_depth_is_that_of_the_longest_chain() -> None:
    direct = links("user:ana, role:c", "user:ana, role:a", "role:a, role:b", "role:b, role:c")

    assert role_depths(direct) == {"role:c": 0, "role:b": 1, "role:a": 2, "user:ana": 3}


def test_cycles_are_found_once_each() -> None:
    direct = links(
        "user:ana, role:a",
        "role:a, role:b",
        "role:b, role:a",
        "role:c, role:c",
        "role:d, role:e",
        "role:b, role:e",
    )

    assert find_cycles(direct) == [["role:a", "role:b"], ["role:c"]]
    assert role_depths(direct) == {"role:e": 0, "role:d": 1}
