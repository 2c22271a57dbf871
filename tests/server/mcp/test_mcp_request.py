"""Valid requests: each check, their order, and the reference implementation as an oracle."""

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    decode_header_value,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    validate_mcp_param_headers,
    x_mcp_header_map,
)

from gateway.mcp.argument_headers import check_param_headers, decode_value, find_header_arguments
from gateway.mcp.messages import HTTP_STATUS, ProtocolError
from gateway.server.http.asgi import HeaderFields
from gateway.server.mcp.endpoint import McpEndpoint
from gateway.server.mcp.mcp_request import McpHeaders, validate_request
from tests.server.mcp.asgi_client import META, MODERN, Wire
from tests.server.mcp.project import BOSS, small_service

pytestmark = pytest.mark.anyio

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
PARAMS = {"name": "echo", "arguments": {"text": "a"}, "_meta": META}
REQUEST = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": PARAMS}
HEADERS = {
    "content-type": "application/json",
    "mcp-protocol-version": MODERN,
    "mcp-method": "tools/call",
    "mcp-name": "echo",
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def wire(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Wire]:
    """One for all tests: none of them changes anything."""
    async with small_service(tmp_path_factory.mktemp("ladder") / "project") as service:
        yield Wire(McpEndpoint(service, "all"))


def without(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


WRONG: dict[str, tuple[Any, Any, int, int]] = {
    "no jsonrpc": (without(REQUEST, "jsonrpc"), HEADERS, 400, -32600),
    "wrong jsonrpc": ({**REQUEST, "jsonrpc": 2.0}, HEADERS, 400, -32600),
    "null id": ({**REQUEST, "id": None}, HEADERS, 400, -32600),
    "true id": ({**REQUEST, "id": True}, HEADERS, 400, -32600),
    "fractional id": ({**REQUEST, "id": 1.5}, HEADERS, 400, -32600),
    "method is a number": ({**REQUEST, "method": 5}, HEADERS, 400, -32600),
    "params is a list": ({**REQUEST, "params": []}, HEADERS, 400, -32600),
    "Method beside method": ({**REQUEST, "Method": "tools/list"}, HEADERS, 400, -32600),
    "Name beside name": ({**REQUEST, "params": {**PARAMS, "Name": "x"}}, HEADERS, 400, -32600),
    "response": ({"jsonrpc": "2.0", "id": 3, "result": {}}, HEADERS, 400, -32600),
    "batch": ([REQUEST], HEADERS, 400, -32600),
    "a string": ("tools/call", HEADERS, 400, -32600),
    "version twice": (REQUEST, [*HEADERS.items(), ("mcp-protocol-version", MODERN)], 400, -32020),
    "method twice": (REQUEST, [*HEADERS.items(), ("Mcp-Method", "tools/call")], 400, -32020),
    "name twice": (REQUEST, [*HEADERS.items(), ("mcp-name", "echo")], 400, -32020),
    "no params": (without(REQUEST, "params"), HEADERS, 400, -32602),
    "no meta": ({**REQUEST, "params": without(PARAMS, "_meta")}, HEADERS, 400, -32602),
    "meta is a list": ({**REQUEST, "params": {**PARAMS, "_meta": []}}, HEADERS, 400, -32602),
    "no version": ({**REQUEST, "params": {**PARAMS, "_meta": without(META, VERSION)}}, HEADERS, 400, -32602),
    "no capabilities": (
        {**REQUEST, "params": {**PARAMS, "_meta": without(META, CAPABILITIES)}},
        HEADERS,
        400,
        -32602,
    ),
    "header version differs": (REQUEST, {**HEADERS, "mcp-protocol-version": "2027-01-01"}, 400, -32020),
    "header version is older": (REQUEST, {**HEADERS, "mcp-protocol-version": "2025-11-25"}, 400, -32020),
    "header version is missing": (REQUEST, without(HEADERS, "mcp-protocol-version"), 400, -32020),
    "header method differs": (REQUEST, {**HEADERS, "mcp-method": "tools/list"}, 400, -32020),
    "header method in capitals": (REQUEST, {**HEADERS, "mcp-method": "Tools/Call"}, 400, -32020),
    "header method is missing": (REQUEST, without(HEADERS, "mcp-method"), 400, -32020),
    "header name differs": (REQUEST, {**HEADERS, "mcp-name": "quote"}, 400, -32020),
    "header name is missing": (REQUEST, without(HEADERS, "mcp-name"), 400, -32020),
    "header name is no base64": (REQUEST, {**HEADERS, "mcp-name": "=?base64?!!!?="}, 400, -32020),
    "version nobody knows": (
        {**REQUEST, "params": {**PARAMS, "_meta": {**META, VERSION: "2099-01-01"}}},
        {**HEADERS, "mcp-protocol-version": "2099-01-01"},
        400,
        -32022,
    ),
    "method nobody knows": ({**REQUEST, "method": "tools/fly"}, {**HEADERS, "mcp-method": "tools/fly"}, 404, -32601),
    "initialize": ({**REQUEST, "method": "initialize"}, {**HEADERS, "mcp-method": "initialize"}, 404, -32601),
    "ping": ({**REQUEST, "method": "ping"}, {**HEADERS, "mcp-method": "ping"}, 404, -32601),
    "prompts": ({**REQUEST, "method": "prompts/list"}, {**HEADERS, "mcp-method": "prompts/list"}, 404, -32601),
    "arguments are a list": ({**REQUEST, "params": {**PARAMS, "arguments": []}}, HEADERS, 400, -32602),
    "capabilities are a list": (
        {**REQUEST, "params": {**PARAMS, "_meta": {**META, CAPABILITIES: []}}},
        HEADERS,
        400,
        -32602,
    ),
}


@pytest.mark.parametrize(("body", "headers", "status", "code"), WRONG.values(), ids=WRONG.keys())
async def test_wrong_request_gets_an_explanation(wire: Wire, body: Any, headers: Any, status: int, code: int) -> None:
    answer = await wire.send(orjson.dumps(body), headers)

    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    known = isinstance(body, dict) and type(body.get("id")) is int
    assert answer.json.get("id") == (3 if known else None)
    assert ("id" in answer.json) is known


async def test_request_for_another_version_gets_the_supported_ones(wire: Wire) -> None:
    body = {**REQUEST, "params": {**PARAMS, "_meta": {**META, VERSION: "2099-01-01"}}}

    answer = await wire.send(orjson.dumps(body), {**HEADERS, "mcp-protocol-version": "2099-01-01"})

    assert answer.json["error"]["data"] == {"supported": [MODERN], "requested": "2099-01-01"}


@pytest.mark.parametrize("padding", [" ", "\t", " \t "], ids=["blank", "tab", "both"])
async def test_blanks_around_header_values_do_not_count(wire: Wire, padding: str) -> None:
    padded = {name: f"{padding}{value}{padding}" for name, value in HEADERS.items()}

    assert (await wire.send(orjson.dumps(REQUEST), padded)).result["isError"] is False


async def test_name_may_be_packed(wire: Wire) -> None:
    headers = {**HEADERS, "mcp-name": "=?base64?ZWNobw==?="}

    assert (await wire.send(orjson.dumps(REQUEST), headers)).result["isError"] is False


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b'{"a":1,"a":2}', 400),
        (b"\xef\xbb\xbf{}", 400),
        (b'{"a":"\xff"}', 400),
        (b'{"a":NaN}', 400),
        (b'{"a":"\\ud800"}', 400),
        (b"[" * 20_000, 400),
        (b"{}" + b" " * (5 << 20), 413),
    ],
    ids=["empty", "open", "key twice", "mark", "not utf-8", "nan", "lone surrogate", "deep", "large"],
)
async def test_body_that_two_readers_could_read_differently_is_refused(wire: Wire, body: bytes, status: int) -> None:
    answer = await wire.send(body, HEADERS)

    assert answer.status == status
    assert answer.json["error"]["code"] == (-32700 if status == 400 else -32600)
    assert "id" not in answer.json


async def test_key_given_twice_deep_in_a_call_is_refused(wire: Wire) -> None:
    body = orjson.dumps(REQUEST).replace(b'"name":"echo"', b'"name":"echo","name":"quote"')

    assert (await wire.send(body, HEADERS)).json["error"]["code"] == -32700


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
        ({"content-encoding": "gzip"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "Application/JSON"}, 200),
        ({"accept": "text/html"}, 406),
        ({"accept": "*/*"}, 200),
        ({"accept": "application/*;q=0.5"}, 200),
    ],
    ids=[
        "text",
        "none",
        "compressed",
        "with charset",
        "in capitals",
        "accepts html",
        "accepts all",
        "accepts applications",
    ],
)
async def test_media_types_of_both_sides_are_looked_at(wire: Wire, headers: dict[str, str], status: int) -> None:
    assert (await wire.send(orjson.dumps(REQUEST), {**HEADERS, **headers})).status == status


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS"])
async def test_only_posts_are_taken(wire: Wire, method: str) -> None:
    answer = await wire.send(b"", {**HEADERS, "mcp-session-id": "x", "last-event-id": "1"}, method=method)

    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_notification_is_accepted(wire: Wire) -> None:
    body = {"jsonrpc": "2.0", "method": "notifications/anything", "params": {}}
    accepted = await wire.send(orjson.dumps(body), HEADERS)
    refused = await wire.send(orjson.dumps(body), {**HEADERS, "mcp-protocol-version": "2099-01-01"})

    assert (accepted.status, accepted.body) == (202, b"")
    assert (refused.status, refused.json["error"]["code"]) == (400, -32022)


@pytest.mark.parametrize("id", ["", "a\n\"'", 0, -5, 2**53], ids=["empty", "odd", "zero", "negative", "large"])
async def test_every_id_is_echoed(wire: Wire, id: Any) -> None:
    answer = await wire.send(orjson.dumps({**REQUEST, "id": id}), HEADERS)

    assert answer.json["id"] == id


async def test_cursors_lead_through_the_list_and_strange_ones_nowhere(wire: Wire) -> None:
    everything = (await wire.modern("tools/list")).result["tools"]
    from_the_start = (await wire.modern("tools/list", {"cursor": ""})).result["tools"]

    assert from_the_start == everything
    for cursor in ("%", 5, "é", "/w=="):
        assert (await wire.modern("tools/list", {"cursor": cursor})).json["error"]["code"] == -32602


# --- arbitrary requests ---

JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=4), st.sampled_from(["2.0", "tools/call"])
    ),
    lambda children: st.one_of(
        st.lists(children, max_size=3),
        st.dictionaries(
            st.sampled_from(["jsonrpc", "id", "method", "params", "_meta", "name", "arguments", "result", VERSION]),
            children,
            max_size=5,
        ),
    ),
    max_leaves=12,
)
ANY_HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id", "last-event-id", "accept", "x"]
        ),
        st.sampled_from(
            [MODERN, "2025-11-25", "2025-03-26", "tools/call", "tools/list", "echo", "", "\xff", "*/*", "1.1"]
        ),
    ),
    max_size=6,
)


@given(
    body=st.one_of(
        JSON.map(orjson.dumps),
        st.binary(max_size=40),
        JSON.map(lambda params: orjson.dumps({**REQUEST, "params": params})),
        JSON.map(lambda value: orjson.dumps({**REQUEST, "params": {**PARAMS, "arguments": value}})),
    ),
    headers=ANY_HEADERS,
    method=st.sampled_from(["POST", "POST", "POST", "GET", "DELETE"]),
)
async def test_whatever_is_sent_is_answered_in_json(
    wire: Wire, body: bytes, headers: list[tuple[str, str]], method: str
) -> None:
    answer = await wire.send(body, [("content-type", "application/json"), *headers], method=method)

    assert answer.status in (200, 202, 400, 404, 405, 406)
    assert answer.is_over
    if answer.body:
        verdict = answer.json
        assert verdict["jsonrpc"] == "2.0"
        assert ("error" in verdict) != ("result" in verdict)
        if "error" in verdict:
            assert verdict["error"]["code"] in (-32700, -32600, -32601, -32602, -32020, -32022)


# --- argument headers ---

MARKED_CASES: dict[str, tuple[dict[str, Any], list[tuple[str, str]], bool]] = {
    "both agree": ({"region": "eu", "level": 2}, [("Mcp-Param-Region", "eu"), ("mcp-param-level", "2")], True),
    "numbers agree": ({"region": "e", "level": 2}, [("mcp-param-region", "e"), ("mcp-param-level", "2.0")], True),
    "argument is left out": ({"region": "eu"}, [("mcp-param-region", "eu")], True),
    "value is packed": ({"region": "é"}, [("mcp-param-region", "=?base64?w6k=?=")], True),
    "others are ignored": ({"region": "eu"}, [("mcp-param-region", "eu"), ("mcp-param-x", "1")], True),
    "header is missing": ({"region": "eu"}, [], False),
    "header differs": ({"region": "eu"}, [("mcp-param-region", "us")], False),
    "header without argument": ({"region": "eu"}, [("mcp-param-region", "eu"), ("mcp-param-level", "1")], False),
    "header twice": ({"region": "eu"}, [("mcp-param-region", "eu"), ("mcp-param-region", "eu")], False),
    "packed wrongly": ({"region": "é"}, [("mcp-param-region", "=?base64?w6k?=")], False),
    "number differs": ({"region": "eu", "level": 2}, [("mcp-param-region", "eu"), ("mcp-param-level", "2.5")], False),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "extra", "is_fine"), MARKED_CASES.values(), ids=MARKED_CASES.keys())
async def test_argument_headers_agree_with_arguments(
    wire: Wire, arguments: dict[str, Any], extra: list[tuple[str, str]], is_fine: bool
) -> None:
    params = {"name": "marked", "arguments": arguments, "_meta": META}
    body = orjson.dumps({**REQUEST, "params": params})

    answer = await wire.send(body, [*{**HEADERS, "mcp-name": "marked"}.items(), *extra])

    assert (answer.status, "error" in answer.json) == ((200, False) if is_fine else (400, True))
    if not is_fine:
        assert answer.json["error"]["code"] == -32020


async def test_argument_headers_do_not_betray_a_tool(wire: Wire) -> None:
    known = await wire.call("unseen", {"text": "a"}, headers={"mcp-param-text": "b"})
    unknown = await wire.call("nothing", {"text": "a"}, headers={"mcp-param-text": "b"})
    seen = await wire.call("unseen", {"text": "a"}, principal=BOSS)

    assert known.body == unknown.body
    assert seen.status == 200


# --- the oracle ---

TOKENS = st.sampled_from(
    ["tools/call", "tools/list", "resources/read", "echo", "a b", "é", MODERN, "2099-01-01", "", " "]
)
VALUES = st.one_of(TOKENS, st.none(), st.integers(-3, 3), st.booleans(), st.just([]), st.just({}))
METAS = st.dictionaries(st.sampled_from([VERSION, CAPABILITIES, "x"]), VALUES, max_size=3)
PARAM_SETS = st.one_of(
    VALUES, st.fixed_dictionaries({"_meta": st.one_of(METAS, VALUES)}, optional={"name": VALUES, "uri": VALUES})
)
HEADER_SETS = st.dictionaries(
    st.sampled_from(["mcp-protocol-version", "mcp-method", "mcp-name"]),
    st.one_of(TOKENS, TOKENS.map(encode_header_value), st.just("=?base64?x?=")),
)


@given(method=TOKENS, params=PARAM_SETS, headers=HEADER_SETS)
def test_ladder_agrees_with_the_reference(method: str, params: Any, headers: dict[str, str]) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    verdict = classify_inbound_request(body, headers={name: value.strip(" \t") for name, value in headers.items()})

    try:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        validate_request(body, McpHeaders(HeaderFields(raw)), frozenset({method}))
        ours = None
    except ProtocolError as error:
        ours = error.code

    capabilities = params["_meta"].get(CAPABILITIES) if isinstance(verdict, InboundLadderRejection) is False else None
    if isinstance(verdict, InboundLadderRejection):
        assert ours == verdict.code
    else:  # the reference does not check the shape of capabilities
        assert ours == (None if isinstance(capabilities, dict) else -32602)


@given(st.text(max_size=20))
def test_packed_values_are_read_as_the_reference_writes_them(value: str) -> None:
    assert decode_value(encode_header_value(value)) == value


@given(st.one_of(st.text(max_size=12), st.text("AQgw=/+", max_size=8).map(lambda text: f"=?base64?{text}?=")))
def test_header_values_are_unpacked_as_the_reference_does(value: str) -> None:
    assert decode_value(value) == decode_header_value(value)


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["string", "integer", "boolean", "number", ["string"]])},
        optional={"x-mcp-header": st.sampled_from(["A", "a", "B", "bad token", "", 5])},
    ),
    lambda children: st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.sampled_from("pqr"), children, max_size=3),
            "anyOf": st.lists(children, max_size=2),
            "items": children,
            "$defs": st.dictionaries(st.sampled_from("xy"), children, max_size=1),
        },
    ),
    max_leaves=5,
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.floats(-9, 9), st.text(max_size=5))
ARGUMENTS = st.dictionaries(
    st.sampled_from("pqr"), st.one_of(SCALARS, st.dictionaries(st.sampled_from("pqr"), SCALARS))
)


@given(schema=SCHEMAS, arguments=ARGUMENTS, extra=st.dictionaries(st.sampled_from(["A", "B"]), TOKENS))
def test_argument_headers_are_judged_as_the_reference_does(
    schema: dict[str, Any], arguments: dict[str, Any], extra: dict[str, str]
) -> None:
    is_valid = find_invalid_x_mcp_header(schema) is None
    proper = mcp_param_headers(x_mcp_header_map(schema), arguments) if is_valid else {}
    for headers in (proper, {**proper, **{f"Mcp-Param-{name}": value for name, value in extra.items()}}):
        stripped = {name.lower(): value.strip(" \t") for name, value in headers.items()}
        verdict = validate_mcp_param_headers(schema, arguments, stripped)

        try:
            raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in stripped.items()]
            check_param_headers(find_header_arguments(schema), arguments, McpHeaders(HeaderFields(raw)))
            ours = None
        except ProtocolError as error:
            ours = error.code

        assert ours == (None if verdict is None else verdict.code)
    if is_valid:
        assert {each.path for each in find_header_arguments(schema)} == set(x_mcp_header_map(schema))


def test_statuses_are_those_of_the_reference() -> None:
    assert dict(HTTP_STATUS) == dict(ERROR_CODE_HTTP_STATUS)
