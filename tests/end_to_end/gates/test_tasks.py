"""Held calls as tasks: a client that declares tasks does not wait, and fetches the outcome later."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.end_to_end.gates.test_workers import callers, fork_gateway, run_command
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import (
    ANA,
    EVA,
    HELD,
    LIZ,
    approval_client,
    grant,
    rule,
    start_gate_project,
    write,
)
from tests.support.gateways.projects import CallCounter, Caller, Reply, http_tool, start_call_counter

pytestmark = pytest.mark.anyio

TASKS = "io.modelcontextprotocol/tasks"
DECLARED: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
LEADS = rule("leads-agree", HELD, holdFor="30s")
"""Calls wait long for this rule; tasks do not."""

TASK = {
    "type": "object",
    "required": ["resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"],
    "properties": {
        "taskId": {"type": "string", "minLength": 32},
        "status": {"enum": ["working", "completed", "failed", "cancelled"]},
        "statusMessage": {"type": "string"},
        "createdAt": {"type": "string", "format": "date-time"},
        "lastUpdatedAt": {"type": "string", "format": "date-time"},
        "ttlMs": {"type": "integer", "minimum": 1},
        "pollIntervalMs": {"type": "integer", "minimum": 1},
        "resultType": {"enum": ["task", "complete"]},
        "result": {"type": "object", "required": ["content", "isError"]},
        "error": {"type": "object", "required": ["code", "message"]},
        "_meta": {"type": "object"},
    },
    "additionalProperties": False,
}
"""The task schema of the extension, closed: `requestState`, `ttl` and a nested `task` are not allowed."""


async def pay(caller: Caller, text: str = "x", **meta: Any) -> Any:
    return (await caller.modern_call("desk", "pay", {"text": text}, **{**DECLARED, **meta})).json["result"]


async def ask(caller: Caller, method: str, id: Any, *, place: str = "desk", **params: Any) -> Reply:
    return await caller.modern(place, method, {"taskId": id, **params}, **DECLARED)


async def get(caller: Caller, id: str) -> Any:
    task = (await ask(caller, "tasks/get", id)).json["result"]
    jsonschema_rs.validate(TASK, task)
    return task


async def wait_for_task(caller: Caller, id: str) -> Any:
    """Wait until the task is over and return it."""
    async with asyncio.timeout(20):
        while (task := await get(caller, id))["status"] == "working":
            await asyncio.sleep(0.05)
    return task


def approval_of(task: Any) -> str:
    """Return the approval id of a call held by one rule: the task is named after it."""
    return str(task["taskId"])


async def test_task_is_there_at_once_and_brings_the_result_after_a_grant(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend), asyncio.timeout(25):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        discovered = (await ana.modern("desk", "server/discover")).json["result"]["capabilities"]

        task = await pay(ana)
        waiting = await get(ana, task["taskId"])
        decided = await grant(liz, approval_of(task))
        done = await wait_for_task(ana, task["taskId"])
        again = await get(ana, task["taskId"])

        jsonschema_rs.validate(TASK, task)
        assert discovered["extensions"] == {TASKS: {}}
        assert "tasks" not in discovered
        assert (task["resultType"], task["status"]) == ("task", "working")
        assert task["statusMessage"] == "waits for approval: money leaves"
        assert task["pollIntervalMs"] >= 5000
        assert (waiting["resultType"], waiting["status"]) == ("complete", "working")
        assert decided.json["state"] == "granted"
        assert (done["status"], done["result"]["isError"]) == ("completed", False)
        assert again == done
        assert backend.paths == ["/pay"]


async def test_call_that_is_not_held_makes_no_task(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend):
        answer = await gateway.caller(ANA).modern_call("desk", "plain", {"text": "x"}, **DECLARED)

        assert answer.json["result"]["resultType"] == "complete"
        assert "taskId" not in answer.json["result"]
        assert backend.paths == ["/plain"]


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_client_that_declares_no_tasks_has_none(method: str, tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("leads-agree", HELD)) as (gateway, _):
        ana = gateway.caller(ANA)
        task = await pay(ana)

        held = (await ana.modern_call("desk", "pay", {"text": "x"})).json["result"]
        refused = await ana.modern("desk", method, {"taskId": task["taskId"], "inputResponses": {}})

        assert (held["resultType"], held["structuredContent"]["status"]) == ("complete", "pending")
        assert (refused.status, refused.json["error"]["code"]) == (400, -32021)
        assert refused.json["error"]["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


async def test_listening_to_tasks_needs_the_extension(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, _):
        refused = await gateway.caller(ANA).modern(
            "desk", "subscriptions/listen", {"notifications": {"taskIds": ["t"]}}
        )

        assert refused.json["error"]["code"] == -32021


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_task_of_another_caller_is_as_unknown_as_one_that_never_was(method: str, tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend):
        ana, eva, liz = gateway.caller(ANA), gateway.caller(EVA), gateway.caller(LIZ)
        id = (await pay(ana))["taskId"]
        other = (await pay(ana, "y"))["taskId"]

        foreign = [
            await ask(eva, method, id),
            await ask(liz, method, id),
            await ask(ana, method, id, place="other"),
            await ask(ana, method, f"{id}.{other}"),
            await ask(ana, method, f"{id}x"),
            await ask(ana, method, ".".join([id] * 17)),
            await ask(ana, method, "x" * 4000),
            await ask(ana, method, "never-was"),
        ]
        wrong = [await ana.modern("desk", method, {"taskId": each}, mcp_name="1", **DECLARED) for each in (7, None)]

        assert {each.body for each in foreign} == {foreign[0].body}
        assert (foreign[0].status, foreign[0].json["error"]["code"]) == (400, -32602)
        assert {each.json["error"]["code"] for each in wrong} <= {-32602, -32020}
        assert (await get(ana, id))["status"] == "working"
        assert backend.paths == []


async def test_name_header_has_to_repeat_the_task(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, _):
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]
        message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"taskId": id}}
        meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", **DECLARED}
        message["params"]["_meta"] = meta  # type: ignore[index]

        answer = await ana.raw(
            "POST",
            "/desk/mcp",
            json.dumps(message).encode(),
            content_type="application/json",
            accept="application/json",
            mcp_protocol_version="2026-07-28",
            mcp_method="tasks/get",
            mcp_name="another",
        )

        assert (answer.status, answer.json["error"]["code"]) == (400, -32020)


async def test_task_that_is_taken_back_never_runs(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        id = (await pay(ana))["taskId"]

        acks = [(await ask(ana, "tasks/cancel", id)).json["result"] for _ in range(2)]
        cancelled = await get(ana, id)
        late = await grant(liz, id)
        shown = (await liz.rest("GET", f"/v1/approvals/{id}")).json
        anew = await pay(ana)

        assert [each["resultType"] for each in acks] == ["complete", "complete"]
        assert all("taskId" not in each and "status" not in each for each in acks)
        assert cancelled["status"] == "cancelled"
        assert (late.status, late.json["code"]) == (409, "E_APPROVAL_CLOSED")
        assert shown["state"] == "withdrawn"
        assert anew["taskId"] != id
        assert backend.paths == []


async def test_granted_task_can_still_be_taken_back(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]
        await grant(gateway.caller(LIZ), id)

        await ask(ana, "tasks/cancel", id)

        assert (await get(ana, id))["status"] == "cancelled"
        assert backend.paths == []


async def test_cancelling_what_is_done_changes_nothing(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]
        await grant(gateway.caller(LIZ), id)
        done = await wait_for_task(ana, id)

        acknowledged = (await ask(ana, "tasks/cancel", id)).json["result"]

        assert acknowledged["resultType"] == "complete"
        assert await get(ana, id) == done
        assert backend.paths == ["/pay"]


async def test_waiting_call_hears_that_it_was_taken_back(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend), asyncio.timeout(25):
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]
        waiting = asyncio.create_task(ana.modern_call("desk", "pay", {"text": "x"}))
        while not gateway.running.controlled.approvals.count_waiting:
            await asyncio.sleep(0.01)

        await ask(ana, "tasks/cancel", id)
        result = (await waiting).json["result"]

        assert result["isError"] is True
        assert "withdrawn before" in result["content"][0]["text"]
        assert backend.paths == []


async def test_answers_to_nothing_are_acknowledged_and_ignored(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, _):
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]

        updated = await ask(ana, "tasks/update", id, inputResponses={"confirm": {"action": "accept"}})
        wrong = await ask(ana, "tasks/update", id, inputResponses=["accept"])

        assert updated.json["result"]["resultType"] == "complete"
        assert wrong.json["error"]["code"] == -32602
        assert (await get(ana, id))["status"] == "working"


async def test_refusal_and_expiry_are_results_that_a_model_reads(tmp_path: Path) -> None:
    brief = rule("leads-agree", {**HELD, "timeout": "1s"})
    async with start_gate_project(tmp_path, brief) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        refused, forgotten = (await pay(ana))["taskId"], (await pay(ana, "y"))["taskId"]

        await liz.rest("POST", f"/v1/approvals/{refused}/reject", {"note": "not today"})
        outcomes = [await wait_for_task(ana, refused), await wait_for_task(ana, forgotten)]

        assert [(each["status"], each["result"]["isError"]) for each in outcomes] == [("completed", True)] * 2
        assert "not today" in outcomes[0]["result"]["content"][0]["text"]
        assert "no approver decided on this call in time" in outcomes[1]["result"]["content"][0]["text"]
        assert [await get(ana, id) for id in (refused, forgotten)] == outcomes
        assert backend.paths == []


async def test_task_of_a_call_that_was_made_directly_reports_it(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("leads-agree", HELD)) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]
        await grant(gateway.caller(LIZ), id)
        await ana.rest_call("desk", "pay", {"text": "x"})

        task = await wait_for_task(ana, id)

        assert task["result"]["isError"] is True
        assert "used by another call" in task["result"]["content"][0]["text"]
        assert backend.paths == ["/pay"]


async def test_two_rules_make_one_task_that_waits_for_both(tmp_path: Path) -> None:
    second = rule("leads-agree-twice", {**HELD, "reason": "and once more"})
    async with start_gate_project(tmp_path, LEADS, second) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        task = await pay(ana)
        one, other = task["taskId"].split(".")

        await grant(liz, one)
        half = await get(ana, task["taskId"])
        await grant(liz, other)
        done = await wait_for_task(ana, task["taskId"])

        assert (half["status"], half["statusMessage"]) == ("working", "waits for approval: and once more")
        assert (done["status"], done["result"]["isError"]) == ("completed", False)
        assert backend.paths == ["/pay"]


async def test_task_is_refused_where_another_rule_has_come_to_hold_it(tmp_path: Path) -> None:
    tainted = rule("no-egress", {**HELD, "reason": "it has read"}, when='turn.saw("untrusted-output")')
    reading: Callable[[int], Any] = lambda port: http_tool("read", port, flags=["untrusted-output"])  # noqa: E731
    async with start_gate_project(tmp_path, LEADS, tainted, tools=[reading]) as (gateway, backend):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)
        first = (await ana.modern_call("desk", "plain", {"text": "x"})).json["result"]["_meta"]["gateway/turn"]
        id = (await pay(ana, **{"gateway/turn": first}))["taskId"]
        await ana.modern_call("desk", "read", {"text": "x"}, **{"gateway/turn": first})
        await grant(liz, id)

        task = await wait_for_task(ana, id)

        assert task["result"]["isError"] is True
        assert "rules changed" in task["result"]["content"][0]["text"]
        assert "/pay" not in backend.paths


async def test_slow_call_goes_on_while_no_client_polls(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend):
        backend.goes_on = asyncio.Event()
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]
        await grant(gateway.caller(LIZ), id)

        running = await get(ana, id)
        cancelled = await ask(ana, "tasks/cancel", id)
        backend.goes_on.set()
        done = await wait_for_task(ana, id)

        assert (running["status"], running["pollIntervalMs"]) == ("working", 1000)
        assert cancelled.json["result"]["resultType"] == "complete"
        assert (done["status"], done["result"]["isError"]) == ("completed", False)
        assert backend.paths == ["/pay"]


async def test_hundred_racing_polls_run_the_call_once(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, LEADS) as (gateway, backend):
        ana = gateway.caller(ANA)
        id = (await pay(ana))["taskId"]
        await grant(gateway.caller(LIZ), id)

        await asyncio.gather(*(get(ana, id) for _ in range(100)))

        assert (await wait_for_task(ana, id))["result"]["isError"] is False
        assert backend.paths == ["/pay"]


# Separate processes


def written(tmp_path: Path, backend: CallCounter) -> Path:
    return write(tmp_path / "p", approval_client(backend.port, rules=[LEADS]))


async def test_task_outlives_the_process_and_runs_when_a_client_polls(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, data = written(tmp_path, backend), tmp_path / "data"
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                id = (await pay(ana))["taskId"]
            gateway.kill()
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz]:
                before = await get(ana, id)
                await grant(liz, id)
            gateway.kill()
        ran_before = list(backend.paths)
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                done = await wait_for_task(ana, id)
            gateway.kill()
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                again = await get(ana, id)
            gateway.stop()
        log = await run_command("audit", "export", "--database", str(data / "gateway.db"), "--format", "jsonl", env={})

    assert (before["status"], ran_before) == ("working", [])
    assert (done["status"], done["result"]["isError"]) == ("completed", False)
    assert (again["status"], again["result"]["content"]) == ("completed", done["result"]["content"])
    assert backend.paths == ["/pay"]
    events = [json.loads(line).get("event") or line for line in log.splitlines()]
    assert log.count("approval-used") == 1, events


async def test_task_whose_process_died_at_work_is_not_run_again(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        backend.goes_on = asyncio.Event()
        project, data = written(tmp_path, backend), tmp_path / "data"
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz]:
                id = (await pay(ana))["taskId"]
                await grant(liz, id)
                running = [await get(ana, id), await get(ana, id)]
            gateway.kill()
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA) as [ana]:
                lost = await wait_for_task(ana, id)
            gateway.kill()
        backend.goes_on.set()

    assert [(each["status"], each["statusMessage"]) for each in running] == [("working", "the call runs")] * 2
    assert (lost["status"], lost["statusMessage"]) == ("failed", "the outcome of the call is not known")
    assert lost["error"]["code"] == -32603
    assert backend.paths == ["/pay"]


async def test_racing_polls_run_once_over_workers(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = written(tmp_path, backend)
        with fork_gateway(forks, project, tmp_path / "data", workers=2) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz]:
                id = (await pay(ana))["taskId"]
                await grant(liz, id)
                await asyncio.gather(*(get(ana, id) for _ in range(100)))
                everywhere = [await wait_for_task(ana, id) for _ in range(8)]

    assert {json.dumps(each["result"]["content"]) for each in everywhere} == {
        json.dumps(everywhere[0]["result"]["content"])
    }
    assert everywhere[0]["result"]["isError"] is False
    assert backend.paths == ["/pay"]
