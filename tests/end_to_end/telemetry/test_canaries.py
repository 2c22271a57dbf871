"""Secrets in every place that can hold one, and contents of calls: none of them leaks, whatever goes wrong.

The contents of a call are in its record and nowhere else; secrets are not even there.
"""

import asyncio
import gzip
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.app.project_source import LAST_GOOD
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, PEOPLE, POLICY, approval_client
from tests.support.gateways.projects import (
    ANY_TEXT,
    Caller,
    Document,
    document,
    environ_of,
    http_tool,
    send_http,
    write_project,
)
from tests.support.servers.app_server import serve_aiohttp
from tests.support.servers.otlp_collector import Collector, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

SECRET = "secret-canary-5d1b77"
CONTENT = "content-canary-9c04e2"
NAME = "name-canary-77aa10"
"""In keys, and in the names of missing tools and catalogues: the decision log contains the requested name."""
KEY = "key-of-the-collector-31f0"


@asynccontextmanager
async def leaky() -> AsyncIterator[int]:
    """A service that leaks: in errors, redirects, headers and results. Yields its port."""

    async def refuse(request: web.Request) -> web.Response:
        text = f"cannot serve {CONTENT} to {request.headers.get('authorization')}"
        headers = {"www-authenticate": f"Bearer {SECRET}", "x-debug": CONTENT}
        return web.Response(status=int(request.match_info["status"]), reason=CONTENT, text=text, headers=headers)

    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"http://{SECRET}:{SECRET}@127.0.0.1:9/?q={SECRET}")

    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-length": "9999"})
        await answer.prepare(request)
        await answer.write(CONTENT.encode())
        assert request.transport is not None
        request.transport.close()
        return answer

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{CONTENT} result")

    app = web.Application()
    app.router.add_route("*", "/status/{status}", refuse)
    app.router.add_route("*", "/redirect", redirect)
    app.router.add_route("*", "/cut", cut)
    app.router.add_route("*", "/{path:.*}", answer)
    async with serve_aiohttp(app) as port:
        yield port


def tools(port: int) -> list[Document]:
    """Return tools that each have a secret in their address and one as a credential."""
    auth = {"scheme": "bearer", "token": {"fromEnv": "SECRET_TOKEN"}}
    paths = {"look": "look/{text}", "gone": "status/500", "denied": "status/401", "moved": "redirect", "short": "cut"}
    made = []
    for name, path in paths.items():
        url = f"http://127.0.0.1:{port}/{path}?key={SECRET}"
        tool = http_tool(name, port)
        made.append(
            {**tool, "spec": {**tool["spec"], "backend": {"type": "http", "method": "GET", "url": url, "auth": auth}}}
        )
    unreachable = {"type": "http", "method": "GET", "url": f"http://127.0.0.1:9/{SECRET}?key={SECRET}", "auth": auth}
    down = http_tool("down", port)
    made.append({**down, "spec": {**down["spec"], "backend": unreachable}})
    return [
        *made,
        *(_python(name, run) for name, run in (("boom", "thread"), ("spill", "thread"), ("spill", "process"))),
    ]


def _python(function: str, run: str) -> Document:
    spec = {
        "version": "1.0.0",
        "description": "Fails.",
        "input": {"schema": ANY_TEXT},
        "trust": {"tier": "internal", "flags": []},
        "backend": {"type": "python", "entrypoint": f"tests.support.tools.leaky_tools:{function}", "run": run},
    }
    return document("Tool", f"{function}_{run}", spec)


async def test_no_secret_and_no_content_leaks_anywhere(tmp_path: Path, forks: ForkServer) -> None:
    async with start_collector() as collector, leaky() as port, aiohttp.ClientSession() as session:
        made = tools(port)
        documents = wait_for_spans(
            approval_client(port, tools=made), logs={}, metrics={"exporter": {"type": "otlp-http"}}
        )
        project = write_project(tmp_path / "p", documents, policy=POLICY)
        env = {**environ_of(PEOPLE), **_environ(collector), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        gateway = await asyncio.to_thread(forks.start, project, tmp_path / "data", env=env)
        ana = Caller(send_http(session, gateway.url), ANA.token)
        ana.headers += [("x-secret", SECRET), ("cookie", f"session={SECRET}"), ("tracestate", f"v={SECRET}")]
        names = [each["metadata"]["name"] for each in made]
        answers = [await _call_everything(ana, name) for name in names]
        await _send_bad_requests(ana, session, gateway)
        async with session.get(f"{gateway.admin_url}/metrics") as answer:
            metrics = await answer.text()
        await asyncio.to_thread(gateway.stop)

    found = dict(zip(names, answers, strict=True))
    assert f"{CONTENT} result" in found["look"]
    assert "the tool raised LeakError" in found["spill_thread"]
    assert "the tool raised LeakError" in found["spill_process"]
    assert "cannot serve" in found["gone"]
    sent = b"".join(map(_plain, collector.payloads))
    assert len(collector.spans) > 2 * len(names)
    assert {path for path, _ in collector.requests} == {"/v1/traces", "/v1/logs", "/v1/metrics"}
    log = gateway.output.read_bytes()
    assert b"vendor.sdk" in log
    audit, everything = _read_store(tmp_path / "data")
    assert b"spill_thread" in audit
    places = {"sent": sent, "metrics": metrics.encode(), "log": log, "decision log": audit}
    hits = {(place, canary) for place, text in places.items() for canary in _forbidden() if canary.encode() in text}
    assert hits == {("decision log", NAME)}
    assert {canary for canary in (SECRET, KEY, ANA.token) if canary.encode() in everything} == set()
    assert b"user:ana" not in sent + metrics.encode()
    assert all(headers["x-key"] == KEY for _, headers in collector.requests)
    assert all(SECRET not in answer for answer in answers)


async def _call_everything(ana: Caller, name: str) -> str:
    text = {"text": f"{CONTENT} argument"}
    rest = await ana.rest_call("desk", name, text, idempotency_key=f"{NAME}-{name}")
    modern = await ana.modern_call("desk", name, text, baggage=f"a={SECRET}", other=CONTENT, id=f"id of {name}")
    return rest.body.decode() + json.dumps(modern.json, ensure_ascii=False)


async def _send_bad_requests(ana: Caller, session: aiohttp.ClientSession, gateway: GatewayFork) -> None:
    """Make refused, malformed and unknown requests; their contents belong to the caller."""
    await ana.rest_call("desk", "pay", {"text": 1, CONTENT: CONTENT})
    await ana.rest_call(NAME, NAME, {CONTENT: CONTENT})
    await ana.rest_call("desk", NAME, CONTENT)
    await ana.rest("GET", f"/v1/calls/{CONTENT}?{SECRET}={SECRET}")
    await ana.rest("GET", f"/v1/{SECRET}?token={SECRET}")
    await ana.modern_call("desk", NAME, {})
    await ana.modern("desk", CONTENT, {CONTENT: CONTENT}, traceparent=SECRET)
    for body in (CONTENT, f'{{"{CONTENT}', f'[{{"id": "{CONTENT}"}}]', f'{{"jsonrpc": "2.0", "method": "{CONTENT}"}}'):
        await ana.raw("POST", f"/desk/mcp?token={SECRET}", body.encode(), content_type="application/json", accept="*/*")
    await ana.raw("POST", f"/{CONTENT}/mcp", b"{}", content_type="application/json", accept="*/*")
    legacy = await ana.begin_legacy("desk")
    await ana.legacy("desk", CONTENT, {"uri": CONTENT}, session=legacy)
    await ana.legacy("desk", "resources/read", {"uri": f"artifact://{CONTENT}"}, session=legacy)
    await ana.legacy("desk", "tools/call", {"name": "spill_thread", "arguments": {"text": CONTENT}}, session=legacy)
    await ana.legacy("desk", "tools/list", session=SECRET)
    for headers in ({"authorization": f"Bearer {SECRET}"}, {"authorization": f"Basic {SECRET}"}, {"host": SECRET}):
        async with session.post(f"{gateway.url}/desk/mcp", headers=headers, data=SECRET) as answer:
            assert answer.status in (401, 421)
        async with session.get(f"{gateway.admin_url}/status?{SECRET}", headers=headers) as answer:
            assert answer.status in (401, 403, 421)


def _environ(collector: Collector) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={KEY}",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
        "GATEWAY_PYTHON_PACKAGES": "tests.support.tools.leaky_tools",
        "GATEWAY_LOG_LEVEL": "debug",
        "GATEWAY_LOG_FORMAT": "json",
        "VENDOR_KEY": SECRET,
        "SECRET_TOKEN": SECRET,
    }


def _forbidden() -> tuple[str, ...]:
    return SECRET, CONTENT, NAME, KEY, ANA.token


def _plain(payload: bytes) -> bytes:
    return gzip.decompress(payload) if payload[:2] == b"\x1f\x8b" else payload


def _read_store(data: Path) -> tuple[bytes, bytes]:
    """Return the entries of the decision log, and all files."""
    with closing(sqlite3.connect(f"file:{data}/gateway.db?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows: dict[str, list[Any]] = {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}
    audit = repr([rows[name] for name in tables if name.startswith("audit")]).encode()
    # The last good revision is a copy of the documents, and this test put its secret in them.
    written = [path for path in sorted(data.rglob("*")) if path.is_file() and path.name != LAST_GOOD]
    files = b"".join(path.read_bytes() for path in written)
    return audit, repr(rows).encode() + files
