"""Lint messages about rows, and the cells at which they are reported."""

import pytest

from gateway.policy.casbin.lint import KnownNames, lint_policies
from gateway.policy.casbin.policy_files import PolicySet
from gateway.registries.diagnostics import Diagnostic, Position
from tests.policy.casbin.policy_samples import RANKS, policy_set

ROW = "role:a, *, tool:*, invoke, internal, allow"
KNOWN = KnownNames(
    tools=frozenset({"log", "pay_in", "pay_out"}),
    classes=frozenset({"pay", "money"}),
    catalogues=frozenset({"eng", "ops"}),
    tiers=RANKS,
    roles=frozenset({"role:a"}),
)


def format_problems(policies: PolicySet, known: KnownNames = KNOWN) -> list[str]:
    """`column-of-the-cell: code: message` for each; the samples count cells from the section letter."""
    return [f"{one.position.column}: {one.code}: {one.message}" for one in lint_policies(policies, known)]


def only(policies: PolicySet, known: KnownNames = KNOWN) -> Diagnostic:
    (found,) = lint_policies(policies, known)
    return found


def test_clean_rows_have_no_problems() -> None:
    policies = policy_set(
        [
            ROW,
            "user:ana, eng, tool:pay_*, discover|approve, vendor, deny",
            "role:a, e*, config, administer, partner, allow",
        ],
        ["user:ana, role:a", "role:a, role:b"],
        ["tool:pay_in, class:pay", "class:pay, class:money"],
    )

    assert lint_policies(policies, KNOWN) == []
    assert lint_policies(policies, KnownNames()) == []
    assert lint_policies(PolicySet(), KNOWN) == []


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a, *, tool:*, invoke, internal, allow", "2: bad-name: 'a' is not a subject"),
        ("role:*, *, tool:*, invoke, internal, allow", "2: bad-name: 'role:*' is not a subject"),
        (", *, tool:*, invoke, internal, allow", "2: bad-name: '' is not a subject"),
        ("role:a, e?g, tool:*, invoke, internal, allow", "3: bad-pattern: 'e?g' is not a pattern"),
        ("role:a, , tool:*, invoke, internal, allow", "3: bad-pattern: '' is not a pattern"),
        ("role:a, enf, tool:*, invoke, internal, allow", "3: unknown-catalogue: there is no catalogue 'enf'"),
        ("role:a, x*, tool:*, invoke, internal, allow", "3: dead-rule: no catalogue matches 'x*'"),
        ("role:a, *, *, invoke, internal, allow", "4: bad-object: '*' is not an object"),
        ("role:a, *, tools:*, invoke, internal, allow", "4: bad-object: 'tools:*' is not an object"),
        ("role:a, *, tool:**, invoke, internal, allow", "4: bad-pattern: 'tool:**' is not a pattern"),
        ("role:a, *, tool:^(a+)+$, invoke, internal, allow", "4: bad-pattern: 'tool:^(a+)+$' is not a pattern"),
        ("role:a, *, tool:../x, invoke, internal, allow", "4: bad-pattern: 'tool:../x' is not a pattern"),
        ("role:a, *, tool:lag, invoke, internal, allow", "4: dead-rule: no tool matches 'tool:lag'"),
        ("role:a, *, tool:pay_x*, invoke, internal, allow", "4: dead-rule: no tool matches 'tool:pay_x*'"),
        ("role:a, *, tool:*_x, invoke, internal, allow", "4: dead-rule: no tool matches 'tool:*_x'"),
        ("role:a, *, class:zoo, read, internal, allow", "4: dead-rule: no class matches 'class:zoo'"),
        ("role:a, *, catalogue:zoo, read, internal, allow", "4: dead-rule: no catalogue matches 'catalogue:zoo'"),
        ("role:a, *, tool:*, invoke, secret, allow", "6: unknown-tier: there is no tier 'secret'"),
        ("role:a, *, tool:*, invoke, *, allow", "6: bad-name: '*' is not the name of a tier"),
        ("role:a, *, tool:*, invoke, internal, alow", "7: policy-effect: the effect is allow or deny, not 'alow'"),
        ("role:a, *, tool:*, invoke, internal, Deny", "7: policy-effect: the effect is allow or deny, not 'Deny'"),
        ("role:zoo, *, tool:*, invoke, internal, allow", "2: dead-rule: no subject holds 'role:zoo'"),
    ],
)
def test_problem_is_reported_at_its_cell(row: str, problem: str) -> None:
    assert format_problems(policy_set([row])) == [problem]


@pytest.mark.parametrize("actions", ["invok", "invoke|", "", "|invoke", "invoke| read", "*", "INVOKE"])
def test_actions_are_a_list_of_verbs(actions: str) -> None:
    found = only(policy_set([f"role:a, *, tool:*, {actions}, internal, allow"]))

    assert (found.code, found.position, found.is_error) == ("unknown-action", Position("policy.csv", 1, 5), True)


@pytest.mark.parametrize(
    ("row", "help"),
    [
        ("role:a, *, tool:*, invoke, internal, alow", "did you mean 'allow'?"),
        ("role:a, *, tool:*, invok, internal, allow", "did you mean 'invoke'?"),
        ("role:a, *, tool:*, invoke, intrnal, allow", "did you mean 'internal'?"),
        ("role:a, enf, tool:*, invoke, internal, allow", "did you mean 'eng'?"),
        ("role:a, *, tool:pay_ot, invoke, internal, allow", "did you mean 'pay_out'?"),
        ("role:aa, *, tool:*, invoke, internal, allow", "did you mean 'role:a'?"),
    ],
)
def test_near_names_are_suggested(row: str, help: str) -> None:
    assert only(policy_set([row])).help == help


def test_what_is_not_known_is_not_checked() -> None:
    policies = policy_set(["role:zoo, zoo, tool:zoo, invoke, zoo, allow"], ["role:x, role:zoo"], ["tool:x, class:zoo"])

    assert lint_policies(policies, KnownNames()) == []


def test_errors_and_warnings_are_distinguished() -> None:
    severities = {
        "dead-rule": policy_set(["role:zoo, *, tool:*, invoke, internal, allow"]),
        "duplicate-row": policy_set([ROW, ROW]),
        "shadowed-allow": policy_set([ROW, ROW.replace("allow", "deny")]),
    }

    assert {only(policies).code for policies in severities.values() if not only(policies).is_error} == set(severities)


@pytest.mark.parametrize(
    ("members", "objects", "problem"),
    [
        (["ana, role:a"], [], "2: bad-name: 'ana' is not a subject"),
        (["user:ana, a"], [], "3: bad-name: 'a' is not a subject"),
        (["role:a, user:ana"], [], "3: bad-name: 'user:ana' is not a role"),
        ([], ["tool:*, class:pay"], "2: bad-object: 'tool:*' is not an object"),
        ([], ["tool:log, pay"], "3: bad-object: 'pay' is not an object"),
        ([], ["class:pay, tool:log"], "3: bad-object: 'tool:log' is not a group"),
        ([], ["tool:lag, class:pay"], "2: dead-rule: no tool matches 'tool:lag'"),
        ([], ["tool:log, class:zoo"], "3: dead-rule: no class matches 'class:zoo'"),
    ],
)
def test_links_are_checked_at_their_cells(members: list[str], objects: list[str], problem: str) -> None:
    assert format_problems(policy_set([], members, objects)) == [problem]


def test_repeated_row_points_at_the_first() -> None:
    policies = policy_set(
        ["role:a, *, tool:*, invoke|read, internal, allow", ROW, "role:a, *, tool:*, read|invoke, internal, allow"],
        ["user:ana, role:a", "user:ana, role:a"],
        ["tool:log, class:pay", "tool:log, class:pay"],
    )

    found = lint_policies(policies, KNOWN)

    assert [(one.code, str(one.position), str(one.related[0][1])) for one in found] == [
        ("duplicate-row", "objects.csv:2:2", "objects.csv:1:2"),
        ("duplicate-row", "policy.csv:3:2", "policy.csv:1:2"),
        ("duplicate-row", "roles.csv:2:2", "roles.csv:1:2"),
    ]


def test_circle_of_roles_is_shown_whole() -> None:
    found = only(policy_set([], ["user:ana, role:a", "role:a, role:b", "role:b, role:a"]))

    assert (found.code, str(found.position)) == ("role-cycle", "roles.csv:3:3")
    assert found.message == "membership runs in a circle: role:a → role:b → role:a"


def test_long_circle_of_groups_is_shown_in_part() -> None:
    links = [f"class:{number}, class:{(number + 1) % 1_000}" for number in range(1_000)]

    found = only(policy_set([], [], links), KnownNames())

    assert found.code == "role-cycle"
    assert found.message.endswith("class:7 → …")


@pytest.mark.parametrize(("links", "codes"), [(8, []), (9, ["role-depth"]), (30, ["role-depth"])])
def test_chain_deeper_than_eight_links_is_refused_once(links: int, codes: list[str]) -> None:
    chain = ["user:ana, role:0", *(f"role:{number}, role:{number + 1}" for number in range(links - 1))]

    assert [one.code for one in lint_policies(policy_set([], chain), KnownNames())] == codes


def test_chain_of_nine_links_is_reported_at_its_lowest_member() -> None:
    chain = ["user:ana, role:0", *(f"role:{number}, role:{number + 1}" for number in range(8)), "user:ana, role:5"]

    assert str(only(policy_set([], chain)).position) == "roles.csv:1:2"


@pytest.mark.parametrize(
    "members", [["role:a, role:held"], ["user:ana, role:held"], ["agent:x, role:b", "role:b, role:held"]]
)
def test_role_is_held_through_links(members: list[str]) -> None:
    assert lint_policies(policy_set(["role:held, *, tool:*, invoke, internal, allow"], members), KNOWN) == []


def test_role_that_only_unheld_roles_have_is_dead() -> None:
    policies = policy_set(["role:held, *, tool:*, invoke, internal, allow"], ["role:nobody, role:held"])

    assert format_problems(policies) == ["2: dead-rule: no subject holds 'role:held'"]


@pytest.mark.parametrize(
    ("allow", "deny", "shadowed"),
    [
        ("role:a, eng, tool:log, invoke, internal", "role:a, eng, tool:log, invoke, internal", True),
        ("role:a, eng, tool:log, invoke, internal", "role:a, *, tool:*, invoke|read, quarantine", True),
        ("role:a, e*, tool:pay_*, invoke, internal", "role:a, *, tool:p*, invoke, vendor", True),
        ("role:a, *, tool:pay_in, invoke, internal", "role:b, *, class:money, invoke, internal", True),
        ("role:b, *, tool:log, invoke, internal", "role:a, *, tool:log, invoke, internal", False),
        ("role:a, *, tool:log, invoke, internal", "role:a, eng, tool:log, invoke, internal", False),
        ("role:a, *, tool:*, invoke, internal", "role:a, *, tool:pay_*, invoke, internal", False),
        ("role:a, *, tool:log, invoke|read, internal", "role:a, *, tool:log, read, internal", False),
        ("role:a, *, tool:log, invoke|read, internal", "role:a, *, tool:log, invoke, internal", False),
        ("role:a, *, tool:log, invoke, partner", "role:a, *, tool:log, invoke, internal", False),
        ("role:a, *, tool:log, invoke, partner", "role:a, *, tool:log, invoke, vendor", True),
    ],
)
def test_allow_that_a_deny_covers_wholly_is_reported(allow: str, deny: str, shadowed: bool) -> None:
    policies = policy_set(
        [f"{allow}, allow", f"{deny}, deny"],
        ["role:a, role:b"],
        ["tool:pay_in, class:pay", "class:pay, class:money"],
    )

    found = lint_policies(policies, KNOWN)

    assert [one.code for one in found] == ["shadowed-allow"] * shadowed
    assert [str(one.related[0][1]) for one in found] == ["policy.csv:2:7"] * shadowed


def test_allow_may_be_covered_by_several_denies_together() -> None:
    rows = ["role:a, *, tool:log, invoke|read, internal, allow"]
    rows += [f"role:a, *, tool:*, {action}, internal, deny" for action in ("invoke", "read")]

    assert [one.code for one in lint_policies(policy_set(rows), KNOWN)] == ["shadowed-allow"]


@pytest.mark.parametrize(("tier", "codes"), [("internal", ["shadowed-allow"]), ("partner", [])])
def test_without_ranks_only_the_same_tier_shadows(tier: str, codes: list[str]) -> None:
    policies = policy_set([ROW, f"role:a, *, tool:*, invoke, {tier}, deny"])

    assert [one.code for one in lint_policies(policies, KnownNames())] == codes


def test_huge_cells_are_shown_in_part() -> None:
    found = only(policy_set([ROW.replace("role:a", "x" * 100_000)]), KnownNames())

    assert len(found.message) < 120


def test_ten_thousand_dead_rows_are_all_reported() -> None:
    rows = [f"role:a, *, tool:gone_{number}, invoke, internal, allow" for number in range(10_000)]
    known = KnownNames(tools=frozenset(f"tool_{number}" for number in range(10_000)))

    found = lint_policies(policy_set(rows), known)

    assert len(found) == 10_000
    assert {one.code for one in found} == {"dead-rule"}
