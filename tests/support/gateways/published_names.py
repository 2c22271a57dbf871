"""Finds everything that a gateway publishes by walking it, with one request for each way to access it."""

import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.app.app import start_app
from gateway.app.asgi_apps import build_asgi_apps
from gateway.app.project_source import FolderSource, LastGoodBundle
from gateway.app.revisions.reload import Reloader, prepare_from_source
from gateway.app.settings import Settings
from gateway.engine.live_revision import LiveCatalogue
from gateway.model.tools.tool import ArtifactTool, Tool
from gateway.registries.snapshot import DeclaredDefinition
from gateway.server.http.drain import ShutdownSignal
from gateway.server.mcp.session_protocol import SessionProtocol
from gateway.server.mcp.stateless_protocol import StatelessProtocol
from gateway.server.mcp.tasks import TASK_METHODS
from gateway.server.rest.operation import RestOperation
from gateway.server.rest.operation_table import OPERATIONS
from tests.backends.mcp.servers.asgi_host import serve_app
from tests.backends.mcp.servers.resource_server import make_resource_server
from tests.support.gateways.projects import (
    CallCounter,
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
    send_asgi,
    tokens_of,
    write_project,
)

FULL = Person("full", ("user",), "acme")
CANARY = "CANARY-7f3a"
JSON = f'{{"canary": "{CANARY}", "currency": "{CANARY}", "lines": [{{"amount": 5}}]}}'
ANSWERS = {
    "text": f"first\n{CANARY}\n",
    "json": JSON,
    "yaml": f"canary: {CANARY}\n",
    "markdown": f"# {CANARY}\n\n[link](https://example.org)\n",
    "toon": f"canary: {CANARY}\n",
    "xml": f"<canary>{CANARY}</canary>",
    "source": f"export function f() {{ return '{CANARY}' }}\n",
    "invoice": JSON,
    "narrow": JSON,
}
"""The backend's answers by result class."""

CONTENTS = (CANARY, "Say hello to", "Water the plants", "Nothing on", "monday")
"""Texts that must not be in an answer without a decision."""

POLICY = """\
p, role:user, *, tool:*,     discover|invoke, internal, allow
p, role:user, *, prompt:*,   invoke,          internal, allow
p, role:user, *, resource:*, read,            internal, allow
"""
DENIED = """\
p, role:user, *, tool:*,     read,   internal, deny
p, role:user, *, prompt:*,   invoke, internal, deny
p, role:user, *, resource:*, read,   internal, deny
"""
UNINVOKED = "p, role:user, *, tool:*, invoke, internal, deny\n"
EVERYTHING = {"tools": ["*"], "prompts": ["*"], "resources": ["*"]}

READING = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
"""MCP methods that can return content of a tool or another server; each has its own probe."""

LISTING = frozenset(
    {
        *("server/discover", "initialize", "ping", "logging/setLevel", "tools/list", "prompts/list"),
        *("resources/list", "resources/templates/list", "resources/subscribe", "resources/unsubscribe"),
        *("subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel"),
    }
)


@dataclass(frozen=True)
class Probe:
    """One request. If `must_be_refused`, it asks for content; otherwise it may be answered, without content."""

    name: str
    ask: Callable[[], Awaitable[Reply]]
    must_be_refused: bool = True

    async def is_harmless(self) -> bool:
        reply = await self.ask()
        has_content = any(each.encode() in reply.body for each in CONTENTS)
        return not has_content and (not self.must_be_refused or is_refused(reply))


def is_refused(reply: Reply) -> bool:
    if reply.status >= 400:
        return True
    body = reply.json
    return "error" in body or bool(body.get("result", {}).get("isError"))


@dataclass
class RecordingUpstreams:
    """Wraps the upstream servers and records the methods they are called with."""

    remote: Any
    methods: list[str]

    async def asked(self, upstream: str, method: str, *args: Any, **more: Any) -> Any:
        self.methods.append(method)
        return await self.remote.asked(upstream, method, *args, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)


@dataclass
class Walk:
    """Results made before any control was switched on, over every transport."""

    gateway: GatewayUnderTest
    reloading: Reloader
    backend: CallCounter
    folder: Path
    documents: list[Document]
    session: str = ""
    turn: str = ""
    made: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Turn and call of each result, by the tool that made it."""
    asked: list[str] = field(default_factory=list)
    """Methods that were called on a server."""

    @property
    def caller(self) -> Caller:
        return self.gateway.caller(FULL)

    @property
    def desk(self) -> LiveCatalogue:
        return self.gateway.running.service.published.catalogues["desk"]

    async def switch_on(self, *rules: Document, policy: str = "") -> None:
        write_project(self.folder, [*self.documents, *rules], policy=POLICY + policy)
        outcome = await self.reloading.reload("request")
        assert outcome.what == "published", outcome
        self.count_what_servers_are_asked()

    def count_what_servers_are_asked(self) -> None:
        self.offers.remote = RecordingUpstreams(self.offers.remote, self.asked)

    @property
    def offers(self) -> Any:
        found = self.gateway.running.service.published.offers
        assert found is not None
        return found

    # --- published names ---

    def tools(self) -> Iterator[Tool]:
        """Return the declared tools whose results are stored."""
        yield from (each for each in self.desk.registry.all() if not each.name.startswith("remote"))

    def queries(self) -> Iterator[tuple[ArtifactTool, list[str]]]:
        """Return every query tool of the catalogue, with the tools whose results have it."""
        published = self.gateway.running.service.published
        found: dict[str, list[str]] = {}
        for maker in self.made:
            declared = published.tool("desk", maker)
            assert declared is not None
            for query in published.types.get(declared.artifact).query_tools():
                found.setdefault(query.name, []).append(maker)
        assert found.keys() == self.desk.queries.keys()
        yield from ((self.desk.queries[name], makers) for name, makers in found.items())

    def offered(self) -> Iterator[tuple[str, DeclaredDefinition]]:
        snapshot = self.gateway.running.service.published.snapshot
        for name, key in snapshot.catalogues["desk"].prompts.items():
            yield name, snapshot.offers[key]
        for key in snapshot.catalogues["desk"].resources:
            yield key, snapshot.offers[key]

    # --- probes ---

    def probes(self) -> Iterator[Probe]:
        yield from self._of_tools()
        yield from self._of_queries()
        yield from self._of_offers()
        yield from self._of_results()
        yield from self._of_rest()

    def _of_tools(self) -> Iterator[Probe]:
        for tool in self.tools():
            yield from self._calls("tool", tool.name, arguments_for(tool))

    def _of_queries(self) -> Iterator[Probe]:
        """Each query once over every transport: on results of other turns, of the same turn, and of every tool in its
        turn.
        """
        for number, (query, makers) in enumerate(self.queries()):
            turn, call = self.made[makers[number % len(makers)]][number % 3]
            args = some_arguments(query)
            yield from self._calls("query", query.name, {**args, "callId": call}, handle=turn)
            yield self._query(query.name, args, f"/v1/artifacts/{call}/query?turn={turn}")

    def _query(self, name: str, args: Mapping[str, Any], path: str) -> Probe:
        body = {"tool": name, "arguments": dict(args)}
        return Probe(f"query {name} REST query", lambda: self.caller.rest("POST", path, body))

    def _calls(self, kind: str, name: str, args: Mapping[str, Any], handle: str | None = None) -> Iterator[Probe]:
        """Over every transport: alone, in the turn of a handle, in a session and in a REST turn."""
        caller, params = self.caller, {"name": name, "arguments": args}
        meta = {"gateway/turn": handle} if handle else {}
        in_turn = {"tool": name, "arguments": args}
        yield Probe(f"{kind} {name} modern", lambda: caller.modern_call("desk", name, args))
        if handle:
            yield Probe(f"{kind} {name} modern in turn", lambda: caller.modern_call("desk", name, args, **meta))
        yield Probe(f"{kind} {name} session", lambda: caller.legacy("desk", "tools/call", params, session=self.session))
        yield Probe(f"{kind} {name} REST", lambda: caller.rest_call("desk", name, args))
        yield Probe(f"{kind} {name} REST turn", lambda: caller.rest("POST", f"/v1/turns/{self.turn}/calls", in_turn))

    def _of_offers(self) -> Iterator[Probe]:
        for name, offer in self.offered():
            if offer.kind == "prompt":
                ref: dict[str, Any] = {"type": "ref/prompt", "name": name}
                arguments = {each["name"]: "Ana" for each in offer.given.get("arguments") or ()}
                yield from self._asks("prompt", "prompts/get", {"name": name, "arguments": arguments})
            else:
                uri = next(iter(offer.uris)).replace("*", "today")
                ref = {"type": "ref/resource", "uri": uri}
                yield from self._asks("resource", "resources/read", {"uri": uri})
            yield from self._asks(
                "completion", "completion/complete", {"ref": ref, "argument": {"name": "name", "value": "mon"}}
            )

    def _of_results(self) -> Iterator[Probe]:
        for turn, call in self._some():
            yield from self._asks("artifact", "resources/read", {"uri": f"artifact://calls/{turn}/{call}"})

    def _asks(self, kind: str, method: str, params: Mapping[str, Any]) -> Iterator[Probe]:
        assert method in READING
        named = params.get("name") or params.get("uri") or ""
        yield Probe(f"{kind} {method} {named} modern", lambda: self.caller.modern("desk", method, params))
        yield Probe(
            f"{kind} {method} {named} session",
            lambda: self.caller.legacy("desk", method, params, session=self.session),
        )

    def _of_rest(self) -> Iterator[Probe]:
        """Every read operation on every result. Operations that call something have their own probes."""
        for operation in OPERATIONS:
            if operation.method == "GET" and "approval" not in operation.path and operation.id != "followTurn":
                for turn, call in self._some():
                    yield self._operation(
                        operation, {"catalogue": "desk", "name": "text_of", "turn": turn, "callId": call}
                    )

    def _some(self) -> Iterator[tuple[str, str]]:
        """Yield one result of every tool, from changing transports."""
        yield from (made[number % 3] for number, made in enumerate(self.made.values()))

    def _operation(self, operation: RestOperation, ids: Mapping[str, str]) -> Probe:
        path = re.sub(r"\{(\w+)\}", lambda found: ids[found[1]], operation.path)
        if "callId" in operation.path and "{turn}" not in operation.path:
            path += f"?turn={ids['turn']}"
        is_content = operation.id == "downloadArtifact"
        return Probe(f"REST {operation.id}", lambda: self.caller.rest("GET", path), must_be_refused=is_content)


def arguments_for(tool: Tool) -> dict[str, str]:
    """Return arguments that make the backend answer with the result class of the tool."""
    return {"text": tool.name.removesuffix("_of")}


def some_arguments(query: ArtifactTool) -> dict[str, Any]:
    """Return valid values for all required arguments."""
    schema = query.input_schema.describe()
    needed = [name for name in schema.get("required", ()) if name != "callId"]
    return {name: _value(name, schema["properties"][name]) for name in needed}


def _value(name: str, schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"integer": 1, "number": 1, "string": "$" if name == "path" else "."}
    return kinds[schema["type"]]


def methods_of_mcp() -> set[str]:
    """Return every method in the dispatch tables of both MCP versions."""
    found = set(TASK_METHODS)
    for wire in (SessionProtocol, StatelessProtocol):
        source = Path(str(sys.modules[wire.__module__].__file__)).read_text(encoding="utf-8")
        found |= set(re.findall(r'"((?:[a-z]+/)+[a-zA-Z]+|ping|initialize)"', source))
    return {each for each in found if not each.startswith("notifications/")}


def project(port: int, origin: str) -> list[Document]:
    kept = {"inline": False}
    classes = [
        document(
            "ArtifactClass", "invoice", {"description": "A.", "class": "gateway.examples.artifacts:InvoiceArtifact"}
        ),
        document(
            "ArtifactClass", "narrow", {"description": "A.", "base": "json", "queries": ["json_get", "byte_length"]}
        ),
    ]
    tools = [http_tool(f"{each}_of", port, output={**kept, "artifact": each}) for each in ANSWERS]
    terms = {
        "include": ["*"],
        "prompts": ["greet"],
        "resources": [{"name": "notes", "uris": ["notes://*"]}],
        "trust": {"tier": "internal", "flags": []},
        "onChange": "accept",
    }
    transport = {"type": "streamable-http", "url": f"{origin}/mcp"}
    remote = document("Upstream", "remote", {"transport": transport, "import": terms})
    desk = catalogue("desk", ["role:user"], ["*"])
    desk["spec"]["include"] = [{"tools": ["*"]}, {"upstreams": ["remote"]}]
    return [*base_documents(["tokens"]), tokens_of([FULL]), *classes, *tools, remote, desk]


@asynccontextmanager
async def start_walk(tmp_path: Path, backend: CallCounter) -> AsyncIterator[Walk]:
    """Run a gateway with one of everything, and a result of every tool over every transport."""
    backend.answer = lambda body: ANSWERS[json.loads(body)["text"]].encode()
    async with serve_app(make_resource_server().streamable_http_app(), lifespan="on") as origin:
        documents = project(backend.port, origin)
        folder = write_project(tmp_path / "p", documents, policy=POLICY)
        settings = Settings.model_validate({"configs": folder, "python_packages": ("gateway",)})
        environ = {**environ_of([FULL]), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        source = FolderSource(settings.project)
        taken, ready = prepare_from_source(source, settings, environ=environ)
        async with start_app(ready) as running:
            reloading = Reloader(running, source, ready, taken, LastGoodBundle(tmp_path))
            both = build_asgi_apps(running, base_url="http://localhost", stopping=ShutdownSignal(), reloading=reloading)
            try:
                walk = Walk(
                    GatewayUnderTest(running, send_asgi(both.data), both.data), reloading, backend, folder, documents
                )
                await _make(walk)
                yield walk
            finally:
                await reloading.close()
                await both.close()


async def _make(walk: Walk) -> None:
    caller = walk.caller
    walk.session = await caller.begin_legacy("desk")
    walk.turn = (await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
    walk.count_what_servers_are_asked()
    for tool in walk.tools():
        args = arguments_for(tool)
        alone = await caller.modern_call("desk", tool.name, args)
        in_session = await caller.legacy(
            "desk", "tools/call", {"name": tool.name, "arguments": args}, session=walk.session
        )
        in_turn = await caller.rest("POST", f"/v1/turns/{walk.turn}/calls", {"tool": tool.name, "arguments": args})
        metas = [each.json["result"]["_meta"] for each in (alone, in_session)]
        walk.made[tool.name] = [(each["gateway/turn"], each["gateway/call"]) for each in metas]
        walk.made[tool.name].append((walk.turn, in_turn.json["callId"]))
