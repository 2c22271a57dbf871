"""A gateway whose events a listener keeps, and whose spans a real collector receives; and what holds for all spans."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from gateway.model.turns.events import ToolExecutionEnd, ToolExecutionStart, TurnEvent
from gateway.telemetry import names
from tests.support.gateways.gate_projects import PEOPLE, approval_client, write
from tests.support.gateways.projects import (
    ANY_TEXT,
    CallCounter,
    Document,
    GatewayUnderTest,
    document,
    http_tool,
    start_call_counter,
    start_gateway,
)
from tests.support.servers.otlp_collector import Collector, Span, sending_to, start_collector, wait_for_spans

TOOLS = "tests.support.tools.traced_tools"
LEVELS = ("minimal", "normal", "full")
Tree = tuple[str, list[Any]]


@dataclass
class TracedSession:
    running: GatewayUnderTest
    collector: Collector
    backend: CallCounter
    events: list[TurnEvent] = field(default_factory=list)

    def count(self, kind: type[TurnEvent]) -> int:
        return sum(isinstance(each, kind) for each in self.events)


def python_tool(name: str, function: str) -> Document:
    spec: dict[str, Any] = {
        "version": "1.0.0",
        "description": "A function.",
        "input": {"schema": ANY_TEXT},
        "backend": {"type": "python", "entrypoint": f"{TOOLS}:{function}", "run": "thread"},
        "trust": {"tier": "internal", "flags": []},
    }
    return document("Tool", name, spec)


@asynccontextmanager
async def start_traced_session(
    tmp_path: Path, detail: str, *, rules: Sequence[Document] = ()
) -> AsyncIterator[TracedSession]:
    async with start_collector() as collector, start_call_counter() as backend:
        tools = [python_tool("shown", "spans_within"), python_tool("broken", "fails")]
        tools += [http_tool("kept", backend.port, output={"inline": False}), http_tool("refused", backend.port)]
        documents = approval_client(backend.port, tools=tools, rules=rules)
        project = write(tmp_path / "p", wait_for_spans(documents, traces={"detail": detail}))
        environ = {**sending_to(collector), "GATEWAY_PYTHON_PACKAGES": TOOLS}
        settings: Any = {"python_packages": (TOOLS,)}
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=environ, **settings) as running:
            found = TracedSession(running, collector, backend)
            running.running.service.buses.observability.on("*", found.events.append)
            yield found


def trees(spans: Sequence[Span]) -> list[Tree]:
    """Return the names of spans as trees, children in the order of their starts."""
    below: dict[str, list[Span]] = defaultdict(list)
    for each in sorted(spans, key=lambda span: span.times):
        below[each.parent].append(each)

    def tree(span: Span) -> Tree:
        return span.name, [tree(each) for each in below[span.id]]

    return [tree(each) for each in below[""]]


def assert_no_orphan(spans: Sequence[Span]) -> None:
    known = {each.address for each in spans}
    assert {(each.trace, each.parent) for each in spans if each.parent} <= known
    assert {link for each in spans for link in each.links} <= known
    assert len(known) == len(spans)


def assert_executions(made: TracedSession) -> None:
    """Each execution has a span with exactly its interval; calls that were not executed have one, too."""
    started = [each for each in made.events if isinstance(each, ToolExecutionStart)]
    ended = [each for each in made.events if isinstance(each, ToolExecutionEnd)]
    assert len(started) == len(ended)
    of_events = Counter((each.tool_name, _time(each.started_at), _time(each.ended_at)) for each in ended)
    of_spans = Counter(
        (each[names.TOOL_NAME], each.times[0] // 1_000, each.times[1] // 1_000)
        for each in made.collector.spans
        if each.name.startswith("execute_tool")
    )
    assert of_events - of_spans == Counter()


def _time(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)
