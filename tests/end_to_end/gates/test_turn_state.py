"""Rules decide by the state of the turn: untrusted text, loops, budgets, and what an artifact class exposes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    code_of,
    grant,
    pending_id,
    rule,
    start_gate_project,
    write,
)
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Document,
    GatewayUnderTest,
    Reply,
    document,
    http_tool,
    start_call_counter,
    start_gateway,
)

pytestmark = pytest.mark.anyio

TRIFECTA = rule(
    "no-egress-after-untrusted-text", HELD, match={"flags": ["egress"]}, when='turn.saw("untrusted-output")'
)


SECRET = {"description": "A secret.", "base": "text", "sensitivity": "restricted", "maxSize": "1MiB", "retain": "1d"}


def read_tool(port: int) -> Document:
    return http_tool("read", port, flags=["untrusted-output"])


def keep_tool(port: int) -> Document:
    """Return a tool whose results are not in answers and are read through query tools."""
    return http_tool("keep", port, flags=["untrusted-output"], output={"inline": False})


def send_tool(port: int) -> Document:
    return http_tool("send", port, flags=["egress"])


@asynccontextmanager
async def start_mail_gateway(
    tmp_path: Path, *rules: Document, implicit: str = "30m"
) -> AsyncIterator[tuple[GatewayUnderTest, CallCounter, Caller]]:
    tools = [read_tool, keep_tool, send_tool]
    async with start_gate_project(tmp_path, *(rules or (TRIFECTA,)), tools=tools, implicit=implicit) as (
        gateway,
        backend,
    ):
        yield gateway, backend, gateway.caller(ANA)


async def in_turn(caller: Caller, tool: str, handle: str | None = None, **arguments: Any) -> Any:
    """Make a stateless MCP call in the turn of this handle."""
    meta = {} if handle is None else {"gateway/turn": handle}
    return (await caller.modern_call("desk", tool, arguments or {"text": "x"}, **meta)).json["result"]


def is_held(result: Any) -> bool:
    return bool(result["_meta"].get("gateway/pending"))


async def test_mail_is_held_in_a_session_that_read_untrusted_text(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (_, backend, ana):
        session = await ana.begin_legacy("desk")

        async def call(tool: str) -> Any:
            params = {"name": tool, "arguments": {"text": "x"}}
            return (await ana.legacy("desk", "tools/call", params, session=session)).json["result"]

        before = await call("send")
        await call("read")
        after = await call("send")

        assert (is_held(before), is_held(after)) == (False, True)
        assert backend.paths == ["/send", "/read"]


async def test_handle_of_a_turn_carries_what_it_saw(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (gateway, backend, ana):
        read = await in_turn(ana, "read")
        handle = read["_meta"]["gateway/turn"]

        held = await in_turn(ana, "send", handle)
        elsewhere = (await ana.modern_call("other", "send", {"text": "x"})).json["result"]
        await grant(gateway.caller(LIZ), held["_meta"]["gateway/pending"]["approvals"][0]["id"])
        approved = await in_turn(ana, "send", handle)

        assert (is_held(held), is_held(elsewhere), approved["isError"]) == (True, False, False)
        assert backend.paths == ["/read", "/send", "/send"]


async def test_artifact_of_another_turn_brings_what_it_is(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (_, backend, ana):
        made = await in_turn(ana, "keep")
        query = await in_turn(ana, "artifact_grep", callId=made["_meta"]["gateway/call"], pattern="x")
        handle = query["_meta"]["gateway/turn"]

        held = await in_turn(ana, "send", handle)

        assert handle != made["_meta"]["gateway/turn"]
        assert query["isError"] is False
        assert is_held(held)
        assert backend.paths == ["/keep"]


async def test_reading_a_resource_of_another_turn_taints_a_session(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (_, backend, ana):
        made = await in_turn(ana, "keep")
        session = await ana.begin_legacy("desk")
        uri = f"artifact://calls/{made['_meta']['gateway/turn']}/{made['_meta']['gateway/call']}"
        read = await ana.legacy("desk", "resources/read", {"uri": uri}, session=session)

        params = {"name": "send", "arguments": {"text": "x"}}
        sent = (await ana.legacy("desk", "tools/call", params, session=session)).json["result"]

        assert "result" in read.json, read.body
        assert is_held(sent)
        assert backend.paths == ["/keep"]


async def test_reading_a_resource_with_a_handle_taints_its_turn(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path, TRIFECTA, implicit="off") as (_, backend, ana):
        made = await in_turn(ana, "keep")
        uri = f"artifact://calls/{made['_meta']['gateway/turn']}/{made['_meta']['gateway/call']}"
        handle = (await in_turn(ana, "send"))["_meta"]["gateway/turn"]

        read = await ana.modern("desk", "resources/read", {"uri": uri}, **{"gateway/turn": handle})
        wrong = [
            await ana.modern("desk", "resources/read", {"uri": uri}, **{"gateway/turn": each}) for each in ("x", 7)
        ]
        held = await in_turn(ana, "send", handle)
        elsewhere = await in_turn(ana, "send")

        assert "result" in read.json, read.body
        assert [each.json["error"]["code"] for each in wrong] == [-32602, -32602]
        assert (is_held(held), is_held(elsewhere)) == (True, False)
        assert backend.paths == ["/keep", "/send", "/send"]


async def test_first_calls_of_a_session_share_what_they_see(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (_, backend, ana):
        session = await ana.begin_legacy("desk")

        async def call(tool: str) -> Any:
            params = {"name": tool, "arguments": {"text": "x"}}
            return (await ana.legacy("desk", "tools/call", params, session=session)).json["result"]

        await asyncio.gather(call("read"), *(call("plain") for _ in range(5)))

        assert is_held(await call("send"))
        assert "/send" not in backend.paths


async def test_text_that_is_repeated_by_its_key_taints_the_turn_it_is_repeated_in(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (_, backend, ana):
        body = {"tool": "read", "arguments": {"text": "x"}}
        turns = [(await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"] for _ in range(2)]
        first, again = [
            await ana.rest("POST", f"/v1/turns/{turn}/calls", body, idempotency_key="once") for turn in turns
        ]
        sent = {"tool": "send", "arguments": {"text": "x"}}
        held = await ana.rest("POST", f"/v1/turns/{turns[1]}/calls", sent)

    assert (first.status, again.header("idempotency-replayed"), held.status) == (200, "true", 202)
    assert backend.paths == ["/read"]


async def test_calls_at_once_by_one_handle_share_what_they_see(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (_, backend, ana):
        handle = (await in_turn(ana, "plain"))["_meta"]["gateway/turn"]

        await asyncio.gather(in_turn(ana, "read", handle), *(in_turn(ana, "plain", handle) for _ in range(5)))

        assert is_held(await in_turn(ana, "send", handle))
        assert "/send" not in backend.paths


async def test_turn_remembers_when_something_else_is_published(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (gateway, backend, ana):
        turn = await turn_of(ana)
        await call_in(ana, turn, "read")
        service = gateway.running.service
        service.publish(replace(service.published))

        sent = await call_in(ana, turn, "send")

        assert pending_id(sent)
        assert "/send" not in backend.paths


async def call_in(caller: Caller, turn: str, tool: str, text: str = "x") -> Reply:
    return await caller.rest("POST", f"/v1/turns/{turn}/calls", {"tool": tool, "arguments": {"text": text}})


async def turn_of(caller: Caller) -> str:
    return str((await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"])


async def test_loop_is_stopped_in_its_turn_only(tmp_path: Path) -> None:
    looping = rule("no-circles", {"type": "loop", "sameCall": 2}, tools=["plain"])
    async with start_mail_gateway(tmp_path, looping) as (_, backend, ana):
        turn = await turn_of(ana)

        answers = [await call_in(ana, turn, "plain") for _ in range(4)]
        other = [await call_in(ana, turn, "plain", "y"), await call_in(ana, await turn_of(ana), "plain")]

        assert [each.json["isError"] for each in answers] == [False, False, True, True]
        assert [each.json["isError"] for each in other] == [False, False]
        assert len(backend.paths) == 4


async def test_racing_calls_do_not_loop_more_often_than_they_may(tmp_path: Path) -> None:
    looping = rule("no-circles", {"type": "loop", "sameCall": 2}, tools=["plain"])
    async with start_mail_gateway(tmp_path, looping) as (_, backend, ana):
        turn = await turn_of(ana)

        await asyncio.gather(*(call_in(ana, turn, "plain") for _ in range(20)))

        assert len(backend.paths) == 2


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        pytest.param({"type": "budget", "calls": 3}, 3, id="calls"),
        pytest.param({"type": "budget", "bytes": "30B"}, 3, id="bytes"),
    ],
)
async def test_turn_that_spent_its_budget_is_refused(check: Any, passed: int, tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path, rule("turn-budget", check, tools=["*"])) as (_, backend, ana):
        turn = await turn_of(ana)

        answers = [await call_in(ana, turn, "plain", f"{number}") for number in range(6)]

        assert [each.json["isError"] for each in answers] == [False] * passed + [True] * (6 - passed)
        assert len(backend.paths) == passed
        assert "turn" in code_of(answers[-1])


async def test_class_does_not_flow_where_it_must_not(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        secret = document(
            "ArtifactClass", "secret", {**SECRET, "flow": {"maxTier": "internal", "blockedBy": ["egress"]}}
        )
        tools = [
            http_tool("learn", backend.port, output={"artifact": "secret"}),
            http_tool("ask", backend.port, tier="community"),
            send_tool(backend.port),
        ]
        project = write(tmp_path / "p", [*approval_client(backend.port, tools=tools), secret])
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            turn = await turn_of(ana)
            before = [await call_in(ana, turn, tool) for tool in ("ask", "send", "learn")]
            after = [await call_in(ana, turn, tool) for tool in ("ask", "send", "plain")]

    assert [each.json["isError"] for each in before] == [False] * 3
    assert [each.json["isError"] for each in after] == [True, True, False]
    assert "secret" in code_of(after[0])
    assert backend.paths == ["/ask", "/send", "/learn", "/plain"]


async def test_closed_window_that_holds_answers_when_to_retry(tmp_path: Path) -> None:
    closed = {
        "type": "window",
        "timezone": "UTC",
        "open": [{"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "from": "00:00", "to": "00:01"}],
        "outside": "hold",
    }
    async with start_mail_gateway(tmp_path, rule("at-night", closed, tools=["plain"])) as (_, backend, ana):
        answer = await call_in(ana, await turn_of(ana), "plain")
        record = await ana.rest("GET", f"/v1/calls/{answer.json['callId']}")

        assert "try again later" in code_of(answer)
        assert record.json["decision"] == "hold"
        assert backend.paths == []


async def test_memory_of_a_turn_outlives_the_process(tmp_path: Path) -> None:
    async with start_mail_gateway(tmp_path) as (_, backend, ana):
        handle = (await in_turn(ana, "read"))["_meta"]["gateway/turn"]
    async with start_gateway(tmp_path / "p", tmp_path / "data", people=PEOPLE) as again:
        held = await in_turn(again.caller(ANA), "send", handle)

    assert is_held(held)
    assert backend.paths == ["/read"]
