"""Which callers a review has: those of policies and documents, and those of the records."""

from datetime import timedelta
from random import Random

from gateway.model.caller import Principal
from gateway.policy.casbin.policy_files import PolicySet
from gateway.review.access.caller_groups import list_review_callers
from gateway.review.access.usage import UseCount
from tests.review.access.random_worlds import NOW, random_world, with_policies


def use(subject: str, *roles: str, days_ago: int = 1) -> UseCount:
    last = NOW - timedelta(days=days_ago)
    return UseCount("call", Principal(subject, frozenset(roles)), "desk", "mail", 1, last)


def test_recorded_caller_is_added_with_the_roles_of_its_newest_use() -> None:
    world = random_world(Random(1))
    world = with_policies(world.snapshot, PolicySet())
    uses = [
        use("user:zoe", "role:a", days_ago=9),
        use("user:zoe", "role:b"),
        use("agent:bot", "role:d"),
        use("user:ana"),
    ]

    plain = list_review_callers(world.access, world.rows)
    found = list_review_callers(world.access, world.rows, uses)

    assert "agent:bot" in plain, "named by a provider, whose document decides its roles"
    assert {name: each for name, each in found.items() if name not in plain} == {
        "user:zoe": Principal("user:zoe", frozenset({"role:b"})),
        "user:ana": Principal("user:ana"),
    }


def test_known_caller_with_other_roles_is_listed_besides() -> None:
    world = next(each for each in map(random_world, map(Random, range(50))) if "user:ana" in _names(each.policies))

    found = list_review_callers(world.access, world.rows, [use("user:ana", "role:new")])

    assert found["user:ana as role:new"] == Principal("user:ana", frozenset({"role:new"}))
    assert found["user:ana"] == Principal("user:ana")


def _names(policies: PolicySet) -> set[str]:
    return {row.subject.text for row in policies.permissions}
