"""A gateway for tests: real service, storage and middleware, tools made of plain functions, permissions in a set."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx2
from starlette.routing import Router

from gateway.approvals.service import ApprovalService
from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.markdown_artifact import SpooledMarkdownArtifact
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.artifact_classes import ArtifactTypes
from gateway.engine.call import Call
from gateway.engine.handler import HandlerDependencies, build_handler
from gateway.engine.live_revision import LiveCatalogue, LiveRevision
from gateway.engine.service import Service
from gateway.engine.stages.result_stages import redact_artifact
from gateway.errors import Unauthenticated
from gateway.model.caller import Principal
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.schema.schema import Schema
from gateway.model.tools.backend import BackendError, Invocation
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.policy.access import Access
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.snapshot import ArtifactClass, Catalogue, DeclaredTool, Deprecation, Snapshot
from gateway.server.http.asgi import AsgiApp
from gateway.server.http.middleware import EdgeMiddleware, EdgeRules
from gateway.server.rest.operation_table import OPEN_PATHS
from gateway.server.rest.router import build_routes
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.support.ready_databases import put_ready_database

HERE = Position("tests.yaml", 1)
OPEN = Tier("open", 1, "first-party", may_be_trusted=True)
BUILT_IN = {"text": SpooledArtifact, "json": SpooledJsonArtifact, "markdown": SpooledMarkdownArtifact}
PEOPLE = {
    "ann": Principal("user:ann", frozenset({"role:staff"}), "acme"),
    "bob": Principal("user:bob", frozenset({"role:staff"}), "acme"),
    "other-ann": Principal("user:ann", frozenset({"role:staff"}), "umbrella"),
    "nobody-ann": Principal("user:ann", frozenset({"role:staff"}), None),
    "guest": Principal("user:guest", frozenset({"role:guest"}), "acme"),
}
ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}
TEXT_ARGUMENT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "times": {"type": "integer", "default": 1}},
    "required": ["text"],
}

Run = Callable[[Invocation], Awaitable[Any]]


class Grants:
    """Allows what is in the set: `(role, catalogue, tool)`."""

    def __init__(self) -> None:
        self.rows: set[tuple[str, str, str]] = set()
        self.only_shown: set[str] = set()
        """Tools that all callers may see and none may call."""

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        return names

    def decide(self, request: AccessRequest) -> AccessDecision:
        object = request.object.removeprefix("tool:")
        if object in self.only_shown:
            return AccessDecision(request.action == "discover", "only to be seen", HERE)
        allowed = any((name, request.catalogue, object) in self.rows for name in request.names)
        return AccessDecision(allowed and request.action != "read", "the set says so")


@dataclass
class RestReply:
    """Calls of the tools, and the events they wait for."""

    runs: list[str] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Gateway:
    service: Service
    store: SqliteStore
    app: AsgiApp
    grants: Grants
    tried: RestReply
    folder: Path

    def client(self, who: str | None = "ann") -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {who}"} if who else {}
        transport = httpx2.ASGITransport(app=self.app)
        return httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


async def authenticate(credential: bytes | None) -> Principal:
    name = (credential or b"").decode().removeprefix("Bearer ")
    if name not in PEOPLE:
        raise Unauthenticated("invalid_token", reason="nobody of that name")
    return PEOPLE[name]


def trust(*flags: str, trusted: bool = False) -> EffectiveTrust:
    return EffectiveTrust(OPEN, frozenset(flags), trusted, True)


def declared_tools() -> dict[str, DeclaredTool]:
    def tool(name: str, *, schema: dict[str, Any] = ANY, **fields: Any) -> DeclaredTool:
        fields.setdefault("trust", trust())
        return DeclaredTool(name, f"Does {name}.", backend="python", position=HERE, input_schema=schema, **fields)

    found = [
        tool("echo", schema=TEXT_ARGUMENT, title="Echo", hints={"readOnly": True}),
        tool("handle", inline=False),
        tool("facts", artifact="json"),
        tool("page", artifact="markdown"),
        tool("secretive", artifact="masked"),
        tool("short_lived", artifact="brief"),
        tool("picture"),
        tool("two_pictures"),
        tool("fails"),
        tool("pay", trust=trust("writes")),
        tool("slow", trust=trust("writes")),
        tool("big", inline=False),
        tool("trusted_echo", schema=TEXT_ARGUMENT, trust=trust(trusted=True)),
        tool(
            "old_echo",
            lifecycle="deprecated",
            deprecation=Deprecation(date(2026, 1, 1), date(2999, 1, 1), "echo"),
        ),
        tool("hidden_tool"),
        tool("staff_only"),
    ]
    return {each.name: each for each in found}


def artifact_classes() -> dict[str, ArtifactClass]:
    return {
        "masked": ArtifactClass("masked", SpooledJsonArtifact, HERE, redact=("$.password",)),
        "brief": ArtifactClass("brief", SpooledArtifact, HERE, retain=timedelta(0)),
    }


def catalogue(name: str, audience: set[str], tools: set[str], **fields: Any) -> Catalogue:
    names = {each: each for each in sorted(tools)}
    return Catalogue(name, frozenset(audience), names, "default", f"/c/{name}", HERE, **fields)


def snapshot() -> Snapshot:
    tools = declared_tools()
    catalogues = [
        catalogue("desk", {"role:staff", "role:guest"}, set(tools), title="The desk"),
        catalogue("vault", {"role:admin"}, {"echo"}),
        catalogue("plain", {"role:staff"}, {"echo", "handle"}, render="plain"),
        catalogue("mcp_only", {"role:staff"}, {"echo"}, protocols=("mcp",)),
    ]
    return Snapshot(
        "tests",
        documents={},
        flags={},
        tiers={"open": OPEN},
        artifacts=artifact_classes(),
        collision_policies={},
        gates={},
        pipelines={},
        tools=tools,
        catalogues={each.name: each for each in catalogues},
        revision="r1" * 32,
    )


def picture() -> Media:
    return Media.tool_generated(
        "image", mime_type="image/png", filename="piç ture.png", reader=InMemoryMediaReader(b"\x89PNG 0123456789")
    )


def runs_of(tried: RestReply) -> Mapping[str, Run]:
    async def echo(call: Invocation) -> Any:
        tried.runs.append(call.tool)
        return str(call.args.get("text", "")) * call.args.get("times", 1)

    async def constant(call: Invocation) -> Any:
        tried.runs.append(call.tool)
        return {
            "handle": "line one\nline two\nline three",
            "facts": '{"a": [1, 2, 3]}',
            "page": "# Title\n\ntext\n",
            "secretive": '{"user": "kim", "password": "hunter2"}',
            "short_lived": "gone soon",
            "picture": picture(),
            "two_pictures": [picture(), picture()],
            "big": b"0123456789abcdef" * (1 << 16),
        }[call.tool]

    async def fail(call: Invocation) -> Any:
        tried.runs.append(call.tool)
        raise BackendError("failed", "the backend is down")

    async def slow(call: Invocation) -> Any:
        tried.runs.append(call.tool)
        tried.running.set()
        await tried.go_on.wait()
        return "done"

    special = {"fails": fail, "slow": slow}
    constants = {"handle", "facts", "page", "secretive", "short_lived", "picture", "two_pictures", "big"}
    names = declared_tools()
    return {name: special.get(name) or (constant if name in constants else echo) for name in names}


def publish(
    access: Access, tried: RestReply, journal: Callable[[Call, DeclaredTool], Awaitable[None]], **fields: Any
) -> LiveRevision:
    types = ArtifactTypes(access.snapshot.artifacts, built_in=BUILT_IN.__getitem__, mask=redact_artifact)
    runs = runs_of(tried)
    catalogues: dict[str, LiveCatalogue] = {}
    for name, each in access.snapshot.catalogues.items():
        handling = HandlerDependencies(access, name, types, journal)
        tools = [
            _tool(advertised, access.snapshot.tools[identity], handling, runs)
            for advertised, identity in each.tools.items()
        ]
        artifacts = {access.snapshot.tools[identity].artifact for identity in each.tools.values()}
        queries = {tool.name: tool for kind in sorted(artifacts) for tool in types.get(kind).query_tools()}
        catalogues[name] = LiveCatalogue(each, ToolRegistry(tools), queries, **fields)
    return LiveRevision(access, catalogues, types)


def _tool(advertised: str, tool: DeclaredTool, handling: HandlerDependencies, runs: Mapping[str, Run]) -> Tool:
    return Tool(
        name=advertised,
        description=tool.description,
        input_schema=Schema(dict(tool.input_schema or {})),
        handler=build_handler(tool, handling, run=runs[tool.name]),
        trusted=tool.trust.trusted,
    )


@asynccontextmanager
async def running(folder: Path, **fields: Any) -> AsyncIterator[Gateway]:
    """`fields` apply to every published catalogue, such as its pipelines."""
    tried, grants = RestReply(), Grants()
    shown = set(declared_tools()) - {"hidden_tool"}
    grants.rows = {("role:staff", name, tool) for name in ("desk", "plain", "mcp_only") for tool in shown}
    grants.rows |= {("role:guest", "desk", tool) for tool in shown - {"staff_only"}}
    async with AsyncExitStack() as closing:
        store = await open_sqlite_store(put_ready_database(folder / "records.db"))
        closing.push_async_callback(store.close)
        spool = await DiskSpool.open(folder / "spool", small=store)
        closing.push_async_callback(spool.close)

        async def journal(call: Call, tool: DeclaredTool) -> None:
            await service.journal(call, tool)

        service = Service(publish(Access(snapshot(), grants), tried, journal, **fields), store, spool)
        rules = EdgeRules(hosts=frozenset({"localhost"}), open_paths=OPEN_PATHS)
        kept = SqlApprovalStore(store.writer, store.reader)
        approvals = ApprovalService(
            kept,
            held=lambda who: frozenset({who.subject, *who.roles}),
            served=lambda: service.published.snapshot.revision,
        )
        closing.push_async_callback(approvals.close)
        app = EdgeMiddleware(Router(build_routes(service, approvals=approvals)), rules, authenticate)
        yield Gateway(service, store, app, grants, tried, folder)


async def sent_to(app: AsgiApp, path: str, *, query: str = "", is_leaving: bool = False, **scope: Any) -> list[Any]:
    """The ASGI messages sent for a GET by ann; the path is used as it is."""
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"} if is_leaving else {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer ann")]
    about = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": headers}
    await app({**about, **scope}, receive, send)
    return messages


def with_catalogue(gateway: Gateway, name: str, **changes: Any) -> None:
    """Publish again, with one changed catalogue."""
    old = gateway.service.published
    changed = replace(old.snapshot.catalogues[name], **changes)
    catalogues = {**old.snapshot.catalogues, name: changed}
    access = Access(replace(old.snapshot, catalogues=catalogues, revision="r2" * 32), gateway.grants)
    gateway.service.publish(publish(access, gateway.tried, gateway.service.journal))
