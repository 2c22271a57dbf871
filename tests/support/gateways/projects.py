"""Projects with many callers, a counting backend, and one client for gateways in this process or another."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from gateway.app.app import App, run_app
from gateway.app.asgi_apps import build_asgi_apps
from gateway.app.settings import Settings
from gateway.server.http.asgi import AsgiApp
from gateway.server.http.drain import DrainMiddleware, ShutdownSignal
from tests.support.paths import ROOT
from tests.support.ready_databases import USUAL_PATH, prepare_data_folder
from tests.support.servers.app_server import serve_aiohttp
from tests.support.yaml_documents import format_documents

MODERN = "2026-07-28"
LEGACY = "2025-11-25"

Document = dict[str, Any]


# --- projects ---


def document(kind: str, name: str, spec: Mapping[str, Any]) -> Document:
    return {"apiVersion": "gateway/v1", "kind": kind, "metadata": {"name": name, "owner": "team"}, "spec": dict(spec)}


ANY_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def http_tool(name: str, port: int, *, tier: str = "internal", flags: Sequence[str] = (), **more: Any) -> Document:
    """Return a tool that posts its arguments to the counting backend, under its own name."""
    trust: dict[str, Any] = {"tier": tier, "flags": list(flags)}
    backend = {
        "type": "http",
        "method": "POST",
        "url": f"http://127.0.0.1:{port}/{name}",
        "body": {"from": "arguments"},
    }
    spec = {"version": "1.0.0", "description": f"Does {name}.", "input": {"schema": ANY_TEXT}}
    return document("Tool", name, {**spec, "trust": trust, "backend": backend, **more})


def catalogue(name: str, audience: Sequence[str], tools: Sequence[str], **more: Any) -> Document:
    publish = {"path": f"/{name}", **more.pop("publish", {})}
    return document(
        "Catalogue",
        name,
        {"audience": list(audience), "include": [{"tools": list(tools)}], "publish": publish, **more},
    )


def base_documents(identity: Sequence[str], **defaults: str) -> list[Document]:
    """Return the documents that every project needs besides its tools."""
    named = {"pipeline": "standard", "collisionPolicy": "careful", "tier": "internal", **defaults}
    return [
        document("Gateway", "secured", {"defaults": named, "identity": list(identity), "storage": "main"}),
        document("Storage", "main", {"type": "sqlite", "path": USUAL_PATH}),
        document("CollisionPolicy", "careful", {"onCollision": "throw", "honourTool": "sameOrHigherTrust"}),
        document("Pipeline", "standard", {"call": [{"use": "gates"}, {"use": "timeout", "with": {"after": "30s"}}]}),
        _tier("internal", 0, "first-party", mayBeTrusted=True),
        _tier("partner", 10, "third-party-private"),
        _tier("community", 20, "third-party-public"),
        document("TrustFlag", "writes", {"description": "Changes state.", "hint": {"readOnly": False}}),
    ]


def _tier(name: str, rank: int, origin: str, **more: Any) -> Document:
    return document("TrustTier", name, {"rank": rank, "description": f"{name}.", "origin": origin, **more})


@dataclass(frozen=True)
class Person:
    """A caller with an API token."""

    name: str
    roles: tuple[str, ...] = ()
    tenant: str | None = None
    subject: str = ""

    @property
    def token(self) -> str:
        return f"agw_{self.name}_{sha256(self.name.encode()).hexdigest()}"

    @property
    def variable(self) -> str:
        return f"TOKEN_OF_{self.name.upper()}"


def tokens_of(people: Sequence[Person]) -> Document:
    tokens = [
        {
            "subject": each.subject or f"user:{each.name}",
            "roles": [f"role:{role}" for role in each.roles],
            "sha256": {"fromEnv": each.variable},
            "expires": "2999-12-31",
            **({"tenant": each.tenant} if each.tenant else {}),
        }
        for each in people
    ]
    return document("IdentityProvider", "tokens", {"type": "token", "tokens": tokens})


def environ_of(people: Sequence[Person]) -> dict[str, str]:
    return {each.variable: sha256(each.token.encode()).hexdigest() for each in people}


def write_project(folder: Path, documents: Sequence[Document], *, policy: str, roles: str = "") -> Path:
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "configs" / "all.yaml").write_text(format_documents(documents), encoding="utf-8")
    (folder / "policies" / "policy.csv").write_text(policy, encoding="utf-8")
    (folder / "policies" / "roles.csv").write_text(roles, encoding="utf-8")
    model = (ROOT / "policies" / "model.conf").read_text(encoding="utf-8")
    (folder / "policies" / "model.conf").write_text(model, encoding="utf-8")
    return folder


# --- the backend ---


@dataclass
class CallCounter:
    """A real service that echoes each request and stores it."""

    port: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    answer: Callable[[bytes], bytes] = field(default=lambda body: body)
    goes_on: asyncio.Event | None = None
    """If set, answers wait for this event."""

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((request.path, dict(request.headers), body))
        if self.goes_on is not None:
            await self.goes_on.wait()
        return web.Response(body=self.answer(body), content_type="text/plain", charset="utf-8")


@asynccontextmanager
async def start_call_counter() -> AsyncIterator[CallCounter]:
    backend = CallCounter()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", backend.handle)
    async with serve_aiohttp(app) as backend.port:
        yield backend


# --- clients ---


@dataclass(frozen=True)
class Reply:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the document, or the last message of a stream."""
        if self.header("content-type") == "text/event-stream":
            data = [line.removeprefix(b"data:") for line in self.body.split(b"\n") if line.startswith(b"data:")]
            return orjson.loads(data[-1])
        return orjson.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


Ask = Callable[[str, str, list[tuple[str, str]], bytes], Awaitable[Reply]]


def send_asgi(app: AsgiApp) -> Ask:
    """Return a sender for an app in this process."""

    async def ask(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Reply:
        plain, _, query = path.partition("?")
        raw = [(b"host", b"localhost"), *((name.encode(), value.encode("latin-1")) for name, value in headers)]
        scope = {"type": "http", "method": method, "path": plain, "query_string": query.encode(), "headers": raw}
        sent: list[MutableMapping[str, Any]] = []
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return left.pop() if left else await _never()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await app({**scope, "http_version": "1.1", "root_path": "", "scheme": "http"}, receive, send)
        reply_headers = tuple((name.decode(), value.decode("latin-1")) for name, value in sent[0]["headers"])
        return Reply(sent[0]["status"], reply_headers, b"".join(each.get("body", b"") for each in sent[1:]))

    return ask


async def _never() -> Any:
    await asyncio.Event().wait()


def send_http(session: aiohttp.ClientSession, url: str) -> Ask:
    """Return a sender for a gateway in another process."""

    async def ask(method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Reply:
        async with session.request(method, f"{url}{path}", headers=headers, data=body or None) as answer:
            reply_headers = tuple((name.lower(), value) for name, value in answer.headers.items())
            return Reply(answer.status, reply_headers, await answer.read())

    return ask


class Caller:
    """A caller with a token who uses both MCP versions and REST."""

    def __init__(self, ask: Ask, token: str | None) -> None:
        self._ask = ask
        self.headers = [] if token is None else [("authorization", f"Bearer {token}")]

    async def raw(self, method: str, path: str, body: bytes = b"", /, **more: str) -> Reply:
        extra = [(name.replace("_", "-"), value) for name, value in more.items()]
        return await self._ask(method, path, [*self.headers, *extra], body)

    async def rest(self, method: str, path: str, body: Any = None, **more: str) -> Reply:
        if body is None:
            return await self.raw(method, path, **more)
        return await self.raw(method, path, json.dumps(body).encode(), content_type="application/json", **more)

    async def rest_call(self, place: str, tool: str, arguments: Any, **more: str) -> Reply:
        path = f"/v1/catalogues/{place}/tools/{tool}/call"
        return await self.rest("POST", path, {"arguments": arguments}, **more)

    async def modern(
        self, place: str, method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1, **meta: Any
    ) -> Reply:
        protocol = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
        given = {**(params or {}), "_meta": {**protocol, **meta}}
        named = given.get("name") or given.get("uri") or given.get("taskId")
        more = {"mcp_name": str(named)} if named else {}
        return await self.raw(
            "POST",
            f"/{place}/mcp",
            orjson.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": given}),
            content_type="application/json",
            accept="application/json, text/event-stream",
            mcp_protocol_version=MODERN,
            mcp_method=method,
            **more,
        )

    async def modern_call(self, place: str, tool: str, arguments: Any, *, id: Any = 1, **meta: Any) -> Reply:
        return await self.modern(place, "tools/call", {"name": tool, "arguments": arguments}, id=id, **meta)

    async def legacy(
        self, place: str, method: str, params: Mapping[str, Any] | None = None, *, session: str = "", id: Any = 1
    ) -> Reply:
        message = {
            "jsonrpc": "2.0",
            "method": method,
            "params": dict(params or {}),
            **({} if id is None else {"id": id}),
        }
        more = {"mcp_session_id": session} if session else {}
        return await self.raw(
            "POST",
            f"/{place}/mcp",
            orjson.dumps(message),
            content_type="application/json",
            accept="application/json, text/event-stream",
            mcp_protocol_version=LEGACY,
            **more,
        )

    async def begin_legacy(self, place: str) -> str:
        info = {"name": "test", "version": "0"}
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
        answer = await self.legacy(place, "initialize", params, id=0)
        session = answer.header("mcp-session-id")
        assert session, answer.body
        await self.legacy(place, "notifications/initialized", session=session, id=None)
        return session


# --- gateways ---


@dataclass
class GatewayUnderTest:
    """A gateway in this process, complete except for its listeners."""

    running: App
    ask: Ask
    app: AsgiApp

    def asked_by(self, wrapped: Callable[[AsgiApp], AsgiApp]) -> Ask:
        """Return a sender for the same app behind a wrapper."""
        return send_asgi(wrapped(self.app))

    def caller(self, person: Person | None) -> Caller:
        return Caller(self.ask, None if person is None else person.token)


@asynccontextmanager
async def start_gateway(
    project: Path,
    data: Path,
    *,
    people: Sequence[Person] = (),
    environ: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[GatewayUnderTest]:
    known = {**os.environ, **environ_of(people), **(environ or {}), "GATEWAY_DATA_DIR": str(data)}
    prepare_data_folder(data, project)
    async with run_app(Settings(configs=project, **settings), environ=known) as gateway:
        assert gateway.unavailable_tools == ()
        stopping = ShutdownSignal()
        both = build_asgi_apps(gateway, base_url="http://localhost", stopping=stopping)
        app = DrainMiddleware(both.data, stopping, both.count_refusal, meter=both.meter)  # as listeners have it
        try:
            yield GatewayUnderTest(gateway, send_asgi(app), app)
        finally:
            await both.close()
