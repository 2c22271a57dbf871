"""Calls create no reference cycles: finding them would cost every call a garbage collection."""

import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.engine.turns.turn import Turn
from gateway.errors import UnknownTool
from gateway.model.tools.backend import Invocation
from gateway.telemetry.settings import SamplingSettings, TelemetrySettings
from tests.engine.service_gateway import ANA, Gateway, Plan, running, trust
from tests.support.finished_spans import observe

pytestmark = pytest.mark.anyio

CALLS = 20
MANY_CALLS = 200


@pytest.mark.parametrize("is_observed", [False, True])
async def test_call_leaves_no_cycles(tmp_path: Path, is_observed: bool) -> None:
    observer, kept = observe(TelemetrySettings({}, sampling=SamplingSettings(ratio=1.0)))
    async with running(tmp_path, Plan().tool("echo", "x"), observer=observer if is_observed else None) as gateway:
        await gateway.service.call_tool(ANA, "desk", "echo", {})
        gc.collect()
        gc.disable()
        try:
            for _ in range(CALLS):
                await gateway.service.call_tool(ANA, "desk", "echo", {})
            assert gc.collect() < CALLS
        finally:
            gc.enable()
    assert bool(kept.get_finished_spans()) is is_observed


async def call_in_a_turn(gateway: Gateway, turn: Turn) -> None:
    await gateway.service.call_in_turn(turn, "echo", {})


async def call_with_effects(gateway: Gateway, turn: Turn) -> None:
    await gateway.service.call_tool(ANA, "desk", "write", {})


async def call_refused(gateway: Gateway, turn: Turn) -> None:
    await gateway.service.call_tool(ANA, "desk", "forbidden", {})


async def call_failing(gateway: Gateway, turn: Turn) -> None:
    await gateway.service.call_tool(ANA, "desk", "fail", {})


async def query(gateway: Gateway, turn: Turn) -> None:
    await gateway.service.call_in_turn(turn, "artifact_head", {"callId": "first"})


async def call_unknown(gateway: Gateway, turn: Turn) -> None:
    with suppress(UnknownTool):
        await gateway.service.call_tool(ANA, "desk", "missing", {})


async def raise_an_error(call: Invocation) -> str:
    raise ValueError("no")


@pytest.mark.parametrize("call", [call_in_a_turn, call_with_effects, call_refused, call_failing, query, call_unknown])
async def test_no_kind_of_call_leaves_cycles(tmp_path: Path, call: Callable[[Gateway, Turn], Awaitable[None]]) -> None:
    plan = Plan().tool("echo", "x").tool("write", "x", trust=trust("writes")).tool("forbidden", "x")
    plan.tool("fail", raise_an_error)
    async with running(tmp_path, plan) as gateway:
        gateway.grants.rows["forbidden", "invoke"] = False
        gateway.grants.rows["forbidden", "discover"] = True
        turn = await gateway.service.turns.open(ANA, "desk")
        await gateway.service.call_in_turn(turn, "echo", {}, id="first")
        for _ in range(3):
            await call(gateway, turn)
        gc.collect()
        gc.disable()
        try:
            for _ in range(MANY_CALLS):
                await call(gateway, turn)
            assert gc.collect() < CALLS
        finally:
            gc.enable()
