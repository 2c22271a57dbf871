"""One turn, two workers: each knows what the other has seen, and they count together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, HELD, PEOPLE, approval_client, code_of, rule, write
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Document,
    GatewayUnderTest,
    Reply,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
    start_gateway,
)

pytestmark = pytest.mark.anyio

AT_ONCE = 50
TRIFECTA = rule("no-egress", HELD, match={"flags": ["egress"]}, when='turn.saw("untrusted-output")')


def project_of(tmp_path: Path, backend: CallCounter, *rules: Document) -> Path:
    tools = [
        http_tool("read", backend.port, flags=["untrusted-output"]),
        http_tool("send", backend.port, flags=["egress"]),
    ]
    return write(tmp_path / "p", approval_client(backend.port, tools=tools, rules=rules))


@asynccontextmanager
async def two_workers(forks: ForkServer, tmp_path: Path, *rules: Document) -> AsyncIterator[tuple[Caller, CallCounter]]:
    async with start_call_counter() as backend:
        project, data = project_of(tmp_path, backend, *rules), tmp_path / "data"
        env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(data)}
        gateway = forks.start(project, data, env=env, options=("--workers", "2"))
        try:
            # One connection per request, so that any worker may take it.
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
                yield Caller(send_http(session, gateway.url), ANA.token), backend
        finally:
            gateway.kill()


@asynccontextmanager
async def pair(
    tmp_path: Path, *rules: Document
) -> AsyncIterator[tuple[GatewayUnderTest, GatewayUnderTest, CallCounter]]:
    """Two gateways on one store, each with its own memory, so that the test chooses which one to ask."""
    async with start_call_counter() as backend:
        project = project_of(tmp_path, backend, *rules)
        async with (
            start_gateway(project, tmp_path / "data", people=PEOPLE) as one,
            start_gateway(project, tmp_path / "data", people=PEOPLE) as other,
        ):
            yield one, other, backend


async def open_turn(caller: Caller) -> str:
    return str((await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"])


async def by_turn(caller: Caller, turn: str, tool: str, text: str = "x") -> Reply:
    return await caller.rest("POST", f"/v1/turns/{turn}/calls", {"tool": tool, "arguments": {"text": text}})


async def by_handle(caller: Caller, turn: str, tool: str, text: str = "x") -> Reply:
    path = f"/v1/catalogues/desk/tools/{tool}/call"
    return await caller.rest("POST", path, {"arguments": {"text": text}, "turn": turn})


WAYS = {"turn": by_turn, "handle": by_handle}


# Taint


@pytest.mark.parametrize("sent_by", WAYS.values(), ids=[f"sent by {each}" for each in WAYS])
@pytest.mark.parametrize("read_by", WAYS.values(), ids=[f"read by {each}" for each in WAYS])
async def test_text_read_in_one_worker_taints_mail_of_the_other(read_by: Any, sent_by: Any, tmp_path: Path) -> None:
    async with pair(tmp_path, TRIFECTA) as (one, other, backend):
        ana, same = one.caller(ANA), other.caller(ANA)
        turn = await open_turn(ana)
        before = await sent_by(same, turn, "send")  # from here on both have the turn in memory
        await read_by(ana, turn, "read")

        after = await sent_by(same, turn, "send", "y")
        own = await sent_by(ana, turn, "send", "z")

    assert [each.status for each in (before, after, own)] == [200, 202, 202]
    assert backend.paths == ["/send", "/read"]


async def test_text_read_by_handle_taints_the_session_it_is_of(tmp_path: Path) -> None:
    async with pair(tmp_path, TRIFECTA) as (one, other, backend):
        ana, same = one.caller(ANA), other.caller(ANA)
        session = await ana.begin_legacy("desk")

        async def call(tool: str, text: str) -> Any:
            params = {"name": tool, "arguments": {"text": text}}
            return (await ana.legacy("desk", "tools/call", params, session=session)).json["result"]["_meta"]

        turn = (await call("send", "x"))["gateway/turn"]
        await by_handle(same, turn, "read")
        after = await call("send", "y")

    assert "gateway/pending" in after
    assert backend.paths == ["/send", "/read"]


async def test_nothing_is_laundered_over_real_workers(forks: ForkServer, tmp_path: Path) -> None:
    async with two_workers(forks, tmp_path, TRIFECTA) as (ana, backend):
        for number in range(6):
            turn = await open_turn(ana)
            await asyncio.gather(*(by_handle(ana, turn, "plain") for _ in range(4)))  # both now have it in memory
            read_by, sent_by = (by_turn, by_handle) if number % 2 else (by_handle, by_turn)
            await read_by(ana, turn, "read")
            sent = await asyncio.gather(*(sent_by(ana, turn, "send") for _ in range(4)))

            assert [each.status for each in sent] == [202] * 4
    assert "/send" not in backend.paths


# Counting

COUNTED: dict[str, tuple[dict[str, Any], int, str]] = {
    "loop": ({"type": "loop", "sameCall": 7}, 7, "the same call was made"),
    "budget": ({"type": "budget", "calls": 9}, 9, "this turn has made"),
}


@pytest.mark.parametrize(("check", "most", "word"), COUNTED.values(), ids=COUNTED)
async def test_no_more_calls_than_the_turn_may_make(
    check: Any, most: int, word: str, forks: ForkServer, tmp_path: Path
) -> None:
    async with two_workers(forks, tmp_path, rule("few", check)) as (ana, backend):
        turn = await open_turn(ana)
        calls = [by_turn if number % 2 else by_handle for number in range(AT_ONCE)]

        answers = await asyncio.gather(*(call(ana, turn, "pay") for call in calls))

    refused = [code_of(each) for each in answers if each.json["isError"]]
    assert len(backend.paths) == most
    assert len(refused) == AT_ONCE - most
    assert all(word in each for each in refused)


async def test_held_call_gives_its_place_back_in_every_worker(tmp_path: Path) -> None:
    loop = rule("once", {"type": "loop", "sameCall": 1})
    async with pair(tmp_path, loop, rule("leads-agree", HELD)) as (one, other, backend):
        turn = await open_turn(one.caller(ANA))
        answers = [await by_handle(gateway.caller(ANA), turn, "pay") for gateway in (one, other, one, other)]

    assert [each.status for each in answers] == [202] * 4
    assert backend.paths == []


async def test_calls_of_both_count_for_the_budget(tmp_path: Path) -> None:
    async with pair(tmp_path, rule("few", {"type": "budget", "calls": 5})) as (one, other, _):
        turn = await open_turn(one.caller(ANA))
        for gateway in (one, other, one, other):
            await by_handle(gateway.caller(ANA), turn, "plain")  # does not match the rule but counts

        fifth = await by_handle(one.caller(ANA), turn, "pay")
        sixth = await by_handle(other.caller(ANA), turn, "pay", "y")

    assert (fifth.json["isError"], sixth.json["isError"]) == (False, True)
    assert "this turn has made 5 calls of 5" in code_of(sixth)
