"""Ambiguous JSON over MCP and REST is refused before a tool runs; a tool gets exactly the values that were sent."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.gateways.projects import (
    MODERN,
    CallCounter,
    Caller,
    Person,
    Reply,
    base_documents,
    catalogue,
    http_tool,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))


@asynccontextmanager
async def start_desk(tmp_path: Path) -> AsyncIterator[tuple[Caller, CallCounter]]:
    async with start_call_counter() as backend:
        anything = {"schema": {"type": "object", "additionalProperties": True}}
        documents = [*base_documents(["tokens"]), tokens_of([ANA]), http_tool("echo", backend.port, input=anything)]
        documents.append(catalogue("desk", ["role:staff"], ["*"]))
        write_project(tmp_path / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")
        async with start_gateway(tmp_path / "p", tmp_path / "data", people=[ANA]) as gateway:
            yield gateway.caller(ANA), backend


META = json.dumps(
    {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
).encode()


def modern(arguments: bytes) -> bytes:
    params = b'{"name":"echo","arguments":%b,"_meta":%b}' % (arguments, META)
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % params


async def post_modern(caller: Caller, body: bytes) -> Reply:
    return await caller.raw(
        "POST",
        "/desk/mcp",
        body,
        content_type="application/json",
        accept="application/json, text/event-stream",
        mcp_protocol_version=MODERN,
        mcp_method="tools/call",
        mcp_name="echo",
    )


async def post_rest(caller: Caller, body: bytes) -> Reply:
    return await caller.raw("POST", "/v1/catalogues/desk/tools/echo/call", body, content_type="application/json")


TRAPS = {
    "key twice": b'{"a":1,"a":1}',
    "key twice by escape": b'{"a":1,"\\u0061":2}',
    "key twice far below": b'{"x":[[{"b":{"a":1,"c":2,"a":3}}]]}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":-Infinity}',
    "1e400": b'{"a":1e400}',
    "integer of 65 bits": b'{"a":18446744073709551616}',
    "integer of 10000 digits": b'{"a":' + b"9" * 10_000 + b"}",
    "lone surrogate": b'{"a":"\\ud800"}',
    "lone surrogate as a key": b'{"\\udfff":1}',
    "surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "broken UTF-8": b'{"a":"\xff"}',
    "raw NUL": b'{"a":"\x00"}',
    "comma at the end": b'{"a":1,}',
    "comment": b'{"a":1/**/}',
    "nested 20000 times": b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "nested 20000 times, unclosed": b'{"a":' * 20_000,
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
async def test_traps_are_refused_and_nothing_runs(trap: bytes, tmp_path: Path) -> None:
    async with start_desk(tmp_path) as (caller, backend):
        over_mcp = await post_modern(caller, modern(trap))
        over_rest = await post_rest(caller, b'{"arguments":%b}' % trap)

        assert (over_mcp.status, over_mcp.json["error"]["code"]) == (400, -32700)
        assert over_mcp.json.get("id") is None
        assert over_rest.status == 400
        if trap.isascii():  # otherwise it does not fit in a text
            as_text = await post_rest(caller, json.dumps({"arguments": trap.decode()}).encode())
            assert as_text.status == 400 or as_text.json["isError"] is True
        assert backend.requests == []
        assert len((await caller.rest("GET", "/v1/calls")).json["calls"]) <= 1
        assert all(len(each.body) < 1000 for each in (over_mcp, over_rest))


def wholes() -> Iterator[tuple[str, bytes]]:
    """Bodies that are invalid as a whole."""
    good = modern(b"{}")
    yield "byte order mark", b"\xef\xbb\xbf" + good
    yield "UTF-16", good.decode().encode("utf-16")
    yield "two messages", good + good
    yield "a list", b"[%b]" % good
    yield "text", b'"x"'
    yield "nothing", b""
    yield "method twice", good.replace(b'"method":', b'"method":"tools/list","method":')
    yield "Method beside method", good.replace(b'"method":', b'"Method":"tools/list","method":')
    yield "Params beside params", good.replace(b'"params":', b'"Params":{},"params":')
    yield "Name beside name", good.replace(b'"name":', b'"Name":"other","name":')
    yield "NAME beside name", good.replace(b'"name":', b'"NAME":"other","name":')
    yield "Arguments beside arguments", good.replace(b'"arguments":', b'"Arguments":{},"arguments":')
    yield "long s in name", good.replace(b'"arguments":', '"argumentſ":{},"arguments":'.encode())
    yield "id is true", good.replace(b'"id":1', b'"id":true')
    yield "id is null", good.replace(b'"id":1', b'"id":null')
    yield "id is 1.5", good.replace(b'"id":1', b'"id":1.5')
    yield "id is an object", good.replace(b'"id":1', b'"id":{}')
    yield "version 1.0", good.replace(b'"2.0"', b'"1.0"')
    yield "no version", good.replace(b'"jsonrpc":"2.0",', b"")
    yield "result beside method", good.replace(b'"id":1', b'"id":1,"result":{}')


WHOLES = dict(wholes())


@pytest.mark.parametrize("body", WHOLES.values(), ids=WHOLES)
async def test_messages_that_readers_disagree_about_are_refused(body: bytes, tmp_path: Path) -> None:
    async with start_desk(tmp_path) as (caller, backend):
        assert (await post_modern(caller, modern(b"{}"))).status == 200
        before = len(backend.requests)
        answer = await post_modern(caller, body)

        assert answer.status == 400, answer
        assert "error" in answer.json
        assert len(backend.requests) == before == 1


MEMBERS = {
    "Arguments": b'{"Arguments":{}}',
    "both": b'{"arguments":{},"Arguments":{}}',
    "unknown": b'{"arguments":{},"command":"id"}',
    "a server": b'{"arguments":{},"url":"http://127.0.0.1:1/"}',
    "list": b"[]",
    "text": b'"x"',
    "null": b"null",
    "nothing": b"",
}


@pytest.mark.parametrize("body", MEMBERS.values(), ids=MEMBERS)
async def test_bodies_with_other_members_are_refused(body: bytes, tmp_path: Path) -> None:
    async with start_desk(tmp_path) as (caller, backend):
        assert (await post_rest(caller, body)).status == 400
        assert backend.requests == []


VALUES: dict[str, Any] = {
    "integers": {"most": 2**64 - 1, "least": -(2**63), "javascript": 2**53 + 1},
    "numbers": {"tenth": 0.1, "tiny": 5e-324, "huge": 1.7976931348623157e308},
    "texts": {"nul": "a\0b", "pair": "😀", "separators": "\u2028\u2029", "bidi": "\u202ea", "lt": "</script>"},
    "keys": {"": 1, "__proto__": {"a": 1}, "constructor": 2, "ſ": 3, "$ref": "#/x", "a.b": 4},
    "templates": {
        "a": "{{7*7}}",
        "b": "${HOME}",
        "c": "%(x)s",
        "d": "{0.__class__}",
        "e": "env:HOME",
        "f": "file:/etc",
    },
    "nested": {"a": [[], {}, [{"b": [None, True, False]}]]},
}


@pytest.mark.parametrize("arguments", VALUES.values(), ids=VALUES)
async def test_backend_gets_exactly_what_was_sent(arguments: dict[str, Any], tmp_path: Path) -> None:
    async with start_desk(tmp_path) as (caller, backend):
        for body in (orjson.dumps(arguments), json.dumps(arguments, indent=2).encode()):
            assert (await post_modern(caller, modern(body))).status == 200
            assert (await post_rest(caller, b'{"arguments":%b}' % body)).status == 200

        heard = [json.loads(body) for _, _, body in backend.requests]
        assert heard == [arguments] * 4
        assert [list(map(type, each.values())) for each in heard] == [list(map(type, arguments.values()))] * 4
