"""Operations of an OpenAPI document as tools of a gateway: listed, called, shaped, and refused."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import mcp_types as types
import pytest
from mcp import Client

from tests.backends.mcp.servers.asgi_host import reference, serve_app
from tests.backends.mcp.servers.front_gateway import Gateway, gateway, project, tool, upstream

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
TENANT = {"name": "tenant", "in": "query", "required": True, "schema": {"type": "string"}}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://evil.example.com"}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}}},
    "security": [{"key": []}],
    "paths": {
        "/orders": {
            "get": {
                "operationId": "listOrders",
                "tags": ["orders"],
                "summary": "List orders",
                "parameters": [
                    TENANT,
                    {"name": "q", "in": "query", "schema": {"type": "string", "maxLength": 100}},
                    {"name": "limit", "in": "query", "schema": {"type": "integer", "maximum": 50}},
                ],
                "responses": {"200": {"content": {"application/json": {"schema": {"type": "object"}}}}},
            },
            "post": {
                "operationId": "createOrder",
                "tags": ["orders"],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": {
                                "type": "object",
                                "required": ["article"],
                                "properties": {"article": {"type": "string"}, "count": {"type": "integer"}},
                            }
                        }
                    },
                },
            },
        },
        "/orders/{id}": {
            "get": {
                "operationId": "orders/read",
                "tags": ["orders"],
                "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                "responses": {"200": {"content": {"text/markdown": {}}}},
            },
            "delete": {"operationId": "dropOrder", "parameters": []},
        },
        "/logo": {"get": {"operationId": "logo", "responses": {"200": {"content": {"image/png": {}}}}}},
        "/secrets": {"get": {"operationId": "secrets", "tags": ["admin"]}},
    },
}
SHAPED = {
    "apiVersion": "gateway/v1",
    "kind": "Tool",
    "metadata": {"name": "order_find", "owner": "team-orders"},
    "spec": {
        "version": "1.0.0",
        "description": "Finds orders.",
        "trust": {"tier": "internal", "flags": []},
        "limits": {"timeout": "5s"},
        "backend": {
            "type": "openapi",
            "upstream": "shop",
            "tool": "listOrders",
            "headers": {"x-source": "agent-gateway"},
            "arguments": {
                "fixed": {"tenant": "acme"},
                "defaults": {"limit": 10},
                "renamed": {"q": "words"},
                "described": {"q": "What to look for."},
            },
        },
    },
}


@dataclass
class Shop:
    """The service behind the document; it echoes its requests."""

    asked: list[tuple[str, str, Mapping[str, str], bytes]] = field(default_factory=list)
    link: str | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        target = scope["raw_path"].decode() + (f"?{query}" if (query := scope["query_string"].decode()) else "")
        self.asked.append((scope["method"], target, headers, body))
        status, content = (404, b"no such order") if "missing" in target else (200, b'{"ok": true}')
        given = [(b"content-type", b"text/plain"), *([(b"link", self.link.encode())] if self.link else [])]
        await send({"type": "http.response.start", "status": status, "headers": given})
        await send({"type": "http.response.body", "body": content})


@asynccontextmanager
async def shop_gateway(
    folder: Path, *documents: Mapping[str, Any], **import_: Any
) -> AsyncIterator[tuple[Gateway, Shop]]:
    shop = Shop()
    async with serve_app(shop) as url:
        terms = {"include": ["*"], "trust": {"tier": "internal", "flags": []}, **import_}
        transport = {"type": "openapi", "document": "shop.json", "server": f"{url}/api"}
        auth = {"scheme": "query", "name": "key", "value": {"fromEnv": "SHOP_KEY"}}
        home = project(folder / "project", upstream("shop", transport, auth=auth, **{"import": terms}), *documents)
        (home / "configs" / "shop.json").write_text(json.dumps(DOCUMENT))
        async with gateway(home, environ={"SHOP_KEY": "k3y"}) as started:
            yield started, shop


def texts(result: Any) -> list[str]:
    return [block.text for block in result.content if isinstance(block, types.TextContent)]


async def test_operations_are_listed_and_called_without_a_document_of_their_own(tmp_path: Path) -> None:
    async with shop_gateway(tmp_path) as (started, shop), Client(started.url, mode=MODERN) as client:
        listed = {each.name: each for each in (await client.list_tools()).tools}
        found = await client.call_tool("shop_listOrders", {"tenant": "a&b", "limit": 3})
        made = await client.call_tool("shop_createOrder", {"article": "x", "count": 2})
        read = await client.call_tool("shop_orders_read", {"id": "../secrets"})

    assert {"shop_listOrders", "shop_createOrder", "shop_orders_read", "shop_secrets"} <= listed.keys()
    assert "shop_dropOrder" not in listed  # its path has a placeholder that nothing fills
    assert listed["shop_listOrders"].title == "List orders"
    assert listed["shop_listOrders"].input_schema["required"] == ["tenant"]
    assert texts(found) == ['{"ok": true}']
    assert not made.is_error
    assert not read.is_error
    assert [asked[:2] for asked in shop.asked] == [
        ("GET", "/api/orders?tenant=a%26b&limit=3&key=k3y"),
        ("POST", "/api/orders?key=k3y"),
        ("GET", "/api/orders/..%2Fsecrets?key=k3y"),
    ]
    assert json.loads(shop.asked[1][3]) == {"article": "x", "count": 2}


async def test_document_shapes_an_operation(tmp_path: Path) -> None:
    async with shop_gateway(tmp_path, SHAPED) as (started, shop), Client(started.url, mode=MODERN) as client:
        listed = {each.name: each for each in (await client.list_tools()).tools}
        found = await client.call_tool("order_find", {"words": "tea"})
        refused = await client.call_tool("order_find", {"words": "tea", "tenant": "other"})
        by_old_name = await client.call_tool("order_find", {"q": "tea"})

    assert "shop_listOrders" not in listed
    assert listed["order_find"].description == "Finds orders."
    assert listed["order_find"].input_schema == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "words": {"type": "string", "maxLength": 100, "description": "What to look for."},
            "limit": {"type": "integer", "maximum": 50, "default": 10},
        },
    }
    assert not found.is_error
    assert (refused.is_error, by_old_name.is_error) == (True, True)
    ((method, target, headers, _),) = shop.asked
    assert (method, target) == ("GET", "/api/orders?tenant=acme&q=tea&limit=10&key=k3y")
    assert headers["x-source"] == "agent-gateway"


async def test_next_page_is_named_with_the_callers_arguments(tmp_path: Path) -> None:
    async with shop_gateway(tmp_path, SHAPED) as (started, shop), Client(started.url, mode=MODERN) as client:
        shop.link = '</api/orders?tenant=other&q=b&limit=20&key=k3y>; rel="next"'
        plain = await client.call_tool("shop_createOrder", {"article": "x"})
        shaped = await client.call_tool("order_find", {"words": "a"})
        path = "/v1/catalogues/shop/tools/order_find/call"
        url = f"{started.url.removesuffix('/shop/mcp')}{path}"
        async with aiohttp.ClientSession() as session, session.post(url, json={"arguments": {"words": "a"}}) as answer:
            over_rest = await answer.json()
        again = await client.call_tool("order_find", (shaped.meta or {})["gateway/next"])

    assert "gateway/next" not in (plain.meta or {})
    assert (shaped.meta or {})["gateway/next"] == {"words": "b", "limit": 20}  # as its schema requires
    assert over_rest["next"] == {"words": "b", "limit": 20}
    assert not again.is_error
    assert shop.asked[-1][1] == "/api/orders?tenant=acme&q=b&limit=20&key=k3y"


async def test_document_shapes_the_tool_of_an_mcp_server(tmp_path: Path) -> None:
    shaped = tool("double", "words", remote="echo")
    shaped["spec"]["backend"]["arguments"] = {"renamed": {"text": "words"}}
    async with reference("modern") as url:
        remote = upstream("remote", {"type": "streamable-http", "url": url})
        home = project(tmp_path / "project", remote, shaped)
        async with gateway(home) as started, Client(started.url, mode=MODERN) as client:
            echoed = await client.call_tool("double", {"words": "again"})

    assert texts(echoed) == ["again"]


async def test_error_of_the_service_is_a_result_in_our_words(tmp_path: Path) -> None:
    async with shop_gateway(tmp_path) as (started, _), Client(started.url, mode=MODERN) as client:
        missing = await client.call_tool("shop_orders_read", {"id": "missing"})

    assert missing.is_error
    assert "the service answered 404 Not Found: no such order" in texts(missing)[0]


async def test_picture_is_shown_as_one(tmp_path: Path) -> None:
    async with shop_gateway(tmp_path) as (started, _), Client(started.url, mode=MODERN) as client:
        logo = await client.call_tool("shop_logo", {})

    (block,) = [block for block in logo.content if isinstance(block, types.ImageContent)]
    assert block.mime_type == "image/png"


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        ({"include": ["*Order*"]}, {"shop_listOrders", "shop_createOrder"}),
        ({"select": {"tags": ["admin"]}}, {"shop_secrets"}),
        ({"select": {"paths": ["/orders/*"]}}, {"shop_orders_read"}),
        ({"select": {"methods": ["POST"]}}, {"shop_createOrder"}),
        ({"select": {"tags": ["orders"], "methods": ["GET"]}, "exclude": ["list*"]}, {"shop_orders_read"}),
    ],
    ids=["names", "tags", "paths", "methods", "all-of-them"],
)
async def test_terms_choose_operations(tmp_path: Path, terms: dict[str, Any], names: set[str]) -> None:
    async with shop_gateway(tmp_path, **terms) as (started, _), Client(started.url, mode=MODERN) as client:
        listed = {each.name for each in (await client.list_tools()).tools}

    assert {name for name in listed if name.startswith("shop_")} == names
