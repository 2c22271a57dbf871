"""Tools that ask their caller: with another request if there are no sessions, else on the stream."""

import asyncio
from typing import Any

import pytest

from gateway.engine.service import Service
from gateway.server.mcp.suspended_calls import SuspendedCalls
from tests.server.mcp.asgi_client import Answer, LegacyClient, Wire
from tests.server.mcp.project import ANA, KIM

pytestmark = pytest.mark.anyio

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ALL: dict[str, Any] = {CAPABILITIES: {"elicitation": {}, "sampling": {}, "roots": {}}}


def named(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


async def test_call_waits_for_the_answer_of_another_request(wire: Wire) -> None:
    asked = (await wire.call("greet", meta=ALL)).result
    retry = {"inputResponses": {"who": named("Ana"), "other": 5}, "requestState": asked["requestState"]}
    answered = (await wire.call("greet", meta=ALL, params=retry, id=2)).result

    assert asked["resultType"] == "input_required"
    question = asked["inputRequests"]["who"]
    assert (question["method"], question["params"]["message"]) == ("elicitation/create", "What is your name?")
    assert answered["resultType"] == "complete"
    assert "accept Ana" in answered["content"][0]["text"]


async def test_several_rounds_and_questions_are_one_call(wire: Wire) -> None:
    first = (await wire.call("greet_twice", meta=ALL)).result
    given = {"inputResponses": {"who": named("A")}, "requestState": first["requestState"]}
    second = (await wire.call("greet_twice", meta=ALL, params=given)).result
    partly = {"inputResponses": {"who": named("B")}, "requestState": second["requestState"]}
    third = (await wire.call("greet_twice", meta=ALL, params=partly)).result
    rest = {"inputResponses": {"where": {"roots": [{"uri": "file:///r"}]}}, "requestState": third["requestState"]}
    last = (await wire.call("greet_twice", meta=ALL, params=rest)).result

    assert set(second["inputRequests"]) == {"who", "where"}
    assert set(third["inputRequests"]) == {"where"}
    assert len({each["requestState"] for each in (first, second, third)}) == 3
    assert "A B file:///r" in last["content"][0]["text"]


@pytest.mark.parametrize("tool", ["greet_briefly", "greet_briefly_in_a_thread"])
async def test_caller_may_think_for_longer_than_the_call_may_run(tool: str, wire: Wire) -> None:
    asked = (await wire.call(tool, meta=ALL)).result
    await asyncio.sleep(0.4)  # longer than the tool's timeout, by the wall clock
    given = {"inputResponses": {"who": named("Ana")}, "requestState": asked["requestState"]}

    assert "Ana" in (await wire.call(tool, meta=ALL, params=given)).result["content"][0]["text"]


async def test_function_in_a_thread_can_ask(wire: Wire) -> None:
    asked = (await wire.call("greet_in_a_thread", meta=ALL)).result
    given = {"inputResponses": {"who": named("Ana")}, "requestState": asked["requestState"]}

    assert "Ana" in (await wire.call("greet_in_a_thread", meta=ALL, params=given)).result["content"][0]["text"]


async def test_state_works_once_for_its_caller_and_its_call(wire: Wire) -> None:
    asked = (await wire.call("greet", meta=ALL)).result
    state, answers = asked["requestState"], {"who": named("Ana")}
    middle = "A" if state[20] != "A" else "B"
    wrong = [
        await wire.call("greet", meta=ALL, params={"inputResponses": answers, "requestState": other})
        for other in (state[:20] + middle + state[21:], state[:-4], "", "é", 5, None, state + "=")
    ]
    wrong.append(
        await wire.call("greet", meta=ALL, params={"inputResponses": answers, "requestState": state}, principal=KIM)
    )
    wrong.append(await wire.call("greet_twice", meta=ALL, params={"inputResponses": answers, "requestState": state}))
    wrong.append(
        await wire.call("greet", {"x": 1}, meta=ALL, params={"inputResponses": answers, "requestState": state})
    )
    malformed = await wire.call("greet", meta=ALL, params={"inputResponses": {"who": 5}, "requestState": state})
    right = await wire.call("greet", meta=ALL, params={"inputResponses": answers, "requestState": state})
    again = await wire.call("greet", meta=ALL, params={"inputResponses": answers, "requestState": state})

    assert {(each.status, each.error["code"], each.error["message"]) for each in (*wrong, again)} == {
        (400, -32602, "the requestState is not valid here, or has expired")
    }
    assert malformed.error["code"] == -32602
    assert right.result["resultType"] == "complete"


async def test_answers_without_a_state_are_asked_for_again(wire: Wire) -> None:
    answer = await wire.call("greet", meta=ALL, params={"inputResponses": {"wrong": named("Ana")}})

    assert answer.result["resultType"] == "input_required"


@pytest.mark.parametrize(
    ("tool", "declared", "required"),
    [
        ("greet", {}, {"elicitation": {}}),
        ("greet", {"elicitation": {"url": {}}}, {"elicitation": {}}),
        ("greet", {"sampling": {}}, {"elicitation": {}}),
    ],
    ids=["nothing", "only pages", "something else"],
)
async def test_client_is_only_asked_what_it_can_answer(wire: Wire, tool: str, declared: Any, required: Any) -> None:
    answer = await wire.call(tool, meta={CAPABILITIES: declared})

    assert (answer.status, answer.error["code"]) == (400, -32021)
    assert answer.error["data"] == {"requiredCapabilities": required}


async def test_tool_may_do_without_an_answer(wire: Wire) -> None:
    assert "not asked" in (await wire.call("sample_if_possible")).result["content"][0]["text"]


async def test_unanswered_call_is_stopped(service: Service, wire: Wire) -> None:
    from gateway.server.mcp.responses import McpResponse
    from gateway.server.mcp.suspended_calls import StatelessCallerChannel, SuspendedCall
    from tests.server.mcp.asgi_client import META

    async def nothing(message: Any) -> None: ...

    exchange = StatelessCallerChannel(McpResponse(nothing), META, None, None)
    task: asyncio.Task[bytes] = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]  # never ends
    parking = SuspendedCalls(waits=0.0)

    parking.suspend(SuspendedCall(exchange, task), b"bound", owner="ana")
    await asyncio.wait({task}, timeout=5)

    assert task.cancelled()


# --- with sessions ---


async def test_question_and_answer_travel_in_a_session(wire: Wire) -> None:
    client = LegacyClient(wire)
    await client.begin({"elicitation": {}})
    answer = Answer()
    call = asyncio.create_task(client.call("greet", answer=answer))

    [question] = await answer.has_messages(1)
    posted = await client.post({"jsonrpc": "2.0", "id": question["id"], "result": named("Ana")})
    await asyncio.wait_for(call, 5)

    assert question["method"] == "elicitation/create"
    assert (posted.status, posted.body) == (202, b"")
    assert "accept Ana" in answer.result["content"][0]["text"]


@pytest.mark.parametrize(
    "response",
    [{"error": {"code": -1, "message": "no"}}, {"result": 5}, {"result": {}}],
    ids=["error", "five", "empty"],
)
async def test_answer_that_is_none_fails_the_call(wire: Wire, response: dict[str, Any]) -> None:
    client = LegacyClient(wire)
    await client.begin({"elicitation": {}})
    answer = Answer()
    call = asyncio.create_task(client.call("greet", answer=answer))
    [question] = await answer.has_messages(1)

    await client.post({"jsonrpc": "2.0", "id": question["id"], **response})
    await asyncio.wait_for(call, 5)

    assert answer.result["isError"] is True


async def test_answer_of_another_session_is_dropped(wire: Wire) -> None:
    asked, other = LegacyClient(wire), LegacyClient(wire, principal=KIM)
    await asked.begin({"elicitation": {}})
    await other.begin({"elicitation": {}})
    answer = Answer()
    call = asyncio.create_task(asked.call("greet", answer=answer))
    [question] = await answer.has_messages(1)

    dropped = await other.post({"jsonrpc": "2.0", "id": question["id"], "result": named("Kim")})
    await asked.post({"jsonrpc": "2.0", "id": question["id"], "result": named("Ana")})
    await asyncio.wait_for(call, 5)

    assert dropped.status == 202
    assert "accept Ana" in answer.result["content"][0]["text"]


async def test_session_without_the_capability_or_a_stream_is_not_asked(wire: Wire) -> None:
    client = LegacyClient(wire, principal=ANA)
    await client.begin({"elicitation": {}})
    plain = await client.call("greet", headers={"accept": "application/json"})
    lacking = LegacyClient(wire)
    await lacking.begin()

    assert plain.result["isError"] is True
    assert (await lacking.call("greet")).result["isError"] is True
    assert "not asked" in (await lacking.call("sample_if_possible")).result["content"][0]["text"]
