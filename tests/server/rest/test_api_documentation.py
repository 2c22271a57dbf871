"""The API's own description: it has every route, every answer fits it, and its page loads nothing else."""

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import Route

from gateway.server.rest.api_documentation import REQUESTS, build_openapi, render_page
from gateway.server.rest.operation_table import OPEN_PATHS, OPERATIONS
from gateway.server.rest.router import MAX_BODY, RestEndpoint, build_routes
from tests.server.rest.gateway import Gateway, running, sent_to

pytestmark = pytest.mark.anyio

DOCUMENT = build_openapi(OPERATIONS)
FORBIDDEN = {"command", "args", "env", "url", "upstream", "server", "headers", "program", "cwd", "image"}
"""Fields of an upstream's definition: no request accepts them."""


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


def endpoints(served: list[Route]) -> dict[str, RestEndpoint]:
    return {route.path: route.app for route in served if isinstance(route.app, RestEndpoint)}


def test_document_is_valid_openapi() -> None:
    validator = pytest.importorskip("openapi_pydantic", reason="no validator of OpenAPI is installed")

    parsed = validator.OpenAPI.model_validate(DOCUMENT)

    assert parsed.openapi == "3.1.0"
    assert len({each.id for each in OPERATIONS}) == len(OPERATIONS)


def test_every_schema_is_one() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})


async def test_every_route_is_described_limited_and_closed(gateway: Gateway) -> None:
    served = endpoints(build_routes(gateway.service))

    assert set(served) == set(DOCUMENT["paths"])
    for path, endpoint in served.items():
        assert endpoint.max_body == MAX_BODY
        assert {each.method.lower() for each in endpoint.operations} == set(DOCUMENT["paths"][path])


def test_only_reading_the_api_is_open() -> None:
    assert OPEN_PATHS == ("/v1/docs", "/v1/openapi.json")


async def test_every_route_but_the_open_ones_needs_a_credential(gateway: Gateway) -> None:
    async with gateway.client(None) as client:
        answers = [
            (each.path, await client.request(each.method, re.sub(r"{\w+}", "x", each.path))) for each in OPERATIONS
        ]

    refused = {path for path, answer in answers if answer.status_code == 401}
    assert refused == {each.path for each in OPERATIONS} - set(OPEN_PATHS)


def test_no_request_takes_a_definition_of_an_upstream() -> None:
    taken = {name for schema in REQUESTS.values() for name in schema["properties"]}
    taken |= {each.name.lower() for operation in OPERATIONS for each in (*operation.query, *operation.headers)}

    assert taken & FORBIDDEN == set()
    assert all(schema["additionalProperties"] is False for schema in REQUESTS.values())


async def test_members_of_such_definitions_are_refused_everywhere(gateway: Gateway) -> None:
    async with gateway.client() as client:
        for operation in OPERATIONS:
            path = re.sub(r"{\w+}", "x", operation.path)
            for name in sorted(FORBIDDEN):
                if operation.body:
                    answer = await client.post(path, json={name: "x"})
                else:
                    answer = await client.get(path, params={name: "x"})

                assert answer.status_code == 400, (operation.id, name)


def schema_of(operation_id: str, status: int) -> Any:
    [operation] = [
        each
        for methods in DOCUMENT["paths"].values()
        for each in methods.values()
        if each["operationId"] == operation_id
    ]
    content = operation["responses"][str(status)]["content"]
    return next(iter(content.values()))["schema"]


def assert_fits(operation_id: str, answer: Any) -> None:
    schema = {**schema_of(operation_id, answer.status_code), "components": DOCUMENT["components"]}
    jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(answer.json())


async def test_answers_are_what_the_document_declares(gateway: Gateway) -> None:
    tools = ("echo", "facts", "handle", "picture", "two_pictures", "fails", "secretive")
    async with gateway.client() as client:
        turn = await client.post("/v1/turns", json={"catalogue": "desk", "stash": {"a": 1}})
        base = turn.headers["location"]
        assert_fits("openTurn", turn)
        for number, tool in enumerate(tools):
            body = {"tool": tool, "id": f"call_{number}", "arguments": {"text": "x"} if tool == "echo" else {}}
            answer = await client.post(f"{base}/calls", json=body, headers={"idempotency-key": tool})
            assert_fits("callInTurn", answer)
            assert_fits("callInTurn", await client.post(f"{base}/calls", json=body, headers={"idempotency-key": tool}))
            assert_fits("getTurnCall", await client.get(f"{base}/calls/call_{number}"))
            assert_fits("getCall", await client.get(f"/v1/calls/call_{number}"))
            if tool != "fails":
                assert_fits("getArtifact", await client.get(f"/v1/artifacts/call_{number}"))
        assert_fits("callTool", await client.post("/v1/catalogues/desk/tools/echo/call", json={}))
        assert_fits("queryArtifact", await client.post("/v1/artifacts/call_2/query", json={"method": "head"}))
        assert_fits("listTurnCalls", await client.get(f"{base}/calls?limit=3"))
        assert_fits("listCalls", await client.get("/v1/calls"))
        assert_fits("verifyCall", await client.get("/v1/calls/call_0/verify"))
        assert_fits("listTurnTools", await client.get(f"{base}/tools"))
        assert_fits("renderTurn", await client.get(f"{base}/render"))
        assert_fits("getTurn", await client.get(base))
        assert_fits("endTurn", await client.post(f"{base}/end", json={"as": "nack"}))
        assert_fits("listCatalogues", await client.get("/v1/catalogues"))
        assert_fits("getCatalogue", await client.get("/v1/catalogues/desk"))
        for format in ("gateway", "mcp", "openai", "anthropic", "gemini"):
            assert_fits("listTools", await client.get(f"/v1/catalogues/desk/tools?format={format}"))
        assert_fits("getTool", await client.get("/v1/catalogues/desk/tools/old_echo"))


async def test_own_listing_fits_the_shape_of_a_tool(gateway: Gateway) -> None:
    schema = {"$ref": "#/components/schemas/Tool", "components": DOCUMENT["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema)
    async with gateway.client() as client:
        tools = (await client.get("/v1/catalogues/desk/tools")).json()["tools"]

    assert tools
    for each in tools:
        validator.validate(each)


async def test_refusals_are_what_the_document_declares(gateway: Gateway) -> None:
    problem = {"$ref": "#/components/schemas/Problem", "components": DOCUMENT["components"]}
    validator = jsonschema_rs.Draft202012Validator(problem)
    async with gateway.client() as client:
        answers = [
            await client.get("/v1/calls?x=1"),
            await client.get("/v1/calls/unknown"),
            await client.post("/v1/turns", json={"catalogue": 5}),
            await client.post("/v1/turns", content=b"x"),
            await client.put("/v1/turns"),
        ]
    async with gateway.client(None) as client:
        answers.append(await client.get("/v1/calls"))

    assert [each.status_code for each in answers] == [400, 404, 400, 415, 405, 401]
    for each in answers:
        assert each.headers["content-type"] == "application/problem+json"
        validator.validate(each.json())


@pytest.mark.parametrize(
    ("tool", "ask", "type"),
    [
        ("facts", {}, "application/json"),
        ("picture", {}, "image/png"),
        ("page", {"range": "bytes=0-1"}, "text/markdown"),
    ],
)
async def test_downloads_have_types_that_the_document_allows(
    gateway: Gateway, tool: str, ask: dict[str, str], type: str
) -> None:
    async with gateway.client() as client:
        called = (await client.post(f"/v1/catalogues/desk/tools/{tool}/call", json={})).json()
        answer = await client.get(f"/v1/artifacts/{called['callId']}/content", headers=ask)

    assert answer.headers["content-type"].startswith(type)
    described = DOCUMENT["paths"]["/v1/artifacts/{callId}/content"]["get"]["responses"][str(answer.status_code)]
    assert set(described["content"]) == {"*/*"}
    assert described["headers"].keys() <= {name.title() if name != "etag" else "ETag" for name in answer.headers}


def test_whatever_else_is_refused_is_a_problem_too() -> None:
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            ((type, content),) = operation["responses"]["default"]["content"].items()
            assert (type, content["schema"]) == ("application/problem+json", {"$ref": "#/components/schemas/Problem"})


async def test_headers_have_no_unenforced_bounds(gateway: Gateway) -> None:
    """The document states only bounds that the gateway enforces."""
    bounded = {"minLength", "maxLength", "pattern"}
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            headers = [each for each in operation["parameters"] if each["in"] == "header"]
            assert all(each["name"] == "Idempotency-Key" for each in headers if bounded & each["schema"].keys())
    async with gateway.client() as client:
        for key in ("k" * 256, "", "\xe4", "a\tb"):
            sent = {b"idempotency-key": key.encode("latin-1")}
            answer = await client.post("/v1/catalogues/desk/tools/facts/call", json={}, headers=sent)
            assert answer.status_code == 400, key


async def test_document_is_served_without_a_credential(gateway: Gateway) -> None:
    async with gateway.client(None) as client:
        answer = await client.get("/v1/openapi.json")

    assert answer.json() == DOCUMENT


class Page(HTMLParser):
    """The resources, scripts and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.attributes: set[str] = set()
        self.style = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name in ("href", "src")}
        self.ids |= {value or "" for name, value in attrs if name == "id"}

    def handle_data(self, data: str) -> None:
        if not self.style and "font:" in data:
            self.style = data


async def test_page_needs_nothing_from_elsewhere_and_runs_nothing(gateway: Gateway) -> None:
    async with gateway.client(None) as client:
        answer = await client.get("/v1/docs")
    found = Page()
    found.feed(answer.text)

    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none';")
    assert b64encode(sha256(found.style.encode()).digest()).decode() in policy
    assert found.tags & {"script", "link", "img", "iframe", "form"} == set()
    assert not any(name.startswith("on") or name == "style" for name in found.attributes)
    assert {link for link in found.links if not link.startswith("#")} == {"/v1/openapi.json"}
    assert {link[1:] for link in found.links if link.startswith("#")} <= found.ids
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_page_shows_what_is_needed_and_what_is_allowed() -> None:
    text = render_page(DOCUMENT)

    assert "<code>pending</code>" in text
    assert "`" not in text.partition("<h2>Schemas</h2>")[0]
    assert "<td>string, needed</td>" in text
    assert "<td>gateway, mcp, openai, anthropic or gemini; gateway if not given</td>" in text
    assert "<td>integer, 1 to 200; 50 if not given</td>" in text


def test_everything_on_the_page_is_escaped() -> None:
    nasty = "<script>alert('x')</script>\"&"
    document = {
        "info": {"title": nasty, "description": nasty},
        "paths": {
            nasty: {
                "get": {
                    "operationId": nasty,
                    "summary": nasty,
                    "parameters": [
                        {
                            "name": nasty,
                            "in": nasty,
                            "description": nasty,
                            "required": False,
                            "schema": {"enum": [nasty]},
                        },
                        {
                            "name": nasty,
                            "in": nasty,
                            "description": f"`{nasty}`",
                            "required": True,
                            "schema": {"type": nasty},
                        },
                    ],
                    "responses": {nasty: {"description": nasty, "content": {nasty: {"schema": {"$ref": nasty}}}}},
                }
            }
        },
        "components": {"schemas": {nasty: {"description": nasty}}},
    }

    assert "<script" not in render_page(document)
    assert "alert('x')" not in render_page(document)


async def test_route_without_an_edge_in_front_answers_nothing(gateway: Gateway) -> None:
    served = endpoints(build_routes(gateway.service))

    messages = await sent_to(served["/v1/catalogues"], "/v1/catalogues", path_params={})

    assert messages[0]["status"] == 500
    assert b"desk" not in messages[1]["body"]
