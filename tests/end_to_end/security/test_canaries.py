"""A canary in every text an upstream can send: wherever it appears, it is marked as untrusted."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.server.mcp.caller_channel import TRUST_PREFIX
from tests.support.gateways.commands import run_gateway
from tests.support.gateways.projects import (
    Caller,
    Document,
    GatewayUnderTest,
    Person,
    Reply,
    base_documents,
    catalogue,
    document,
    environ_of,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)
from tests.support.paths import ROOT
from tests.support.servers.app_server import serve_aiohttp
from tests.support.tools.canary_tools import CANARY, WORD

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))
ENVELOPE = re.compile(r"\A<(untrusted_content_[0-9a-f]{32}) [^>\n]*>\n(.*)\n</\1>\Z", re.DOTALL)
TAG = re.compile(r"<\s*/?\s*(?:(?:un)?trusted_content_|system_instructions)", re.IGNORECASE)
LOG_LEVEL = "io.modelcontextprotocol/logLevel"

PYTHON = {"text": "returns", "json": "returns_json", "raises": "raises", "exits": "exits", "tells": "tells"}
HTTP = ("error", "reason", "headers", "redirect", "garbage")
TOOLS = (*PYTHON, *HTTP)


# --- an untrusted project ---


@asynccontextmanager
async def upstream() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_post("/{how}", _spoilt)
    async with serve_aiohttp(app) as port:
        yield port


async def _spoilt(request: web.Request) -> web.StreamResponse:
    match request.match_info["how"]:
        case "error":
            return web.Response(status=422, text=CANARY)
        case "reason":
            return web.Response(status=500, reason=WORD)
        case "headers":
            return web.Response(status=503, headers={"X-Canary": CANARY, "Retry-After": CANARY, "Content-Type": CANARY})
        case "redirect":
            return web.Response(status=302, headers={"Location": f"http://{WORD}.example/{CANARY}"})
    return web.Response(headers={"Content-Encoding": WORD}, body=CANARY.encode())


def project(folder: Path, port: int) -> Path:
    tools: list[Document] = [http_tool(name, port, tier="community") for name in HTTP]
    for name, function in PYTHON.items():
        backend = {"type": "python", "entrypoint": f"tests.support.tools.canary_tools:{function}", "run": "thread"}
        output: dict[str, Any] = {"output": {"artifact": "record"}} if name == "json" else {}
        tools.append(http_tool(name, port, tier="community", backend=backend, **output))
    kept = document("ArtifactClass", "record", {"description": "A record.", "base": "json"})
    documents = [*base_documents(["tokens"]), tokens_of([ANA]), kept, *tools, catalogue("desk", ["role:staff"], ["*"])]
    policy = "p, role:staff, *, tool:*, discover|invoke|read, community, allow\n"
    return write_project(folder / "p", documents, policy=policy)


@asynccontextmanager
async def desk(tmp_path: Path) -> AsyncIterator[tuple[GatewayUnderTest, Caller]]:
    async with upstream() as port:
        folder = project(tmp_path, port)
        packages = ("tests.support.tools.canary_tools",)
        async with start_gateway(folder, tmp_path / "data", people=[ANA], python_packages=packages) as gateway:
            yield gateway, gateway.caller(ANA)


# --- search ---


def find_unmarked(value: Any, *, path: str = "", is_marked: bool = False) -> Iterator[str]:
    """Return the places where the canary has no mark: no envelope around it and no label on its container."""
    if isinstance(value, dict):
        is_marked = is_marked or _is_labelled(value)
        for key, each in value.items():
            place = f"{path}.{'(key)' if WORD in key else key}"
            if WORD in key and not is_marked:
                yield place
            marked = is_marked or (key == "structuredContent" and _has_labelled_blocks(value))
            yield from find_unmarked(each, path=place, is_marked=marked)
    elif isinstance(value, list):
        for each in value:
            yield from find_unmarked(each, path=f"{path}[]", is_marked=is_marked)
    elif isinstance(value, str) and WORD in value.lower() and not is_marked and not _is_enveloped(value):
        yield path


def _is_labelled(value: dict[str, Any]) -> bool:
    """REST labels a call as a whole. `_meta` alone does not count: models do not read it."""
    if value.get("trusted") is False:
        return True
    message = value.get("message")
    return (
        isinstance(message, str)
        and message.startswith(TRUST_PREFIX)
        and not TAG.search(message)
        and value["_meta"]["trusted"] is False
        and WORD not in json.dumps({key: each for key, each in value.items() if key != "message"})
    )


def _has_labelled_blocks(result: dict[str, Any]) -> bool:
    """Content for programs stays unchanged; its trust label is beside it."""
    return bool(result["content"]) and all(each["_meta"]["trusted"] is False for each in result["content"])


def _is_enveloped(text: str) -> bool:
    found = ENVELOPE.match(text)
    return found is not None and not TAG.search(found[2])


def messages(reply: Reply) -> list[Any]:
    if reply.header("content-type") != "text/event-stream":
        return [orjson.loads(reply.body)]
    lines = [line.removeprefix(b"data:").strip() for line in reply.body.split(b"\n") if line.startswith(b"data:")]
    return [orjson.loads(line) for line in lines if line]


def test_the_search_finds_what_is_not_marked() -> None:
    envelope = f'<untrusted_content_{"0" * 32} nonce="{"0" * 32}">\n{WORD}\n</untrusted_content_{"0" * 32}>'

    assert list(find_unmarked({"a": [WORD], "b": envelope, WORD: 1})) == [".a[]", ".(key)"]
    assert list(find_unmarked({"a": f"{envelope} {WORD}"})) == [".a"]
    assert list(find_unmarked({"message": f"{TRUST_PREFIX}{WORD}", "_meta": {"trusted": False}})) == []
    assert list(find_unmarked({"message": f"{TRUST_PREFIX}{WORD}", "_meta": {"trusted": False}, "total": WORD})) != []


# --- every surface ---


@pytest.mark.parametrize("tool", TOOLS)
async def test_results_and_errors_over_mcp_are_marked(tool: str, tmp_path: Path) -> None:
    async with desk(tmp_path) as (_, caller):
        meta = {"progressToken": 1, LOG_LEVEL: "debug"}
        modern = await caller.modern_call("desk", tool, {"text": "x"}, **meta)
        session = await caller.begin_legacy("desk")
        await caller.legacy("desk", "logging/setLevel", {"level": "debug"}, session=session, id=2)
        params = {"name": tool, "arguments": {"text": "x"}, "_meta": {"progressToken": 1}}
        legacy = await caller.legacy("desk", "tools/call", params, session=session, id=3)

    for reply in (modern, legacy):
        received = messages(reply)
        assert "result" in received[-1], received[-1]
        assert [each for message in received for each in find_unmarked(message)] == []
        if tool == "tells":
            assert [each.get("method") for each in received[:-1]].count("notifications/progress") == 2
            assert [each.get("method") for each in received[:-1]].count("notifications/message") == 2
            assert WORD in str(received[:-1])


async def test_resources_and_queries_are_marked(tmp_path: Path) -> None:
    async with desk(tmp_path) as (_, caller):
        made = (await caller.modern_call("desk", "text", {"text": "x"})).json["result"]
        turn, id = made["_meta"]["gateway/turn"], made["_meta"]["gateway/call"]
        listed = (await caller.modern("desk", "resources/list")).json
        [resource] = listed["result"]["resources"]
        read = (await caller.modern("desk", "resources/read", {"uri": resource["uri"]})).json
        found = await caller.modern_call(
            "desk", "artifact_grep", {"callId": id, "pattern": WORD}, **{"gateway/turn": turn}
        )

    assert WORD in str(read)
    assert WORD in str(found.json)
    assert [*find_unmarked(listed), *find_unmarked(read), *find_unmarked(found.json)] == []


@pytest.mark.parametrize("tool", TOOLS)
async def test_calls_and_records_over_rest_are_marked(tool: str, tmp_path: Path) -> None:
    async with desk(tmp_path) as (_, caller):
        called = (await caller.rest_call("desk", tool, {"text": "x"})).json
        where = f"/v1/calls/{called['callId']}?turn={called['turn']}"
        record = (await caller.rest("GET", where)).json
        listed = (await caller.rest("GET", "/v1/calls")).json

    assert ENVELOPE.match(called["rendered"])
    assert [
        *find_unmarked(called["rendered"]),
        *find_unmarked(called),
        *find_unmarked(record),
        *find_unmarked(listed),
    ] == []


@pytest.mark.parametrize("tool", TOOLS)
async def test_events_over_rest_are_marked(tool: str, tmp_path: Path) -> None:
    async with desk(tmp_path) as (_, caller), asyncio.timeout(30):
        turn = (await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        listening = asyncio.create_task(caller.raw("GET", f"/v1/turns/{turn}/events"))
        await asyncio.sleep(0)
        called = await caller.rest("POST", f"/v1/turns/{turn}/calls", {"tool": tool, "arguments": {"text": "x"}})
        rendered = await caller.rest("GET", f"/v1/turns/{turn}/render")
        await caller.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})
        received = messages(await listening)

    assert called.status == (424 if called.json["isError"] else 200), called.body
    assert any(message.get("isComplete") for message in received)
    assert list(find_unmarked(rendered.json)) == []
    assert [each for message in received for each in find_unmarked(message)] == []


@pytest.mark.parametrize("output", ["text", "json"])
async def test_records_for_operators_hold_no_text_of_an_upstream(output: str, tmp_path: Path) -> None:
    async with desk(tmp_path) as (_, caller):
        ids = [(await caller.rest_call("desk", tool, {"text": "x"})).json["callId"] for tool in TOOLS]
    env = {**os.environ, **environ_of([ANA]), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
    env |= {"GATEWAY_PYTHON_PACKAGES": "tests.support.tools.canary_tools", "PYTHONPATH": f"{ROOT}"}
    options = ["--project", str(tmp_path / "p"), "--output", output]
    shown = [
        run_gateway("calls", *which, *options, env=env)
        for which in (["list"], ["show", ids[0]], ["show", ids[TOOLS.index("error")]])
    ]

    assert not any(each.returncode for each in shown)
    assert all(each.stdout for each in shown)
    assert WORD not in "".join(each.stdout + each.stderr for each in shown)
