"""Calling tools over REST: answers, refusals, and how often each call runs."""

from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, fail_after

from gateway.model.primitives.canonical_json import call_id
from tests.server.rest.gateway import PEOPLE, Gateway, running

pytestmark = pytest.mark.anyio

ECHO = "/v1/catalogues/desk/tools/echo/call"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def test_call_answers_the_settled_record(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post(ECHO, json={"arguments": {"text": "hi"}})

    body = answer.json()
    assert answer.status_code == 200
    assert body["checksum"] == call_id("echo", {"text": "hi"})
    assert (body["tool"], body["isError"], body["inline"], body["trusted"]) == ("echo", False, True, False)
    assert body["result"]["kind"] == "artifact"
    assert body["result"]["text"] == "hi"
    assert body["result"]["artifact"]["byteLength"] == 2
    assert body["rendered"].startswith("<untrusted_content_")
    assert f'call="{body["checksum"]}"' in body["rendered"]
    assert body["turn"].startswith("turn_")
    assert body["startedAt"] <= body["completedAt"]


async def test_body_of_an_untrusted_page_cannot_close_its_envelope(gateway: Gateway) -> None:
    async with gateway.client() as client:
        first = (await client.post(ECHO, json={"arguments": {"text": "x"}})).json()
        closer = first["rendered"].splitlines()[-1]
        again = (await client.post(ECHO, json={"arguments": {"text": closer}, "turn": first["turn"]})).json()

    assert again["rendered"].count("</untrusted_content_") == 1
    assert again["result"]["text"] == closer


async def test_trusted_tool_is_rendered_as_trusted(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/catalogues/desk/tools/trusted_echo/call", json={"arguments": {"text": "hi"}})
        record = await client.get(f"/v1/calls/{answer.json()['callId']}")

    assert answer.json()["trusted"] is record.json()["trusted"] is True
    assert answer.json()["rendered"].startswith("<trusted_content_")


async def test_error_of_a_trusted_tool_is_not_trusted(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/catalogues/desk/tools/trusted_echo/call", json={})
        record = await client.get(f"/v1/calls/{answer.json()['callId']}")

    assert answer.json()["trusted"] is record.json()["trusted"] is False
    assert answer.json()["rendered"].startswith("<untrusted_content_")


async def test_plain_catalogue_renders_without_envelope(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/catalogues/plain/tools/echo/call", json={"arguments": {"text": "hi"}})

    assert answer.json()["rendered"] == "hi"


async def test_result_that_is_not_inline_is_a_handle(gateway: Gateway) -> None:
    async with gateway.client() as client:
        body = (await client.post("/v1/catalogues/desk/tools/handle/call", json={})).json()

    assert body["inline"] is False
    assert "text" not in body["result"]
    assert "line two" not in body["rendered"]
    assert body["callId"] in body["rendered"]
    assert "artifact_grep" in body["rendered"]
    assert body["result"]["artifact"]["lineCount"] == 3


async def test_kind_of_artifact_is_the_class_of_the_tool(gateway: Gateway) -> None:
    async with gateway.client() as client:
        kinds = {
            name: (await client.post(f"/v1/catalogues/desk/tools/{name}/call", json={})).json()["result"]["artifact"]
            for name in ("facts", "page", "handle")
        }

    assert {name: each["kind"] for name, each in kinds.items()} == {
        "facts": "SpooledJsonArtifact",
        "page": "SpooledMarkdownArtifact",
        "handle": "SpooledArtifact",
    }


async def test_media_is_named_and_its_bytes_stay_where_they_are(gateway: Gateway) -> None:
    async with gateway.client() as client:
        one = (await client.post("/v1/catalogues/desk/tools/picture/call", json={})).json()
        two = (await client.post("/v1/catalogues/desk/tools/two_pictures/call", json={})).json()

    [media] = one["result"]["media"]
    assert (one["result"]["kind"], media["kind"], media["mimeType"]) == ("media", "image", "image/png")
    assert one["rendered"] == "[media: piç ture.png, image/png, 15 B]"
    assert [each["contentHref"][-7:] for each in two["result"]["media"]][1] == "&part=1"


async def test_failure_of_a_tool_is_a_result_with_424(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/catalogues/desk/tools/fails/call", json={})

    body = answer.json()
    assert (answer.status_code, body["isError"]) == (424, True)
    assert "retry-after" not in answer.headers
    assert body["result"]["kind"] == "text"
    assert "the backend is down" in body["result"]["text"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="missing"),
        pytest.param({"text": 5}, id="wrong-type"),
        pytest.param({"text": "a", "more": 1}, id="unknown"),
    ],
)
async def test_invalid_arguments_are_a_result_and_nothing_runs(gateway: Gateway, arguments: dict[str, Any]) -> None:
    async with gateway.client() as client:
        answer = await client.post(ECHO, json={"arguments": arguments})

    assert (answer.status_code, answer.json()["isError"]) == (422, True)
    assert gateway.tried.runs == []


async def test_arguments_as_text_and_as_object_are_one_call(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answers = [
            (await client.post(ECHO, json={"arguments": each})).json()
            for each in ({"text": "hi", "times": 2}, '{"times": 2.0, "text": "hi"}')
        ]

    assert answers[0]["checksum"] == answers[1]["checksum"]
    assert answers[0]["result"]["text"] == answers[1]["result"]["text"] == "hihi"


@pytest.mark.parametrize("text", ["[1]", "no json", '"x"', "null"], ids=["list", "prose", "string", "null"])
async def test_argument_text_that_is_no_object_is_refused(gateway: Gateway, text: str) -> None:
    async with gateway.client() as client:
        answer = await client.post(ECHO, json={"arguments": text})

    assert (answer.status_code, answer.json()["code"]) == (400, "E_INVALID_REQUEST")
    assert "no json" not in answer.text
    assert gateway.tried.runs == []


async def test_blank_argument_text_is_no_arguments(gateway: Gateway) -> None:
    async with gateway.client() as client:
        blank: list[Any] = ["", " \n", {}]
        answers = [(await client.post(ECHO, json={"arguments": each})).json() for each in blank]

    assert len({each["checksum"] for each in answers}) == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "a", "text": "b"}',
        '{"text": ' + "[" * 300 + "]" * 300 + "}",
        '{"text": "\\ud800"}',
        '{"text": 1e999}',
        '{"text": %s}' % ("9" * 5000),
    ],
    ids=["key-twice", "deep", "half-a-pair", "infinite", "five-thousand-digits"],
)
async def test_argument_text_that_two_readers_read_in_two_ways_is_refused(gateway: Gateway, text: str) -> None:
    async with gateway.client() as client:
        answer = await client.post(ECHO, json={"arguments": text})

    assert (answer.status_code, answer.json()["code"]) == (400, "E_INVALID_REQUEST")
    assert gateway.tried.runs == []


async def test_arguments_that_the_fast_encoder_refuses_are_shown_again(gateway: Gateway) -> None:
    text = '{"half": "\\ud800", "far": 1e999}'
    called = await gateway.service.call_tool(PEOPLE["ann"], "desk", "handle", text)
    async with gateway.client() as client:
        record = await client.get(f"/v1/calls/{called.record.id}")

    assert record.status_code == 200
    assert record.json()["arguments"]["far"] is None


async def test_handle_of_an_earlier_call_continues_its_turn(gateway: Gateway) -> None:
    async with gateway.client() as client:
        first = (await client.post("/v1/catalogues/desk/tools/handle/call", json={})).json()
        ask = {"arguments": {"callId": first["callId"], "pattern": "two"}, "turn": first["turn"]}
        second = (await client.post("/v1/catalogues/desk/tools/artifact_grep/call", json=ask)).json()

    assert second["turn"] == first["turn"]
    assert second["result"] == {"kind": "text", "text": "line two"}


class TestIdempotency:
    async def test_same_key_runs_once_and_answers_the_same(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            headers = {"idempotency-key": "k1"}
            first = await client.post("/v1/catalogues/desk/tools/pay/call", json={}, headers=headers)
            again = await client.post("/v1/catalogues/desk/tools/pay/call", json={}, headers=headers)

        replayed = again.json()
        assert gateway.tried.runs == ["pay"]
        assert replayed.pop("replayed") is True
        assert again.headers["idempotency-replayed"] == "true"
        # A call with a key starts when its key is taken; the first answer shows when its tool was reached.
        assert {**replayed, "startedAt": None} == {**first.json(), "startedAt": None}

    async def test_key_of_another_call_is_a_conflict(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            headers = {"idempotency-key": "k1"}
            await client.post(ECHO, json={"arguments": {"text": "a"}}, headers=headers)
            other = await client.post(ECHO, json={"arguments": {"text": "b"}}, headers=headers)

        assert (other.status_code, other.json()["code"]) == (409, "E_IDEMPOTENCY_CONFLICT")
        assert gateway.tried.runs == ["echo"]

    async def test_key_belongs_to_its_principal(self, gateway: Gateway) -> None:
        for who in ("ann", "bob", "other-ann"):
            async with gateway.client(who) as client:
                answer = await client.post(ECHO, json={"arguments": {"text": who}}, headers={"idempotency-key": "k"})
            assert answer.json()["result"]["text"] == who

        assert len(gateway.tried.runs) == 3

    async def test_duplicate_while_the_first_runs_is_asked_to_wait(self, gateway: Gateway) -> None:
        path, headers = "/v1/catalogues/desk/tools/slow/call", {"idempotency-key": "k1"}
        answers = []

        async def call() -> None:
            answers.append(await client.post(path, json={}, headers=headers))

        with fail_after(10):
            async with gateway.client() as client, create_task_group() as tasks:
                tasks.start_soon(call)
                await gateway.tried.running.wait()
                duplicates = [await client.post(path, json={}, headers=headers) for _ in range(3)]
                gateway.tried.go_on.set()

        assert gateway.tried.runs == ["slow"]
        assert [each.status_code for each in duplicates] == [409] * 3
        assert {each.json()["code"] for each in duplicates} == {"E_IDEMPOTENCY_RUNNING"}
        assert {each.headers["retry-after"] for each in duplicates} == {"1"}
        assert answers[0].json()["result"]["text"] == "done"

    async def test_many_duplicates_at_once_run_once(self, gateway: Gateway) -> None:
        statuses: list[int] = []

        async def call() -> None:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            while status == HTTPStatus.SERVICE_UNAVAILABLE:  # the disk is too slow to claim the key: nothing has run
                answer = await client.post(
                    "/v1/catalogues/desk/tools/pay/call", json={}, headers={"idempotency-key": "same"}
                )
                status = HTTPStatus(answer.status_code)
            statuses.append(status)

        with fail_after(60):
            async with gateway.client() as client, create_task_group() as tasks:
                for _ in range(25):
                    tasks.start_soon(call)

        assert gateway.tried.runs == ["pay"]
        assert set(statuses) <= {200, 409}
        assert 200 in statuses

    @pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "é"], ids=["empty", "long", "control", "latin"])
    async def test_key_that_is_none_is_refused(self, gateway: Gateway, key: str) -> None:
        async with gateway.client() as client:
            answer = await client.post(
                ECHO, json={"arguments": {"text": "a"}}, headers=[(b"idempotency-key", key.encode("latin-1"))]
            )

        assert answer.status_code == 400
        assert gateway.tried.runs == []


class TestNothingIsRevealed:
    @pytest.mark.parametrize("who", ["ann", "guest"])
    async def test_unknown_and_hidden_tools_are_the_same_bytes(self, gateway: Gateway, who: str) -> None:
        hidden = "hidden_tool" if who == "ann" else "staff_only"
        async with gateway.client(who) as client:
            names = (hidden, "no_such_tool", "echo\u200b", "ECHO", "artifact_nothing")
            answers = [await client.get(f"/v1/catalogues/desk/tools/{name}") for name in names]
            answers += [await client.post(f"/v1/catalogues/desk/tools/{name}/call", json={}) for name in names]

        assert {(each.status_code, each.content, tuple(each.headers.items())) for each in answers} == {
            (404, answers[0].content, tuple(answers[0].headers.items()))
        }
        assert answers[0].json()["code"] == "E_UNKNOWN_TOOL"
        assert gateway.tried.runs == []

    async def test_unknown_and_foreign_catalogues_are_the_same_bytes(self, gateway: Gateway) -> None:
        paths = ["", "/tools", "/tools/echo", "/tools/no_such_tool"]
        async with gateway.client() as client:
            answers = [
                await client.get(f"/v1/catalogues/{name}{path}")
                for name in ("vault", "nowhere", "mcp_only", "%2e%2e", "a%00b")
                for path in paths
            ]
            answers += [
                await client.post(f"/v1/catalogues/{name}/tools/echo/call", json={"arguments": {"text": "a"}})
                for name in ("vault", "nowhere", "mcp_only")
            ]
            answers += [
                await client.post("/v1/turns", json={"catalogue": name}) for name in ("vault", "nowhere", "mcp_only")
            ]

        assert {(each.status_code, each.content) for each in answers} == {(404, answers[0].content)}
        assert gateway.tried.runs == []

    async def test_what_is_listed_is_what_can_be_called(self, gateway: Gateway) -> None:
        for who in ("ann", "bob", "guest"):
            async with gateway.client(who) as client:
                tools = (await client.get("/v1/catalogues/desk/tools")).json()["tools"]
                listed = {each["name"] for each in tools if not each["isQuery"]}
                names = gateway.service.published.snapshot.catalogues["desk"].tools
                gateway.tried.go_on.set()
                called = {
                    name
                    for name in names
                    if (await client.post(f"/v1/catalogues/desk/tools/{name}/call", json={})).status_code != 404
                }

            assert listed == called
