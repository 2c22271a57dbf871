"""An OTLP collector over HTTP that decodes with the official messages and stores every byte."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.support.gateways.projects import Document, document
from tests.support.servers.app_server import serve_aiohttp

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT"}
WITHIN = 20.0


@dataclass(frozen=True)
class SpanEvent:
    name: str
    at: int
    attributes: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.attributes.get(key)


@dataclass(frozen=True)
class Span:
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    is_error: bool
    state: str
    times: tuple[int, int]
    resource: Mapping[str, Any]
    schema_url: str
    scope: str
    events: tuple[SpanEvent, ...] = ()

    @property
    def address(self) -> tuple[str, str]:
        return self.trace, self.id

    def __getitem__(self, key: str) -> Any:
        return self.attributes.get(key)


@dataclass(frozen=True)
class Event:
    name: str
    trace: str
    id: str
    attributes: Mapping[str, Any]
    body: Any = None
    severity: int = 0

    @property
    def address(self) -> tuple[str, str]:
        return self.trace, self.id

    def __getitem__(self, key: str) -> Any:
        return self.attributes.get(key)


@dataclass
class Collector:
    """`payloads` holds everything received; `answer` may be replaced."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    requests: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    answer: Callable[[web.Request], Any] | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.payloads.append(body)
        self.requests.append((request.path, dict(request.headers)))
        if self.answer is not None:
            answered: web.StreamResponse = await self.answer(request)
            return answered
        if request.path == "/v1/traces":
            self.spans += spans_of(body)
        elif request.path == "/v1/logs":
            self.events += events_of(body)
        async with self.changed:
            self.changed.notify_all()
        return web.Response(body=b"", content_type="application/x-protobuf")

    async def until(self, is_so: Callable[["Collector"], Any]) -> None:
        """Wait for a condition; on timeout the error lists what has arrived."""
        try:
            async with asyncio.timeout(WITHIN), self.changed:
                await self.changed.wait_for(lambda: is_so(self))
        except TimeoutError:
            raise AssertionError(
                f"did not come: {[each.name for each in self.spans]} {[each.name for each in self.events]}"
            ) from None

    async def named(self, name: str, count: int = 1) -> list[Span]:
        await self.until(lambda known: len(known.of(name)) >= count)
        return self.of(name)

    def of(self, name: str) -> list[Span]:
        return [each for each in self.spans if each.name == name]

    def events_named(self, name: str) -> list[Event]:
        return [each for each in self.events if each.name == name]


@asynccontextmanager
async def start_collector() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", collector.handle)
    async with serve_aiohttp(app) as port:
        collector.url = f"http://127.0.0.1:{port}"
        yield collector


def wait_for_spans(documents: Sequence[Document], **spec: Any) -> list[Document]:
    """Return the same project with a Telemetry document."""
    made = []
    for each in documents:
        if each["kind"] == "Gateway":
            each = {**each, "spec": {**each["spec"], "telemetry": "default"}}
        made.append(each)
    return [*made, document("Telemetry", "default", spec)]


def sending_to(collector: Collector) -> dict[str, str]:
    """Return the variables for export to the collector, with a short delay."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}


def spans_of(body: bytes) -> list[Span]:
    return [
        Span(
            one.name,
            KINDS[one.kind],
            one.trace_id.hex(),
            one.span_id.hex(),
            one.parent_span_id.hex(),
            attributes_of(one.attributes),
            tuple((link.trace_id.hex(), link.span_id.hex()) for link in one.links),
            one.status.code == 2,
            one.trace_state,
            (one.start_time_unix_nano, one.end_time_unix_nano),
            attributes_of(resource.resource.attributes),
            scoped.schema_url,
            scoped.scope.name,
            tuple(SpanEvent(each.name, each.time_unix_nano, attributes_of(each.attributes)) for each in one.events),
        )
        for resource in TracesData.FromString(body).resource_spans
        for scoped in resource.scope_spans
        for one in scoped.spans
    ]


def events_of(body: bytes) -> list[Event]:
    return [
        Event(
            one.event_name,
            one.trace_id.hex(),
            one.span_id.hex(),
            attributes_of(one.attributes),
            _value(one.body),
            one.severity_number,
        )
        for resource in LogsData.FromString(body).resource_logs
        for scoped in resource.scope_logs
        for one in scoped.log_records
    ]


def attributes_of(pairs: Any) -> dict[str, Any]:
    found = {each.key: _value(each.value) for each in pairs}
    assert len(found) == len(pairs), [each.key for each in pairs]
    return found


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
