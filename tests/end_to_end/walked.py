"""Everything that a gateway publishes, found by walking it, and one request for each way to ask for it."""

import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from secured import (
    ROOT,
    Caller,
    Counting,
    Document,
    Person,
    Reply,
    Started,
    asgi,
    catalogue,
    document,
    environ_of,
    frame,
    http_tool,
    tokens_of,
    write_project,
)

sys.path.append(str(ROOT / "tests" / "upstreams"))  # whose servers offer prompts and resources
from offering_upstream import offering
from upstream_serving import listening

from gateway.core.tools import ArtifactTool, Tool
from gateway.runtime.bundled import LastGood
from gateway.runtime.planes import planes
from gateway.runtime.reloading import Reloading, prepared_from
from gateway.runtime.running import opened
from gateway.runtime.settings import Settings
from gateway.runtime.sourcing import FolderSource
from gateway.runtime.stopping import Stopping
from gateway.serving.published import PublishedCatalogue
from gateway.snapshot import Offer
from gateway.web.mcp.legacy import LegacyWire
from gateway.web.mcp.modern import ModernWire
from gateway.web.mcp.tasks import METHODS
from gateway.web.rest.operations import Operation
from gateway.web.rest.routing import ALL_OPERATIONS

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
"""What the backend answers, by the class of the result."""

TOLD = (CANARY, "Say hello to", "Water the plants", "Nothing on", "monday")
"""What no answer holds that nobody decided about."""

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
"""Methods of MCP that can tell what a tool or another server yields; each is asked for in a probe of its own."""

LISTING = frozenset(
    {
        *("server/discover", "initialize", "ping", "logging/setLevel", "tools/list", "prompts/list"),
        *("resources/list", "resources/templates/list", "resources/subscribe", "resources/unsubscribe"),
        *("subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel"),
    }
)


@dataclass(frozen=True)
class Probe:
    """One request. Those that `must_be_refused` ask for something; others may answer, but tell nothing of it."""

    name: str
    ask: Callable[[], Awaitable[Reply]]
    must_be_refused: bool = True

    async def is_harmless(self) -> bool:
        reply = await self.ask()
        tells = any(each.encode() in reply.body for each in TOLD)
        return not tells and (not self.must_be_refused or is_refused(reply))


def is_refused(reply: Reply) -> bool:
    if reply.status >= 400:
        return True
    told = reply.json
    return "error" in told or bool(told.get("result", {}).get("isError"))


@dataclass
class Asking:
    """The servers that offers come from, with a list of what they were asked."""

    remote: Any
    methods: list[str]

    async def asked(self, upstream: str, method: str, *args: Any, **more: Any) -> Any:
        self.methods.append(method)
        return await self.remote.asked(upstream, method, *args, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)


@dataclass
class Walk:
    """What was made before anything was switched on, over every wire."""

    gateway: Started
    reloading: Reloading
    backend: Counting
    folder: Path
    documents: list[Document]
    session: str = ""
    turn: str = ""
    made: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Turn and call of each result, by the tool that made it."""
    asked: list[str] = field(default_factory=list)
    """Methods that a server was asked."""

    @property
    def caller(self) -> Caller:
        return self.gateway.caller(FULL)

    @property
    def desk(self) -> PublishedCatalogue:
        return self.gateway.running.service.published.catalogues["desk"]

    async def switch_on(self, *rules: Document, policy: str = "") -> None:
        write_project(self.folder, [*self.documents, *rules], policy=POLICY + policy)
        outcome = await self.reloading.reload("request")
        assert outcome.what == "published", outcome
        self.count_what_servers_are_asked()

    def count_what_servers_are_asked(self) -> None:
        self.offers.remote = Asking(self.offers.remote, self.asked)

    @property
    def offers(self) -> Any:
        found = self.gateway.running.service.published.offers
        assert found is not None
        return found

    # --- what is published ---

    def tools(self) -> Iterator[Tool]:
        """Declared tools whose results are kept for later."""
        yield from (each for each in self.desk.registry.all() if not each.name.startswith("remote"))

    def queries(self) -> Iterator[tuple[ArtifactTool, list[str]]]:
        """Every query tool of the catalogue, with the tools whose results have it."""
        published = self.gateway.running.service.published
        found: dict[str, list[str]] = {}
        for maker in self.made:
            declared = published.tool("desk", maker)
            assert declared is not None
            for query in published.types.named(declared.artifact).query_tools():
                found.setdefault(query.name, []).append(maker)
        assert found.keys() == self.desk.queries.keys()
        yield from ((self.desk.queries[name], makers) for name, makers in found.items())

    def offered(self) -> Iterator[tuple[str, Offer]]:
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
            yield from self._calls("tool", tool.name, given(tool))

    def _of_queries(self) -> Iterator[Probe]:
        """Each once over every wire: results of other turns, of the same turn, of every tool in its turn."""
        for number, (query, makers) in enumerate(self.queries()):
            turn, call = self.made[makers[number % len(makers)]][number % 3]
            args = some_arguments(query)
            yield from self._calls("query", query.name, {**args, "callId": call}, handle=turn)
            yield self._query(query.name, args, f"/v1/artifacts/{call}/query?turn={turn}")

    def _query(self, name: str, args: Mapping[str, Any], path: str) -> Probe:
        body = {"tool": name, "arguments": dict(args)}
        return Probe(f"query {name} REST query", lambda: self.caller.rest("POST", path, body))

    def _calls(self, kind: str, name: str, args: Mapping[str, Any], handle: str | None = None) -> Iterator[Probe]:
        """Over every wire: alone, in the turn of a handle, in a session and in a REST turn."""
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
        """Every operation on every result. Those that call something are asked for above."""
        for operation in ALL_OPERATIONS:
            if operation.method == "GET" and "approval" not in operation.path and operation.id != "followTurn":
                for turn, call in self._some():
                    yield self._operation(
                        operation, {"catalogue": "desk", "name": "text_of", "turn": turn, "callId": call}
                    )

    def _some(self) -> Iterator[tuple[str, str]]:
        """A result of every tool, of whichever wire."""
        yield from (made[number % 3] for number, made in enumerate(self.made.values()))

    def _operation(self, operation: Operation, ids: Mapping[str, str]) -> Probe:
        path = re.sub(r"\{(\w+)\}", lambda found: ids[found[1]], operation.path)
        if "callId" in operation.path and "{turn}" not in operation.path:
            path += f"?turn={ids['turn']}"
        is_content = operation.id == "downloadArtifact"
        return Probe(f"REST {operation.id}", lambda: self.caller.rest("GET", path), must_be_refused=is_content)


def given(tool: Tool) -> dict[str, str]:
    """Arguments that have the backend answer with the class of the tool's results."""
    return {"text": tool.name.removesuffix("_of")}


def some_arguments(query: ArtifactTool) -> dict[str, Any]:
    """Values that its schema takes, for everything it requires."""
    schema = query.input_schema.describe()
    needed = [name for name in schema.get("required", ()) if name != "callId"]
    return {name: _value(name, schema["properties"][name]) for name in needed}


def _value(name: str, schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"integer": 1, "number": 1, "string": "$" if name == "path" else "."}
    return kinds[schema["type"]]


def methods_of_mcp() -> set[str]:
    """Every method that either wire answers, as their tables have them."""
    found = set(METHODS)
    for wire in (LegacyWire, ModernWire):
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
    return [*frame(["tokens"]), tokens_of([FULL]), *classes, *tools, remote, desk]


@asynccontextmanager
async def walking(tmp_path: Path, backend: Counting) -> AsyncIterator[Walk]:
    """A gateway with one of everything, and a result of every tool over every wire."""
    backend.answer = lambda body: ANSWERS[json.loads(body)["text"]].encode()
    async with listening(offering().streamable_http_app(), lifespan="on") as origin:
        documents = project(backend.port, origin)
        folder = write_project(tmp_path / "p", documents, policy=POLICY)
        settings = Settings.model_validate({"configs": folder, "python_packages": ("gateway",)})
        environ = {**environ_of([FULL]), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        source = FolderSource(settings.project)
        taken, ready = prepared_from(source, settings, environ=environ)
        async with opened(ready) as running:
            reloading = Reloading(running, source, ready, taken, LastGood(tmp_path))
            both = planes(running, base_url="http://localhost", stopping=Stopping(), reloading=reloading)
            try:
                walk = Walk(Started(running, asgi(both.data), both.data), reloading, backend, folder, documents)
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
        args = given(tool)
        alone = await caller.modern_call("desk", tool.name, args)
        in_session = await caller.legacy(
            "desk", "tools/call", {"name": tool.name, "arguments": args}, session=walk.session
        )
        in_turn = await caller.rest("POST", f"/v1/turns/{walk.turn}/calls", {"tool": tool.name, "arguments": args})
        metas = [each.json["result"]["_meta"] for each in (alone, in_session)]
        walk.made[tool.name] = [(each["gateway/turn"], each["gateway/call"]) for each in metas]
        walk.made[tool.name].append((walk.turn, in_turn.json["callId"]))
