"""Canaries in every position of requests over REST and MCP: no refusal repeats the caller's text.

Two members required by MCP are excluded: `data.uri` of a missing resource, and `data.requested` of a version that is
not served. An answer repeats the id of its request, so the id holds no canary.
"""

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.server.rest.operation_table import OPERATIONS
from tests.end_to_end.telemetry.test_canaries import _environ, _read_store
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, PEOPLE, POLICY, approval_client
from tests.support.gateways.projects import (
    LEGACY,
    MODERN,
    Caller,
    Reply,
    environ_of,
    http_tool,
    send_http,
    write_project,
)
from tests.support.servers.otlp_collector import start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

CANARY = "quoted-canary-4be1c9"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "code": {"type": "string", "pattern": "^x+$"},
        "count": {"type": "integer", "minimum": 3},
        "labels": {"type": "object", "propertyNames": {"maxLength": 4}, "additionalProperties": {"type": "integer"}},
        "parts": {"type": "array", "items": {"type": "object", "properties": {"of": {"type": "string"}}}},
        "one": {"oneOf": [{"type": "object", "properties": {"deep": {"type": "integer"}}}, {"type": "null"}]},
    },
}
ARGUMENTS: list[Any] = [
    {CANARY: 1},
    {"kind": CANARY},
    {"code": CANARY},
    {"count": CANARY},
    {"labels": {CANARY: CANARY}},
    {"labels": {CANARY: {CANARY: CANARY}}},
    {"parts": [{CANARY: CANARY}, CANARY]},
    {"one": {"deep": CANARY, CANARY: CANARY}},
    {f"{CANARY}\x1b[31m\u202e": 1},
]
TEXTS = [
    CANARY,
    f'{{"{CANARY}": ',
    f'{{"{CANARY}": NaN}}',
    f'{{"{CANARY}": 1, "{CANARY}": 2}}',
    f'{{"{CANARY}": {"9" * 5000}}}',
    f'["{CANARY}"]',
    f'"{CANARY}"',
]


def project(folder: Path, port: int) -> Path:
    tools = [http_tool("strict", port, input={"schema": SCHEMA})]
    documents = wait_for_spans(approval_client(port, tools=tools), logs={}, metrics={"exporter": {"type": "otlp-http"}})
    return write_project(folder, documents, policy=POLICY)


def rest_requests(turn: str) -> Iterator[tuple[str, str, bytes, dict[str, str]]]:
    """Method, path, body and headers."""
    call = "/v1/catalogues/desk/tools/strict/call"
    json_type = {"content-type": "application/json"}

    def posted(path: str, body: Any, **more: str) -> tuple[str, str, bytes, dict[str, str]]:
        return "POST", path, json.dumps(body).encode(), {**json_type, **more}

    for arguments in ARGUMENTS:
        yield posted(call, {"arguments": arguments})
        yield posted(f"/v1/turns/{turn}/calls", {"tool": "strict", "arguments": arguments})
    for text in TEXTS:
        yield posted(call, {"arguments": text})
        yield "POST", call, text.encode(), json_type
    yield posted(call, {"arguments": {}, CANARY: CANARY})
    yield posted(call, {"arguments": {}, "turn": CANARY})
    yield posted(call, {"arguments": {}, "turn": {CANARY: CANARY}})
    yield posted(call, {"arguments": {"count": 1}}, **{"idempotency-key": f"{CANARY}\xe9"})
    yield posted("/v1/turns", {"catalogue": CANARY})
    yield posted("/v1/turns", {"catalogue": "desk", CANARY: {CANARY: CANARY}})
    yield posted(f"/v1/turns/{turn}/calls", {"tool": CANARY, "arguments": {CANARY: CANARY}})
    yield posted(f"/v1/turns/{turn}/calls", {"tool": {CANARY: CANARY}})
    yield posted(f"/v1/turns/{turn}/end", {CANARY: CANARY})
    yield posted(f"/v1/turns/{turn}/render", {CANARY: CANARY})
    yield posted(f"/v1/artifacts/{CANARY}/query", {"tool": CANARY, "arguments": {CANARY: CANARY}})
    yield posted(f"/v1/approvals/{CANARY}/resolve", {CANARY: CANARY})
    yield "GET", f"/v1/turns/{turn}/{CANARY}", b"", {}
    yield "GET", f"/v1/catalogues/desk?{CANARY}={CANARY}", b"", {}
    for name in ("limit", "status", "cursor", "turn", "tool", "catalogue", CANARY):
        yield "GET", f"/v1/calls?{name}={CANARY}", b"", {}
    yield "GET", f"/v1/calls?{CANARY}", b"", {}
    yield "GET", f"/v1/turns/{CANARY}/events", b"", {"last-event-id": CANARY}
    yield "GET", f"/v1/artifacts/{CANARY}/content", b"", {"range": f"bytes={CANARY}", "if-none-match": CANARY}
    yield CANARY.replace("-", "").upper(), "/v1/calls", b"", {}
    yield "POST", call, b"{}", {"content-type": CANARY}
    yield "POST", call, b"{}", {**json_type, "content-encoding": CANARY}
    for operation in OPERATIONS:
        path = operation.path
        for name in ("catalogue", "name", "turn", "callId", "approval"):
            path = path.replace(f"{{{name}}}", CANARY)
        if path != operation.path:
            body = b"" if operation.method == "GET" else json.dumps({CANARY: CANARY}).encode()
            yield operation.method, path, body, json_type if body else {}


def mcp_requests() -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
    """Method, parameters, and headers that contradict the request."""
    for arguments in ARGUMENTS:
        yield "tools/call", {"name": "strict", "arguments": arguments}, {}
    for text in TEXTS:
        yield "tools/call", {"name": "strict", "arguments": text}, {}
    yield "tools/call", {"name": CANARY, "arguments": {CANARY: CANARY}}, {}
    yield "tools/call", {"name": {CANARY: CANARY}}, {}
    yield "tools/call", {"name": "strict", "arguments": {}}, {"mcp-name": CANARY}
    yield "tools/call", {"name": "strict", "arguments": {}, "requestState": CANARY, "inputResponses": {CANARY: 1}}, {}
    yield "tools/call", {"name": "strict", "arguments": {}, "_meta": {"gateway/turn": CANARY}}, {}
    yield "tools/call", {"name": "strict", "arguments": {}, "_meta": {"gateway/turn": {CANARY: CANARY}}}, {}
    yield "tools/call", {"name": "strict", "arguments": {}, "_meta": {"io.modelcontextprotocol/logLevel": CANARY}}, {}
    yield "tools/list", {"cursor": CANARY}, {}
    yield "tools/list", {"cursor": {CANARY: CANARY}}, {}
    yield "tools/list", {CANARY: CANARY}, {"mcp-method": CANARY}
    yield "resources/list", {"cursor": CANARY}, {}
    yield "prompts/get", {"name": CANARY, "arguments": {CANARY: CANARY}}, {}
    yield "completion/complete", {"ref": {"type": CANARY, "name": CANARY}, "argument": {CANARY: CANARY}}, {}
    yield "tasks/get", {"taskId": CANARY}, {}
    yield "tasks/cancel", {"taskId": CANARY}, {}
    yield "subscriptions/listen", {"notifications": CANARY}, {}
    yield "logging/setLevel", {"level": CANARY}, {}
    yield CANARY, {CANARY: CANARY}, {}


async def modern(ana: Caller, method: str, params: dict[str, Any], more: dict[str, str]) -> Reply:
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": MODERN, f"{prefix}clientCapabilities": {}, **params.get("_meta", {})}
    named = params.get("name") or params.get("taskId")
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": method,
        **({"mcp-name": named} if isinstance(named, str) else {}),
        **more,
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return await ana.raw("POST", "/desk/mcp", json.dumps(message).encode(), **underscored(headers))


def underscored(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items()}


async def odd_messages(ana: Caller, session: str) -> list[Reply]:
    """Messages that are invalid as a whole."""
    json_type = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
    bodies = [
        *TEXTS,
        f'{{"jsonrpc": "2.0", "{CANARY}": 1}}',
        f'{{"jsonrpc": "{CANARY}", "id": 1, "method": "x"}}',
        f'{{"jsonrpc": "2.0", "id": {{"{CANARY}": 1}}, "method": "x"}}',
        f'{{"jsonrpc": "2.0", "id": 1, "method": "x", "params": "{CANARY}"}}',
    ]
    answers = []
    for body in bodies:
        for version in (MODERN, LEGACY):
            more = {**json_type, "mcp_protocol_version": version, "mcp_session_id": session}
            answers.append(await ana.raw("POST", "/desk/mcp", body.encode(), **more))
    plain = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    for name in ("mcp_protocol_version", "mcp_session_id", "content_type", "accept", "content_encoding"):
        answers.append(await ana.raw("POST", "/desk/mcp", plain, **{**json_type, name: CANARY}))
    answers.append(await ana.raw("POST", f"/{CANARY}/mcp", plain, **json_type))
    accepted = {"accept": "text/event-stream", "mcp_session_id": session, "last_event_id": CANARY}
    answers.append(await ana.raw("GET", "/desk/mcp", **accepted))
    answers.append(await ana.raw("GET", f"/.well-known/oauth-authorization-server/{CANARY}"))
    return answers


async def test_no_refusal_repeats_what_the_caller_sent(tmp_path: Path, forks: ForkServer) -> None:
    async with start_collector() as collector, aiohttp.ClientSession() as session:
        env = {**environ_of(PEOPLE), **_environ(collector), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        gateway = await asyncio.to_thread(forks.start, project(tmp_path / "p", 9), tmp_path / "data", env=env)
        ana = Caller(send_http(session, gateway.url), ANA.token)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        legacy = await ana.begin_legacy("desk")
        replies: list[tuple[Any, Reply]] = []
        for method, path, body, headers in rest_requests(turn):
            replies.append(((method, path, body), await ana.raw(method, path, body, **underscored(headers))))
        for name, params, more in mcp_requests():
            replies.append(((name, params), await modern(ana, name, params, more)))
            replies.append((("legacy", name, params), await ana.legacy("desk", name, params, session=legacy)))
        replies += [("odd", each) for each in await odd_messages(ana, legacy)]
        async with session.get(f"{gateway.admin_url}/metrics") as answer:
            metrics = await answer.read()
        await asyncio.to_thread(gateway.stop)

    assert len(replies) > 150
    assert sum(reply.status >= 400 for _, reply in replies) > 80
    quoted = [(asked, reply) for asked, reply in replies if CANARY.encode() in _text_of(reply)]
    assert quoted == []
    sent = b"".join(gzip.decompress(each) if each[:2] == b"\x1f\x8b" else each for each in collector.payloads)
    log = gateway.output.read_bytes()
    everywhere = {"sent": sent, "metrics": metrics, "log": log}
    assert {name for name, text in everywhere.items() if CANARY.encode() in text} == set()
    assert _read_store(tmp_path / "data")


def _text_of(reply: Reply) -> bytes:
    return reply.body + repr(reply.headers).encode()
