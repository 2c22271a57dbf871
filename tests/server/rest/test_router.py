"""The REST router: which paths belong to it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.server.http.asgi import AsgiApp, json_response
from gateway.server.http.middleware import EdgeRules
from gateway.server.http.router import build_data_app, build_data_router
from gateway.server.rest.operation_table import OPEN_PATHS
from gateway.server.rest.router import build_routes
from tests.server.rest.gateway import Gateway, authenticate, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


def behind_the_front(gateway: Gateway) -> httpx2.AsyncClient:
    def mcp(catalogue: str) -> AsgiApp:
        return json_response({"mcp": catalogue})

    paths = build_data_app(
        gateway.service,
        ready=lambda: {"ready": True},
        metadata=lambda path: None,
        mcp=mcp,
        rest=build_routes(gateway.service),
    )
    rules = EdgeRules(hosts=frozenset({"localhost"}), open_paths=OPEN_PATHS)
    app: Any = build_data_router(paths, authenticate, rules=rules)
    headers = {"authorization": "Bearer ann"}
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost", headers=headers)


async def test_call_of_that_name_is_not_taken_for_an_endpoint_of_mcp(gateway: Gateway) -> None:
    async with behind_the_front(gateway) as client:
        turn = (await client.post("/v1/turns", json={"catalogue": "desk"})).json()["id"]
        await client.post(f"/v1/turns/{turn}/calls", json={"tool": "handle", "id": "mcp"})
        record = await client.get(f"/v1/turns/{turn}/calls/mcp")
        tool = await client.get("/v1/catalogues/desk/tools/mcp")
        endpoint = await client.get("/c/desk/mcp")

    assert record.json()["callId"] == "mcp"
    assert tool.json()["code"] == "E_UNKNOWN_TOOL"
    assert endpoint.json() == {"mcp": "desk"}


@pytest.mark.parametrize("path", ["/", "/v2/calls", "/V1/calls", "/v1calls", "/.well-known/oauth-authorization-server"])
async def test_unknown_paths_are_not_found(gateway: Gateway, path: str) -> None:
    async with behind_the_front(gateway) as client:
        answer = await client.get(path)

    assert answer.status_code == 404
