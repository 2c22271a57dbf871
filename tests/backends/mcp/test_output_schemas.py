"""Output schemas of definitions: passed on to clients that know them; a result that breaks one fails the call."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from mcp import Client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.backends.mcp.servers.asgi_host import Era, reference, serve_app
from tests.backends.mcp.servers.front_gateway import TERMS, Gateway, gateway, project, tool, upstream
from tests.backends.mcp.servers.mutable_server import MutableServer

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"
KEY = "gateway/idempotencyKey"
TOTAL = {"type": "object", "required": ["total"], "properties": {"total": {"type": "integer"}}}
WRAPPED = {"type": "object", "required": ["result"], "properties": {"result": {"type": "string"}}}
COUNT: dict[str, Any] = {"name": "count", "description": "Counts.", "inputSchema": {"type": "object"}}
WAYS = [(mode, era) for mode in (MODERN, "legacy") for era in ("modern", "legacy")]


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}], **more}


@asynccontextmanager
async def serve_count(
    folder: Path, result: dict[str, Any], *documents: Any, schema: Any = TOTAL, **terms: Any
) -> AsyncIterator[tuple[Gateway, MutableServer]]:
    server = MutableServer({**COUNT, "outputSchema": schema})
    server.results["count"] = result
    async with serve_app(server.app) as origin:
        transport = {"type": "streamable-http", "url": f"{origin}/mcp"}
        remote = upstream("remote", transport, **{"import": {**TERMS, **terms}})
        async with gateway(project(folder / "project", remote, *documents)) as started:
            yield started, server


async def call_tool(started: Gateway, name: str = "remote_count", **meta: Any) -> Any:
    async with Client(started.url, mode=MODERN) as client:
        given: Any = meta or None
        return await client.call_tool(name, {}, meta=given)


async def over_rest(started: Gateway, path: str, **body: Any) -> dict[str, Any]:
    """The REST answer below the only catalogue, to a request with an optional body."""
    url = f"{started.url.removesuffix('/shop/mcp')}/v1/catalogues/shop/{path}"
    method = "POST" if body else "GET"
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body or None) as answer:
        found: dict[str, Any] = await answer.json()
        return found


def shown(result: Any) -> str:
    return " ".join(block.text for block in result.content)


@pytest.mark.parametrize(("mode", "era"), WAYS, ids=[f"{mode}-to-{era}" for mode, era in WAYS])
async def test_promise_crosses_between_the_eras(tmp_path: Path, mode: Any, era: Era) -> None:
    async with reference(era) as url:
        remote = upstream("remote", {"type": "streamable-http", "url": url})
        async with gateway(project(tmp_path / "project", remote)) as started, Client(started.url, mode=mode) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
            added = await client.call_tool("remote_add", {"a": 1, "b": 2})  # the client validates the result
            wrapped = await client.call_tool("remote_waited", {"key": "k"})

    assert (listed["remote_add"].output_schema or {})["required"] == ["total"]
    assert listed["remote_echo"].output_schema is None
    assert added.structured_content == {"total": 3}
    assert wrapped.structured_content == {"result": "never"}
    assert shown(wrapped) == "never"


@pytest.mark.parametrize(
    ("result", "schema", "structured"),
    [
        pytest.param(text("three", structuredContent={"total": 3}), TOTAL, {"total": 3}, id="beside"),
        pytest.param(text('{"total": 3}'), TOTAL, {"total": 3}, id="as-text"),
        pytest.param(text("three"), WRAPPED, {"result": "three"}, id="wrapped-text"),
        pytest.param(text("", structuredContent=[1]), {"type": "array"}, [1], id="any-json"),
    ],
)
async def test_result_that_fits_is_given_to_programs(
    tmp_path: Path, result: dict[str, Any], schema: Any, structured: Any
) -> None:
    async with serve_count(tmp_path, result, schema=schema) as (started, _):
        answer = await call_tool(started)

    assert not answer.is_error
    assert answer.structured_content == structured


@pytest.mark.parametrize(
    ("result", "why"),
    [
        pytest.param(text("3", structuredContent={"total": "3"}), "total", id="wrong-type"),
        pytest.param(text("3", structuredContent={}), "total", id="missing-key"),
        pytest.param(text("3", structuredContent=None), "not", id="null"),
        pytest.param(text("three"), "it has no structured content", id="none-at-all"),
        pytest.param(
            {"content": [{"type": "image", "data": "", "mimeType": "image/png"}]}, "no structured", id="image"
        ),
    ],
)
async def test_result_that_does_not_fit_is_a_failed_call_on_record(
    tmp_path: Path, result: dict[str, Any], why: str
) -> None:
    async with serve_count(tmp_path, result) as (started, server):
        answer = await call_tool(started)

    assert (answer.is_error, answer.structured_content) == (True, None)
    assert "the tool ran, but its result does not fit its output schema" in shown(answer)
    assert why in shown(answer)
    assert len(server.called) == 1
    assert "E_OUTPUT_MISMATCH" in read_audit_log(tmp_path)


async def test_error_of_the_tool_is_not_held_to_its_promise(tmp_path: Path) -> None:
    async with serve_count(tmp_path, text("no shelf", isError=True)) as (started, _):
        answer = await call_tool(started)

    assert answer.is_error
    assert shown(answer).endswith("no shelf")


async def test_terms_may_take_results_as_they_come(tmp_path: Path) -> None:
    result = text("three", structuredContent={"total": "three"})
    async with serve_count(tmp_path, result, outputSchemas="ignore") as (started, _):
        answer = await call_tool(started)
        async with Client(started.url, mode=MODERN) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}

    assert listed["remote_count"].output_schema is None
    assert (answer.is_error, answer.structured_content) == (False, {"total": "three"})


async def test_document_promises_in_the_place_of_the_upstream(tmp_path: Path) -> None:
    own = tool("tally", remote="count", output={"artifact": "json", "schema": {"type": "object"}})
    plain = tool("tally_left_out", remote="count", output={"inline": False})
    result = text("three", structuredContent={"total": "three"})
    async with serve_count(tmp_path, result, own, plain) as (started, _):
        async with Client(started.url, mode=MODERN) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
        answer, left_out = await call_tool(started, "tally"), await call_tool(started, "tally_left_out")

    assert listed["tally"].output_schema == {"type": "object"}
    assert listed["tally_left_out"].output_schema is None
    assert (answer.is_error, answer.structured_content) == (False, {"total": "three"})
    assert left_out.is_error  # no output schema is published, but the result breaks that of the server


async def test_earlier_call_is_answered_with_the_json_that_its_text_stands_for(tmp_path: Path) -> None:
    async with serve_count(tmp_path, text('{"total":3}', structuredContent={"total": 3})) as (started, server):
        first, again = [await call_tool(started, **{KEY: "once"}) for _ in range(2)]

    assert (first.structured_content, again.structured_content) == ({"total": 3}, {"total": 3})
    assert len(server.called) == 1


async def test_earlier_call_whose_json_was_not_kept_is_an_error_with_its_text(tmp_path: Path) -> None:
    async with serve_count(tmp_path, text("three", structuredContent={"total": 3})) as (started, server):
        first, again = [await call_tool(started, **{KEY: "once"}) for _ in range(2)]

    assert (first.is_error, first.structured_content) == (False, {"total": 3})
    assert (again.is_error, again.structured_content) == (True, None)
    assert shown(again).endswith("three")
    assert len(server.called) == 1


async def test_schema_that_cannot_be_checked_is_not_passed_on(tmp_path: Path) -> None:
    broken = {"type": "object", "properties": {"total": {"$ref": "https://elsewhere.example.com/schema.json"}}}
    async with serve_count(tmp_path, text("three"), schema=broken) as (started, _):
        async with Client(started.url, mode=MODERN) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
        answer = await call_tool(started)

    assert listed["remote_count"].output_schema is None
    assert not answer.is_error


def make_doubling_schema(levels: int) -> dict[str, Any]:
    """A schema that doubles the number of evaluations of a value with every level."""
    twice = {f"d{each}": {"allOf": [{"$ref": f"#/$defs/d{each + 1}"}] * 2} for each in range(levels)}
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": {**twice, f"d{levels}": {"required": ["total"]}}}


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(make_doubling_schema(40), id="exponential"),
        pytest.param({"type": "object", "properties": {"total": {"pattern": "^(a+)+$"}}}, id="backtracking"),
        pytest.param({"type": "object", "$ref": "#"}, id="itself"),
        pytest.param({"type": "object", "properties": {f"p{each}": {} for each in range(5_000)}}, id="broad"),
        pytest.param({"type": "nonsense"}, id="invalid"),
    ],
)
async def test_hostile_schema_delays_no_other_call(tmp_path: Path, schema: Any) -> None:
    structured = {"total": "a" * 40 + "!", "list": [1] * 100_000}
    async with serve_count(tmp_path, text("x", structuredContent=structured), schema=schema) as (started, _):
        async with asyncio.timeout(10):
            answer = await call_tool(started)

    assert answer.content


@pytest.mark.parametrize("format", ["gateway", "mcp"])
async def test_promise_is_listed_over_rest(tmp_path: Path, format: str) -> None:
    same = tool("same", remote="count")
    own = tool("tally", remote="count", output={"artifact": "json", "schema": {"type": "object"}})
    kept = tool("tally_left_out", remote="count", output={"inline": False})
    async with serve_count(tmp_path, text("three"), same, own, kept) as (started, _):
        listed = {each["name"]: each for each in (await over_rest(started, f"tools?format={format}"))["tools"]}
        one = await over_rest(started, f"tools/same?format={format}")

    assert listed["same"]["outputSchema"] == one["outputSchema"] == TOTAL
    assert listed["tally"]["outputSchema"] == {"type": "object"}
    assert "outputSchema" not in listed["tally_left_out"]


@pytest.mark.parametrize("format", ["openai", "anthropic", "gemini"])
async def test_providers_without_a_field_for_it_get_no_output_schema(tmp_path: Path, format: str) -> None:
    async with serve_count(tmp_path, text("three")) as (started, _):
        one = await over_rest(started, f"tools/remote_count?format={format}")

    assert "outputSchema" not in str(one)


async def test_json_that_came_beside_the_text_is_answered_over_rest(tmp_path: Path) -> None:
    same = tool("same", remote="count")
    own = tool("tally", remote="count", output={"artifact": "json", "schema": {"type": "object", "required": ["sum"]}})
    result = text("three", structuredContent={"total": 3})
    async with serve_count(tmp_path / "promised", result, same, own) as (started, _):
        fits, broken = [await over_rest(started, f"tools/{name}/call", arguments={}) for name in ("same", "tally")]
    async with serve_count(tmp_path / "ignored", result, outputSchemas="ignore") as (started, _):
        beside = await over_rest(started, "tools/remote_count/call", arguments={})

    assert (fits["isError"], fits["structuredContent"], fits["result"]["text"]) == (False, {"total": 3}, "three")
    assert (broken["isError"], "structuredContent" in broken) == (True, False)
    assert "does not fit its output schema" in broken["result"]["text"]
    assert "does not fit its output schema" in broken["rendered"]
    assert beside["structuredContent"] == {"total": 3}


async def test_operations_of_openapi_documents_promise_their_answers(tmp_path: Path) -> None:
    def answering(*statuses: int, schema: Any = TOTAL) -> dict[str, Any]:
        content = {"content": {"application/json": {"schema": schema}}}
        return {"responses": {str(status): content if status != 204 else {} for status in statuses}}

    paths = {
        "/right": {"get": {"operationId": "right", **answering(200)}},
        "/wrong": {"get": {"operationId": "wrong", **answering(200)}},
        "/either": {"get": {"operationId": "either", **answering(200, 204)}},
        "/list": {"get": {"operationId": "list", **answering(200, schema={"type": "array"})}},
    }

    async def answer(request: Request) -> Response:
        return JSONResponse({"total": 3} if request.url.path == "/right" else {"total": "three"})

    async with serve_app(Starlette(routes=[Route("/{path}", answer)])) as url:
        transport = {"type": "openapi", "document": "sums.json", "server": url}
        terms = {"include": ["*"], "trust": {"tier": "internal", "flags": []}}
        home = project(tmp_path / "project", upstream("sums", transport, **{"import": terms}))
        document = {"openapi": "3.1.0", "info": {"title": "Sums", "version": "1"}, "paths": paths}
        (home / "configs" / "sums.json").write_text(json.dumps(document))
        async with gateway(home) as started, Client(started.url, mode=MODERN) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
            right, wrong, either = [await client.call_tool(f"sums_{name}") for name in ("right", "wrong", "either")]

    promised = {name for name, each in listed.items() if each.output_schema is not None}
    assert promised & {f"sums_{name}" for name in ("right", "wrong", "either", "list")} == {"sums_right", "sums_wrong"}
    assert (right.is_error, right.structured_content) == (False, {"total": 3})
    assert (wrong.is_error, wrong.structured_content) == (True, None)
    assert "does not fit its output schema" in shown(wrong)
    assert (either.is_error, either.structured_content) == (False, {"total": "three"})
    assert "E_OUTPUT_MISMATCH" in read_audit_log(tmp_path)


def read_audit_log(folder: Path) -> str:
    with sqlite3.connect(folder / "project" / "data" / "gateway.db") as database:
        return " ".join(str(orjson.loads(row[0])) for row in database.execute("SELECT body FROM audit"))
