"""A gateway without free file descriptors reports it, and accepts connections again as soon as there are some."""

import asyncio
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.servers.orders_service import PROJECT, connect_orders_client, orders_service

pytestmark = pytest.mark.anyio

WITHIN = 60.0
CAUSE = "no file descriptors are left: raise the limit of the process (ulimit -n) or serve fewer clients"


@contextmanager
def descriptors(gateway: GatewayProcess, spare: int) -> Iterator[None]:
    """Allow the gateway this many more descriptors."""
    pid = gateway.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="limits of other processes need Linux")
async def test_readiness_names_descriptors_and_the_gateway_recovers(tmp_path: Path) -> None:
    async with orders_service() as orders:
        with start_gateway_process(PROJECT, tmp_path, env={"ORDERS_URL": orders.url}) as gateway:
            host, port = gateway.url.removeprefix("http://").split(":")
            async with asyncio.timeout(WITHIN), aiohttp.ClientSession() as kept:
                assert await _readiness(kept, gateway) == (200, [])
                taken: list[asyncio.StreamWriter] = []
                with descriptors(gateway, spare=6):
                    status = 200
                    reasons: list[str] = []
                    while status == 200:
                        taken += [(await asyncio.open_connection(host, int(port)))[1] for _ in range(4)]
                        await asyncio.sleep(0.1)
                        status, reasons = await _readiness(kept, gateway)
                    await asyncio.sleep(1.5)  # longer than the interval of the check, which is a second
                    later = await _readiness(kept, gateway)
                    async with kept.get(f"{gateway.url}/livez") as alive:
                        assert alive.status == 200
                    for each in taken:
                        each.close()
                    while (await _readiness(kept, gateway))[0] != 200:
                        await asyncio.sleep(0.1)
                async with connect_orders_client(gateway.url) as shop:
                    answered = await shop.rest("order_place", {"order": "after"})
            gateway.stop()
            assert gateway.process.stdout is not None
            output = gateway.process.stdout.read()

    assert (status, reasons) == (503, [CAUSE])
    assert later == (503, [CAUSE])
    assert "Traceback" not in output, output
    assert answered.status == 200, answered


async def _readiness(session: aiohttp.ClientSession, gateway: GatewayProcess) -> tuple[int, list[str]]:
    async with session.get(f"{gateway.url}/readyz") as answer:
        return answer.status, json.loads(await answer.read()).get("reasons", [])
