"""Turns over REST: forged tools, ids of the caller's own, records, endings, and what a model reads."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, fail_after
from anyio.lowlevel import checkpoint

from gateway.model.turns.middleware_pipeline import Next
from tests.server.rest.gateway import Gateway, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def open_turn(client: Any, **more: Any) -> str:
    answer = await client.post("/v1/turns", json={"catalogue": "desk", **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def call_tool(client: Any, turn: str, tool: str, arguments: Any = None, *, status: int = 200, **more: Any) -> Any:
    body = {"tool": tool, **({} if arguments is None else {"arguments": arguments}), **more}
    answer = await client.post(f"/v1/turns/{turn}/calls", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def list_query_tools(client: Any, turn: str) -> dict[str, Any]:
    """The query tools of the turn, and the call ids each takes."""
    tools = (await client.get(f"/v1/turns/{turn}/tools")).json()["tools"]
    return {each["name"]: each["inputSchema"]["properties"]["callId"]["enum"] for each in tools if each["isQuery"]}


async def test_opened_turn_is_found_at_its_location(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/turns", json={"catalogue": "desk", "stash": {"a": {"b": 1}}})
        found = await client.get(answer.headers["location"])

    assert answer.status_code == 201
    assert found.json() == answer.json()
    assert found.json()["stash"] == {"a": {"b": 1}}
    assert found.json()["catalogue"] == "desk"


async def test_stash_of_one_turn_is_not_in_another(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await open_turn(client, stash={"secret": "s"})
        other = await open_turn(client)
        found = await client.get(f"/v1/turns/{other}")

    assert found.json()["stash"] == {}


async def test_turn_without_artifacts_has_no_query_tools(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)

        assert await list_query_tools(client, turn) == {}


async def test_query_tools_take_the_ids_of_fitting_calls(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        await call_tool(client, turn, "handle", id="call_text")
        await call_tool(client, turn, "facts", id="call_json")
        await call_tool(client, turn, "picture", id="call_media")
        await call_tool(client, turn, "fails", id="call_error", status=424)
        await call_tool(client, turn, "artifact_head", {"callId": "call_text"}, id="call_query")
        tools = await list_query_tools(client, turn)

    assert tools["artifact_head"] == ["call_text", "call_json"]
    assert tools["artifact_json_get"] == ["call_json"]
    assert len(tools) == len(set(tools))


async def test_query_by_forged_tool_is_a_flagged_record(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        await call_tool(client, turn, "handle", id="call_xyz")
        answer = await call_tool(client, turn, "artifact_grep", {"callId": "call_xyz", "pattern": "t.o"}, id="q")
        record = (await client.get(f"/v1/turns/{turn}/calls/q")).json()

    assert answer["result"] == {"kind": "text", "text": "line two"}
    assert record["fromArtifactTool"] is True
    assert record["result"] == {"kind": "text", "text": "line two"}


@pytest.mark.parametrize("which", ["query", "checksum", "media", "unknown"])
async def test_query_of_what_is_no_artifact_is_invalid(gateway: Gateway, which: str) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        first = await call_tool(client, turn, "handle", id="call_a")
        query = await call_tool(client, turn, "artifact_head", {"callId": "call_a"})
        media = await call_tool(client, turn, "picture")
        ids = {"query": query["callId"], "checksum": first["checksum"], "media": media["callId"], "unknown": "x"}
        answer = await call_tool(client, turn, "artifact_head", {"callId": ids[which]}, status=422)

    assert answer["isError"] is True


async def test_id_is_kept_and_a_second_one_is_given_a_suffix(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        first = await call_tool(client, turn, "echo", {"text": "first"}, id="call_0")
        second = await call_tool(client, turn, "echo", {"text": "second"}, id="call_0")
        content = await client.get(f"/v1/artifacts/call_0/content?turn={turn}")

    assert first["callId"] == "call_0"
    assert second["callId"] != "call_0"
    assert content.text == "first"


async def test_same_id_at_the_same_time_is_two_calls(gateway: Gateway) -> None:
    answers: list[Any] = []
    with fail_after(10):
        async with gateway.client() as client:
            turn = await open_turn(client)

            async def call() -> None:
                answers.append(await call_tool(client, turn, "slow", id="call_0"))

            async with create_task_group() as tasks:
                tasks.start_soon(call)
                await gateway.tried.running.wait()
                tasks.start_soon(call)
                while len(gateway.tried.runs) < 2:
                    await checkpoint()
                gateway.tried.go_on.set()

    ids = sorted(each["callId"] for each in answers)
    assert ids[0] == "call_0"
    assert ids[1].startswith("call_0-")
    assert [each["isError"] for each in answers] == [False, False]


@pytest.mark.parametrize("id", ["", "a/b", "..", "a b", "é", "x" * 257, "a\n"])
async def test_id_that_has_no_place_in_a_path_is_refused(gateway: Gateway, id: str) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        answer = await client.post(f"/v1/turns/{turn}/calls", json={"tool": "echo", "id": id})

    assert (answer.status_code, answer.json()["errors"][0]["at"]) == (400, "/id")
    assert gateway.tried.runs == []


async def test_minted_ids_cannot_be_guessed(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        ids = {(await call_tool(client, turn, "echo", {"text": "a"}))["callId"] for _ in range(20)}

    assert len(ids) == 20
    assert all(len(each) == 36 and each[14] == "4" for each in ids)


class TestEndings:
    @pytest.mark.parametrize(
        ("ending", "is_pruned"), [("ack", True), ("nack", False), ("abort", False)], ids=["ack", "nack", "abort"]
    )
    async def test_only_ack_takes_the_query_tools_away(self, gateway: Gateway, ending: str, is_pruned: bool) -> None:
        async with gateway.client() as client:
            turn = await open_turn(client)
            await call_tool(client, turn, "handle", id="call_a")
            ended = (await client.post(f"/v1/turns/{turn}/end", json={"as": ending})).json()
            tools = await list_query_tools(client, turn)

        assert ended["ending"] == ending
        assert (tools == {}) is is_pruned

    async def test_ending_twice_alike_changes_nothing(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            turn = await open_turn(client)
            first = await client.post(f"/v1/turns/{turn}/end", json={"as": "ack"})
            again = await client.post(f"/v1/turns/{turn}/end", json={"as": "ack"})
            other = await client.post(f"/v1/turns/{turn}/end", json={"as": "nack"})

        assert again.json() == first.json()
        assert (other.status_code, other.json()["code"]) == (409, "E_TURN_OVER")

    async def test_ended_turn_takes_no_calls(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            turn = await open_turn(client)
            await client.post(f"/v1/turns/{turn}/end", json={"as": "ack"})
            answer = await client.post(f"/v1/turns/{turn}/calls", json={"tool": "echo", "arguments": {"text": "a"}})

        assert (answer.status_code, answer.json()["code"]) == (409, "E_TURN_OVER")
        assert gateway.tried.runs == []

    async def test_records_and_artifacts_stay_readable(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            turn = await open_turn(client)
            await call_tool(client, turn, "handle", id="call_a")
            await client.post(f"/v1/turns/{turn}/end", json={"as": "ack"})
            record = await client.get(f"/v1/turns/{turn}/calls/call_a")
            content = await client.get(f"/v1/artifacts/call_a/content?turn={turn}")
            query = await client.post("/v1/artifacts/call_a/query", json={"method": "head", "arguments": {"n": 1}})

        assert (record.status_code, content.status_code) == (200, 200)
        assert query.json()["result"]["text"] == "line one"


async def test_unknown_tool_of_a_turn_is_not_found(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        answers = [
            await client.post(f"/v1/turns/{turn}/calls", json={"tool": name}) for name in ("hidden_tool", "nothing")
        ]

    assert {(each.status_code, each.content) for each in answers} == {(404, answers[0].content)}


async def test_rendering_binds_each_result_to_its_call(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        shown = await call_tool(client, turn, "echo", {"text": "seen"}, id="call_1")
        await call_tool(client, turn, "handle", id="call_2")
        await call_tool(client, turn, "picture", id="call_3")
        messages = (await client.get(f"/v1/turns/{turn}/render")).json()["messages"]

    answered = {each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"}
    assert list(answered) == ["call_1", "call_2", "call_3"]
    assert answered["call_1"][0]["text"] == shown["rendered"]
    assert "line two" not in str(answered["call_2"])
    assert answered["call_3"][1]["image_url"]["url"].startswith("data:image/png;base64,")


async def test_tool_that_middleware_takes_away_is_gone_in_that_turn_only(tmp_path: Any) -> None:
    async def without_echo(ctx: Any, next: Next) -> None:
        if ctx.stash.get("quiet"):
            ctx.tools.unregister("echo")
        await next()

    async with running(tmp_path, turn_input=[without_echo]) as gateway, gateway.client() as client:
        quiet = await open_turn(client, stash={"quiet": True})
        loud = await open_turn(client)
        names = {
            turn: {each["name"] for each in (await client.get(f"/v1/turns/{turn}/tools")).json()["tools"]}
            for turn in (quiet, loud)
        }

    assert "echo" not in names[quiet]
    assert "echo" in names[loud]


async def test_turn_survives_a_restart(tmp_path: Any) -> None:
    async with running(tmp_path) as gateway, gateway.client() as client:
        turn = await open_turn(client, stash={"a": 1})
        before = await call_tool(client, turn, "echo", {"text": "kept"}, id="call_a")
    async with running(tmp_path) as gateway, gateway.client() as client:
        tools = await list_query_tools(client, turn)
        messages = (await client.get(f"/v1/turns/{turn}/render")).json()["messages"]
        found = (await client.get(f"/v1/turns/{turn}")).json()

    assert tools["artifact_head"] == ["call_a"]
    assert messages[-1]["content"][0]["text"] == before["rendered"]
    assert found["stash"] == {"a": 1}
