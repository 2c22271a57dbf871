"""Tools that differ from the approved definition are not called and not listed, until they match it again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.engine.gates.definition_guard import (
    DefinitionChanged,
    DefinitionGuard,
    DefinitionNotCompared,
    DefinitionStatusChanged,
)
from gateway.registries.diagnostics import Position
from gateway.registries.snapshot import DeclaredTool
from tests.engine.service_gateway import ANA, Plan, running, trust

pytestmark = pytest.mark.anyio


def tool(name: str = "find", pinned: str | None = "a" * 64) -> DeclaredTool:
    at = Position("x", 1)
    return DeclaredTool(f"wiki.{name}", "", trust(), "mcp", at, upstream="wiki", remote_name=name, pinned_digest=pinned)


SAME, OTHER = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("pinned", "found", "why"),
    [
        (SAME, {"find": SAME}, None),
        (SAME, {"find": OTHER}, "changed"),
        (SAME, {}, "gone"),
        (SAME, {"other": SAME}, "gone"),
        (None, {"find": SAME}, "not-locked"),
        (None, {}, "gone"),
    ],
)
async def test_tool_is_withheld_unless_it_is_what_was_looked_at(pinned: Any, found: Any, why: str | None) -> None:
    definition_guard = DefinitionGuard()

    turned = definition_guard.compare("wiki", [tool(pinned=pinned)], found)

    withheld = definition_guard.find_blocked("wiki", "find")
    assert (None if withheld is None else withheld.why) == why
    assert [each.withheld for each in turned] == ([] if withheld is None else [withheld])
    assert definition_guard.changes["wiki"] == len(turned)


async def test_flipping_is_on_record_each_time_and_nothing_is_served() -> None:
    heard: list[tuple[str, bool, str | None]] = []
    definition_guard = DefinitionGuard(
        lambda turned: heard.extend((w.why, each.lifted, w.digest) for each in turned for w in [each.withheld])
    )

    for found in (SAME, OTHER, OTHER, "c" * 64, SAME, SAME, OTHER):
        definition_guard.compare("wiki", [tool()], {"find": found})

    assert heard == [
        ("changed", False, OTHER),
        ("changed", False, "c" * 64),
        ("changed-back", False, SAME),
        ("changed", False, OTHER),
    ]
    assert definition_guard.changes == {"wiki": 4}
    assert [each.to_dict()["why"] for each in definition_guard.list_blocked()] == ["changed"]


@pytest.mark.parametrize(
    ("pinned", "confirmed", "is_served"),
    [(SAME, None, False), (SAME, "2026-11-17T09:00:00Z", True), ("c" * 64, None, True)],
    ids=["the same lock", "confirmed", "another definition"],
)
async def test_what_flipped_is_served_again_with_a_new_lock_only(
    pinned: str, confirmed: str | None, is_served: bool
) -> None:
    before = DefinitionGuard()
    for found in (SAME, OTHER, SAME):
        before.compare("wiki", [tool()], {"find": found})

    for kept in ([], ["wiki"]):  # whether or not its connection stays
        definition_guard = before.inherit(kept)
        definition_guard.block_unlocked("wiki", [tool(pinned=pinned)], confirmed=confirmed)
        assert kept or is_served == (definition_guard.find_blocked("wiki", "find") is None)
        definition_guard.compare("wiki", [tool(pinned=pinned)], {"find": pinned})
        assert is_served == (definition_guard.find_blocked("wiki", "find") is None)


async def test_server_that_becomes_what_is_locked_is_served() -> None:
    definition_guard = DefinitionGuard()

    definition_guard.compare("wiki", [tool()], {"find": OTHER})
    [turned] = definition_guard.compare("wiki", [tool()], {"find": SAME})

    assert turned.lifted
    assert definition_guard.list_blocked() == []


async def test_tool_that_was_gone_for_a_while_is_served_again() -> None:
    definition_guard = DefinitionGuard()

    definition_guard.compare("wiki", [tool()], {})
    [turned] = definition_guard.compare("wiki", [tool()], {"find": SAME})

    assert turned.lifted
    assert definition_guard.list_blocked() == []


async def test_two_names_for_one_tool_are_one_change() -> None:
    definition_guard = DefinitionGuard()

    turned = definition_guard.compare("wiki", [tool(), tool()], {"find": OTHER})

    assert len(turned) == 1


async def test_first_comparison_is_waited_for() -> None:
    definition_guard = DefinitionGuard()
    definition_guard.expect("wiki")
    assert not definition_guard.is_compared("wiki")

    waiting = asyncio.create_task(definition_guard.wait_compared("wiki"))
    await asyncio.sleep(0)
    assert not waiting.done()
    definition_guard.compare("wiki", [tool()], {"find": SAME})

    await waiting
    assert definition_guard.is_compared("wiki")
    assert definition_guard.is_compared("unheard of")
    await definition_guard.wait_compared("unheard of")


async def test_server_that_never_answers_is_a_refusal() -> None:
    definition_guard = DefinitionGuard()
    definition_guard.expect("wiki")

    with pytest.raises(DefinitionNotCompared):
        await definition_guard.wait_compared("wiki", within=0)


async def call_tool(folder: Path, definition_guard: DefinitionGuard) -> tuple[list[str], Any, bool]:
    plan = Plan(definition_guard=definition_guard).tool(
        "pay", "paid", upstream="wiki", remote_name="find", pinned_digest=SAME
    )
    async with running(folder, plan.tool("see", "seen")) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        listed = [
            each.name for each in await gateway.service.list_tools(ANA, "desk").all() if each.declared is not None
        ]
        settled = await gateway.service.call_in_turn(turn, "pay", {})
    return listed, settled.record, settled.record.is_error


async def test_withheld_tool_is_neither_listed_nor_called(tmp_path: Path) -> None:
    definition_guard = DefinitionGuard()
    definition_guard.compare("wiki", [tool()], {"find": OTHER})

    listed, record, is_error = await call_tool(tmp_path, definition_guard)

    assert listed == ["see"]
    assert is_error
    assert "withheld: its definition differs from the approved one" in str(record.results)


async def test_tool_that_is_what_it_was_is_listed_and_called(tmp_path: Path) -> None:
    definition_guard = DefinitionGuard()
    definition_guard.compare("wiki", [tool()], {})
    definition_guard.compare("wiki", [tool()], {"find": SAME})

    listed, _, is_error = await call_tool(tmp_path, definition_guard)

    assert listed == ["pay", "see"]
    assert not is_error


def test_words_of_a_refusal_do_not_name_the_server() -> None:
    definition_guard = DefinitionGuard()
    [turned] = definition_guard.compare("wiki", [tool()], {})

    error = DefinitionChanged(turned.withheld)

    assert error.code == "E_DEFINITION_CHANGED"
    assert error.message == "the tool is withheld: its server no longer has it"
    assert isinstance(turned, DefinitionStatusChanged)


@pytest.mark.parametrize(("found", "is_refused"), [(SAME, False), (OTHER, True)])
async def test_first_call_waits_for_the_comparison(found: str, is_refused: bool, tmp_path: Path) -> None:
    definition_guard = DefinitionGuard()
    definition_guard.expect("wiki")
    calling = asyncio.create_task(call_tool(tmp_path, definition_guard))
    async with asyncio.timeout(5):
        while not definition_guard._seen["wiki"]._waiters:  # the call has reached this point
            await asyncio.sleep(0)
    definition_guard.compare("wiki", [tool()], {"find": found})

    _, _, is_error = await calling

    assert is_error == is_refused


async def test_tool_without_a_lock_is_blocked_from_the_start() -> None:
    definition_guard = DefinitionGuard()

    definition_guard.block_unlocked("wiki", [tool(), tool("open", pinned=None)])
    turned = definition_guard.compare("wiki", [tool(), tool("open", pinned=None)], {"find": SAME, "open": OTHER})

    assert [(each.tool, each.why, each.digest) for each in definition_guard.list_blocked()] == [
        ("open", "not-locked", OTHER)
    ]
    assert turned == []
