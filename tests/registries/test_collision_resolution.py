"""Collisions by declared policy: the 27-row table, trust, folded names, twins and reserved names."""

from itertools import product
from typing import get_args

import pytest

from gateway.model.primitives.name_patterns import confusable_skeleton, fold_name
from gateway.model.tools.tool import OnCollision
from gateway.registries.collision_resolution import (
    CollisionRules,
    HonourTool,
    NamedTool,
    merge_tools,
    resolve_collision,
)
from gateway.registries.diagnostics import Position
from gateway.registries.tool_flags import Effects

POLICIES: tuple[OnCollision, ...] = get_args(OnCollision)


def tool(name: str, source: str = "files", *, rank: int = 0, on_collision: OnCollision = "throw") -> NamedTool:
    return NamedTool(name, source, rank, Position(f"{source}.yaml", 1), on_collision)


@pytest.mark.parametrize(("existing", "incoming", "option"), list(product(POLICIES, repeat=3)))
def test_always_honouring_the_tool_is_the_models_table(
    existing: OnCollision, incoming: OnCollision, option: OnCollision
) -> None:
    """The existing tool's policy never matters; `throw` on the incoming one means "no opinion"."""
    rules = CollisionRules(on_collision=option, honour_tool="always")
    first, second = tool("a", on_collision=existing), tool("a", "upstream", on_collision=incoming)

    outcome = resolve_collision(first, second, rules).outcome

    assert outcome == (option if incoming == "throw" else incoming)


@pytest.mark.parametrize(
    ("rank", "on_collision", "outcome"),
    [(20, "replace", "throw"), (10, "replace", "replace"), (0, "replace", "replace"), (20, "keep", "keep")],
)
def test_less_trusted_tool_cannot_replace_a_more_trusted_one(
    rank: int, on_collision: OnCollision, outcome: str
) -> None:
    rules = CollisionRules(on_collision="keep", honour_tool="sameOrHigherTrust")

    collision = resolve_collision(
        tool("a", rank=10), tool("a", "upstream", rank=rank, on_collision=on_collision), rules
    )

    assert collision.outcome == outcome
    assert collision.is_error == (outcome == "throw")


RANKS = (0, 10)
EFFECTS: tuple[Effects, ...] = get_args(Effects)
FLAGS = tuple(map(frozenset, ([], ["writes"], ["egress"])))
HONOURS: tuple[HonourTool, ...] = get_args(HonourTool)
STANDINGS = list(product(RANKS, (True, False), EFFECTS, FLAGS, (True, False)))


def standing(source: str, given: tuple[int, bool, Effects, frozenset[str], bool], own: OnCollision) -> NamedTool:
    rank, trusted, effects, flags, is_imported = given
    place = Position(f"{source}.yaml", 1)
    return NamedTool("a", source, rank, place, own, trusted, effects, flags, is_imported)


def is_less_trusted(one: NamedTool, other: NamedTool) -> bool:
    """The rule again, in its own words: the tier first, then trusted results, then whether its effects are known."""
    if one.rank != other.rank:
        return one.rank > other.rank
    if one.trusted != other.trusted:
        return other.trusted
    return (one.effects == "unknown") > (other.effects == "unknown")


@pytest.mark.parametrize(("own", "option", "honour"), list(product(POLICIES, POLICIES, HONOURS)))
def test_no_combination_lets_a_less_trusted_tool_take_a_name(
    own: OnCollision, option: OnCollision, honour: HonourTool
) -> None:
    """Every tier, trust, kind of effects, flags and source of both tools, under every policy."""
    rules = CollisionRules(on_collision=option, honour_tool=honour)
    wanted = option if own == "throw" or honour == "never" else own
    for mine, theirs in product(STANDINGS, repeat=2):
        existing, incoming = standing("first", mine, "throw"), standing("second", theirs, own)
        collision = resolve_collision(existing, incoming, rules)
        gains = incoming.rank == existing.rank and bool(incoming.flags - existing.flags)
        if wanted == "replace":
            is_refused = is_less_trusted(incoming, existing) or gains
        else:
            is_refused = wanted == "keep" and is_less_trusted(existing, incoming)
        assert collision.outcome == ("throw" if is_refused else wanted)
        assert collision.is_about_trust == is_refused
        if collision.outcome == "replace":
            assert incoming.rank <= existing.rank


def test_more_trusted_tool_may_replace_one_that_can_do_less() -> None:
    mine = NamedTool("a", "files", 0, Position("a.yaml", 1), "replace", flags=frozenset({"writes"}))
    theirs = NamedTool("a", "wiki", 10, Position("b.yaml", 1), is_imported=True)

    assert resolve_collision(theirs, mine, CollisionRules()).outcome == "replace"


@pytest.mark.parametrize("own", POLICIES)
def test_policy_may_ignore_the_word_of_tools(own: OnCollision) -> None:
    rules = CollisionRules(on_collision="keep", honour_tool="never")

    assert resolve_collision(tool("a"), tool("a", "upstream", on_collision=own), rules).outcome == "keep"


def test_refused_tool_is_left_out_and_the_first_keeps_its_place() -> None:
    first, other = tool("a"), tool("b")
    refused, replacing = tool("A", "github"), tool("b", "gitlab", on_collision="replace")

    merged = merge_tools([first, other, refused, replacing], CollisionRules())

    assert merged.tools == (first, replacing)
    assert [(clash.incoming, clash.outcome) for clash in merged.collisions] == [
        (refused, "throw"),
        (replacing, "replace"),
    ]


def test_exact_comparison_keeps_names_apart_that_differ_in_case() -> None:
    rules = CollisionRules(compare="exact", look_alikes="ignore")

    merged = merge_tools([tool("ticket_create"), tool("Ticket-Create")], rules)

    assert [kept.name for kept in merged.tools] == ["ticket_create", "Ticket-Create"]
    assert (merged.collisions, merged.look_alikes) == ((), ())


@pytest.mark.parametrize(
    "twin",
    ["paym\u0435nt_refund", "p\u0430yment_refund", "\uff50ayment_refund", "payrnent_refund", "payment.refund"],
    ids=["Cyrillic e", "Cyrillic a", "full-width p", "rn for m", "other separator"],
)
def test_twin_of_a_name_is_reported(twin: str) -> None:
    merged = merge_tools([tool("payment_refund"), tool(twin, "github")], CollisionRules(compare="exact"))

    assert [(found.first.name, found.second.name) for found in merged.look_alikes] == [("payment_refund", twin)]


@pytest.mark.parametrize(
    "name", ["artifact_head", "Artifact_grep", "artifact-head", "ARTIFACT.head", "gateway.status", "GATEWAY.x"]
)
def test_reserved_names_are_refused(name: str) -> None:
    merged = merge_tools([tool(name), tool("fine")], CollisionRules(reserved=("gateway.*",)))

    assert [refused.name for refused in merged.reserved] == [name]
    assert [kept.name for kept in merged.tools] == ["fine"]


def test_merging_nothing_is_empty() -> None:
    assert merge_tools([], CollisionRules()).tools == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [("Ticket_Create", "ticket-create"), ("a.b", "AB")],
)
def test_folding_ignores_case_and_separators(first: str, second: str) -> None:
    assert fold_name(first) == fold_name(second)


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        ("login", "l0gin"),
        ("list", "1ist"),
        ("pay", "рау"),
        ("modern", "modem"),
        ("cafe", "café"),
        ("delete", "de\u200blete"),
        ("wmega", "ωmega"),
    ],
)
def test_skeletons_of_twins_are_equal(name: str, twin: str) -> None:
    assert confusable_skeleton(name) == confusable_skeleton(twin)


def test_skeletons_of_different_names_differ() -> None:
    names = ["ticket_create", "ticket_close", "price_quote", "repo_log", "deploy_start", "payment_refund"]

    assert len({confusable_skeleton(name) for name in names}) == len(names)
