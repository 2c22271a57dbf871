"""Promises 1 to 23 over the wire: ids of calls, artifact classes, media."""

import json
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway import call_id
from tests.promises.transports import tools as promised_tools
from tests.promises.transports.conversations import TALKS, Conversation
from tests.promises.transports.gateway import PROJECT, gateway_of
from tests.promises.transports.readers import body, content, envelope, find_events, query
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

VECTOR_FILE = ROOT.parent / "shared" / "spec" / "canonical-vectors.json"
OWN_VECTORS = [
    ('{ "query" : "hello" }', '{"args":{"query":"hello"},"tool":"echo"}'),
    ('{"～":1,"😀":2,"z":3}', '{"args":{"z":3,"😀":2,"～":1},"tool":"echo"}'),
    ('{"n":1.0,"m":-0.0,"k":1e21}', '{"args":{"k":1e+21,"m":0,"n":1},"tool":"echo"}'),
]


def vectors(*prefixes: str) -> list[tuple[str, str]]:
    """Return argument text and id: some vectors of this test and, if they are available, the shared ones."""
    own = [(text, sha256(hashed.encode()).hexdigest()) for text, hashed in OWN_VECTORS]
    if not VECTOR_FILE.exists():
        return own
    shared = json.loads(VECTOR_FILE.read_text(encoding="utf-8"))
    return own + [
        (each["input"], each["sha256"]) for each in shared if each["is_object"] and each["name"].startswith(prefixes)
    ]


async def checksum(talk: Conversation, arguments: str, tool: str = "echo") -> str:
    reply = await talk.call_text(tool, arguments)
    assert reply.refused is None, (arguments, reply.refused)
    return str((await talk.record(reply))["checksum"])


async def checksums(talk: Conversation, *arguments: Any) -> list[str]:
    return [await checksum(talk, json.dumps(each)) for each in arguments]


async def test_wire_promise_001_call_id_is_the_hash_of_tool_and_arguments(talk: Conversation) -> None:
    cases = vectors("simple", "empty", "key-order", "whitespace", "nested", "deep", "booleans", "proto", "prefix")
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        found = [await checksum(talk, text) for text, _ in cases]
        await talk.gateway.end(turn)
        await heard.wait_for_event("turnEnd")

    assert found == [id for _, id in cases]
    assert [each["callId"] for each in find_events(heard, "toolExecutionStart")] == found


async def test_wire_promise_002_hash_is_over_raw_arguments(talk: Conversation) -> None:
    bare = await talk.call("defaulted", {})
    spelled = await talk.call("defaulted", {"size": "m", "count": 1})

    assert (await talk.record(bare))["checksum"] != (await talk.record(spelled))["checksum"]
    assert (await talk.record(bare))["arguments"] == {}
    assert promised_tools.done.seen == [{"size": "m", "count": 1}] * 2


async def test_wire_promise_003_only_the_name_of_the_tool_enters_the_hash(tmp_path: Path) -> None:
    changed = tmp_path / "project"
    changed.mkdir()
    for file in sorted(PROJECT.rglob("*.*")):
        text = file.read_text(encoding="utf-8").replace("The tool echo.", "Says something else.")
        copy = changed / file.relative_to(PROJECT)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(text.replace("{type: object, additionalProperties: true}", "{type: object}"), encoding="utf-8")
    found: list[list[str]] = []
    descriptions: list[str] = []

    for number, project in enumerate((PROJECT, changed)):
        async with gateway_of(tmp_path / f"data{number}", project) as gateway:
            talks = [made(gateway) for made in TALKS]
            found.append([await checksum(each, "{}") for each in talks])
            descriptions.append((await talks[0].tools())["echo"]["description"])

    assert descriptions == ["The tool echo.", "Says something else."]
    assert found == [[call_id("echo", {})] * len(TALKS)] * 2


async def test_wire_promise_004_another_name_changes_the_id(talk: Conversation) -> None:
    assert await checksum(talk, '{"a": 1}') != await checksum(talk, '{"a": 1}', "other_echo")


async def test_wire_promise_005_keys_are_sorted_at_every_depth(talk: Conversation) -> None:
    one, other = '{"a":{"x":1,"y":[{"p":1,"q":2}]},"b":2}', '{"b":2,"a":{"y":[{"q":2,"p":1}],"x":1}}'

    assert await checksum(talk, one) == await checksum(talk, other)


async def test_wire_promise_006_keys_are_sorted_by_utf16_code_units(talk: Conversation) -> None:
    for text, id in vectors("utf16-key-order", "numeric-like", "uppercase", "empty-key", "unicode-escaped"):
        assert await checksum(talk, text) == id


async def test_wire_promise_007_arrays_keep_their_order(talk: Conversation) -> None:
    one, other = await checksums(talk, {"a": [1, 2]}, {"a": [2, 1]})

    assert one != other


async def test_wire_promise_008_primitives_print_as_in_javascript(talk: Conversation) -> None:
    for text, id in vectors(
        "integer", "float", "negative", "exp-1", "exp-p", "small", "unsafe", "max", "min", "string"
    ):
        assert await checksum(talk, text) == id, text


async def test_wire_promise_009_key_order_never_matters(talk: Conversation) -> None:
    pairs = [(f"k{number}", number) for number in range(12)]
    shuffled = random.Random(9)
    orders = [dict(shuffled.sample(pairs, len(pairs))) for _ in range(100)]

    assert len(set(await checksums(talk, *orders))) == 1


async def test_wire_promise_010_same_value_is_the_checksum_of_the_record(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        reply = await talk.call("echo", {"a": 1})
        start = await heard.wait_for_event("toolExecutionStart")

    assert start["callId"] == (await talk.record(reply))["checksum"] == call_id("echo", {"a": 1})


async def test_wire_promise_011_one_value_in_events_record_and_rendering(talk: Conversation) -> None:
    turn = await talk.begin()

    async with talk.gateway.following(turn) as heard:
        reply = await talk.call("echo", {"a": 1})
        await heard.wait_for_event("toolExecutionEnd")
    id = call_id("echo", {"a": 1})
    [shown] = await talk.gateway.shown(turn, reply.id)

    assert [each["callId"] for name in ("Start", "End") for each in find_events(heard, f"toolExecution{name}")] == [
        id,
        id,
    ]
    assert (await talk.record(reply))["checksum"] == id
    assert envelope(reply.text)["call"] == envelope(shown["text"])["call"] == id


async def test_wire_promise_013_numbers_out_of_range_are_refused_and_never_raise(talk: Conversation) -> None:
    """In the library they are null. Parsers disagree about them, so transports refuse them."""
    texts = ['{"n":1e400}', '{"n":-1e400}', *([json.dumps('{"n":1e400}')] if talk.wire == "rest" else [])]
    for text in texts:
        assert "number is infinity" in str((await talk.call_text("echo", text)).refused)

    assert promised_tools.done.seen == []
    assert await checksum(talk, '{"n":null}') == call_id("echo", {"n": None})


async def test_wire_promise_014_absent_is_not_null(talk: Conversation) -> None:
    absent, null = await checksums(talk, {"a": 1}, {"a": 1, "b": None})

    assert absent != null


async def test_wire_promise_015_shapes_outside_json_do_not_arrive(talk: Conversation) -> None:
    """If two texts could share an id, only the one that every parser reads alike is accepted."""
    for text in ('{"n":NaN}', '{"n":Infinity}', '{"s":"a\\ud800b"}', '{"a":1,"a":2}', '{"n":123456789012345678901}'):
        assert (await talk.call_text("echo", text)).refused, text

    assert promised_tools.done.seen == []


async def test_wire_promise_016_class_named_in_a_document_is_loaded_and_used(talk: Conversation) -> None:
    reply = await talk.call("ledger")

    assert (await talk.record(reply))["result"]["artifact"]["kind"] == "Ledger"


async def test_wire_promise_020_class_of_the_tool_wraps_text_and_bytes(talk: Conversation) -> None:
    kinds = {}
    for tool in ("facts", "page", "raw", "echo"):
        kinds[tool] = (await talk.record(await talk.call(tool)))["result"]["artifact"]["kind"]

    assert kinds == {
        "facts": "SpooledJsonArtifact",
        "page": "SpooledMarkdownArtifact",
        "raw": "SpooledArtifact",
        "echo": "SpooledArtifact",
    }


async def test_wire_promise_021_media_is_not_wrapped_and_not_queried(talk: Conversation) -> None:
    reply = await talk.call("picture")
    turn_tools = await talk.gateway.get(f"/v1/turns/{talk.turn}/tools")
    [media] = (await talk.record(reply))["result"]["media"]
    [again] = (await talk.record(reply))["result"]["media"]

    assert media["id"] == again["id"]
    assert await content(talk.gateway, reply) == b"\x89PNG own"
    assert not any(each["name"].startswith("artifact_") for each in turn_tools["tools"])


async def test_wire_promise_022_incomplete_media_is_an_error_result(talk: Conversation) -> None:
    reply = await talk.call("nameless_picture")

    assert reply.is_error
    assert "InvalidInitialMediaValue" in body(reply.text)


async def test_wire_promise_023_media_is_no_target_of_line_queries(talk: Conversation) -> None:
    await talk.call("say", {"text": "something to ask about"})
    reply = await query(talk, "artifact_head", await talk.call("picture"))

    assert reply.is_error
    assert "callId" in reply.text
