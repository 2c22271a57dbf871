"""The spans of a session with calls of every kind, as trees: each event has its span, and each request one trace."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.model.turns.events import (
    DispatchEnd,
    DispatchStart,
    IterationEnd,
    IterationStart,
    ToolExecutionEnd,
    ToolExecutionStart,
    TurnEnd,
    TurnEvent,
    TurnStart,
)
from gateway.telemetry import names
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    grant,
    pay,
    pending_id,
    rule,
    write,
)
from tests.support.gateways.projects import (
    ANY_TEXT,
    Document,
    GatewayUnderTest,
    document,
    http_tool,
    start_call_counter,
    start_gateway,
)
from tests.support.servers.otlp_collector import Collector, Span, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

TOOLS = "tests.support.tools.traced_tools"
REST_CALL = "POST /v1/catalogues/{catalogue}/tools/{name}/call"
CALL_IN_TURN = "POST /v1/turns/{turn}/calls"
NEVER = {"type": "arguments", "require": "args.text == 'no'", "message": "not here"}
LEVELS = ("minimal", "normal", "full")
Tree = tuple[str, list[Any]]


@dataclass
class Session:
    running: GatewayUnderTest
    collector: Collector
    events: list[TurnEvent] = field(default_factory=list)


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
async def session(tmp_path: Path, detail: str, *, rules: Sequence[Document] = ()) -> AsyncIterator[Session]:
    async with start_collector() as collector, start_call_counter() as backend:
        tools = [python_tool("shown", "spans_within"), python_tool("broken", "fails")]
        tools += [http_tool("kept", backend.port, output={"inline": False}), http_tool("refused", backend.port)]
        documents = approval_client(backend.port, tools=tools, rules=rules)
        project = write(tmp_path / "p", wait_for_spans(documents, traces={"detail": detail}))
        environ = {**sending_to(collector), "GATEWAY_PYTHON_PACKAGES": TOOLS}
        settings: Any = {"python_packages": (TOOLS,)}
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=environ, **settings) as running:
            found = Session(running, collector)
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


def no_orphan(spans: Sequence[Span]) -> None:
    known = {each.address for each in spans}
    assert {(each.trace, each.parent) for each in spans if each.parent} <= known
    assert {link for each in spans for link in each.links} <= known
    assert len(known) == len(spans)


EXECUTE = "execute_tool shown"
STEPS: dict[str, dict[str, list[str]]] = {
    "minimal": {EXECUTE: [], "tools/call shown": []},
    "normal": {EXECUTE: ["authorise", "backend python"], "tools/call shown": ["record"]},
    "full": {EXECUTE: [], "tools/call shown": []},
}
ALONE: dict[str, list[Tree]] = {
    "minimal": [("tools/call shown", [(EXECUTE, [])])],
    "normal": [("tools/call shown", [(EXECUTE, [])])],
    "full": [
        (
            "tools/call shown",
            [
                (
                    "turn",
                    [
                        (
                            "dispatch",
                            [
                                (
                                    "iteration",
                                    [(EXECUTE, [("authorise", []), ("backend python", [])]), ("record", [])],
                                )
                            ],
                        )
                    ],
                )
            ],
        )
    ],
}


@pytest.mark.parametrize("detail", LEVELS)
async def test_a_call_that_has_its_turn_to_itself(tmp_path: Path, detail: str) -> None:
    async with session(tmp_path, detail) as made:
        await made.running.caller(ANA).modern_call("desk", "shown", {"text": "x"})
        await made.collector.named("tools/call shown")
        spans = {each.name: each for each in made.collector.spans}

    assert trees(made.collector.spans) == ALONE[detail]
    no_orphan(made.collector.spans)
    assert {name: [each.name for each in spans[name].events] for name in STEPS[detail]} == STEPS[detail]
    assert all(each[names.STEP_SECONDS] >= 0 for name in STEPS[detail] for each in spans[name].events)
    _assert_executions(made)


@pytest.mark.parametrize("detail", LEVELS)
async def test_the_calls_of_a_turn_that_a_client_opened_are_below_it(tmp_path: Path, detail: str) -> None:
    async with session(tmp_path, detail) as made:
        ana = made.running.caller(ANA)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        for tool in ("plain", "broken"):
            body = {"tool": tool, "arguments": {"text": "x"}}
            assert (await ana.rest("POST", f"/v1/turns/{turn}/calls", body)).status in (200, 424)
        await ana.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})
        await made.collector.named("turn")
        await made.collector.named("POST /v1/turns/{turn}/end")

    spans = made.collector.spans
    no_orphan(spans)
    [opened] = [each for each in trees(spans) if each[0] == "turn"]
    calls = opened[1]
    assert [each[0] for each in calls] == [CALL_IN_TURN] * 2
    assert sorted(each[0] for each in trees(spans)) == ["POST /v1/turns", "POST /v1/turns/{turn}/end", "turn"]
    steps: list[Tree] = [("authorise", [])] if detail == "full" else []
    backend: list[Tree] = [("backend python", [])] if detail == "full" else []
    record: list[Tree] = [("record", [])] if detail == "full" else []
    plain, broken = ("execute_tool plain", [*steps, ("POST", [])]), ("execute_tool broken", [*steps, *backend])
    assert [each[1] for each in calls] == [
        [("dispatch", [("iteration", [plain, *record])])],
        [("dispatch", [("iteration", [broken, *record])])],
    ]
    [span] = [each for each in spans if each.name == "turn"]
    assert span[names.TURN_ID] == turn
    _assert_executions(made)


@pytest.mark.parametrize("detail", LEVELS)
async def test_every_event_of_a_session_of_every_kind_has_its_span(tmp_path: Path, detail: str) -> None:
    rules = [rule("never", NEVER, tools=("refused",)), rule("money", HELD)]
    async with session(tmp_path, detail, rules=rules) as made:
        ana, liz = made.running.caller(ANA), made.running.caller(LIZ)
        kept = (await ana.modern_call("desk", "kept", {"text": "x"})).json["result"]["_meta"]
        await ana.modern_call("desk", "artifact_head", {"callId": kept["gateway/call"], "n": 1})
        await ana.modern_call("desk", "refused", {"text": "x"})
        await ana.modern_call("desk", "plain", {"text": 1})
        await ana.modern_call("desk", "broken", {"text": "x"})
        await grant(liz, pending_id(await pay(ana)))
        assert (await pay(ana)).status == 200
        old = await ana.begin_legacy("desk")
        for _ in range(2):
            called = {"name": "plain", "arguments": {"text": "x"}}
            await ana.legacy("desk", "tools/call", called, session=old)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        await ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "shown", "arguments": {"text": "x"}})
        await ana.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})
        await made.collector.named("turn")

    spans = made.collector.spans
    no_orphan(spans)
    _assert_executions(made)
    counts = Counter(each.name for each in spans)
    assert counts["approval decide money"] == 1
    assert counts["gate money"] == 2
    assert counts["execute_tool artifact_head"] == 1
    assert counts["dispatch"] == counts["iteration"]
    if detail == "full":
        assert counts["dispatch"] == _count(made, DispatchStart) == _count(made, DispatchEnd)
        assert counts["iteration"] == _count(made, IterationStart) == _count(made, IterationEnd)
        assert counts["turn"] >= _count(made, TurnEnd)
    assert _count(made, TurnStart) > 0
    requests = [each for each in spans if each.kind == "SERVER"]
    per_trace = Counter(each.trace for each in requests)
    assert set(per_trace.values()) == {1}, "one trace for each request"


def _count(made: Session, kind: type[TurnEvent]) -> int:
    return sum(isinstance(each, kind) for each in made.events)


def _assert_executions(made: Session) -> None:
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


async def test_a_read_over_rest_is_an_execution_in_the_trace_of_its_request(tmp_path: Path) -> None:
    async with session(tmp_path, "normal") as made:
        ana = made.running.caller(ANA)
        call = (await ana.modern_call("desk", "kept", {"text": "x"})).json["result"]["_meta"]["gateway/call"]
        assert (await ana.rest("GET", f"/v1/artifacts/{call}/content")).status == 200
        spans = await made.collector.named("execute_tool artifact_content")
        await asyncio.sleep(0)
        await made.collector.until(lambda known: any(each.name.startswith("GET /v1/artifacts") for each in known.spans))

    [server] = [each for each in made.collector.spans if each.name.startswith("GET /v1/artifacts")]
    assert [(each.trace, each.parent) for each in spans] == [server.address]
    assert (spans[0][names.READ], spans[0][names.DECISION]) == (True, "allow")
    no_orphan(made.collector.spans)
