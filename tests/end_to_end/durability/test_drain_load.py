"""Shutdown under load: every call that began is answered, recorded, and reported in telemetry."""

import asyncio
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.reload_project import project_in
from tests.support.servers.orders_service import connect_orders_client, orders_service
from tests.support.stored_calls import read_all_calls

pytestmark = pytest.mark.anyio

CALLERS = 12
ENOUGH = 40
TELEMETRY = """
---
apiVersion: gateway/v1
kind: Telemetry
metadata: {name: observed, owner: team-platform}
spec: {traces: {exporter: {type: file, path: spans.jsonl}}}
"""


def observed_project(folder: Path) -> Path:
    project = project_in(folder)
    documents = project / "configs" / "gateway.yaml"
    text = documents.read_text(encoding="utf-8")
    documents.write_text(text.replace("  storage: main\n", "  storage: main\n  telemetry: observed\n", 1) + TELEMETRY)
    return project


async def test_stop_under_load_fails_no_call_that_was_begun(tmp_path: Path, forks: ForkServer) -> None:
    async with orders_service(slowness=0.05) as orders:
        project = observed_project(tmp_path)
        env = {"ORDERS_URL": orders.url}
        gateway = await asyncio.to_thread(forks.start, project, tmp_path, env=env)
        settled: list[str] = []
        refused: list[Any] = []
        other: list[Any] = []
        enough = asyncio.Event()

        async def call(caller: int) -> None:
            async with connect_orders_client(gateway.url) as shop:
                for number in range(1_000):
                    try:
                        answer = await shop.rest("order_place", {"order": f"{caller}-{number}"})
                    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                        return  # the listener is closed, or the connection closed before anything was read from it
                    if answer.is_settled:
                        settled.append(f"{caller}-{number}")
                    elif answer.status == 503 and answer.body["code"] == "E_STOPPING":
                        refused.append(answer)
                        return
                    else:
                        other.append(answer)
                        return
                    if len(settled) >= ENOUGH:
                        enough.set()

        callers = [asyncio.create_task(call(each)) for each in range(CALLERS)]
        await asyncio.wait_for(enough.wait(), 60)
        gateway.signal(signal.SIGTERM)
        await asyncio.gather(*callers)
        code = await asyncio.to_thread(gateway.ended)

    with closing(sqlite3.connect(f"file:{tmp_path}/data/gateway.db?mode=ro", uri=True)) as database:
        rows = database.execute(read_all_calls("status, is_error")).fetchall()
    spans = (tmp_path / "spans.jsonl").read_text(encoding="utf-8").count('"execute_tool order_place"')
    assert other == []
    assert code == 0
    assert set(orders.executions) == set(settled)
    assert max(orders.executions.values()) == 1
    assert rows == [("settled", 0)] * len(settled)
    assert spans >= len(settled)
