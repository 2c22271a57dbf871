"""More requests than the gateway has room for: some wait, others are refused at once, and everything else works."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.identity.credentials import new_api_token
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.reload_project import project_in
from tests.support.servers.orders_service import PROJECT, OrdersClient, connect_orders_client, orders_service

pytestmark = pytest.mark.anyio

ROOM = {"GATEWAY_MAX_REQUESTS": "2", "GATEWAY_MAX_QUEUE": "2", "GATEWAY_MAX_WAIT": "60"}


async def requests_of(gateway: GatewayFork) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/status") as answer:
        return (await answer.json())["requests"]


async def wait_until_waiting(gateway: GatewayFork, count: int) -> None:
    async with asyncio.timeout(30):
        while (await requests_of(gateway))["waiting"] != count:
            await asyncio.sleep(0.02)


async def raw(gateway: GatewayFork, session: aiohttp.ClientSession) -> tuple[int, str | None, Any]:
    path = f"{gateway.url}/v1/catalogues/shop/tools/order_place/call"
    async with session.post(path, json={"arguments": {"order": "x"}}) as answer:
        return answer.status, answer.headers.get("retry-after"), await answer.json(content_type=None)


async def test_places_fill_then_the_line_then_callers_are_refused(tmp_path: Path, forks: ForkServer) -> None:
    async with orders_service() as orders, aiohttp.ClientSession() as session:
        env = {"ORDERS_URL": orders.url, **ROOM}
        gateway = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env=env)
        async with connect_orders_client(gateway.url) as shop:
            held = [asyncio.create_task(shop.rest("order_ship", {"order": each})) for each in ("a", "b")]
            for each in ("a", "b"):
                await orders.arrived(each)
            waiting = [asyncio.create_task(shop.rest("order_place", {"order": each})) for each in ("c", "d")]
            await wait_until_waiting(gateway, 2)
            refused = [await raw(gateway, session) for _ in range(3)]
            async with session.get(f"{gateway.url}/readyz") as answer:
                health = answer.status
            full = await requests_of(gateway)
            for each in ("a", "b"):
                orders.release(each)
            answers = [await each for each in (*held, *waiting)]
            after = await raw(gateway, session)
            counted = await refusals(gateway, session)
        await asyncio.to_thread(gateway.stop)

    assert [status for status, _, _ in refused] == [503, 503, 503]
    assert sorted(str(after) for _, after, _ in refused) == ["1", "2", "3"]
    assert refused[0][2]["code"] == "E_OVERLOADED"
    assert health == 200
    assert full == {"active": 2, "places": 2, "waiting": 2, "refused": 3}
    assert [each.status for each in answers] == [200, 200, 200, 200]
    assert after[0] == 200
    assert counted == 3
    assert orders.executions == {"a": 1, "b": 1, "c": 1, "d": 1, "x": 1}


async def test_streams_keep_no_place_and_a_stop_turns_those_away_who_wait(tmp_path: Path, forks: ForkServer) -> None:
    async with orders_service() as orders, aiohttp.ClientSession() as session:
        env = {"ORDERS_URL": orders.url, **ROOM, "GATEWAY_GRACE": "30"}
        gateway = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env=env)
        async with connect_orders_client(gateway.url) as shop:
            turns = [await open_turn(shop) for _ in range(3)]
            paths = [f"{gateway.url}/v1/turns/{each}/events" for each in turns]
            streams = [await session.get(each) for each in paths]
            listening = await requests_of(gateway)
            held = [asyncio.create_task(shop.rest("order_ship", {"order": each})) for each in ("a", "b")]
            for each in ("a", "b"):
                await orders.arrived(each)
            waiting = asyncio.create_task(shop.rest("order_place", {"order": "c"}))
            await wait_until_waiting(gateway, 1)
            gateway.signal(15)
            turned_away = await waiting
            for each in ("a", "b"):
                orders.release(each)
            answers = [await each for each in held]
            for stream in streams:
                stream.close()
        code = await asyncio.to_thread(gateway.ended)

    assert [each.status for each in streams] == [200, 200, 200]
    assert listening["active"] == 0
    assert (turned_away.status, turned_away.body["code"]) == (503, "E_STOPPING")
    assert [each.status for each in answers] == [200, 200]
    assert "c" not in orders.executions
    assert code == 0


async def test_noisy_caller_costs_others_no_place_in_the_line(tmp_path: Path, forks: ForkServer) -> None:
    tokens = {name: new_api_token() for name in ("loud", "quiet")}
    env = {f"{name.upper()}_SHA256": digest for name, (_, digest) in tokens.items()}
    project = project_in(tmp_path)
    documents = project / "configs" / "gateway.yaml"
    text = documents.read_text(encoding="utf-8").replace("identity: [local]", "identity: [local, listed]")
    documents.write_text(text + TOKENS, encoding="utf-8")
    async with orders_service() as orders:
        env |= {
            "ORDERS_URL": orders.url,
            "GATEWAY_MAX_REQUESTS": "2",
            "GATEWAY_MAX_QUEUE": "4",
            "GATEWAY_MAX_WAIT": "60",
        }
        gateway = await asyncio.to_thread(forks.start, project, tmp_path, env=env)
        async with AsyncExitStack() as clients:
            loud, quiet = [
                await clients.enter_async_context(
                    aiohttp.ClientSession(headers={"authorization": f"Bearer {tokens[name][0]}"})
                )
                for name in ("loud", "quiet")
            ]
            held = [asyncio.create_task(status_of_call(gateway, loud, "order_ship", each)) for each in ("a", "b")]
            for each in ("a", "b"):
                await orders.arrived(each)
            noise = [asyncio.create_task(status_of_call(gateway, loud, "order_place", f"n{i}")) for i in range(4)]
            await wait_until_waiting(gateway, 4)
            voices = [asyncio.create_task(status_of_call(gateway, quiet, "order_place", f"q{i}")) for i in range(2)]
            async with asyncio.timeout(30):
                while (await requests_of(gateway))["refused"] < 2:
                    await asyncio.sleep(0.02)
            for each in ("a", "b"):
                orders.release(each)
            loud_answers = [await each for each in noise]
            answers = [await each for each in (*held, *voices)]
        await asyncio.to_thread(gateway.stop)

    assert sorted(loud_answers) == [200, 200, 503, 503]
    assert answers == [200] * 4


async def status_of_call(gateway: GatewayFork, session: aiohttp.ClientSession, tool: str, order: str) -> int:
    path = f"{gateway.url}/v1/catalogues/shop/tools/{tool}/call"
    async with session.post(path, json={"arguments": {"order": order}}) as answer:
        return answer.status


TOKENS = """
---
apiVersion: gateway/v1
kind: IdentityProvider
metadata: {name: listed, owner: team-platform}
spec:
  type: token
  tokens:
    - {subject: "agent:loud", roles: [role:clerk], sha256: {fromEnv: LOUD_SHA256}, expires: "2100-01-01"}
    - {subject: "agent:quiet", roles: [role:clerk], sha256: {fromEnv: QUIET_SHA256}, expires: "2100-01-01"}
"""


async def open_turn(shop: OrdersClient) -> str:
    return str((await shop.post("/v1/turns", {"catalogue": "shop"}))["id"])


async def refusals(gateway: GatewayFork, session: aiohttp.ClientSession) -> float:
    async with session.get(f"{gateway.admin_url}/metrics") as answer:
        text = await answer.text()
    name = 'gateway_requests_refused_total{http_response_status_code="503"} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))
