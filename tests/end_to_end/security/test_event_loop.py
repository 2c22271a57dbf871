"""Hostile results over REST and MCP: the gateway answers others while it searches for imitated tags."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))
CHARACTERS = 1_000_000
HOSTILE = ["&l\u200bt;", "＆lt;", "<&#117;&#110;&#116;"]


class Ticker:
    """Measures how long the event loop is blocked."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def tick(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now


@asynccontextmanager
async def measure_loop() -> AsyncIterator[Ticker]:
    ticker = Ticker()
    task = asyncio.create_task(ticker.tick())
    try:
        yield ticker
    finally:
        task.cancel()


@pytest.mark.parametrize("piece", HOSTILE)
async def test_event_loop_turns_while_hostile_results_are_rendered(tmp_path: Path, piece: str) -> None:
    backend = {"type": "python", "entrypoint": "tests.support.tools.repeat_tools:repeat", "run": "loop"}
    documents = [
        *base_documents(["tokens"]),
        tokens_of([ANA]),
        http_tool("fetch", 1, tier="community", backend=backend),
    ]
    documents.append(catalogue("desk", ["role:staff"], ["*"]))
    write_project(tmp_path / "p", documents, policy="p, role:staff, *, tool:*, invoke, community, allow\n")
    text = piece * (CHARACTERS // len(piece))
    async with start_gateway(
        tmp_path / "p", tmp_path / "data", people=[ANA], python_packages=("tests.support.tools.repeat_tools",)
    ) as gateway:
        caller = gateway.caller(ANA)
        await caller.rest_call("desk", "fetch", {"text": "warm up"})
        async with measure_loop() as ticker:
            rest = await caller.rest_call("desk", "fetch", {"text": piece})
            mcp = await caller.modern_call("desk", "fetch", {"text": piece})

    assert f"\n{text}\n</untrusted_content_" in rest.json["rendered"]
    assert f"\n{text}\n</untrusted_content_" in mcp.json["result"]["content"][0]["text"]
    assert ticker.longest < 1, "seconds without a turn of the event loop"
