"""ToolRegistry: registering, hiding, pruning, and the complete table of merging two sets of tools."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from gateway.errors import ToolAlreadyRegistered
from gateway.model.schema.schema import Schema
from gateway.model.tools.tool import OnCollision, Tool
from gateway.model.tools.tool_registry import ToolRegistry

EXISTING, INCOMING, RAISES = "existing", "incoming", "raises"

# existing tool's policy, incoming tool's policy, merge option, outcome
MERGE_TABLE: list[tuple[OnCollision, OnCollision, OnCollision, str]] = [
    ("throw", "throw", "throw", RAISES),
    ("throw", "throw", "replace", INCOMING),
    ("throw", "throw", "keep", EXISTING),
    ("throw", "replace", "throw", INCOMING),
    ("throw", "replace", "replace", INCOMING),
    ("throw", "replace", "keep", INCOMING),
    ("throw", "keep", "throw", EXISTING),
    ("throw", "keep", "replace", EXISTING),
    ("throw", "keep", "keep", EXISTING),
    ("replace", "throw", "throw", RAISES),
    ("replace", "throw", "replace", INCOMING),
    ("replace", "throw", "keep", EXISTING),
    ("replace", "replace", "throw", INCOMING),
    ("replace", "replace", "replace", INCOMING),
    ("replace", "replace", "keep", INCOMING),
    ("replace", "keep", "throw", EXISTING),
    ("replace", "keep", "replace", EXISTING),
    ("replace", "keep", "keep", EXISTING),
    ("keep", "throw", "throw", RAISES),
    ("keep", "throw", "replace", INCOMING),
    ("keep", "throw", "keep", EXISTING),
    ("keep", "replace", "throw", INCOMING),
    ("keep", "replace", "replace", INCOMING),
    ("keep", "replace", "keep", INCOMING),
    ("keep", "keep", "throw", EXISTING),
    ("keep", "keep", "replace", EXISTING),
    ("keep", "keep", "keep", EXISTING),
]
POLICIES: tuple[OnCollision, ...] = get_args(OnCollision)


class Acks:
    """The smallest source of acks."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[], object]] = []

    def on_ack(self, handler: Callable[[], object]) -> Callable[[], None]:
        self.handlers.append(handler)
        return lambda: self.handlers.remove(handler)

    def ack(self) -> None:
        for handler in list(self.handlers):
            handler()


def tool(name: str, **fields: Any) -> Tool:
    schema = Schema({"type": "object", "properties": {}})
    return Tool(name=name, description="does something", input_schema=schema, handler=lambda *_: "", **fields)


def names(tools: list[Tool]) -> list[str]:
    return [each.name for each in tools]


def test_tools_are_kept_in_the_order_given() -> None:
    registry = ToolRegistry([tool("b"), tool("a"), tool("c")])

    assert names(registry.all()) == ["b", "a", "c"]


def test_duplicate_name_in_the_constructor_is_refused() -> None:
    with pytest.raises(ToolAlreadyRegistered, match="'a' is already registered") as caught:
        ToolRegistry([tool("a"), tool("b"), tool("a")])

    assert caught.value.help


@pytest.mark.parametrize("incoming", POLICIES)
@pytest.mark.parametrize("existing", POLICIES)
def test_register_refuses_a_clash_whatever_the_policies(existing: OnCollision, incoming: OnCollision) -> None:
    old = tool("a", on_collision=existing)
    registry = ToolRegistry([old])

    with pytest.raises(ToolAlreadyRegistered):
        registry.register(tool("a", on_collision=incoming))

    assert registry.get("a") is old


@pytest.mark.parametrize("incoming", POLICIES)
@pytest.mark.parametrize("existing", POLICIES)
def test_register_with_overwrite_replaces_whatever_the_policies(existing: OnCollision, incoming: OnCollision) -> None:
    new = tool("a", on_collision=incoming)
    registry = ToolRegistry([tool("a", on_collision=existing), tool("b")])

    registry.register(new, overwrite=True)

    assert registry.all()[0] is new
    assert names(registry.all()) == ["a", "b"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_register_of_a_new_name_appends(overwrite: bool) -> None:
    registry = ToolRegistry([tool("b")])

    registry.register(tool("a"), overwrite)

    assert names(registry.all()) == ["b", "a"]


def test_overwritten_tool_stays_hidden() -> None:
    registry = ToolRegistry([tool("a"), tool("b")])
    registry.hide("a")

    registry.register(tool("a"), overwrite=True)

    assert names(registry.hidden()) == ["a"]


@pytest.mark.parametrize("value", [None, "a", {"name": "a"}, object()], ids=lambda value: type(value).__name__)
def test_only_tools_are_registered(value: Any) -> None:
    registry = ToolRegistry()

    with pytest.raises(TypeError, match="a tool registry must hold tools"):
        registry.register(value)
    with pytest.raises(TypeError, match="a tool registry must hold tools"):
        ToolRegistry([value])

    assert registry.all() == []


def test_unregister_forgets_tool_and_hidden_flag() -> None:
    registry = ToolRegistry([tool("a"), tool("b")])
    registry.hide("a")

    registry.unregister("a")
    registry.unregister("a")
    registry.unregister("never there")
    registry.register(tool("a"))

    assert names(registry.visible()) == ["b", "a"]


def test_get_and_has_reach_hidden_tools() -> None:
    hidden = tool("a")
    registry = ToolRegistry([hidden])
    registry.hide("a")

    assert registry.get("a") is hidden
    assert registry.has("a")
    assert registry.get("b") is None
    assert not registry.has("b")


@pytest.mark.parametrize("answer", [ToolRegistry.all, ToolRegistry.visible, ToolRegistry.hidden])
def test_answered_list_is_the_callers_own(answer: Callable[[ToolRegistry], list[Tool]]) -> None:
    registry = ToolRegistry([tool("a"), tool("b")])
    registry.hide("b")

    answer(registry).clear()

    assert names(registry.all()) == ["a", "b"]
    assert names(answer(registry)) != []


def test_visible_and_hidden_share_the_tools_among_them() -> None:
    registry = ToolRegistry([tool("a"), tool("b"), tool("c")])

    registry.hide("c", "a")

    assert names(registry.visible()) == ["b"]
    assert names(registry.hidden()) == ["a", "c"]
    assert names(registry.all()) == ["a", "b", "c"]


def test_name_hidden_before_registration_starts_hidden() -> None:
    registry = ToolRegistry()
    registry.hide("later")

    registry.register(tool("later"))

    assert registry.visible() == []
    assert names(registry.hidden()) == ["later"]


def test_unhide_shows_again() -> None:
    registry = ToolRegistry([tool("a"), tool("b")])
    registry.hide("a", "b", "later")

    registry.unhide("a", "later", "never there")
    registry.register(tool("later"))

    assert names(registry.visible()) == ["a", "later"]


def test_set_hidden_replaces_the_whole_set() -> None:
    registry = ToolRegistry([tool("a"), tool("b"), tool("c")])
    registry.hide("a")

    registry.set_hidden("b", "c")

    assert names(registry.hidden()) == ["b", "c"]

    registry.set_hidden()

    assert registry.hidden() == []


def test_clear_hidden_shows_everything() -> None:
    registry = ToolRegistry([tool("a")])
    registry.hide("a", "later")

    registry.clear_hidden()
    registry.register(tool("later"))

    assert names(registry.visible()) == ["a", "later"]


def test_prune_removes_ephemeral_tools_and_their_hidden_flags() -> None:
    registry = ToolRegistry([tool("a"), tool("b", ephemeral=True), tool("c", ephemeral=True)])
    registry.hide("a", "b")

    registry.prune_ephemeral()
    registry.prune_ephemeral()
    registry.register(tool("b"))

    assert names(registry.all()) == ["a", "b"]
    assert names(registry.hidden()) == ["a"]


def test_bound_registry_is_pruned_on_ack() -> None:
    acks = Acks()
    registry = ToolRegistry([tool("a"), tool("b", ephemeral=True)])

    registry.bind_context(acks)
    assert names(registry.all()) == ["a", "b"]
    acks.ack()

    assert names(registry.all()) == ["a"]


def test_unbound_registry_keeps_its_tools() -> None:
    acks = Acks()
    registry = ToolRegistry([tool("b", ephemeral=True)])

    unbind = registry.bind_context(acks)
    unbind()
    acks.ack()

    assert names(registry.all()) == ["b"]


def test_copy_changes_on_its_own() -> None:
    baseline = ToolRegistry([tool("a"), tool("b"), tool("c", ephemeral=True)])
    baseline.hide("b", "later")

    copied = baseline.copy()
    copied.unregister("a")
    copied.unhide("b")
    copied.register(tool("later"))
    copied.prune_ephemeral()

    assert names(baseline.all()) == ["a", "b", "c"]
    assert names(baseline.hidden()) == ["b"]
    assert names(copied.all()) == ["b", "later"]


def test_copy_carries_hidden_names_over() -> None:
    baseline = ToolRegistry([tool("a")])
    baseline.hide("a", "later")

    copied = baseline.copy()
    copied.register(tool("later"))

    assert names(copied.hidden()) == ["a", "later"]


def test_copy_shares_no_ack_subscription() -> None:
    acks = Acks()
    baseline = ToolRegistry([tool("a", ephemeral=True)])
    baseline.bind_context(acks)

    copied = baseline.copy()
    acks.ack()

    assert names(copied.all()) == ["a"]


@pytest.mark.parametrize(("existing", "incoming", "option", "outcome"), MERGE_TABLE)
def test_merge_asks_the_incoming_tool(
    existing: OnCollision, incoming: OnCollision, option: OnCollision, outcome: str
) -> None:
    old, new = tool("a", on_collision=existing), tool("a", on_collision=incoming)
    left, right = ToolRegistry([old, tool("b")]), ToolRegistry([tool("c"), new])

    if outcome == RAISES:
        with pytest.raises(ToolAlreadyRegistered, match="'a'"):
            ToolRegistry.merge([left, right], option)
    else:
        merged = ToolRegistry.merge([left, right], option)
        assert merged.all()[0] is (new if outcome == INCOMING else old)
        assert names(merged.all()) == ["a", "b", "c"]

    assert left.get("a") is old
    assert right.get("a") is new


def test_merge_table_is_complete() -> None:
    assert len({row[:3] for row in MERGE_TABLE}) == len(POLICIES) ** 3 == 27


def test_merge_throws_by_default() -> None:
    with pytest.raises(ToolAlreadyRegistered) as caught:
        ToolRegistry.merge([ToolRegistry([tool("a")]), ToolRegistry([tool("a")])])

    assert caught.value.help


def test_merge_of_nothing_is_empty() -> None:
    assert ToolRegistry.merge([]).all() == []


@pytest.mark.parametrize("option", ["", "Throw", "overwrite", None], ids=repr)
def test_merge_refuses_an_unknown_option(option: Any) -> None:
    with pytest.raises(ValueError, match="'throw', 'replace' or 'keep'"):
        ToolRegistry.merge([], option)


def test_merge_of_three_goes_left_to_right() -> None:
    first, second, third = (tool("a", on_collision=policy) for policy in ("throw", "replace", "keep"))

    merged = ToolRegistry.merge(ToolRegistry([each]) for each in (first, second, third))

    assert merged.get("a") is second


@pytest.mark.parametrize("hiding", [0, 1], ids=["first source", "second source"])
@pytest.mark.parametrize("option", ["replace", "keep"])
def test_hidden_in_any_source_is_hidden_in_the_result(hiding: int, option: OnCollision) -> None:
    sources = [ToolRegistry([tool("a")]), ToolRegistry([tool("a"), tool("b")])]
    sources[hiding].hide("a")

    merged = ToolRegistry.merge(sources, option)

    assert names(merged.hidden()) == ["a"]
    assert names(merged.visible()) == ["b"]


def test_merge_hides_what_a_later_source_hides_without_having_it() -> None:
    hider = ToolRegistry()
    hider.hide("a", "b")

    merged = ToolRegistry.merge([ToolRegistry([tool("a")]), hider, ToolRegistry([tool("b")])])

    assert names(merged.hidden()) == ["a"]
    assert names(merged.visible()) == ["b"]


def test_merge_leaves_hidden_sets_of_the_sources_alone() -> None:
    left, right = ToolRegistry([tool("a")]), ToolRegistry([tool("b")])
    left.hide("a")

    merged = ToolRegistry.merge([left, right])
    merged.clear_hidden()
    merged.hide("b")
    merged.unregister("a")

    assert names(left.hidden()) == ["a"]
    assert right.hidden() == []


def test_merged_tools_are_pruned_only_where_bound() -> None:
    acks = Acks()
    source = ToolRegistry([tool("a", ephemeral=True)])
    source.bind_context(acks)

    merged = ToolRegistry.merge([source])
    acks.ack()

    assert source.all() == []
    assert names(merged.all()) == ["a"]

    merged.prune_ephemeral()

    assert merged.all() == []


@pytest.mark.parametrize(
    ("value", "expected"), [(ToolRegistry(), True), ([], False), (None, False), (ToolRegistry, False)]
)
def test_is_tool_registry_knows_instances(value: object, expected: bool) -> None:
    assert ToolRegistry.is_tool_registry(value) is expected


def test_copies_of_a_large_registry_share_until_one_changes() -> None:
    original = ToolRegistry([tool("first"), tool("second")])
    copies = [original.copy() for _ in range(3)]

    copies[0].unregister("first")
    copies[1].register(tool("third"))
    original.register(tool("fourth"))
    copies[2].unregister("nothing")

    names = [[tool.name for tool in registry.all()] for registry in (original, *copies)]
    assert names == [["first", "second", "fourth"], ["second"], ["first", "second", "third"], ["first", "second"]]
