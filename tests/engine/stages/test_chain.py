"""Chains: each stage wraps the following ones, and a backend is at the end."""

from typing import Any

import pytest

from gateway.engine.stages.factory import chain_stages
from gateway.model.tools.backend import CallPipeline, CallStage, Invocation
from tests.engine.stages.sample_calls import Backend, a_call

pytestmark = pytest.mark.anyio


def noting(word: str, seen: list[str]) -> CallStage:
    async def stage(call: Invocation, run: CallPipeline) -> Any:
        seen.append(f"{word} in")
        result = await run(call)
        seen.append(f"{word} out")
        return result

    return stage


async def test_first_stage_is_the_outermost() -> None:
    seen: list[str] = []

    result = await chain_stages([noting("a", seen), noting("b", seen)], Backend("done"))(a_call())

    assert result == "done"
    assert seen == ["a in", "b in", "b out", "a out"]


async def test_chain_without_stages_is_the_backend() -> None:
    backend = Backend("done")
    call = a_call()

    assert await chain_stages([], backend)(call) == "done"
    assert backend.calls == [call]
