"""The spans of a call in a tracing backend: a real collector, decoded with the official messages."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

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
    CallCounter,
    Document,
    GatewayUnderTest,
    http_tool,
    start_call_counter,
    start_gateway,
)
from tests.support.servers.otlp_collector import Collector, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
NEVER = {"type": "arguments", "require": "args.text == 'no'", "message": "not here"}
REST_CALL = "POST /v1/catalogues/{catalogue}/tools/{name}/call"
OTHER = f"00-{'a' * 32}-{'b' * 16}-01"


@asynccontextmanager
async def gateway(
    tmp_path: Path,
    *,
    rules: Sequence[Document] = (),
    tools: Sequence[Any] = (),
    joins: bool = False,
    environ: dict[str, str] | None = None,
    **spec: Any,
) -> AsyncIterator[tuple[GatewayUnderTest, Collector, CallCounter]]:
    async with start_collector() as collector, start_call_counter() as backend:
        documents = wait_for_spans(
            approval_client(backend.port, tools=[make(backend.port) for make in tools], rules=rules), **spec
        )
        if joins:
            documents = [_join_traces(each) for each in documents]
        project = write(tmp_path / "p", documents)
        known = {**sending_to(collector), **(environ or {})}
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=known) as running:
            yield running, collector, backend


def _join_traces(each: Document) -> Document:
    if each["kind"] != "IdentityProvider":
        return each
    return {**each, "spec": {**each["spec"], "trace": "parent"}}


async def test_a_call_is_a_server_span_an_execution_and_its_hop(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (running, collector, backend):
        answer = await running.caller(ANA).modern_call("desk", "plain", {"text": "hello"}, id=7)
        [server] = await collector.named("tools/call plain")
        [execution] = await collector.named("execute_tool plain")
        [hop] = await collector.named("POST")
        [_, sent, _] = backend.requests[0]

    assert answer.status == 200
    assert [each.kind for each in (server, execution, hop)] == ["SERVER", "INTERNAL", "CLIENT"]
    assert server.parent == ""
    assert (execution.trace, execution.parent) == server.address
    assert (hop.trace, hop.parent) == execution.address
    assert sent["traceparent"] == f"00-{hop.trace}-{hop.id}-01"
    assert not any(each.is_error for each in (server, execution, hop))
    assert {each.schema_url for each in collector.spans} == {names.SCHEMA_URL}
    assert server.resource["service.name"] == "agent-gateway"
    revision = running.running.service.published.snapshot.revision
    assert dict(server.attributes) == {
        names.MCP_METHOD: "tools/call",
        names.MCP_VERSION: "2026-07-28",
        names.NETWORK_TRANSPORT: "tcp",
        names.NETWORK_PROTOCOL: "http",
        names.TOOL: "plain",
        names.CATALOGUE: "desk",
        names.TIER: "internal",
        names.REQUEST_ID: "7",
        names.DECISION: "allow",
        names.DECISION_REASON: "permitted",
    }
    attributes = dict(execution.attributes)
    keyed = (names.PRINCIPAL, names.ARGUMENT_DIGEST, names.RESULT_DIGEST, names.DEFINITION, names.TURN_ID)
    unique = (names.TOOL_CALL_ID, names.CALL_ID, names.ARTIFACT_ID, names.CHECKSUM, names.POLICY_ROW)
    assert all(attributes.pop(name) for name in (*keyed, *unique))
    assert attributes == {
        names.OPERATION: "execute_tool",
        names.TOOL: "plain",
        names.TOOL_NAME: "plain",
        names.CATALOGUE: "desk",
        names.TIER: "internal",
        names.TOOL_TYPE: "extension",
        names.TOOL_KIND: "http",
        names.ARTIFACT_CLASS: "text",
        names.CONFIG_REVISION: revision,
        names.POLICY_REVISION: revision,
        names.DECISION: "allow",
        names.DECISION_REASON: "permitted",
        names.ARGUMENT_BYTES: 16,
        names.ARGUMENT_KEYS: ["text"],
        names.RESULT_BYTES: 17,
        names.RESULT_SPOOLED: False,
    }
    assert dict(hop.attributes) == {
        names.HTTP_METHOD: "POST",
        names.HTTP_STATUS: 200,
        names.URL_SCHEME: "http",
        names.SERVER_ADDRESS: "127.0.0.1",
        names.SERVER_PORT: backend.port,
        names.CALL_ID: execution[names.CALL_ID],
    }


async def test_callers_are_named_only_where_the_document_says_so(tmp_path: Path) -> None:
    async with gateway(tmp_path, capture={"callers": "name"}) as (running, collector, _):
        await running.caller(ANA).modern_call("desk", "plain", {"text": "x"})
        [execution] = await collector.named("execute_tool plain")
    async with gateway(tmp_path / "hashed", capture={}) as (running, collector, _):
        await running.caller(ANA).modern_call("desk", "plain", {"text": "x"})
        [hashed] = await collector.named("execute_tool plain")

    assert execution[names.PRINCIPAL_NAME] == "user:ana"
    assert hashed[names.PRINCIPAL_NAME] is None
    assert not any(b"user:ana" in each for each in collector.payloads)


async def test_the_record_of_a_call_names_its_span(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (running, collector, _):
        await running.caller(ANA).rest_call("desk", "pay", {"text": "x"})
        [execution] = await collector.named("execute_tool pay")
        await collector.until(lambda known: known.events_named(names.CALL_STARTED))
        [start] = collector.events_named(names.CALL_STARTED)
        found = await running.running.service._store.list_turn_calls(execution[names.TURN_ID])

    assert [(each.trace_id, each.span_id) for each in found] == [execution.address]
    assert start.address == execution.address
    assert start[names.TOOL_CALL_ID] == found[0].id


# --- parent traces ---


async def test_a_caller_that_may_continue_its_trace_is_the_parent(tmp_path: Path) -> None:
    async with gateway(tmp_path, joins=True) as (running, collector, backend):
        meta = {"traceparent": PARENT, "tracestate": "vendor=1"}
        await running.caller(ANA).modern_call("desk", "plain", {"text": "x"}, **meta)
        [server] = await collector.named("tools/call plain")
        [hop] = await collector.named("POST")

    assert (server.trace, server.parent, server.links) == (TRACE, "00f067aa0ba902b7", ())
    assert server.state == "vendor=1"
    assert backend.requests[0][1]["traceparent"] == f"00-{TRACE}-{hop.id}-01"
    assert backend.requests[0][1]["tracestate"] == "vendor=1"


async def test_an_untrusted_trace_is_linked(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (running, collector, backend):
        await running.caller(ANA).modern_call("desk", "plain", {"text": "x"}, traceparent=PARENT, tracestate="v=1")
        [server] = await collector.named("tools/call plain")

    assert server.trace != TRACE
    assert server.links == ((TRACE, "00f067aa0ba902b7"),)
    assert "tracestate" not in backend.requests[0][1]


async def test_the_body_comes_before_the_headers_which_are_a_link(tmp_path: Path) -> None:
    async with gateway(tmp_path, joins=True) as (running, collector, _):
        caller = running.caller(ANA)
        caller.headers.append(("traceparent", OTHER))
        await caller.modern_call("desk", "plain", {"text": "x"}, traceparent=PARENT)
        [server] = await collector.named("tools/call plain")

    assert (server.trace, server.parent) == (TRACE, "00f067aa0ba902b7")
    assert server.links == (("a" * 32, "b" * 16),)


@pytest.mark.parametrize("wire", ["modern", "legacy", "rest"])
async def test_headers_alone_count_on_every_wire(tmp_path: Path, wire: str) -> None:
    async with gateway(tmp_path, joins=True) as (running, collector, _):
        caller = running.caller(ANA)
        caller.headers.append(("traceparent", PARENT))
        if wire == "legacy":
            session = await caller.begin_legacy("desk")
            await caller.legacy("desk", "tools/call", {"name": "plain", "arguments": {"text": "x"}}, session=session)
        elif wire == "rest":
            await caller.rest_call("desk", "plain", {"text": "x"})
        else:
            await caller.modern_call("desk", "plain", {"text": "x"})
        [server] = await collector.named(REST_CALL if wire == "rest" else "tools/call plain")

    assert (server.trace, server.parent) == (TRACE, "00f067aa0ba902b7")
    versions = {"legacy": "2025-11-25", "modern": "2026-07-28"}
    assert server[names.MCP_VERSION] == versions.get(wire)
    assert (server[names.MCP_SESSION] is not None) == (wire == "legacy")
    route = "/v1/catalogues/{catalogue}/tools/{name}/call" if wire == "rest" else None
    assert server[names.HTTP_ROUTE] == route


async def test_baggage_goes_on_only_as_far_as_it_is_listed(tmp_path: Path) -> None:
    many = ",".join(f"k{number}=v" for number in range(40))
    async with gateway(tmp_path, baggage=["tenant.tier"]) as (running, collector, backend):
        caller = running.caller(ANA)
        await caller.modern_call("desk", "plain", {"text": "1"}, baggage="secret=hunter2, tenant.tier=gold;p=1")
        await caller.modern_call("desk", "plain", {"text": "2"}, baggage=f"tenant.tier=gold,{many}")
        await caller.modern_call("desk", "plain", {"text": "3"}, baggage="tenant.tier=" + "x" * 9000)
        await collector.named("tools/call plain", 3)

    assert [headers.get("baggage") for _, headers, _ in backend.requests] == ["tenant.tier=gold", None, None]
    assert not any(b"hunter2" in each for each in collector.payloads)


# --- outcomes ---


async def test_a_tool_that_fails_is_an_error_on_both_spans(tmp_path: Path) -> None:
    async with gateway(tmp_path, tools=[_failing_tool]) as (running, collector, _):
        answer = await running.caller(ANA).modern_call("desk", "gone", {"text": "x"})
        [server] = await collector.named("tools/call gone")
        [execution] = await collector.named("execute_tool gone")
        [hop] = await collector.named("GET")

    assert answer.json["result"]["isError"] is True
    assert (server.is_error, server[names.ERROR_TYPE]) == (True, "tool_error")
    assert (execution.is_error, execution[names.ERROR_TYPE]) == (True, "ConnectionRefusedError")
    assert (hop.is_error, hop[names.ERROR_TYPE]) == (True, "unavailable")


async def test_a_denial_is_a_decision_and_no_error(tmp_path: Path) -> None:
    denied = rule("never", NEVER)
    async with gateway(tmp_path, rules=[denied]) as (running, collector, backend):
        await running.caller(ANA).modern_call("desk", "pay", {"text": "x"})
        [server] = await collector.named("tools/call pay")
        [execution] = await collector.named("execute_tool pay")

    assert backend.requests == []
    for span in (server, execution):
        assert (span.is_error, span[names.ERROR_TYPE], span[names.DECISION]) == (False, None, "deny")
        assert span[names.DECISION_REASON] == "rule-denied"
    assert execution[names.POLICY_RULE] == ["never"]
    assert execution[names.POLICY_ROW]


async def test_invalid_arguments_and_unknown_tools_are_the_callers_fault(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (running, collector, _):
        caller = running.caller(ANA)
        await caller.modern_call("desk", "pay", {"text": 1, "hunter2": True})
        await caller.modern_call("desk", "hunter2", {})
        await caller.modern("desk", "hunter2/method")
        [execution] = await collector.named("execute_tool pay")
        [unknown] = await collector.named("tools/call")
        [other] = await collector.named("_other")

    assert (execution.is_error, execution[names.DECISION]) == (False, "deny")
    assert execution[names.DECISION_REASON] == "arguments-invalid"
    assert execution[names.ARGUMENT_KEYS] == ["text"]
    assert (unknown.is_error, unknown[names.RESPONSE_CODE], unknown[names.TOOL_NAME]) == (False, "-32602", None)
    assert (other.is_error, other[names.RESPONSE_CODE]) == (False, "-32601")
    assert not any(b"hunter2" in each for each in collector.payloads)


async def test_a_held_call_its_decision_and_what_goes_on_are_linked(tmp_path: Path) -> None:
    async with gateway(tmp_path, rules=[rule("money", HELD)]) as (running, collector, _):
        ana, liz = running.caller(ANA), running.caller(LIZ)
        approval = pending_id(await pay(ana))
        [held] = await collector.named("execute_tool pay")
        await grant(liz, approval)
        [decided] = await collector.named("approval decide money")
        assert (await pay(ana)).status == 200
        [_, resumed] = await collector.named("execute_tool pay", 2)
        servers = await collector.named(REST_CALL, 2)
        [asked] = await collector.named("POST /v1/approvals/{approval}/resolve")
        waits = await collector.named("gate money", 2)

    assert (held.is_error, held[names.DECISION], held[names.APPROVAL_ID]) == (False, "hold", [approval])
    assert not any(each.is_error for each in servers)
    assert (decided.trace, decided.parent) == asked.address
    assert decided.links == (held.address,)
    assert (decided[names.GATE_OUTCOME], decided[names.APPROVAL_STATE]) == ("grant", "granted")
    assert set(resumed.links) == {held.address, decided.address}
    assert (resumed[names.DECISION], resumed[names.DECISION_REASON]) == ("allow", "approval-approved")
    assert {held[names.TOOL_CALL_ID], decided[names.CALL_ID], resumed[names.TOOL_CALL_ID]} == {held[names.CALL_ID]}
    assert waits[1].links == (decided.address,)
    assert held[names.CALL_ID] != resumed[names.CALL_ID]
    assert [each[names.GATE_OUTCOME] for each in waits] == ["pending", "taken"]


async def test_call_is_a_dispatch_where_its_turn_has_more_or_stages_stand_around_it(tmp_path: Path) -> None:
    guard = {"use": "loop-guard", "with": {"sameCall": 1}}
    async with start_collector() as collector, start_call_counter() as backend:
        documents = wait_for_spans(approval_client(backend.port))
        [pipeline] = [each for each in documents if each["kind"] == "Pipeline"]
        for name, stages in (("bare", []), ("staged", [guard])):
            made = [
                {**each, "spec": {**each["spec"], "dispatchInput": stages}} if each is pipeline else each
                for each in documents
            ]
            project = write(tmp_path / name, made)
            environ = sending_to(collector)
            async with start_gateway(project, tmp_path / f"data-{name}", people=PEOPLE, environ=environ) as running:
                ana = running.caller(ANA)
                session = await ana.begin_legacy("desk")
                for _ in range(2):
                    called = {"name": "plain", "arguments": {"text": name}}
                    await ana.legacy("desk", "tools/call", called, session=session)

    executions, dispatches = collector.of("execute_tool plain"), collector.of("dispatch")
    iterations, servers = collector.of("iteration"), collector.of("tools/call plain")
    assert len(executions) == 4
    assert (executions[0].trace, executions[0].parent) == servers[0].address  # it had its turn to itself
    among_others = executions[1:]
    assert [(each.trace, each.parent) for each in among_others] == [each.address for each in iterations]
    assert [(each.trace, each.parent) for each in iterations] == [each.address for each in dispatches]
    assert [(each.trace, each.parent) for each in dispatches] == [each.address for each in servers[1:]]
    assert [each[names.DISPATCH_STATUS] for each in dispatches] == ["ack", "ack", "aborted"]
    assert [each[names.CALL_ID] for each in dispatches] == [each[names.CALL_ID] for each in among_others]
    assert [each[names.TURN_ID] for each in dispatches] == [each[names.TURN_ID] for each in among_others]
    assert [each[names.DISPATCH_ID] is None for each in dispatches] == [False, False, True]
    assert [each[names.DISPATCH_ITERATIONS] for each in dispatches] == [1, 1, 0]
    assert [each[names.DECISION] for each in executions] == ["allow", "allow", "allow", "deny"]


# --- sampling and contents ---


async def test_what_was_refused_held_or_failed_is_kept_whatever_the_ratio(tmp_path: Path) -> None:
    sample = {"sample": {"ratio": 0.0}}
    denied = rule("never", NEVER)
    held = rule("money", HELD, tools=("held",))
    tools = [_failing_tool, lambda port: http_tool("held", port)]
    async with gateway(tmp_path, traces=sample, rules=[denied, held], tools=tools) as (running, collector, backend):
        caller = running.caller(ANA)
        for tool in ("plain", "pay", "held", "gone"):
            await caller.modern_call("desk", tool, {"text": "x"}, traceparent=PARENT[:-2] + "00")
        await collector.until(lambda known: len(known.spans) >= 8)
        flags = [headers["traceparent"][-2:] for _, headers, _ in backend.requests]

    kept = sorted(each.name for each in collector.spans)
    assert kept == sorted(
        [
            *("tools/call pay", "execute_tool pay", "tools/call held", "execute_tool held", "gate money"),
            *("tools/call gone", "execute_tool gone", "GET"),
        ]
    )
    assert collector.events == []
    assert flags == ["00"]


async def test_a_ratio_keeps_about_that_many_whole_traces(tmp_path: Path) -> None:
    async with gateway(tmp_path, traces={"sample": {"ratio": 0.3}}) as (running, collector, _):
        caller = running.caller(ANA)
        for number in range(100):
            await caller.rest_call("desk", "plain", {"text": str(number)})
        found = running.running.observing.telemetry
    assert found is not None

    per_name = {name: len(collector.of(name)) for name in (REST_CALL, "execute_tool plain", "POST")}
    assert len(set(per_name.values())) == 1
    assert 10 < per_name["POST"] < 55


async def test_contents_are_shown_only_where_all_settings_agree_and_masked(tmp_path: Path) -> None:
    strict = {"description": "Kept.", "base": "json", "capture": {"arguments": "keys"}}
    masked = {"description": "Masked.", "base": "json", "redact": ["$.text"]}
    classes = [
        {**http_tool("x", 1), "kind": "ArtifactClass", "metadata": {"name": name, "owner": "team"}, "spec": spec}
        for name, spec in (("strict", strict), ("masked", masked))
    ]
    tools = [
        lambda port: _artifact_tool("open", port, "json"),
        lambda port: _artifact_tool("closed", port, "strict"),
        lambda port: _artifact_tool("hidden", port, "masked"),
    ]
    capture = {"arguments": "values", "results": "values"}
    async with gateway(tmp_path, tools=tools, rules=classes, capture=capture) as (running, collector, _):
        caller = running.caller(ANA)
        for tool in ("open", "closed", "hidden"):
            await caller.rest_call("desk", tool, {"text": f"hunter2 {tool}"})
            await collector.named(f"execute_tool {tool}")
        spans = [collector.of(f"execute_tool {tool}")[0] for tool in ("open", "closed", "hidden")]

    shown, closed, hidden = spans
    assert shown[names.TOOL_ARGUMENTS] == '{"text":"hunter2 open"}'
    assert "hunter2 open" in shown[names.TOOL_RESULT]
    assert (closed[names.TOOL_ARGUMENTS], closed[names.TOOL_RESULT]) == (None, None)
    assert hidden[names.TOOL_ARGUMENTS] == '{"text":"[redacted]"}'
    assert "hunter2" not in hidden[names.TOOL_RESULT]


@pytest.mark.parametrize(
    ("document", "shown"),
    [({}, True), ({"capture": {"arguments": "keys"}}, False)],
    ids=["alone", "document-says-otherwise"],
)
async def test_the_environment_opts_in_within_what_the_documents_allow(
    document: dict[str, Any], shown: bool, tmp_path: Path
) -> None:
    strict = {"description": "Kept.", "base": "json", "capture": {"arguments": "keys"}}
    kept = {
        **http_tool("x", 1),
        "kind": "ArtifactClass",
        "metadata": {"name": "strict", "owner": "team"},
        "spec": strict,
    }
    tools = [lambda port: _artifact_tool("open", port, "json"), lambda port: _artifact_tool("closed", port, "strict")]
    environ = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    async with gateway(tmp_path, tools=tools, rules=[kept], environ=environ, **document) as (running, collector, _):
        for tool in ("open", "closed"):
            await running.caller(ANA).rest_call("desk", tool, {"text": "hunter2"})
        [open_span] = await collector.named("execute_tool open")
        [closed] = await collector.named("execute_tool closed")

    assert open_span[names.TOOL_ARGUMENTS] == ('{"text":"hunter2"}' if shown else None)
    assert ("hunter2" in str(open_span[names.TOOL_RESULT])) is shown
    assert (closed[names.TOOL_ARGUMENTS], closed[names.TOOL_RESULT]) == (None, None)


def _failing_tool(port: int) -> Document:
    tool = http_tool("gone", port)
    backend = {"type": "http", "method": "GET", "url": "http://127.0.0.1:9/nobody"}
    return {**tool, "spec": {**tool["spec"], "backend": backend}}


def _artifact_tool(name: str, port: int, artifact: str) -> Document:
    return http_tool(name, port, output={"artifact": artifact})


async def test_the_span_of_a_query_holds_the_decision(tmp_path: Path) -> None:
    def kept(port: int) -> Document:
        return http_tool("keep", port, output={"inline": False})

    few = {"type": "arguments", "require": "args.n < 5", "message": "fewer lines"}
    heads = rule("few-lines", few, match={"tools": ["artifact_head"]})
    async with gateway(tmp_path, rules=[heads], tools=[kept]) as (running, collector, _):
        ana = running.caller(ANA)
        call = (await ana.modern_call("desk", "keep", {"text": "x"})).json["result"]["_meta"]["gateway/call"]
        for lines in (1, 9):
            await ana.modern_call("desk", "artifact_head", {"callId": call, "n": lines})
        spans = await collector.named("execute_tool artifact_head", 2)

    decisions = [(each.attributes[names.DECISION], each.attributes[names.DECISION_REASON]) for each in spans]
    assert sorted(decisions) == [("allow", "rule-allowed"), ("deny", "rule-denied")]
