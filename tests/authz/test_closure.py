"""Membership through links: closure, depth and cycles."""

from policy_samples import policy_set

from gateway.authz.closure import Graph, above, cycles, depths, graph, reach


def links(*rows: str) -> Graph:
    return graph(policy_set(members=rows).members)


def test_closure_follows_every_link() -> None:
    direct = links("user:ana, role:a", "role:a, role:b", "role:a, role:c", "user:bo, role:d")

    assert reach(["user:ana"], direct) == {"user:ana", "role:a", "role:b", "role:c"}


def test_groups_above_a_member_are_not_the_member_itself() -> None:
    direct = links("user:ana, role:a", "role:a, role:b")

    assert above(direct) == {"user:ana": {"role:a", "role:b"}, "role:a": {"role:b"}}


def test_unknown_names_reach_only_themselves() -> None:
    direct = links("user:ana, role:a")

    assert reach(["user:eve"], direct) == {"user:eve"}
    assert reach([], direct) == frozenset()
    assert set(direct) == {"user:ana"}


def test_closure_of_a_circle_ends() -> None:
    assert reach(["role:a"], links("role:a, role:b", "role:b, role:a")) == {"role:a", "role:b"}


def test_chain_of_ten_thousand_links_is_followed() -> None:
    direct = links(*(f"role:{number}, role:{number + 1}" for number in range(10_000)))

    assert len(reach(["role:0"], direct)) == 10_001
    assert depths(direct)["role:0"] == 10_000
    assert cycles(direct) == []


def test_depth_is_that_of_the_longest_chain() -> None:
    direct = links("user:ana, role:c", "user:ana, role:a", "role:a, role:b", "role:b, role:c")

    assert depths(direct) == {"role:c": 0, "role:b": 1, "role:a": 2, "user:ana": 3}


def test_cycles_are_found_once_each() -> None:
    direct = links(
        "user:ana, role:a",
        "role:a, role:b",
        "role:b, role:a",
        "role:c, role:c",
        "role:d, role:e",
        "role:b, role:e",
    )

    assert cycles(direct) == [["role:a", "role:b"], ["role:c"]]
    assert depths(direct) == {"role:e": 0, "role:d": 1}
