"""Tools without declared effects, through a real gateway: hints, rules, records, repeats and cached answers."""

import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import orjson
import pytest
from mcp import Client

from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, upstream
from tests.backends.mcp.servers.mutable_server import MutableServer

pytestmark = pytest.mark.anyio

MODERN: Final = "2026-07-28"
ID: Final = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
SHOP: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/orders": {"get": {"operationId": "listOrders"}, "post": {"operationId": "makeOrder"}},
        "/orders/{id}": {
            "get": {"operationId": "readOrder", "parameters": ID},
            "delete": {"operationId": "dropOrder", "parameters": ID},
        },
    },
}
READS: Final[dict[str, Any]] = {"flags": []}
PIPELINE: Final = {
    "apiVersion": "gateway/v1",
    "kind": "Pipeline",
    "metadata": {"name": "standard", "owner": "team-platform"},
    "spec": {
        "call": [
            {"use": "gates"},
            {"use": "cache", "with": {"for": "5m", "by": ["subject", "arguments"]}},
            {"use": "timeout", "with": {"after": "30s"}},
            {"use": "retry", "with": {"attempts": 3, "unlessFlags": ["writes"], "delay": "1ms"}},
        ]
    },
}
HELD: Final = {
    "apiVersion": "gateway/v1",
    "kind": "GateRule",
    "metadata": {"name": "writers", "owner": "team-platform"},
    "spec": {
        "description": "What writes is not for this caller.",
        "match": {"flags": ["writes"]},
        "check": {"type": "arguments", "require": "false", "message": "it writes"},
    },
}


@dataclass
class Service:
    """An HTTP service and an MCP server that record their requests, and what was on record at each of them."""

    folder: Path
    asked: list[tuple[str, str]] = field(default_factory=list)
    on_record: list[int] = field(default_factory=list)
    """Durable start records at each request."""
    status: int = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.on_record.append(self.starts())
        self.asked.append((scope["method"], scope["path"]))
        given = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": given})
        await send({"type": "http.response.body", "body": b'{"ok": true}'})

    def starts(self) -> int:
        """The start records that another connection to the database sees."""
        with sqlite3.connect(self.folder / "project" / "data" / "gateway.db") as database:
            entries = [orjson.loads(row[0]) for row in database.execute("SELECT body FROM audit")]
        return sum(each["event"] == "call-started" for each in entries)


def document(name: str, **trust: Any) -> dict[str, Any]:
    """A Tool document for a GET request; the address is filled in when the service listens."""
    return {
        "apiVersion": "gateway/v1",
        "kind": "Tool",
        "metadata": {"name": name, "owner": "team-orders"},
        "spec": {
            "version": "1.0.0",
            "description": "Does something.",
            "idempotent": True,
            "trust": {"tier": "internal", **trust},
            "input": {"schema": {"type": "object", "properties": {}}},
            "backend": {"type": "http", "method": "GET", "url": f"SERVICE/{name}"},
        },
    }


@asynccontextmanager
async def serve_project(
    folder: Path, *documents: Mapping[str, Any], tools: MutableServer | None = None, **import_: Any
) -> AsyncIterator[tuple[Gateway, Service]]:
    """A gateway that imports everything of an OpenAPI document and of an MCP server, without declared effects."""
    service, server = Service(folder), tools or MutableServer()
    async with serve_app(service) as url, serve_app(server.app) as remote:
        openapi = {"type": "openapi", "document": "shop.json", "server": url}
        terms = {"include": ["*"], "trust": {"tier": "internal"}, **import_}
        accepting = {"include": ["*"], "trust": {"tier": "internal"}, "onChange": "accept", "tools": {"reads": READS}}
        mcp = {"type": "streamable-http", "url": f"{remote}/mcp"}
        given = [upstream("shop", openapi, **{"import": terms}), upstream("desk", mcp, **{"import": accepting})]
        written = [json.loads(json.dumps(each).replace("SERVICE", url)) for each in documents]
        home = project(folder / "project", *given, *written)
        (home / "configs" / "shop.json").write_text(json.dumps(SHOP))
        gate = home / "configs" / "gateway.yaml"
        if any(each["kind"] == "Pipeline" for each in documents):
            texts = gate.read_text().split("---\n")
            gate.write_text("---\n".join(each for each in texts if "kind: Pipeline" not in each))
        async with gateway(home) as started:
            yield started, service


def make_definition(name: str, **annotations: Any) -> dict[str, Any]:
    return {"name": name, "description": "A tool.", "inputSchema": {"type": "object"}, "annotations": annotations}


async def listed_over_rest(started: Gateway) -> dict[str, dict[str, Any]]:
    url = started.url.removesuffix("/shop/mcp") + "/v1/catalogues/shop/tools"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return {each["name"]: each for each in (await answer.json())["tools"] if not each["isQuery"]}


async def test_hints_on_the_wire_never_reassure(tmp_path: Path) -> None:
    server = MutableServer(
        make_definition("delete_page", destructiveHint=True, readOnlyHint=False),
        make_definition("find", readOnlyHint=True, destructiveHint=False, openWorldHint=False),
    )
    async with serve_project(tmp_path, tools=server) as (started, _), Client(started.url, mode=MODERN) as client:
        listed = {each.name: each.annotations for each in (await client.list_tools()).tools}
        over_rest = await listed_over_rest(started)

    assert listed["desk_delete_page"] is None
    assert listed["desk_find"] is None  # a server's claims in its own favour are ignored
    hints = {name: (each.read_only_hint, each.destructive_hint) for name, each in listed.items() if each is not None}
    assert hints == {
        "shop_listOrders": (True, False),
        "shop_readOrder": (True, False),
        "shop_makeOrder": (False, False),
        "shop_dropOrder": (False, True),
    }
    assert {name: (each["effects"], each["flags"], each["hints"]) for name, each in over_rest.items()} == {
        "desk_delete_page": ("unknown", ["destructive", "egress", "writes"], {}),
        "desk_find": ("unknown", ["destructive", "egress", "writes"], {}),
        "shop_listOrders": ("implied", [], {"readOnly": True, "destructive": False, "openWorld": False}),
        "shop_readOrder": ("implied", [], {"readOnly": True, "destructive": False, "openWorld": False}),
        "shop_makeOrder": ("implied", ["writes"], {"readOnly": False, "destructive": False, "openWorld": False}),
        "shop_dropOrder": (
            "implied",
            ["destructive", "writes"],
            {"readOnly": False, "destructive": True, "openWorld": False},
        ),
    }


async def test_rule_about_writes_stops_tools_without_declared_effects(tmp_path: Path) -> None:
    server = MutableServer(make_definition("delete_page"), make_definition("find", readOnlyHint=True))
    unknown = document("unknown")
    wired = serve_project(tmp_path, HELD, unknown, tools=server)
    async with wired as (started, service), Client(started.url, mode=MODERN) as client:
        dropped = await client.call_tool("shop_dropOrder", {"id": "1"})
        made = await client.call_tool("shop_makeOrder", {})
        plain = await client.call_tool("unknown", {})
        remote = [await client.call_tool(name, {}) for name in ("desk_delete_page", "desk_find")]
        read = await client.call_tool("shop_readOrder", {"id": "1"})

    assert [each.is_error for each in (dropped, made, plain, *remote)] == [True] * 5
    assert not read.is_error
    assert service.asked == [("GET", "/orders/1")]
    assert server.called == []


async def test_start_is_on_record_before_an_unknown_tool_is_reached(tmp_path: Path) -> None:
    async with (
        serve_project(tmp_path, document("unknown")) as (started, service),
        Client(started.url, mode=MODERN) as client,
    ):
        results = [
            await client.call_tool("unknown", {}),
            await client.call_tool("shop_dropOrder", {"id": "1"}),
            await client.call_tool("shop_readOrder", {"id": "1"}),
        ]

    assert not any(each.is_error for each in results)
    assert service.on_record == [1, 2, 2]  # tools that only read have no start record


async def test_unknown_tool_is_neither_repeated_nor_answered_from_memory(tmp_path: Path) -> None:
    server = MutableServer(make_definition("reads"), make_definition("wanders", readOnlyHint=True, idempotentHint=True))
    wired = serve_project(tmp_path, PIPELINE, document("unknown"), tools=server)
    async with wired as (started, service), Client(started.url, mode=MODERN) as client:
        for name in ("desk_reads", "desk_wanders") * 2:
            assert not (await client.call_tool(name, {})).is_error
        service.status = 503
        failed = [await client.call_tool(name, {}) for name in ("unknown", "shop_makeOrder", "shop_listOrders")]

    assert [each["name"] for each in server.called] == ["reads", "wanders", "wanders"]
    assert all(each.is_error for each in failed)
    assert service.asked == [("GET", "/unknown"), ("POST", "/orders"), *[("GET", "/orders")] * 3]


async def test_warning_that_a_server_adds_later_counts(tmp_path: Path) -> None:
    """With automatic acceptance and flags for all tools, the server's own warning is added to the flags."""
    server = MutableServer(make_definition("tidy"))
    declared = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, "onChange": "accept"}
    folder = tmp_path / "project"
    async with serve_app(server.app) as remote:
        home = project(
            folder, upstream("desk", {"type": "streamable-http", "url": f"{remote}/mcp"}, **{"import": declared})
        )
        async with gateway(home) as started:
            before = await listed_over_rest(started)
        server.tools = [make_definition("tidy", destructiveHint=True)]
        async with gateway(home) as started:
            after = await listed_over_rest(started)

    assert (before["desk_tidy"]["flags"], before["desk_tidy"]["hints"]["readOnly"]) == ([], True)
    assert (after["desk_tidy"]["flags"], after["desk_tidy"]["hints"]["readOnly"]) == (["destructive", "writes"], False)
