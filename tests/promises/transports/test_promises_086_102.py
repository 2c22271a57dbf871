"""Promises 86 to 102 over the wire: what a model sees of a tool, what a call does, media and stash."""

import json

import pytest

from gateway.errors import InvalidToolArgs, ToolDownstreamError
from tests.promises.transports import tools as promised_tools
from tests.promises.transports.conversations import Conversation, RestTalk
from tests.promises.transports.gateway import Gateway
from tests.promises.transports.readers import (
    BASE_SEVEN,
    JSON_TOOLS,
    body,
    content,
    envelope,
    find_events,
    names,
    offered,
    queries,
    query,
)

pytestmark = pytest.mark.anyio

FORMATS = ("mcp", "openai", "anthropic", "gemini")
PRIVATE = (
    "tickets.write",
    "odd key",
    "tests.promises.transports.tools",
    "entrypoint",
    "handler",
    "python",
    "onCollision",
)


async def test_wire_promise_086_model_sees_name_description_and_schema(talk: Conversation) -> None:
    await talk.begin()
    seen = [json.dumps(await talk.tools())]
    for format in FORMATS:
        seen.append((await talk.gateway.ask("GET", f"/v1/turns/{talk.turn}/tools?format={format}")).body.decode())

    for text in seen:
        assert "The tool scopes." in text
        assert not [word for word in PRIVATE if word in text]


async def test_wire_promise_087_other_names_are_accepted(talk: Conversation) -> None:
    assert "readOrder" in await talk.tools()
    assert body((await talk.call("readOrder", {"text": "a"})).text) == "a"
    assert "name-style" in {each.code for each in talk.gateway.running.assembled.diagnostics}


async def test_wire_promise_088_every_schema_describes_an_object(talk: Conversation) -> None:
    await talk.call("facts")

    assert {tool["inputSchema"]["type"] for tool in (await talk.tools()).values()} == {"object"}


async def test_wire_promise_089_annotations_reach_the_definition(talk: Conversation) -> None:
    properties = (await talk.tools())["checked"]["inputSchema"]["properties"]

    assert properties["name"]["description"] == "Who it is for."
    assert properties["name"]["examples"] == ["kim"]
    assert properties["level"]["default"] == 3
    assert properties["colour"]["enum"] == ["red", "green", None]


async def test_wire_promise_090_handler_is_reached_by_a_call_only(talk: Conversation) -> None:
    await talk.begin()
    await talk.tools()
    for target in (f"/v1/turns/{talk.turn}/render", "/v1/catalogues/promises/tools/count", f"/v1/turns/{talk.turn}"):
        await talk.gateway.get(target)
    assert promised_tools.done.counted == 0

    await talk.call("count")
    assert promised_tools.done.counted == 1


async def test_wire_promise_091_arguments_are_validated_first(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        reply = await talk.call("pay", {"amount": "much"})
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")

    assert reply.is_error
    assert InvalidToolArgs.default_message in reply.text
    assert "amount" in reply.text
    assert names(heard, "toolExecutionStart", "toolExecutionEnd") == []
    assert promised_tools.done.paid == []


@pytest.mark.parametrize(("tool", "is_error"), [("echo", False), ("broken", True)])
async def test_wire_promise_092_one_start_and_one_end(talk: Conversation, tool: str, is_error: bool) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        await talk.call(tool)
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")

    assert names(heard, "toolExecutionStart", "toolExecutionEnd") == ["toolExecutionStart", "toolExecutionEnd"]
    assert [each["isError"] for each in find_events(heard, "toolExecutionEnd")] == [is_error]


async def test_wire_promise_093_handler_errors_are_wrapped(talk: Conversation) -> None:
    """A tool's deliberate error text is shown; of other exceptions only the class, as the text may hold secrets."""
    accident, purpose = await talk.call("broken"), await talk.call("refuses")
    wrapped = ToolDownstreamError.default_message

    assert accident.is_error
    assert purpose.is_error
    assert body(accident.text) == f"{wrapped}: the tool raised RuntimeError"
    assert body(purpose.text).startswith(f"{wrapped}: there is no such customer")
    assert "the password" not in str(await talk.gateway.records(talk.turn)) + str(await talk.gateway.prompt(talk.turn))


async def test_wire_promise_094_text_and_bytes_are_spooled(talk: Conversation) -> None:
    reply = await talk.call("raw")
    artifact = (await talk.record(reply))["result"]["artifact"]

    assert (artifact["kind"], artifact["byteLength"]) == ("SpooledArtifact", 256)
    assert await content(talk.gateway, reply) == bytes(range(256))
    assert body((await query(talk, "artifact_byte_length", reply)).text) == "256"


async def test_wire_promise_095_queries_are_listed_after_a_call(talk: Conversation) -> None:
    """Where lists must not depend on earlier calls, all possible queries of the catalogue are listed from the start."""
    before = {name for name in await talk.tools() if name.startswith("artifact_")}
    reply = await talk.call("facts")
    after = {name for name in await talk.tools() if name.startswith("artifact_")}

    assert await queries(talk) == BASE_SEVEN | JSON_TOOLS
    if talk.wire == "mcp-modern":
        assert before == after > BASE_SEVEN | JSON_TOOLS
    else:
        assert (before, after) == (set(), BASE_SEVEN | JSON_TOOLS)
        assert await talk.callable_ids("artifact_json_get") == [reply.id]


async def test_wire_promise_096_bytes_of_media_stay_where_they_are(talk: Conversation) -> None:
    """Events carry none; REST names them, and MCP, whose answers hold them, fetches them once for the answer."""
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        reply = await talk.call("distant_picture")
        fetched = promised_tools.done.fetched
        shown = await content(talk.gateway, reply)
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")

    assert fetched == (0 if talk.wire == "rest" else 1)
    assert shown == b"\x89PNG distant"
    assert promised_tools.done.fetched == fetched + 1
    assert b"distant.png" in heard.body
    assert b"iVBOR" not in heard.body
    assert b"PNG" not in heard.body


async def test_wire_promise_097_tools_declare_the_class_of_their_results(talk: Conversation) -> None:
    for tool, prefix in (("facts", "artifact_json_"), ("page", "artifact_md_")):
        each = type(talk)(talk.gateway)
        await each.call(tool)
        own = await queries(each) - BASE_SEVEN
        assert own
        assert all(name.startswith(prefix) for name in own)


async def test_wire_promise_098_meta_is_for_handlers_and_changes_nothing(talk: Conversation) -> None:
    """Its odd keys claim `trusted` and another tier; the envelope and the record do not."""
    reply = await talk.call("scopes")

    assert body(reply.text) == "['tickets.write'] nobody"
    assert envelope(reply.text)["authority"] == "untrusted"
    assert (await talk.record(reply))["trusted"] is False


async def test_wire_promise_099_flags_act_when_shown_and_at_the_end(talk: Conversation) -> None:
    """The third, for name collisions, acts at load, before anything is served."""
    reply = await talk.call("trusted_say", {"text": "a"})
    [shown] = await talk.gateway.shown(reply.turn, reply.id)
    passed = await talk.call("passing")
    before = await offered(talk)
    await talk.gateway.end(reply.turn)
    after = await offered(talk)

    assert envelope(reply.text)["authority"] == envelope(shown["text"])["authority"] == "trusted"
    assert envelope(reply.text)["kind"] == "trusted-tool-result"
    assert not passed.is_error
    assert "passing" in before
    assert "passing" not in after
    assert "trusted_say" in after


async def test_wire_promise_100_caption_stands_in_for_media(talk: Conversation) -> None:
    reply = await talk.call("clip")
    [marker, caption] = await talk.gateway.shown(reply.turn, reply.id)

    assert "clip.mp4" in marker["text"]
    assert body(caption["text"]) == "Prices of a year, told"
    assert envelope(caption["text"])["authority"] == "trusted"
    if talk.wire != "rest":
        assert reply.text == "[clip.mp4] Prices of a year, told"
        assert reply.blocks[0]["_meta"]["tier"] == "first-party"


async def test_wire_promise_101_stash_is_dotted_and_of_one_turn(gateway: Gateway) -> None:
    stash = {"app": {"user": {"name": "ann"}}}
    opened = await gateway.ask("POST", "/v1/turns", json.dumps({"catalogue": "promises", "stash": stash}).encode())
    one, other = RestTalk(gateway), RestTalk(gateway)
    one.turn = opened.json["id"]
    heard = [body((await talk.call("recall", {"key": "app.user.name"})).text) for talk in (one, other)]
    await one.call("remember", {"key": "app.user.name", "value": "changed in its dispatch"})

    assert heard == ["ann", "nothing"]
    assert (await gateway.get(f"/v1/turns/{one.turn}"))["stash"] == stash
    assert (await gateway.get(f"/v1/turns/{other.turn}"))["stash"] == {}


async def test_wire_promise_101_stash_of_a_call_ends_with_it(talk: Conversation) -> None:
    await talk.call("remember", {"key": "a.b", "value": 1})

    assert body((await talk.call("recall", {"key": "a.b"})).text) == "nothing"


async def test_wire_promise_102_artifact_is_queried_and_media_shown(talk: Conversation) -> None:
    text, shown = await talk.call("paper_text"), await talk.call("paper_shown")
    found = await query(talk, "artifact_grep", text, pattern="sesame")
    not_found = await query(talk, "artifact_grep", shown, pattern="sesame")

    assert body(found.text) == "the word is sesame"
    assert not_found.is_error
    assert (await talk.record(shown))["result"]["media"][0]["kind"] == "document"
    assert "checked" in await offered(talk)
    if talk.wire != "rest":
        assert shown.blocks[0]["resource"]["mimeType"] == "application/pdf"
