"""The status on the admin listener: only for callers who may administer the gateway."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer
from tests.support.paths import ROOT
from tests.support.servers.orders_service import PROJECT, connect_orders_client, orders_service

pytestmark = pytest.mark.anyio


async def ask(url: str, method: str = "GET") -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        is_json = "json" in answer.headers["content-type"]
        return answer.status, await answer.json(content_type=None) if is_json else await answer.text()


async def test_operator_sees_what_runs_and_how_much_is_kept(tmp_path: Path, forks: ForkServer) -> None:
    async with orders_service() as orders:
        gateway = forks.start(PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        async with connect_orders_client(gateway.url) as shop:
            assert (await shop.rest("order_read", {"order": "a"})).status == 200
        status, body = await ask(f"{gateway.admin_url}/status")
        wrong, _ = await ask(f"{gateway.admin_url}/status", "POST")
        gateway.stop()

    assert status == 200
    assert body["name"] == "orders"
    assert len(body["revision"]) == 64
    assert body["catalogues"] == [{"name": "shop", "path": "/shop", "tools": 9}]
    assert body["runningCalls"] == 0
    assert body["storage"]["databaseBytes"] > 0
    assert body["storage"]["spoolBytes"] > 100_000
    assert body["circuits"] == {}
    about_the_log = [warning for warning in body["warnings"] if "audit" in warning]
    assert len(about_the_log) == 2  # it has no key and no anchors
    assert all("may read every file" in each for each in body["warnings"] if each not in about_the_log)
    assert (body["stopped"]["quarantines"], body["anchors"]) == ([], [])
    assert wrong == 405


async def test_caller_without_a_row_about_config_is_refused(tmp_path: Path, forks: ForkServer) -> None:
    gateway = forks.start(ROOT / "tests" / "projects" / "small", tmp_path, env={})
    status, body = await ask(f"{gateway.admin_url}/status")
    elsewhere, _ = await ask(f"{gateway.url}/status")
    gateway.stop()

    assert status == 403
    assert body["code"] == "E_NOT_PERMITTED"
    assert "revision" not in body
    assert elsewhere == 404


async def test_admin_plane_answers_to_the_names_it_is_given_and_no_others(tmp_path: Path, forks: ForkServer) -> None:
    given = {"GATEWAY_ADMIN_ALLOWED_HOSTS": "10.1.2.3 gateway-admin"}
    gateway = forks.start(ROOT / "tests" / "projects" / "small", tmp_path, env=given)
    found = {}
    async with aiohttp.ClientSession() as session:
        for host in ("10.1.2.3:8081", "gateway-admin", "localhost", "evil.example.com", "10.1.2.3.example.com"):
            async with session.get(f"{gateway.admin_url}/livez", headers={"host": host}) as answer:
                found[host] = answer.status
        async with session.get(f"{gateway.url}/livez", headers={"host": "gateway-admin"}) as answer:
            found["data plane"] = answer.status
    gateway.stop()

    assert found == {
        "10.1.2.3:8081": 200,
        "gateway-admin": 200,
        "localhost": 200,
        "evil.example.com": 421,
        "10.1.2.3.example.com": 421,
        "data plane": 421,
    }
