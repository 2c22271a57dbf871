"""The revision without sessions: methods, results, and notifications."""

import asyncio
import base64

import pytest

from gateway.engine.service import Service
from gateway.server.mcp.endpoint import McpEndpoint
from tests.server.mcp.asgi_client import Answer, Wire
from tests.server.mcp.project import ANA, BOSS, EVE, KIM
from tests.server.mcp.tools import Waiting, waiting

pytestmark = pytest.mark.anyio

TURN, CALL = "gateway/turn", "gateway/call"
KEY_HELP = "use a new key, or send the arguments that this key was first used with"


async def test_text_goes_out_in_its_envelope_with_who_vouches_for_it(wire: Wire) -> None:
    untrusted = (await wire.call("echo", {"text": "hello"})).result
    trusted = (await wire.call("motto", {"text": "hello"})).result

    [block] = untrusted["content"]
    assert "\nhello\n</untrusted_content_" in block["text"]
    assert block["_meta"] == {"tier": "internal", "trusted": False, "hazard": "extractable-instructions"}
    assert untrusted["resultType"] == "complete"
    assert untrusted["isError"] is False
    [block] = trusted["content"]
    assert "\nhello\n</trusted_content_" in block["text"]
    assert block["_meta"] == {"tier": "internal", "trusted": True, "hazard": "inert"}


async def test_plain_catalogue_gives_bare_text(service: Service) -> None:
    endpoint = McpEndpoint(service, "bare")

    answer = await Wire(endpoint).call("echo", {"text": "hello"})

    assert [block["text"] for block in answer.result["content"]] == ["hello"]


async def test_discovery_shows_what_is_served(wire: Wire) -> None:
    result = (await wire.modern("server/discover")).result

    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["capabilities"] == {"tools": {"listChanged": True}, "resources": {}, "logging": {}}
    assert result["instructions"].startswith("Be kind.\n\nText results stand between <trusted_content_")
    assert (result["cacheScope"], result["ttlMs"], result["resultType"]) == ("private", 60_000, "complete")
    assert result["_meta"] == {"io.modelcontextprotocol/serverInfo": {"name": "small/all", "version": "0.1.0"}}


async def test_tools_are_listed_in_order_as_each_caller_may_see_them(wire: Wire) -> None:
    of_ana = (await wire.modern("tools/list")).result
    of_boss = (await wire.modern("tools/list", principal=BOSS)).result

    names = [tool["name"] for tool in of_ana["tools"]]
    assert names == sorted(names)
    assert "hidden" not in names
    assert "unseen" not in names
    assert {"echo", "quote", "artifact_grep"} <= set(names)
    assert "unseen" in [tool["name"] for tool in of_boss["tools"]]
    assert (of_ana["cacheScope"], of_ana["resultType"]) == ("private", "complete")


async def test_list_does_not_depend_on_earlier_calls(wire: Wire) -> None:
    before = (await wire.modern("tools/list")).body
    await wire.call("report", {"lines": 3})

    assert (await wire.modern("tools/list")).body == before


async def test_json_result_is_given_to_programs_and_promised_to_them(wire: Wire) -> None:
    tools = {tool["name"]: tool for tool in (await wire.modern("tools/list")).result["tools"]}
    result = (await wire.call("quote", {"pieces": 4})).result

    assert tools["quote"]["outputSchema"]["required"] == ["total"]
    assert result["structuredContent"] == {"total": 8}
    assert '{"total": 8}' in result["content"][0]["text"]


async def test_result_that_breaks_its_promise_is_an_error(wire: Wire) -> None:
    result = (await wire.call("misquote")).result

    assert result["isError"] is True
    assert "structuredContent" not in result
    assert "does not fit its output schema" in result["content"][0]["text"]


async def test_result_left_out_is_linked_queried_and_read(wire: Wire) -> None:
    result = (await wire.call("report", {"lines": 100})).result
    handle, link = result["content"]
    read = (await wire.modern("resources/read", {"uri": link["uri"]})).result
    again = {TURN: result["_meta"][TURN]}
    found = (await wire.call("artifact_grep", {"callId": result["_meta"][CALL], "pattern": "9$"}, meta=again)).result
    apart = (await wire.call("artifact_head", {"callId": result["_meta"][CALL], "n": 1})).result
    listed = (await wire.modern("resources/list")).result

    assert 'kind="artifact-handle"' in handle["text"]
    assert (link["type"], link["mimeType"], link["size"]) == ("resource_link", "text/plain", 790)
    assert "\nline 0\nline 1\n" in read["contents"][0]["text"]
    assert read["contents"][0]["_meta"]["trusted"] is False
    assert "line 9\nline 19\n" in found["content"][0]["text"]
    assert "\nline 0\n" in apart["content"][0]["text"]
    assert [resource["uri"] for resource in listed["resources"]] == [link["uri"]]


async def test_artifact_belongs_to_its_caller_alone(wire: Wire) -> None:
    result = (await wire.call("report", {"lines": 3})).result
    uri = result["content"][1]["uri"]

    foreign = await wire.modern("resources/read", {"uri": uri}, principal=KIM)
    unknown = await wire.modern("resources/read", {"uri": uri[:-3] + "000"}, principal=KIM)
    queried = await wire.call("artifact_head", {"callId": result["_meta"][CALL]}, principal=KIM)
    turned = await wire.call("echo", {"text": "a"}, meta={TURN: result["_meta"][TURN]}, principal=KIM)

    assert (foreign.status, foreign.error["code"], foreign.error["data"]) == (400, -32602, {"uri": uri})
    assert unknown.error == {**foreign.error, "data": {"uri": uri[:-3] + "000"}}
    assert queried.result["isError"] is True
    assert (turned.status, turned.error["code"]) == (400, -32602)
    assert (await wire.modern("resources/list", principal=KIM)).result["resources"] == []


@pytest.mark.parametrize(
    "uri", ["artifact://calls/a", "artifact://calls/a/b/c/d", "file:///etc/passwd", "", "artifact://calls/../x", 5]
)
async def test_uri_that_is_none_of_ours_is_not_found(wire: Wire, uri: object) -> None:
    headers = {"mcp-name": str(uri)} if isinstance(uri, str) else {}
    answer = await wire.modern("resources/read", {"uri": uri}, headers=headers)

    assert answer.error["code"] in (-32602, -32020)


async def test_image_is_shown_and_can_be_read_again(wire: Wire) -> None:
    result = (await wire.call("picture")).result
    [listed] = (await wire.modern("resources/list")).result["resources"]
    [contents] = (await wire.modern("resources/read", {"uri": listed["uri"]})).result["contents"]

    [block] = result["content"]
    assert (block["type"], block["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(block["data"]) == b"png"
    assert block["_meta"] == {"tier": "first-party", "trusted": False, "hazard": "opaque-perceptual"}
    assert base64.b64decode(contents["blob"]) == b"png"


async def test_documents_are_embedded_under_names_that_can_be_read(wire: Wire) -> None:
    caption, first, second = (await wire.call("papers")).result["content"]
    read = (await wire.modern("resources/read", {"uri": second["resource"]["uri"]})).result["contents"]
    beyond = await wire.modern("resources/read", {"uri": second["resource"]["uri"][:-1] + "2"})
    listed = (await wire.modern("resources/list")).result["resources"]

    assert (caption["text"], caption["_meta"]["trusted"]) == ("[one.txt] Two papers", False)
    assert base64.b64decode(first["resource"]["blob"]) == b"one"
    assert second["_meta"] == {"tier": "third-party-public", "trusted": False, "hazard": "extractable-instructions"}
    assert base64.b64decode(read[0]["blob"]) == b"two"
    assert beyond.error["code"] == -32602
    assert [each["uri"] for each in listed] == [first["resource"]["uri"], second["resource"]["uri"]]
    assert {each["mimeType"] for each in listed} == {"text/plain"}


async def test_wrong_arguments_failures_and_refusals_are_results(wire: Wire) -> None:
    wrong = (await wire.call("echo", {"text": 5})).result
    failed = (await wire.call("broken")).result
    refused = (await wire.call("boss_only", {"text": "a"})).result

    assert [each["isError"] for each in (wrong, failed, refused)] == [True, True, True]
    assert "1234" not in failed["content"][0]["text"]


async def test_unknown_and_invisible_tools_give_the_same_bytes(wire: Wire) -> None:
    unknown = await wire.call("nothing", {"text": "a"})
    unseen = await wire.call("unseen", {"text": "a"})

    assert (unknown.status, unknown.error["code"]) == (400, -32602)
    assert (unseen.status, unseen.headers, unseen.body) == (unknown.status, unknown.headers, unknown.body)


async def test_hidden_tool_can_be_called(wire: Wire) -> None:
    assert (await wire.call("hidden", {"text": "found"})).result["isError"] is False


async def test_stranger_finds_nothing_here(wire: Wire, service: Service) -> None:
    stranger = await wire.call("echo", {"text": "a"}, principal=EVE)
    rest_only = await Wire(McpEndpoint(service, "rest-only")).call("echo", {"text": "a"}, principal=ANA)
    nowhere = await Wire(McpEndpoint(service, "nothing")).call("echo", {"text": "a"}, principal=ANA)

    assert stranger.status == 404
    assert (stranger.headers, stranger.body) == (nowhere.headers, nowhere.body)
    assert (rest_only.headers, rest_only.body) == (nowhere.headers, nowhere.body)


async def test_progress_is_streamed_on_request_and_only_grows(wire: Wire) -> None:
    asked = await wire.call("steps", meta={"progressToken": "t"})
    silent = await wire.call("steps")
    threaded = await wire.call("steps_in_a_thread", meta={"progressToken": 7})

    *notifications, last = asked.messages
    assert [(each["params"]["progressToken"], each["params"]["progress"]) for each in notifications] == [
        ("t", 1),
        ("t", 2),
        ("t", 3),
    ]
    assert notifications[0]["params"]["message"] == "[untrusted] step 1"
    assert last["id"] == 1
    assert not silent.is_stream
    assert [each["method"] for each in threaded.messages[:-1]] == ["notifications/progress"]


async def test_log_messages_are_sent_from_the_requested_level(wire: Wire) -> None:
    level = "io.modelcontextprotocol/logLevel"
    loud = await wire.call("chatter", meta={level: "warning"})
    all = await wire.call("chatter", meta={level: "debug"})
    silent = await wire.call("chatter")
    wrong = await wire.call("chatter", meta={level: ["debug"]})

    [heard] = [each["params"] for each in loud.messages[:-1]]
    assert (heard["level"], heard["logger"]) == ("error", "tool")
    assert heard["data"].startswith("<untrusted_content_")
    assert "\nloud\n" in heard["data"]
    assert [each["params"]["level"] for each in all.messages[:-1]] == ["debug", "error"]
    assert not silent.is_stream
    assert wrong.error["code"] == -32602


async def test_client_that_takes_no_stream_gets_its_result_alone(wire: Wire) -> None:
    answer = await wire.call("steps", meta={"progressToken": 1}, headers={"accept": "application/json"})

    assert answer.result["isError"] is False


async def test_disconnect_stops_the_call(wire: Wire) -> None:
    waiting["gone"] = Waiting()
    gone = asyncio.Event()
    call = asyncio.create_task(wire.call("wait", {"key": "gone"}, gone=gone))
    await waiting["gone"].began.wait()

    gone.set()
    answer = await asyncio.wait_for(call, 5)

    await asyncio.wait_for(waiting["gone"].stopped.wait(), 5)
    assert (answer.status, answer.body) == (0, b"")


async def test_disconnect_in_the_middle_of_a_stream_stops_it(wire: Wire) -> None:
    gone = asyncio.Event()
    answer = Answer()
    listening = asyncio.create_task(
        wire.modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, gone=gone, answer=answer)
    )
    await answer.has_messages(1)

    gone.set()

    await asyncio.wait_for(listening, 5)


async def test_listener_hears_of_a_new_revision_until_the_server_stops(
    wire: Wire, service: Service, endpoint: McpEndpoint
) -> None:
    answer = Answer()
    wanted = {"notifications": {"toolsListChanged": True, "promptsListChanged": True}}
    listening = asyncio.create_task(wire.modern("subscriptions/listen", wanted, id="ear", answer=answer))
    await answer.has_messages(1)

    service.publish(service.published)
    await answer.has_messages(2)
    await endpoint.close()
    await asyncio.wait_for(listening, 5)

    meta = {"io.modelcontextprotocol/subscriptionId": "ear"}
    assert answer.messages == [
        {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": {"toolsListChanged": True}, "_meta": meta},
        },
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}},
        {"jsonrpc": "2.0", "id": "ear", "result": {"resultType": "complete", "_meta": meta}},
    ]
    assert answer.headers["cache-control"] == "no-cache"


async def test_listener_who_asked_for_nothing_hears_nothing(
    wire: Wire, service: Service, endpoint: McpEndpoint
) -> None:
    answer = Answer()
    listening = asyncio.create_task(wire.modern("subscriptions/listen", {"notifications": {}}, answer=answer))
    await answer.has_messages(1)

    service.publish(service.published)
    await endpoint.close()
    await asyncio.wait_for(listening, 5)

    assert [message.get("method") for message in answer.messages] == ["notifications/subscriptions/acknowledged", None]


@pytest.mark.parametrize(
    ("params", "headers", "status", "code"),
    [
        ({"notifications": {}}, {"accept": "application/json"}, 406, -32600),
        ({"notifications": {"taskIds": ["a"]}}, {}, 400, -32021),
        ({"notifications": []}, {}, 400, -32602),
        ({}, {}, 400, -32602),
    ],
    ids=["no streams", "tasks", "a list", "nothing"],
)
async def test_listening_to_what_cannot_be_heard_is_refused(
    wire: Wire, params: dict[str, object], headers: dict[str, str], status: int, code: int
) -> None:
    answer = await wire.modern("subscriptions/listen", params, headers=headers)

    assert (answer.status, answer.error["code"], answer.json["id"]) == (status, code, 1)


async def test_turn_goes_on_with_its_handle(wire: Wire) -> None:
    first = (await wire.call("echo", {"text": "a"})).result["_meta"]
    second = (await wire.call("echo", {"text": "a"}, meta={TURN: first[TURN]})).result["_meta"]
    apart = (await wire.call("echo", {"text": "a"})).result["_meta"]

    assert second[TURN] == first[TURN]
    assert apart[TURN] != first[TURN]


async def test_call_with_a_key_runs_once(wire: Wire) -> None:
    key = {"gateway/idempotencyKey": "k1"}
    first = (await wire.call("report", {"lines": 1}, meta=key)).result["_meta"]
    second = (await wire.call("report", {"lines": 1}, meta=key)).result["_meta"]
    other = await wire.call("report", {"lines": 2}, meta=key)

    assert second[CALL] == first[CALL]
    assert (other.status, other.error["code"]) == (400, -32602)
    assert other.error["message"] == "the idempotency key was used for another call"
    assert other.error["data"] == {"code": "E_IDEMPOTENCY_CONFLICT", "help": KEY_HELP}


@pytest.mark.parametrize("key", ["", "k" * 256, "k\n", "k\x1b[2J", "é"])
async def test_key_is_short_and_printable(wire: Wire, key: str) -> None:
    answer = await wire.call("report", {"lines": 1}, meta={"gateway/idempotencyKey": key})

    assert answer.error["code"] == -32602


async def test_text_that_is_not_unicode_can_be_answered(wire: Wire) -> None:
    answer = await wire.call("echo", {"text": "é\u0000 \U0001f600"})

    assert "é\u0000 \U0001f600" in answer.result["content"][0]["text"]
