"""One tree from the agent's client through the gateway to an upstream server: both ends on the reference SDK."""

import asyncio
from pathlib import Path

import pytest
from collecting import Collector, Span, collecting, sending_to
from served import served
from traced_agents import SDK, called, reference, written

from gateway.telemetry import names

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("mode", "era"), [("2026-07-28", "modern"), ("legacy", "legacy")], ids=["modern", "legacy"])
async def test_one_trace_reaches_from_the_client_to_the_upstream_server(mode: str, era: str, tmp_path: Path) -> None:
    async with collecting() as collector, reference(collector.url, era) as (url, traces):
        folder = written(tmp_path / "p", url)
        with served(folder, tmp_path / "data", env=sending_to(collector)) as gateway:
            await called(collector.url, gateway.mcp("/shop"), mode)
            for name in ("echo", "fail", "missing"):
                await collector.named(f"execute_tool {name}")
            assert await asyncio.to_thread(gateway.stop) == 0

    [agent] = collector.of("agent")
    by_address = {each.address: each for each in collector.spans}
    hops = []
    for name in ("echo", "fail", "missing"):
        [answering] = _of(collector, f"tools/call {name}", SDK, "SERVER")
        path = [answering]
        while path[-1].parent:
            path.append(by_address[path[-1].trace, path[-1].parent])
        assert [(each.scope, each.kind, each.name) for each in path] == [
            (SDK, "SERVER", f"tools/call {name}"),
            (names.SCOPE, "CLIENT", f"tools/call {name}"),
            (names.SCOPE, "INTERNAL", f"execute_tool {name}"),
            (names.SCOPE, "SERVER", f"tools/call {name}"),
            (SDK, "CLIENT", f"MCP send tools/call {name}"),
            ("agent", "INTERNAL", "agent"),
        ]
        assert {each.trace for each in path} == {agent.trace}
        hops.append(path[1])
    assert {f"00-{each.trace}-{each.id}-01" for each in hops} <= set(traces)
    assert [each[names.ERROR_TYPE] for each in hops] == [None, "tool_error", "tool_error"]
    assert [each.is_error for each in hops] == [False, True, True]
    assert hops[0][names.UPSTREAM] == "remote"
    assert (hops[0][names.SERVER_ADDRESS], hops[0][names.SERVER_PORT]) == ("127.0.0.1", int(url.split(":")[2][:-4]))
    assert hops[0][names.NETWORK_TRANSPORT] == "tcp"


def _of(collector: Collector, name: str, scope: str, kind: str) -> list[Span]:
    return [each for each in collector.of(name) if (each.scope, each.kind) == (scope, kind)]
