"""The revisions with sessions: the handshake, turns, resumed streams, batches, cancellation."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.engine.service import Service
from gateway.model.caller import Principal
from gateway.server.mcp.endpoint import McpEndpoint
from gateway.server.mcp.sessions import ClientSessions, SessionLimits, TooManySessions
from tests.server.mcp.asgi_client import Answer, LegacyClient, Wire
from tests.server.mcp.project import ANA, EVE, KIM
from tests.server.mcp.tools import Waiting, waiting

pytestmark = pytest.mark.anyio

VERSIONS = ["2025-03-26", "2025-06-18", "2025-11-25"]


@pytest.fixture
async def client(wire: Wire) -> LegacyClient:
    client = LegacyClient(wire)
    await client.begin()
    return client


@pytest.mark.parametrize(
    ("asked", "given"),
    [*((version, version) for version in VERSIONS), ("2026-07-28", "2025-11-25"), ("1999-01-01", "2025-11-25")],
)
async def test_handshake_settles_the_version(wire: Wire, asked: str, given: str) -> None:
    client = LegacyClient(wire, asked)
    client.version = asked if asked in VERSIONS else "2025-11-25"
    params = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}

    answer = await client.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})

    result = answer.result
    assert result["protocolVersion"] == given
    assert result["serverInfo"] == {"name": "small/all", "version": "0.1.0"}
    assert result["instructions"].startswith("Be kind.")
    assert len(answer.headers["mcp-session-id"]) >= 32


@pytest.mark.parametrize("params", [{}, {"protocolVersion": 5, "capabilities": {}}, {"protocolVersion": "2025-11-25"}])
async def test_handshake_without_its_fields_is_refused(wire: Wire, params: dict[str, Any]) -> None:
    answer = await LegacyClient(wire).request("initialize", params)

    assert answer.error["code"] == -32602
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("large", [{"capabilities": {"x": [{"a": 1}] * 4000}}, {"clientInfo": {"name": "n" * 20_000}}])
async def test_client_with_too_large_a_description_gets_no_session(wire: Wire, large: dict[str, Any]) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, **large}

    answer = await LegacyClient(wire).request("initialize", params)

    assert answer.error["code"] == -32602
    assert "mcp-session-id" not in answer.headers


async def test_session_is_one_turn_whose_tools_grow(client: LegacyClient) -> None:
    before = [tool["name"] for tool in (await client.request("tools/list")).result["tools"]]
    made = (await client.call("report", {"lines": 5})).result
    after = {tool["name"]: tool for tool in (await client.request("tools/list")).result["tools"]}
    call = made["_meta"]["gateway/call"]
    found = (await client.call("artifact_head", {"callId": call, "n": 1})).result

    assert not any(name.startswith("artifact_") for name in before)
    assert after["artifact_head"]["inputSchema"]["properties"]["callId"]["enum"] == [call]
    assert "\nline 0\n" in found["content"][0]["text"]
    assert found["_meta"]["gateway/turn"] == made["_meta"]["gateway/turn"]


async def test_calls_at_once_share_one_turn_which_is_replaced_once_it_has_ended(
    client: LegacyClient, service: Service
) -> None:
    async def turns_of_calls() -> set[str]:
        calls = [client.request("tools/call", {"name": "echo", "arguments": {"text": "x"}}) for _ in range(3)]
        return {answer.result["_meta"]["gateway/turn"] for answer in await asyncio.gather(*calls)}

    [first] = await turns_of_calls()
    await service.turns.end(await service.turns.find(ANA, first), "ack")
    [second] = await turns_of_calls()

    assert first != second


async def test_change_of_the_list_is_announced(client: LegacyClient, service: Service) -> None:
    heard = Answer()
    gone = asyncio.create_task(client.get(answer=heard))
    await client.call("report", {"lines": 5})
    service.publish(service.published)

    messages = await heard.has_messages(2)

    assert [message["method"] for message in messages] == ["notifications/tools/list_changed"] * 2
    await client.delete()
    await asyncio.wait_for(gone, 5)


async def test_unknown_and_invisible_tools_give_the_same_bytes(client: LegacyClient) -> None:
    unknown = await client.call("nothing", {"text": "a"}, id=5)
    unseen = await client.call("unseen", {"text": "a"}, id=5)

    assert (unknown.status, unknown.error["code"]) == (200, -32602)
    assert (unseen.headers, unseen.body) == (unknown.headers, unknown.body)


@pytest.mark.parametrize(
    ("version", "fields", "has_link", "is_structured"),
    [
        ("2025-03-26", {"name", "description", "inputSchema", "annotations"}, False, False),
        ("2025-06-18", {"name", "description", "inputSchema", "annotations", "outputSchema"}, True, True),
        ("2025-11-25", {"name", "description", "inputSchema", "annotations", "outputSchema"}, True, True),
    ],
    ids=VERSIONS,
)
async def test_each_revision_gets_only_fields_it_knows(
    wire: Wire, version: str, fields: set[str], has_link: bool, is_structured: bool
) -> None:
    client = LegacyClient(wire, version)
    await client.begin()
    tools = {tool["name"]: tool for tool in (await client.request("tools/list")).result["tools"]}
    report = (await client.call("report", {"lines": 5})).result
    quote = (await client.call("quote", {"pieces": 2})).result

    assert set(tools["quote"]) == fields
    assert ("resource_link" in [block["type"] for block in report["content"]]) is has_link
    assert ("structuredContent" in quote) is is_structured
    assert all(("_meta" in block) is has_link for block in report["content"])
    assert "resultType" not in quote


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"mcp-session-id": "unknown"}, 404),
        ({"mcp-session-id": ""}, 404),
        ({"mcp-protocol-version": "2024-11-05"}, 400),
        ({"mcp-protocol-version": "2025-06-18"}, 200),
    ],
    ids=["unknown session", "empty session", "version too old", "another version"],
)
async def test_session_and_version_headers_are_looked_at(
    client: LegacyClient, change: dict[str, str], status: int
) -> None:
    assert (await client.request("ping", headers=change)).status == status


async def test_request_without_a_session_is_refused(wire: Wire) -> None:
    client = LegacyClient(wire)

    assert (await client.request("tools/list")).status == 400
    assert (await client.get()).status == 400
    assert (await client.delete()).status == 400


async def test_session_belongs_to_its_principal(client: LegacyClient, wire: Wire) -> None:
    thief = LegacyClient(wire, principal=KIM)
    thief.session = client.session
    other_tenant = LegacyClient(wire, principal=Principal(ANA.subject, ANA.roles, "elsewhere"))
    other_tenant.session = client.session
    stranger = LegacyClient(wire, principal=EVE)
    stranger.session = client.session
    kim = LegacyClient(wire, principal=KIM)
    kim.session = "unknown"

    unknown = await kim.request("ping")
    for each in (thief, other_tenant):
        answer = await each.request("ping")
        assert (answer.status, answer.body) == (404, unknown.body)
        assert (await each.get()).status == (await each.delete()).status == 404
    assert (await stranger.request("ping")).status == 404
    assert (await client.request("ping")).result == {}


async def test_session_ends_with_delete(client: LegacyClient) -> None:
    assert (await client.delete()).status == 204
    assert (await client.request("ping")).status == 404
    assert (await client.delete()).status == 404


async def test_unused_sessions_end(service: Service) -> None:
    now = [0.0]
    sessions = ClientSessions(service, SessionLimits(idle=10), clock=lambda: now[0])
    first, second = (sessions.open(ANA, "2025-11-25", {}) for _ in range(2))
    sessions.open(KIM, "2025-11-25", {})
    now[0] = 9
    assert sessions.find(first.id, ANA) is first
    second.readers = 1
    now[0] = 15
    assert sessions.find(second.id, ANA) is second, "somebody listens"
    assert len(sessions) == 2
    now[0] = 40
    second.readers = 0
    assert sessions.find(first.id, ANA) is None
    await sessions.close()


async def test_caller_with_too_many_sessions_loses_its_own_oldest_one(service: Service) -> None:
    sessions = ClientSessions(service, SessionLimits(most=3, max_per_caller=2))
    first, second = (sessions.open(ANA, "2025-11-25", {}) for _ in range(2))
    other = sessions.open(KIM, "2025-11-25", {})

    third = sessions.open(ANA, "2025-11-25", {})

    assert sessions.find(first.id, ANA) is None
    assert [sessions.find(each.id, each.principal) for each in (second, third, other)] == [second, third, other]
    second.readers = third.readers = 1
    with pytest.raises(TooManySessions):
        sessions.open(ANA, "2025-11-25", {})
    with pytest.raises(TooManySessions):
        sessions.open(Principal("user:else"), "2025-11-25", {})
    await sessions.close()


async def test_listeners_are_let_go_before_calls_end(client: LegacyClient, endpoint: McpEndpoint) -> None:
    waiting["hush"] = Waiting()
    call = asyncio.create_task(client.call("wait", {"key": "hush"}))
    heard = Answer()
    listening = asyncio.create_task(client.get(answer=heard))
    await heard.started.wait()
    await waiting["hush"].began.wait()

    endpoint.close_streams()
    await asyncio.wait_for(listening, 5)
    waiting["hush"].goes_on.set()

    assert "done" in (await asyncio.wait_for(call, 5)).result["content"][0]["text"]


async def test_too_many_sessions_are_answered_as_unavailable(service: Service) -> None:
    wire = Wire(McpEndpoint(service, "all", limits=SessionLimits(most=1)))
    await LegacyClient(wire).begin()
    params = {"protocolVersion": "2025-11-25", "capabilities": {}}

    answer = await LegacyClient(wire).request("initialize", params)

    assert answer.status == 503


# --- streams ---


async def test_progress_and_messages_come_before_the_answer(client: LegacyClient) -> None:
    steps = await client.call("steps", params={"_meta": {"progressToken": "p"}})
    quiet = await client.call("chatter")
    await client.request("logging/setLevel", {"level": "debug"})
    loud = await client.call("chatter")
    wrong = await client.request("logging/setLevel", {"level": "whisper"})

    assert [message.get("method", "answer") for message in steps.messages] == ["notifications/progress"] * 3 + [
        "answer"
    ]
    assert [each["params"]["level"] for each in quiet.messages[:-1]] == ["error"]
    assert [each["params"]["level"] for each in loud.messages[:-1]] == ["debug", "error"]
    assert wrong.error["code"] == -32602


@pytest.mark.parametrize(("version", "is_primed"), [("2025-06-18", False), ("2025-11-25", True)])
async def test_stream_begins_with_where_to_go_on(wire: Wire, version: str, is_primed: bool) -> None:
    client = LegacyClient(wire, version)
    await client.begin()

    answer = await client.call("steps", params={"_meta": {"progressToken": 1}})

    first = answer.events[0]
    assert (first.get("data") == "", "retry" in first) == (is_primed, is_primed)
    assert all("id" in event for event in answer.events)


async def test_lost_stream_is_taken_up_where_it_was_left(client: LegacyClient) -> None:
    whole = await client.call("steps", params={"_meta": {"progressToken": 1}})
    ids = [event["id"] for event in whole.events]

    rest = await client.get(last=ids[2])

    assert rest.events == whole.events[3:]
    assert (await client.get(last=ids[-1])).events == []


@pytest.mark.parametrize("last", ["99.1", "x", "", "1.99999", "1.-1", "1." + "9" * 40])
async def test_event_that_never_was_is_refused(client: LegacyClient, last: str) -> None:
    await client.call("steps", params={"_meta": {"progressToken": 1}})

    assert (await client.get(last=last)).status == 400


async def test_events_of_another_session_are_not_replayed(client: LegacyClient, wire: Wire) -> None:
    mine = await client.call("steps", params={"_meta": {"progressToken": 1}})
    other = LegacyClient(wire, principal=KIM)
    await other.begin()

    assert (await other.get(last=mine.events[0]["id"])).status == 400


async def test_client_is_let_go_and_comes_back_for_the_rest(service: Service) -> None:
    wire = Wire(McpEndpoint(service, "all", limits=SessionLimits(poll_after=0.0)))
    client = LegacyClient(wire)
    await client.begin()
    waiting["poll"] = Waiting()
    first = Answer()
    call = asyncio.create_task(client.call("wait", {"key": "poll"}, answer=first))
    await first.started.wait()
    while not first.is_over:
        first.grew.clear()
        await asyncio.wait_for(first.grew.wait(), 5)
    [primer] = first.events
    rest = Answer()
    polling = asyncio.create_task(client.get(last=primer["id"], answer=rest))
    await rest.started.wait()

    waiting["poll"].goes_on.set()
    await asyncio.wait_for(asyncio.gather(call, polling), 5)

    assert first.messages == []
    assert "done" in rest.result["content"][0]["text"]


async def test_lost_connection_cancels_nothing(client: LegacyClient) -> None:
    waiting["lost"] = Waiting()
    gone = asyncio.Event()
    call = asyncio.create_task(client.call("wait", {"key": "lost"}, gone=gone))
    await waiting["lost"].began.wait()

    gone.set()
    waiting["lost"].goes_on.set()

    assert "done" in (await asyncio.wait_for(call, 5)).result["content"][0]["text"]


async def test_request_that_is_taken_back_is_stopped_and_not_answered(client: LegacyClient) -> None:
    waiting["back"] = Waiting()
    call = asyncio.create_task(client.call("wait", {"key": "back"}, id="mine"))
    await waiting["back"].began.wait()

    await client.notify("notifications/cancelled", {"requestId": "other"})
    await client.notify("notifications/cancelled", {"requestId": ["mine"]})
    await client.notify("notifications/cancelled", {"requestId": "mine"})
    answer = await asyncio.wait_for(call, 5)

    assert waiting["back"].stopped.is_set()
    assert answer.messages == []
    assert answer.is_over


async def test_listener_that_goes_is_not_waited_for(client: LegacyClient, endpoint: McpEndpoint) -> None:
    first, second, gone = Answer(), Answer(), asyncio.Event()
    lost = asyncio.create_task(client.get(answer=first, gone=gone))
    await first.started.wait()
    again = asyncio.create_task(client.get(answer=second))
    await second.started.wait()

    await asyncio.wait_for(lost, 5)
    gone.set()
    await client.call("report", {"lines": 1})
    await second.has_messages(1)
    await client.delete()
    await asyncio.wait_for(again, 5)

    assert first.messages == []


async def test_listener_that_goes_leaves_its_session_idle(client: LegacyClient, endpoint: McpEndpoint) -> None:
    answer, gone = Answer(), asyncio.Event()
    listening = asyncio.create_task(client.get(answer=answer, gone=gone))
    await answer.started.wait()

    gone.set()
    await asyncio.wait_for(listening, 5)

    session = endpoint.sessions.find(client.session, ANA)
    assert session is not None
    assert not session.is_busy


async def test_get_needs_a_client_that_takes_streams(client: LegacyClient) -> None:
    headers = {**client.headers, "accept": "application/json"}

    assert (await client.wire.send(b"", headers, method="GET")).status == 406


# --- batches ---


async def test_batch_is_of_the_oldest_revision_only(wire: Wire) -> None:
    for version in VERSIONS:
        client = LegacyClient(wire, version)
        await client.begin()
        answer = await client.post([{"jsonrpc": "2.0", "id": 1, "method": "ping"}])
        assert answer.status == (200 if version == "2025-03-26" else 400)


async def test_batch_answers_each_of_its_requests(wire: Wire) -> None:
    client = LegacyClient(wire, "2025-03-26")
    await client.begin()
    called = {"name": "echo", "arguments": {"text": "batched"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": "b", "method": "tools/call", "params": called},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": {}},
        {"jsonrpc": "2.0", "id": 5, "method": "nothing"},
        {"id": 6},
        7,
    ]

    answers = (await client.post(messages)).json

    assert [(each.get("id"), each.get("error", {}).get("code")) for each in answers] == [
        (1, None),
        ("b", None),
        (4, -32600),
        (5, -32601),
        (6, -32600),
        (None, -32600),
    ]
    assert "batched" in answers[1]["result"]["content"][0]["text"]


async def test_batch_of_nothing_and_of_too_much_is_refused(wire: Wire) -> None:
    client = LegacyClient(wire, "2025-03-26")
    await client.begin()

    assert (await client.post([])).status == 400
    assert (await client.post([{"jsonrpc": "2.0", "id": 1, "method": "ping"}] * 101)).status == 400
    assert (await client.post([{"jsonrpc": "2.0", "method": "notifications/x"}])).status == 202


async def test_resources_are_the_sessions_callers(client: LegacyClient, wire: Wire) -> None:
    made = (await client.call("report", {"lines": 2})).result
    uri = made["content"][1]["uri"]
    other = LegacyClient(wire, principal=KIM)
    await other.begin()

    assert [each["uri"] for each in (await client.request("resources/list")).result["resources"]] == [uri]
    assert "line 1" in (await client.request("resources/read", {"uri": uri})).result["contents"][0]["text"]
    assert (await other.request("resources/read", {"uri": uri})).error["code"] == -32002
    assert (await client.request("resources/templates/list")).result == {"resourceTemplates": []}


async def test_message_of_neither_kind_is_refused(client: LegacyClient) -> None:
    answer = await client.wire.send(orjson.dumps({"jsonrpc": "2.0", "id": 5}), client.headers)

    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (400, -32600, 5)
