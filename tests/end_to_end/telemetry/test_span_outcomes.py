"""Calls of every outcome, as trees of spans: limited, refused, failing, cancelled, continued, held, with workers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.model.turns.events import DispatchEnd, DispatchStart, IterationEnd, IterationStart, TurnEvent
from gateway.server.http.asgi import AsgiApp
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
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import CallCounter, Caller, environ_of, send_http, start_call_counter
from tests.support.gateways.traced_sessions import (
    LEVELS,
    TracedSession,
    Tree,
    assert_executions,
    assert_no_orphan,
    start_traced_session,
    trees,
)
from tests.support.servers.otlp_collector import Span, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

NEVER = {"type": "arguments", "require": "args.text == 'no'", "message": "not here"}
RATE = {"type": "rate", "limit": 1, "per": "1h"}
RULES = (rule("few", RATE, tools=("plain",)), rule("never", NEVER, tools=("refused",)))
LEFT = 499
"""Stands for the response to a client that left."""


def branch(*names: str, leaves: Sequence[Tree] = ()) -> Tree:
    """Return a tree of one branch, with `leaves` at its end."""
    below = list(leaves)
    for name in reversed(names):
        below = [(name, below)]
    [found] = below
    return found


def call(tool: str, detail: str, *below: str, is_recorded: bool = True) -> Tree:
    """Return the tree of a call over MCP that has its turn to itself; `below` are the spans in its execution."""
    if detail != "full":
        hops = [each for each in below if each == "POST" or each.startswith("gate ")]
        return branch(f"tools/call {tool}", f"execute_tool {tool}", leaves=[(each, []) for each in hops])
    execution: Tree = (f"execute_tool {tool}", [(each, []) for each in below])
    leaves = [execution, *([("record", [])] if is_recorded else [])]
    return branch(f"tools/call {tool}", "turn", "dispatch", "iteration", leaves=leaves)


def by_request(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans of each trace, in the order of their requests; each trace has one."""
    requests = sorted((each for each in spans if each.kind == "SERVER"), key=lambda span: span.times)
    assert max(Counter(each.trace for each in requests).values()) == 1
    assert {each.trace for each in spans} == {each.trace for each in requests}
    return [[each for each in spans if each.trace == request.trace] for request in requests]


def assert_all_events(made: TracedSession, detail: str) -> None:
    """Each event has its span. Dispatches of calls that have their turn to themselves have one with full detail."""
    assert_no_orphan(made.collector.spans)
    assert_executions(made)
    kinds: tuple[tuple[str, type[TurnEvent], type[TurnEvent]], ...] = (
        (names.DISPATCH, DispatchStart, DispatchEnd),
        (names.ITERATION, IterationStart, IterationEnd),
    )
    for name, start, end in kinds:
        started, ended = (
            Counter(getattr(each, "dispatch_id", None) for each in made.events if isinstance(each, kind))
            for kind in (start, end)
        )
        spans = Counter(each[names.DISPATCH_ID] for each in made.collector.of(name))
        assert started == ended
        assert spans == started if detail == "full" else spans <= started


def leaving(backend: CallCounter) -> Callable[[AsgiApp], AsgiApp]:
    """Return a wrapper by which the client disconnects as soon as its call has reached the backend."""

    def wrap(app: AsgiApp) -> AsgiApp:
        async def run(scope: Any, receive: Any, send: Any) -> None:
            sent: list[Any] = []
            has_body = False

            async def receive_until_left() -> Any:
                nonlocal has_body
                if has_body:
                    while not backend.requests:
                        await asyncio.sleep(0.01)
                    return {"type": "http.disconnect"}
                has_body = True
                return await receive()

            async def keep(message: Any) -> None:
                sent.append(message)
                await send(message)

            await app(scope, receive_until_left, keep)
            if not sent:
                await send({"type": "http.response.start", "status": LEFT, "headers": []})

        return run

    return wrap


@pytest.mark.parametrize("detail", LEVELS)
async def test_calls_that_are_limited_refused_invalid_and_failing(tmp_path: Path, detail: str) -> None:
    async with start_traced_session(tmp_path, detail, rules=RULES) as made:
        ana = made.running.caller(ANA)
        await ana.modern_call("desk", "plain", {"text": "x"})
        await ana.modern_call("desk", "plain", {"text": "y"})
        await ana.modern_call("desk", "refused", {"text": "x"})
        await ana.modern_call("desk", "kept", {"text": 1})
        await ana.modern_call("desk", "broken", {"text": "x"})
        await made.collector.named("tools/call broken")

    assert_all_events(made, detail)
    found = by_request(made.collector.spans)
    assert [trees(each) for each in found] == [
        [call("plain", detail, "authorise", "rules", "POST")],
        [call("plain", detail, "authorise", "rules")],
        [call("refused", detail, "authorise", "rules")],
        [call("kept", detail, "record", is_recorded=False)],  # nothing ran: the record is a part of it
        [call("broken", detail, "authorise", "backend python")],
    ]
    executions = [next(each for each in some if each.name.startswith("execute_tool")) for some in found]
    assert [(each[names.DECISION], each[names.DECISION_REASON], each[names.ERROR_TYPE]) for each in executions] == [
        ("allow", "rule-allowed", None),
        ("deny", "rate-exceeded", None),
        ("deny", "rule-denied", None),
        ("deny", "arguments-invalid", None),
        ("allow", "permitted", "KeyError"),
    ]


@pytest.mark.parametrize("detail", LEVELS)
async def test_a_call_whose_client_leaves(tmp_path: Path, detail: str) -> None:
    async with start_traced_session(tmp_path, detail) as made:
        made.backend.goes_on = asyncio.Event()
        ana = Caller(made.running.asked_by(leaving(made.backend)), ANA.token)
        assert (await ana.modern_call("desk", "plain", {"text": "x"})).status == LEFT
        made.backend.goes_on.set()
        await made.collector.until(lambda known: any(each.kind == "SERVER" for each in known.spans))

    assert_all_events(made, detail)
    [spans] = by_request(made.collector.spans)
    assert trees(spans) == [call("plain", detail, "authorise", "POST", is_recorded=False)]
    [execution] = made.collector.of("execute_tool plain")
    assert (execution[names.IS_CANCELLED], execution[names.DECISION], execution.is_error) == (True, "allow", False)
    [request] = [each for each in spans if each.kind == "SERVER"]
    assert (request[names.IS_CANCELLED], request.is_error) == (True, False)


@pytest.mark.parametrize("detail", LEVELS)
async def test_the_policy_stage_says_whether_its_decision_was_cached(tmp_path: Path, detail: str) -> None:
    async with start_traced_session(tmp_path, detail) as made:
        ana, liz = made.running.caller(ANA), made.running.caller(LIZ)
        for caller in (ana, ana, liz, liz):
            await caller.modern_call("desk", "plain", {"text": "x"})
        await made.collector.named("tools/call plain", 4)

    found = by_request(made.collector.spans)
    spans = [each for some in found for each in some if each.name == names.AUTHORISE]
    events = [one for some in found for each in some for one in each.events if one.name == names.AUTHORISE]
    cached = [each[names.DECISION_CACHED] for each in spans] + [each[names.DECISION_CACHED] for each in events]
    assert cached == ([] if detail == "minimal" else [False, True, False, True])
    assert len(spans) == (4 if detail == "full" else 0)


@pytest.mark.parametrize("detail", LEVELS)
async def test_the_second_call_of_a_client_without_a_session_continues_its_turn(tmp_path: Path, detail: str) -> None:
    async with start_traced_session(tmp_path, detail) as made:
        ana = made.running.caller(ANA)
        first = (await ana.modern_call("desk", "kept", {"text": "x"})).json["result"]["_meta"]
        handle = {"gateway/turn": first["gateway/turn"]}
        await ana.modern_call("desk", "plain", {"text": "x"}, **handle)
        await ana.modern_call("desk", "artifact_head", {"callId": first["gateway/call"], "n": 1}, **handle)
        await made.collector.named("tools/call artifact_head")

    assert_all_events(made, detail)
    alone, second, query = by_request(made.collector.spans)
    steps: list[Tree] = [("authorise", [])] if detail == "full" else []
    record: list[Tree] = [("record", [])] if detail == "full" else []
    within = ("dispatch", "iteration")
    assert trees(alone) == [call("kept", detail, "authorise", "POST")]
    assert trees(second) == [
        branch("tools/call plain", *within, leaves=[("execute_tool plain", [*steps, ("POST", [])]), *record])
    ]
    assert trees(query) == [
        branch("tools/call artifact_head", *within, leaves=[("execute_tool artifact_head", steps), *record])
    ]
    turns = {each[names.TURN_ID] for each in made.collector.spans if each.name.startswith("execute_tool")}
    assert len(turns) == 1


@pytest.mark.parametrize("detail", LEVELS)
async def test_a_held_call_its_approval_and_the_call_that_continues_it(tmp_path: Path, detail: str) -> None:
    async with start_traced_session(tmp_path, detail, rules=[rule("money", HELD)]) as made:
        ana, liz = made.running.caller(ANA), made.running.caller(LIZ)
        await grant(liz, pending_id(await pay(ana)))
        assert (await pay(ana)).status == 200
        await made.collector.until(lambda known: sum(each.kind == "SERVER" for each in known.spans) == 3)

    assert_all_events(made, detail)
    held, decided, continued = by_request(made.collector.spans)
    before = call("pay", detail, "authorise", "rules", "gate money")[1]
    after = call("pay", detail, "authorise", "rules", "gate money", "POST")[1]
    assert [tree[1] for tree in trees(held)] == [before]
    assert [tree[1] for tree in trees(decided)] == [[("approval decide money", [])]]
    assert [tree[1] for tree in trees(continued)] == [after]
    by_name = [{each.name: each for each in some} for some in (held, decided, continued)]
    asked, decision, ran = (
        by_name[0]["execute_tool pay"],
        by_name[1]["approval decide money"],
        by_name[2]["execute_tool pay"],
    )
    assert decision.links == (asked.address,)
    assert set(ran.links) == {asked.address, decision.address}
    assert decision.address in by_name[2]["gate money"].links


async def test_a_turn_that_two_workers_serve(tmp_path: Path) -> None:
    """The system chooses the worker of each connection, and that of a turn serves its calls. So calls that are alone
    are made until both have served some.
    """
    async with start_collector() as collector, start_call_counter() as backend:
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port, rules=[rule("money", HELD)])))
        env = {**environ_of(PEOPLE), **sending_to(collector)}
        apart = aiohttp.TCPConnector(limit=0, force_close=True)  # one connection for each request
        with start_gateway_process(project, tmp_path / "data", env=env, options=("--workers", "2")) as gateway:
            async with aiohttp.ClientSession(connector=apart) as session:
                ana, liz = (Caller(send_http(session, gateway.url), each.token) for each in (ANA, LIZ))
                turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
                bodies = [{"tool": "plain", "arguments": {"text": str(number)}} for number in range(8)]
                replies = [await ana.rest("POST", f"/v1/turns/{turn}/calls", body) for body in bodies]
                assert [each.status for each in replies] == [200] * 8
                alone = 0
                while len(workers_of(collector.spans)) < 2:
                    assert alone < 400, "one worker serves nothing"
                    calls = (ana.rest_call("desk", "plain", {"text": "x"}) for _ in range(8))
                    assert [each.status for each in await asyncio.gather(*calls)] == [200] * 8
                    alone += 8
                    await collector.named("execute_tool plain", 8 + alone)
                await grant(liz, pending_id(await pay(ana)))
                assert (await pay(ana)).status == 200
                assert (await ana.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})).status == 200
                await collector.named("turn")
            assert await asyncio.to_thread(gateway.stop) == 0

    spans = collector.spans
    assert_no_orphan(spans)
    assert len(workers_of(spans)) == 2
    [opened] = collector.of("turn")
    assert opened[names.TURN_ID] == turn
    per_trace = Counter(each.trace for each in spans if each.kind == "SERVER")
    assert per_trace.pop(opened.trace) == 8
    assert set(per_trace.values()) == {1}
    assert len(per_trace) == 5 + alone  # the turn is opened and ended, a call is held, decided, and runs
    called = branch("dispatch", "iteration", leaves=[("execute_tool plain", [("POST", [])])])
    [tree] = trees([each for each in spans if each.trace == opened.trace])
    assert tree == ("turn", [("POST /v1/turns/{turn}/calls", [called])] * 8)


def workers_of(spans: Sequence[Span]) -> set[int]:
    return {each.resource["process.pid"] for each in spans}
