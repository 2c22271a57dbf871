"""One trace from the agent's client through the gateway to an upstream server: both ends use the reference SDK."""

import asyncio
from pathlib import Path

import pytest

from gateway.telemetry import names
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import start_gateway
from tests.support.servers.otel_agent import SDK, call_with_trace, reference, written
from tests.support.servers.otlp_collector import Collector, Span, sending_to, start_collector

pytestmark = pytest.mark.anyio


DISPATCH = ((names.SCOPE, "INTERNAL", "iteration"), (names.SCOPE, "INTERNAL", "dispatch"))


@pytest.mark.parametrize(("mode", "era"), [("2026-07-28", "modern"), ("legacy", "legacy")], ids=["modern", "legacy"])
async def test_one_trace_reaches_from_the_client_to_the_upstream_server(mode: str, era: str, tmp_path: Path) -> None:
    async with start_collector() as collector, reference(collector.url, era) as (url, traces):
        folder = written(tmp_path / "p", url)
        with start_gateway_process(folder, tmp_path / "data", env=sending_to(collector)) as gateway:
            await call_with_trace(collector.url, gateway.mcp("/shop"), mode)
            for name in ("echo", "fail", "missing"):
                await collector.named(f"execute_tool {name}")
            assert await asyncio.to_thread(gateway.stop) == 0

    [agent] = collector.of("agent")
    by_address = {each.address: each for each in collector.spans}
    hops = []
    for name in ("echo", "fail", "missing"):
        [answering] = _find_spans(collector, f"tools/call {name}", SDK, "SERVER")
        path = [answering]
        while path[-1].parent:
            path.append(by_address[path[-1].trace, path[-1].parent])
        assert [(each.scope, each.kind, each.name) for each in path] == [
            (SDK, "SERVER", f"tools/call {name}"),
            (names.SCOPE, "CLIENT", f"tools/call {name}"),
            (names.SCOPE, "INTERNAL", f"execute_tool {name}"),
            *(DISPATCH if era == "legacy" and name != "echo" else ()),  # a session is one turn
            (names.SCOPE, "SERVER", f"tools/call {name}"),
            (SDK, "CLIENT", f"MCP send tools/call {name}"),
            ("agent", "INTERNAL", "agent"),
        ]
        assert {each.trace for each in path} == {agent.trace}
        hops.append(path[1])
    assert all(each[names.REQUEST_ID] for each in hops)
    assert {each[names.MCP_VERSION] for each in hops} == {"2026-07-28" if era == "modern" else "2025-11-25"}
    assert {f"00-{each.trace}-{each.id}-01" for each in hops} <= set(traces)
    assert [each[names.ERROR_TYPE] for each in hops] == [None, "tool_error", "tool_error"]
    assert [each.is_error for each in hops] == [False, True, True]
    assert hops[0][names.UPSTREAM] == "remote"
    assert (hops[0][names.SERVER_ADDRESS], hops[0][names.SERVER_PORT]) == ("127.0.0.1", int(url.split(":")[2][:-4]))
    assert hops[0][names.NETWORK_TRANSPORT] == "tcp"


async def test_what_the_gateway_asks_by_itself_is_below_the_root_of_its_round(tmp_path: Path) -> None:
    async with start_collector() as collector, reference(collector.url, "modern") as (url, traces):
        folder = written(tmp_path / "p", url)
        async with start_gateway(folder, tmp_path / "data", environ=sending_to(collector)):
            await collector.until(lambda known: {"tools/list", "server/discover"} <= _list_asked(known))

    ours = [each for each in collector.spans if each.scope == names.SCOPE]
    rounds = {each.address: each for each in ours if each.name == names.REFRESH}
    requests = [each for each in ours if each.name != names.REFRESH]
    assert {(each.parent, each.kind, each[names.UPSTREAM]) for each in rounds.values()} == {("", "INTERNAL", "remote")}
    assert len({each.trace for each in rounds.values()}) == len(rounds) >= 2
    assert {each.kind for each in requests} == {"CLIENT"}
    assert {(each.trace, each.parent) for each in requests} == set(rounds)
    asked = [each for each in requests if each[names.ERROR_TYPE] is None]  # the end of the gateway cancels others
    for each in asked:
        assert (each[names.MCP_METHOD], each[names.UPSTREAM], each[names.MCP_VERSION]) == (
            *(each.name, "remote"),
            "2026-07-28",
        )
        assert each[names.REQUEST_ID]
        around = rounds[each.trace, each.parent]
        assert around.times[0] <= each.times[0] <= each.times[1] <= around.times[1]
    answered = {each.parent for each in collector.spans if each.scope == SDK}
    assert {each.id for each in asked if each.name == "tools/list"} <= answered
    assert {f"00-{each.trace}-{each.id}-01" for each in asked} <= set(traces)


def _list_asked(collector: Collector) -> set[str]:
    ours = [each for each in collector.spans if (each.scope, each.kind) == (names.SCOPE, "CLIENT")]
    ended = {each.address for each in collector.of(names.REFRESH)}
    return {each.name for each in ours if each[names.ERROR_TYPE] is None and (each.trace, each.parent) in ended}


def _find_spans(collector: Collector, name: str, scope: str, kind: str) -> list[Span]:
    return [each for each in collector.of(name) if (each.scope, each.kind) == (scope, kind)]
