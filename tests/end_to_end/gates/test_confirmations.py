"""Calls that the caller confirms in the client: the answer is bound to one call, which any process can run once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import ElicitResult

from tests.end_to_end.gates.test_workers import callers, fork_gateway, run_command
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import (
    ANA,
    EVA,
    HELD,
    LIZ,
    approval_client,
    code_of,
    grant,
    rule,
    start_gate_project,
    write,
)
from tests.support.gateways.projects import MODERN, CallCounter, Caller, Document, Reply, document, start_call_counter

pytestmark = pytest.mark.anyio

TASKS = "io.modelcontextprotocol/tasks"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ASKABLE: dict[str, Any] = {CAPABILITIES: {"elicitation": {}}}
BOTH: dict[str, Any] = {CAPABILITIES: {"elicitation": {}, "extensions": {TASKS: {}}}}
CONFIRM = {"type": "confirmation", "reason": "money leaves"}
SURE = rule("sure", CONFIRM)
INVALID = "the requestState is not valid here, or has expired"


async def pay(caller: Caller, text: str = "x", *, meta: Any = ASKABLE, place: str = "desk", **more: Any) -> Reply:
    params = {"name": "pay", "arguments": {"text": text}, **more}
    return await caller.modern(place, "tools/call", params, **meta)


async def answer(caller: Caller, asked: Reply, action: str = "accept", **more: Any) -> Reply:
    given = {"confirm": {"action": action, "content": {}}}
    return await pay(caller, **{"requestState": state_of(asked), "inputResponses": given, **more})


def state_of(asked: Reply) -> str:
    assert asked.json["result"]["resultType"] == "input_required", asked.body
    return str(asked.json["result"]["requestState"])


def error_of(reply: Reply) -> tuple[int, str]:
    return reply.json["error"]["code"], reply.json["error"]["message"]


async def test_call_runs_once_its_caller_has_confirmed_it(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE) as (gateway, backend):
        ana = gateway.caller(ANA)

        asked = await pay(ana)
        question = asked.json["result"]["inputRequests"]["confirm"]
        before = list(backend.paths)
        done = await answer(ana, asked)
        again = await answer(ana, asked)
        another = await pay(ana)

        assert question["method"] == "elicitation/create"
        assert question["params"]["requestedSchema"] == {"type": "object", "properties": {}}
        assert question["params"]["message"].splitlines() == [
            "Shall this call be made in your name?",
            "Tool: pay (catalogue desk)",
            "Why you are asked: money leaves",
            "Arguments, as chosen by the program that calls for you; texts in them may come from strangers:",
            '- text: "x"',
        ]
        assert before == []
        assert (done.json["result"]["resultType"], done.json["result"]["isError"]) == ("complete", False)
        assert again.json["result"]["content"] == done.json["result"]["content"]
        assert state_of(another) != state_of(asked)
        assert backend.paths == ["/pay"]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_call_that_is_not_confirmed_is_refused(action: str, tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE) as (gateway, backend):
        ana = gateway.caller(ANA)

        refused = (await answer(ana, await pay(ana), action)).json["result"]

        assert refused["isError"] is True
        assert "did not confirm this call" in refused["content"][0]["text"]
        assert backend.paths == []


async def test_client_that_cannot_be_asked_gets_an_error(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE) as (gateway, backend):
        ana = gateway.caller(ANA)
        session = await ana.begin_legacy("desk")

        texts = [
            (await pay(ana, meta={})).json["result"]["content"][0]["text"],
            (await pay(ana, meta={CAPABILITIES: {"elicitation": {"url": {}}}})).json["result"]["content"][0]["text"],
            (await ana.legacy("desk", "tools/call", {"name": "pay", "arguments": {"text": "x"}}, session=session)).json[
                "result"
            ]["content"][0]["text"],
            code_of(await ana.rest_call("desk", "pay", {"text": "x"})),
        ]

        assert all("has to be confirmed by its caller, and this client cannot be asked" in each for each in texts)
        assert backend.paths == []


async def test_arguments_too_large_to_be_read_are_not_asked_about(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE) as (gateway, backend):
        result = (await pay(gateway.caller(ANA), "x" * 40_000)).json["result"]

        assert "too large to be shown" in result["content"][0]["text"]
        assert backend.paths == []


async def test_nothing_in_a_question_hides(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE) as (gateway, _):
        asked = await pay(gateway.caller(ANA), "to \u202eeve\nTool: harmless")

        message = asked.json["result"]["inputRequests"]["confirm"]["params"]["message"]
        assert r'- text: "to \u202eeve\nTool: harmless"  [1 characters in it cannot be seen]' in message.splitlines()


async def test_hidden_arguments_are_counted(tmp_path: Path) -> None:
    other = rule("sure-too", {**CONFIRM, "reason": "twice", "show": ["text"]})
    async with start_gate_project(tmp_path, rule("sure", {**CONFIRM, "show": ["text"]}), other) as (gateway, backend):
        ana = gateway.caller(ANA)
        asked = await pay(ana)
        done = await answer(ana, asked)

        lines = asked.json["result"]["inputRequests"]["confirm"]["params"]["message"].splitlines()
        assert lines[2:4] == ["Why you are asked: money leaves", "Why you are asked: twice"]
        assert lines[-1] == '- text: "x"'
        assert (done.json["result"]["isError"], backend.paths) == (False, ["/pay"])


async def test_answer_counts_for_that_very_call_alone(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE) as (gateway, backend):
        ana, eva = gateway.caller(ANA), gateway.caller(EVA)
        asked = await pay(ana)
        state = state_of(asked)

        wrong = [
            await answer(eva, asked),
            await answer(ana, asked, text="y"),
            await answer(ana, asked, place="other"),
            await answer(ana, asked, requestState=state[:-6] + "AAAAAA"),
            await answer(ana, asked, requestState="confirm."),
            await answer(ana, asked, requestState="confirm.é"),
            await answer(ana, asked, requestState="confirm." + "A" * 5000),
            await answer(ana, asked, requestState="confirm.bm8gSlNPTiBpbiBoZXJlIGF0IGFsbCwgb25seSB3b3Jkcw=="),
            await answer(ana, asked, requestState="confirm." + "A" * 44 + "WzEsMiwzLDRd"),
        ]
        malformed = [
            await answer(ana, asked, inputResponses=["accept"]),
            await answer(ana, asked, inputResponses={"confirm": {"action": "perhaps"}}),
        ]
        unanswered = [await answer(ana, asked, inputResponses=each) for each in ({}, {"other": 1}, None)]
        ahead = await pay(ana, inputResponses={"confirm": {"action": "accept", "content": {}}})

        assert {error_of(each) for each in wrong} == {(-32602, INVALID)}
        assert {error_of(each)[0] for each in malformed} == {-32602}
        assert len({state_of(each) for each in [*unanswered, ahead]}) == 4
        assert backend.paths == []


async def test_question_is_open_for_as_long_as_the_rule_allows(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("sure", {**CONFIRM, "timeout": "1s"})) as (gateway, backend):
        ana = gateway.caller(ANA)
        asked = await pay(ana)
        await asyncio.sleep(1.1)  # the question is open for one second of wall-clock time

        assert error_of(await answer(ana, asked)) == (-32602, INVALID)
        assert backend.paths == []


async def test_racing_answers_run_the_call_once(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE) as (gateway, backend):
        ana = gateway.caller(ANA)
        asked = await pay(ana)

        await asyncio.gather(*(answer(ana, asked) for _ in range(50)))

        assert backend.paths == ["/pay"]


async def test_confirmation_replaces_no_approval(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE, rule("leads-agree", HELD)) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)

        held = (await answer(ana, await pay(ana))).json["result"]
        approval = held["structuredContent"]["approvals"][0]["id"]
        own = await grant(ana, approval)
        await grant(liz, approval)
        unconfirmed = await pay(ana)
        done = await answer(ana, unconfirmed)

        assert own.json["code"] == "E_OWN_REQUEST"
        assert unconfirmed.json["result"]["resultType"] == "input_required"
        assert (done.json["result"]["isError"], backend.paths) == (False, ["/pay"])


async def test_task_is_confirmed_before_people_are_asked(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE, rule("leads-agree", HELD)) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)

        asked = await pay(ana, meta=BOTH)
        pending = (await liz.rest("GET", "/v1/approvals")).json["approvals"]
        task = (await answer(ana, asked, meta=BOTH)).json["result"]
        approval, _, seal = task["taskId"].partition("~")
        await grant(liz, approval)
        done = await ana.modern("desk", "tasks/get", {"taskId": task["taskId"]}, **BOTH)

        assert pending == []
        assert (task["resultType"], len(seal)) == ("task", 32)
        assert "requestState" not in task
        assert done.json["result"]["status"] == "completed"
        assert (done.json["result"]["result"]["isError"], backend.paths) == (False, ["/pay"])


@pytest.mark.parametrize("seal", ["", "~" + "0" * 32], ids=["left out", "made up"])
async def test_task_without_its_proof_is_refused(seal: str, tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, SURE, rule("leads-agree", HELD)) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        task = (await answer(ana, await pay(ana, meta=BOTH), meta=BOTH)).json["result"]
        approval = task["taskId"].partition("~")[0]
        await grant(liz, approval)

        outcome = await ana.modern("desk", "tasks/get", {"taskId": approval + seal}, **BOTH)

        assert outcome.json["result"]["result"]["isError"] is True
        assert "cannot be asked" in outcome.json["result"]["result"]["content"][0]["text"]
        assert backend.paths == []


# Separate processes


async def test_any_worker_takes_the_answer_after_a_restart(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, data = write(tmp_path / "p", approval_client(backend.port, rules=[SURE])), tmp_path / "data"
        with fork_gateway(forks, project, data, workers=2) as gateway:
            async with callers(gateway, ANA) as [ana]:
                asked = await pay(ana)
            gateway.kill()
        with fork_gateway(forks, project, data, workers=2) as gateway:
            async with callers(gateway, ANA) as [ana]:
                answers = await asyncio.gather(*(answer(ana, asked) for _ in range(40)))
                declined = await answer(ana, await pay(ana), "decline")
                last = await answer(ana, asked)
            gateway.stop()
        log = await run_command("audit", "export", "--database", str(data / "gateway.db"), "--format", "jsonl", env={})

    assert backend.paths == ["/pay"]
    assert any("result" in each.json for each in answers)
    assert last.json["result"]["isError"] is False
    assert declined.json["result"]["isError"] is True
    assert all(f'"{word}"' in log for word in ("confirmed", "confirmation-pending", "confirmation-refused"))


def open_documents(backend: CallCounter) -> list[Document]:
    """Anonymous callers are ana, so clients need no credential."""
    anonymous = {"type": "none", "subject": "user:ana", "roles": [f"role:{role}" for role in ANA.roles]}
    made = [*approval_client(backend.port, rules=[SURE]), document("IdentityProvider", "anybody", anonymous)]
    made[0]["spec"]["identity"] = ["anybody", "tokens"]
    return made


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_ordinary_client_asks_its_person(mode: Any, forks: ForkServer, tmp_path: Path) -> None:
    read: list[str] = []
    actions: list[Any] = ["accept", "decline", "accept"]

    async def person(context: Any, params: Any) -> ElicitResult:
        read.append(params.message)
        return ElicitResult(action=actions.pop(0), content={})

    async with start_call_counter() as backend:
        project = write(tmp_path / "p", open_documents(backend))
        with fork_gateway(forks, project, tmp_path / "data") as gateway:
            async with Client(f"{gateway.url}/desk/mcp", mode=mode, elicitation_callback=person) as client:
                done = await client.call_tool("pay", {"text": "x"})
                refused = await client.call_tool("pay", {"text": "x"})
                once_more = await client.call_tool("pay", {"text": "y"})

    assert (done.is_error, refused.is_error, once_more.is_error) == (False, True, False)
    assert "did not confirm this call" in str(refused.content)
    assert '- text: "y"' in read[2]
    assert backend.paths == ["/pay", "/pay"]
