"""Tools that are not what somebody looked at: not called, not listed, served again once they are what they were."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from serving_gateway import ANA, Plan, running, trust

from gateway.governance.diagnostics import Position
from gateway.serving.withholding import DefinitionChanged, DefinitionTurned, NotCompared, Vigil
from gateway.snapshot import DeclaredTool

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
    vigil = Vigil()

    turned = vigil.see("wiki", [tool(pinned=pinned)], found)

    withheld = vigil.withheld("wiki", "find")
    assert (None if withheld is None else withheld.why) == why
    assert [each.withheld for each in turned] == ([] if withheld is None else [withheld])
    assert vigil.changes["wiki"] == len(turned)


async def test_flipping_is_on_record_each_time_and_nothing_is_served() -> None:
    heard: list[tuple[str, bool, str | None]] = []
    vigil = Vigil(
        lambda turned: heard.extend((w.why, each.lifted, w.digest) for each in turned for w in [each.withheld])
    )

    for found in (SAME, OTHER, OTHER, "c" * 64, SAME, SAME, OTHER):
        vigil.see("wiki", [tool()], {"find": found})

    assert heard == [
        ("changed", False, OTHER),
        ("changed", False, "c" * 64),
        ("changed-back", False, SAME),
        ("changed", False, OTHER),
    ]
    assert vigil.changes == {"wiki": 4}
    assert [each.as_data()["why"] for each in vigil.all()] == ["changed"]


@pytest.mark.parametrize(
    ("pinned", "confirmed", "is_served"),
    [(SAME, None, False), (SAME, "2026-11-17T09:00:00Z", True), ("c" * 64, None, True)],
    ids=["the same lock", "confirmed", "another definition"],
)
async def test_what_flipped_is_served_again_with_a_new_lock_only(
    pinned: str, confirmed: str | None, is_served: bool
) -> None:
    before = Vigil()
    for found in (SAME, OTHER, SAME):
        before.see("wiki", [tool()], {"find": found})

    for kept in ([], ["wiki"]):  # whether its connection stays or not
        vigil = before.heir(kept)
        vigil.begin("wiki", [tool(pinned=pinned)], confirmed=confirmed)
        assert kept or is_served == (vigil.withheld("wiki", "find") is None)
        vigil.see("wiki", [tool(pinned=pinned)], {"find": pinned})
        assert is_served == (vigil.withheld("wiki", "find") is None)


async def test_server_that_becomes_what_is_locked_is_served() -> None:
    vigil = Vigil()

    vigil.see("wiki", [tool()], {"find": OTHER})
    [turned] = vigil.see("wiki", [tool()], {"find": SAME})

    assert turned.lifted
    assert vigil.all() == []


async def test_tool_that_was_gone_for_a_while_is_served_again() -> None:
    vigil = Vigil()

    vigil.see("wiki", [tool()], {})
    [turned] = vigil.see("wiki", [tool()], {"find": SAME})

    assert turned.lifted
    assert vigil.all() == []


async def test_two_names_for_one_tool_are_one_change() -> None:
    vigil = Vigil()

    turned = vigil.see("wiki", [tool(), tool()], {"find": OTHER})

    assert len(turned) == 1


async def test_first_comparison_is_waited_for() -> None:
    vigil = Vigil()
    vigil.expect("wiki")
    assert not vigil.is_seen("wiki")

    waiting = asyncio.create_task(vigil.compared("wiki"))
    await asyncio.sleep(0)
    assert not waiting.done()
    vigil.see("wiki", [tool()], {"find": SAME})

    await waiting
    assert vigil.is_seen("wiki")
    assert vigil.is_seen("unheard of")
    await vigil.compared("unheard of")


async def test_server_that_never_answers_is_a_refusal() -> None:
    vigil = Vigil()
    vigil.expect("wiki")

    with pytest.raises(NotCompared):
        await vigil.compared("wiki", within=0)


async def called(folder: Path, vigil: Vigil) -> tuple[list[str], Any, bool]:
    plan = Plan(vigil=vigil).tool("pay", "paid", upstream="wiki", remote_name="find", pinned_digest=SAME)
    async with running(folder, plan.tool("see", "seen")) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        listed = [each.name for each in gateway.service.listed(ANA, "desk") if each.declared is not None]
        settled = await gateway.service.call(turn, "pay", {})
    return listed, settled.record, settled.record.is_error


async def test_withheld_tool_is_neither_listed_nor_called(tmp_path: Path) -> None:
    vigil = Vigil()
    vigil.see("wiki", [tool()], {"find": OTHER})

    listed, record, is_error = await called(tmp_path, vigil)

    assert listed == ["see"]
    assert is_error
    assert "withheld: its definition is no longer the one that was looked at" in str(record.results)


async def test_tool_that_is_what_it_was_is_listed_and_called(tmp_path: Path) -> None:
    vigil = Vigil()
    vigil.see("wiki", [tool()], {})
    vigil.see("wiki", [tool()], {"find": SAME})

    listed, _, is_error = await called(tmp_path, vigil)

    assert listed == ["pay", "see"]
    assert not is_error


def test_words_of_a_refusal_do_not_name_the_server() -> None:
    vigil = Vigil()
    [turned] = vigil.see("wiki", [tool()], {})

    error = DefinitionChanged(turned.withheld)

    assert error.code == "E_DEFINITION_CHANGED"
    assert error.message == "the tool is withheld: its server does not have it any more"
    assert isinstance(turned, DefinitionTurned)


@pytest.mark.parametrize(("found", "is_refused"), [(SAME, False), (OTHER, True)])
async def test_first_call_waits_for_the_comparison(found: str, is_refused: bool, tmp_path: Path) -> None:
    vigil = Vigil()
    vigil.expect("wiki")
    calling = asyncio.create_task(called(tmp_path, vigil))
    async with asyncio.timeout(5):
        while not vigil._seen["wiki"]._waiters:  # the call has come that far
            await asyncio.sleep(0)
    vigil.see("wiki", [tool()], {"find": found})

    _, _, is_error = await calling

    assert is_error == is_refused


async def test_what_nobody_locked_is_withheld_from_the_start() -> None:
    vigil = Vigil()

    vigil.begin("wiki", [tool(), tool("open", pinned=None)])
    turned = vigil.see("wiki", [tool(), tool("open", pinned=None)], {"find": SAME, "open": OTHER})

    assert [(each.tool, each.why, each.digest) for each in vigil.all()] == [("open", "not-locked", OTHER)]
    assert turned == []
