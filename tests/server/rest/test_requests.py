"""Requests that are refused before any lookup, and the answers to them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.server.rest.router import MAX_BODY
from tests.server.rest.gateway import Gateway, running, sent_to

pytestmark = pytest.mark.anyio

ECHO = "/v1/catalogues/desk/tools/echo/call"
DEEP = b'{"arguments": {"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}}"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def post(gateway: Gateway, content: bytes, path: str = ECHO, **headers: str) -> Any:
    given = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.client() as client:
        return await client.post(path, content=content, headers=given)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"{} {}", id="two-values"),
        pytest.param(b"\xef\xbb\xbf{}", id="byte-order-mark"),
        pytest.param(b'{"arguments": {"text": NaN}}', id="nan"),
        pytest.param(b'{"arguments": {"text": "\xff"}}', id="no-utf8"),
        pytest.param(b'{"arguments": {"text": "\\ud800"}}', id="half-a-pair"),
        pytest.param(b'{"arguments": {"text": "a", "text": "b"}}', id="key-twice"),
        pytest.param(b'{"turn": "x", "turn": "y"}', id="member-twice"),
        pytest.param(DEEP, id="deep"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"arguments": 5}', id="wrong-type"),
        pytest.param(b'{"turn": ""}', id="empty-handle"),
        pytest.param(b'{"Arguments": {}}', id="other-case"),
    ],
)
async def test_body_that_is_not_right_is_a_problem(gateway: Gateway, body: bytes) -> None:
    answer = await post(gateway, body)

    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "E_INVALID_REQUEST"
    assert gateway.tried.runs == []


async def test_unknown_members_are_counted_and_known_ones_named(gateway: Gateway) -> None:
    answer = await post(gateway, b'{"arguments": {"text": "a"}, "command": "rm", "priority": 1}')

    assert answer.status_code == 400
    assert answer.json()["detail"] == "the body: 2 members are not known; it takes arguments, turn"
    assert "command" not in answer.text
    assert answer.json()["help"] == "the body may have arguments, turn; put arguments of the tool into 'arguments'"
    assert "rm" not in answer.text
    assert "help" not in (await post(gateway, b'{"arguments": 5}')).json()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        pytest.param("/v1/catalogues?a=1", "a member is not known", id="no-parameters-at-all"),
        pytest.param("/v1/calls?limit=5&offset=3", "a member is not known; it takes turn", id="unknown"),
        pytest.param("/v1/calls?limit=0", "limit", id="too-small"),
        pytest.param("/v1/calls?limit=many", "limit", id="no-number"),
        pytest.param("/v1/calls?limit=1&limit=2", "twice", id="twice"),
        pytest.param("/v1/calls?status=started", "status", id="no-choice"),
        pytest.param("/v1/catalogues/desk/tools?format=yaml", "format", id="unknown-format"),
        pytest.param("/v1/calls?tool=%ff", "parameters", id="no-utf8"),
        pytest.param("/v1/calls?tool", "parameters", id="no-value"),
        pytest.param("/v1/calls?" + "&".join(f"a{n}=1" for n in range(50)), "parameters", id="many"),
    ],
)
async def test_query_that_is_not_right_is_a_problem(gateway: Gateway, path: str, named: str) -> None:
    async with gateway.client() as client:
        answer = await client.get(path)

    assert (answer.status_code, answer.json()["code"]) == (400, "E_INVALID_REQUEST")
    assert named in answer.json()["detail"]


async def test_body_past_the_limit_is_refused_whatever_its_headers_claim(gateway: Gateway) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY // 65536 + 2):
            yield b" " * 65536

    async with gateway.client() as client:
        headers = {"content-type": "application/json"}
        announced = await client.post(ECHO, content=b" " * (MAX_BODY + 1), headers=headers)
        streamed = await client.post(ECHO, content=chunks(), headers=headers)

    assert [each.status_code for each in (announced, streamed)] == [413, 413]
    assert announced.json()["code"] == "E_BODY_TOO_LARGE"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"content_type": "text/plain"}, id="text"),
        pytest.param({"content_type": "application/x-www-form-urlencoded"}, id="form"),
        pytest.param({"content_type": ""}, id="none"),
        pytest.param({"content_encoding": "gzip"}, id="gzip"),
    ],
)
async def test_content_that_is_not_plain_json_is_refused(gateway: Gateway, headers: dict[str, str]) -> None:
    answer = await post(gateway, b'{"arguments": {"text": "a"}}', **headers)

    assert (answer.status_code, answer.json()["code"]) == (415, "E_UNSUPPORTED_CONTENT")
    assert gateway.tried.runs == []


@pytest.mark.parametrize(
    "twice",
    [
        [(b"content-type", b"text/plain"), (b"content-type", b"application/json")],
        [(b"content-type", b"application/json"), (b"content-type", b"application/json")],
        [(b"content-type", b"application/json"), (b"content-encoding", b"gzip"), (b"content-encoding", b"identity")],
    ],
    ids=["two-types", "one-type-twice", "two-codings"],
)
async def test_content_that_two_readers_would_take_for_two_things_is_refused(
    gateway: Gateway, twice: list[tuple[bytes, bytes]]
) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/catalogues/desk/tools/echo/call", content=b"{}", headers=twice)

    assert (answer.status_code, answer.json()["code"]) == (415, "E_UNSUPPORTED_CONTENT")


async def test_content_type_may_have_parameters(gateway: Gateway) -> None:
    answer = await post(gateway, b'{"arguments": {"text": "a"}}', content_type="Application/JSON; charset=utf-8")

    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        pytest.param("POST", "/v1/catalogues", "GET, HEAD", id="post-to-a-list"),
        pytest.param("GET", ECHO, "POST", id="get-of-a-call"),
        pytest.param("DELETE", "/v1/turns/x", "GET, HEAD", id="delete"),
        pytest.param("PUT", "/v1/turns", "POST", id="put"),
        pytest.param("OPTIONS", "/v1/calls", "GET, HEAD", id="options"),
        pytest.param("TRACE", "/v1/calls", "GET, HEAD", id="trace"),
        pytest.param("PATCH", "/v1/turns/x/calls", "GET, HEAD, POST", id="patch"),
    ],
)
async def test_other_methods_get_the_allowed_ones(gateway: Gateway, method: str, path: str, allow: str) -> None:
    async with gateway.client() as client:
        answer = await client.request(method, path)

    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.json()["code"] == "E_METHOD_NOT_ALLOWED"
    assert answer.json()["help"] == f"use {allow.replace(', ', ' or ')}"


async def test_head_is_get_without_its_body(gateway: Gateway) -> None:
    async with gateway.client() as client:
        for path in ("/v1/catalogues", "/v1/calls/unknown", "/v1/nowhere", "/v1/openapi.json"):
            head, get = await client.head(path), await client.get(path)

            assert head.status_code == get.status_code
            assert head.content == b""
            assert head.headers == get.headers


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v1/catalogues/", "/v1/turns/", "/v1/nothing", "/v1//calls", "/v1/docs/", "/v1/x/../calls"]
)
async def test_paths_are_written_one_way(gateway: Gateway, path: str) -> None:
    messages = await sent_to(gateway.app, path)

    assert messages[0]["status"] == 404
    problem = json.loads(messages[1]["body"])
    assert (problem["code"], problem["help"].partition(" ")[0]) == ("E_UNKNOWN_PATH", "/v1/docs")


async def test_no_answer_repeats_a_credential(gateway: Gateway) -> None:
    canary = "canary-5f3a"
    async with gateway.client(canary) as client:
        answers = [await client.get("/v1/calls"), await client.post(ECHO, json={"arguments": {}})]
    async with gateway.client() as client:
        headers = {"x-api-key": canary, "cookie": canary}
        answers += [
            await client.get("/v1/calls?x=1", headers=headers),
            await client.post(ECHO, content=b"{", headers=headers),
        ]

    assert [each.status_code for each in answers] == [401, 401, 400, 415]
    assert all(canary not in f"{each.text}{each.headers}" for each in answers)


async def test_store_failure_is_answered_with_a_time_to_retry(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await gateway.store.close()
        answer = await client.get("/v1/calls")

    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert answer.headers["retry-after"] == "1"
    assert "Traceback" not in answer.text
