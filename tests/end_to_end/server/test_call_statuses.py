"""HTTP statuses of REST calls: one for each outcome, and none that makes a client repeat an effect."""

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from typer.testing import CliRunner

from gateway.cli.main import app
from tests.support.audit_log import entries
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    POLICY,
    approval_client,
    pending_id,
    rule,
    write,
)
from tests.support.gateways.projects import Caller, Document, Person, Reply, environ_of, http_tool, send_http
from tests.support.servers.app_server import serve_aiohttp

pytestmark = pytest.mark.anyio

NUMBER = {"schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "artifact": "json"}
SMALL = {"maxOutput": "1KiB"}
BREAKER = {"openAfter": 2, "within": "60s", "probeAfter": "40s"}
HIDDEN = f"""\
p, role:agent, *, tool:mute, invoke, internal, deny
p, role:agent, *, tool:hidden, discover|invoke, internal, deny
{POLICY}"""


@dataclass
class Service:
    """A backend that behaves as the text of the call requests, and counts the calls that reach it."""

    port: int = 0
    reached: list[str] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        wanted = str((await request.json())["text"])
        self.reached.append(f"{request.path} {wanted}")
        if wanted.startswith("wait"):
            await self.goes_on.wait()
        if wanted.startswith("hang"):
            await asyncio.sleep(3)  # longer than the timeout of the tool `hasty`
        if wanted.startswith("cut"):
            transport: Any = request.transport
            transport.abort()
        text = "x" * 5000 if wanted.startswith("long") else '{"n": "no number"}'
        return web.Response(text=text, status=500 if wanted.startswith("fail") else 200, content_type="text/plain")


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    found, behind = Service(), web.Application()
    behind.router.add_route("*", "/{path:.*}", found.handle)
    async with serve_aiohttp(behind) as found.port:
        yield found


def project(port: int, *rules: Document) -> list[Document]:
    closed_port = 9  # the discard port: nothing listens there
    rest = {"use": "circuit-breaker", "with": BREAKER}
    tools = [
        http_tool("mute", port),
        http_tool("hidden", port),
        http_tool("typed", port, output=NUMBER),
        http_tool("brief", port, limits=SMALL),
        http_tool("hasty", port, limits={"timeout": "300ms"}),
        http_tool("single", port, limits={"concurrent": 1}),
        http_tool("nowhere", closed_port),
        http_tool("nowhere_pay", closed_port, flags=["writes"]),
        *(http_tool(name, port) for name in ("barred", "held", "rated", "counted", "looped", "budgeted", "stopped")),
    ]
    documents = approval_client(port, tools=tools, rules=rules)
    [pipeline] = [each for each in documents if each["kind"] == "Pipeline"]
    pipeline["spec"]["call"].append(rest)
    for each in documents:
        if each["kind"] == "Tool" and each["metadata"]["name"].startswith("nowhere"):
            each["spec"]["backend"]["url"] = f"http://127.0.0.1:{closed_port}/"
    return documents


RULES = (
    rule("barred", {"type": "arguments", "require": "args.text == 'never'", "message": "no"}, tools=["barred"]),
    rule("held", HELD, tools=["held"]),
    rule("rated", {"type": "rate", "limit": 1, "per": "1h"}, tools=["rated"]),
    rule("counted", {"type": "quota", "limit": 1, "per": "1d"}, tools=["counted"]),
    rule("looped", {"type": "loop", "sameCall": 1}, tools=["looped"]),
    rule("budgeted", {"type": "budget", "calls": 1}, tools=["budgeted"]),
)


@dataclass
class Desk:
    """A gateway in its own process, its callers, and its backend."""

    service: Service
    database: Path
    url: str
    session: aiohttp.ClientSession

    def caller(self, person: Person = ANA) -> Caller:
        return Caller(send_http(self.session, self.url), person.token)

    async def call(self, tool: str, text: object = "x", **more: str) -> Reply:
        return await self.caller().rest_call("desk", tool, {"text": text}, **more)

    async def turn(self) -> str:
        return str((await self.caller().rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"])

    async def in_turn(self, turn: str, tool: str, text: str = "x") -> Reply:
        body = {"tool": tool, "arguments": {"text": text}}
        return await self.caller().rest("POST", f"/v1/turns/{turn}/calls", body)

    def started(self) -> set[str]:
        """Return the ids of calls whose start is recorded."""
        return {each["call"]["id"] for each in entries(self.database) if each["event"] == "call-started"}


@asynccontextmanager
async def start_desk(forks: ForkServer, folder: Path, *rules: Document) -> AsyncIterator[Desk]:
    async with service() as backend, aiohttp.ClientSession() as session:
        written = write(folder / "p", project(backend.port, *rules), policy=HIDDEN)
        env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(folder / "data")}
        gateway: GatewayFork = await anyio.to_thread.run_sync(
            lambda: forks.start(written / "configs", folder / "data", env=env)
        )
        try:
            yield Desk(backend, folder / "data" / "gateway.db", gateway.url, session)
        finally:
            backend.goes_on.set()
            gateway.kill()


def outcome_of(reply: Reply) -> tuple[int, bool]:
    """Return the status, and whether the body is the record of a failed call."""
    return reply.status, reply.json["isError"]


async def over_mcp(desk: Desk, tool: str, text: object = "x") -> tuple[int, bool]:
    reply = await desk.caller().modern_call("desk", tool, {"text": text})
    return reply.status, reply.json["result"]["isError"]


async def test_each_outcome_has_its_status_and_mcp_answers_as_before(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path, *RULES) as desk:
        words = ["quarantine", "add", "tool:stopped", "--reason", "leaks", "--database", str(desk.database)]
        assert (await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, words))).exit_code == 0
        cases: dict[tuple[str, object], int] = {
            ("plain", "x"): 200,
            ("mute", "x"): 403,
            ("barred", "x"): 403,
            ("plain", 7): 422,
            ("plain", "fail"): 424,
            ("plain", "cut"): 424,
            ("typed", "x"): 424,
            ("brief", "long"): 424,
            ("hasty", "hang"): 424,
            ("held", "x"): 202,
        }
        for (tool, text), status in cases.items():
            reply = await desk.call(tool, text)
            assert outcome_of(reply) == (status, status != 200), (tool, reply.body)
            assert (reply.header("retry-after") is not None) == (status == 202)
            assert await over_mcp(desk, tool, text) == (200, status != 200), tool

        with anyio.fail_after(30):
            while (reply := await desk.call("stopped")).status == 200:  # every process learns of the stop separately
                await anyio.sleep(0.05)
        assert outcome_of(reply) == (403, True)
        assert await over_mcp(desk, "stopped") == (200, True)


async def test_limited_calls_have_429_and_retry_after(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path, *RULES) as desk:
        for tool, longest in (("rated", 3600), ("counted", 86_400)):
            assert outcome_of(await desk.call(tool)) == (200, False)
            limited = await desk.call(tool, "again")
            assert outcome_of(limited) == (429, True)
            assert limited.header("retry-after") == str(limited.json["limited"]["retryAfter"])
            assert 0 < limited.json["limited"]["retryAfter"] <= longest
            assert await over_mcp(desk, tool) == (200, True)
        for tool in ("looped", "budgeted"):
            turn = await desk.turn()
            assert outcome_of(await desk.in_turn(turn, tool)) == (200, False)
            limited = await desk.in_turn(turn, tool)
            assert outcome_of(limited) == (429, True)
            assert 1 < int(limited.header("retry-after") or 0) <= 2 * 86_400

        waiting = [asyncio.create_task(desk.call("single", f"wait {number}")) for number in range(3)]
        with anyio.fail_after(30):
            while (crowded := await asyncio.wait_for(desk.call("single", "wait more"), 30)).status != 429:
                await anyio.sleep(0.05)
        assert (outcome_of(crowded), crowded.header("retry-after")) == ((429, True), "1")
        desk.service.goes_on.set()
        assert {(await each).status for each in waiting} == {200}


async def test_unknown_and_hidden_are_the_same_404(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path) as desk:
        unknown, hidden = await desk.call("none"), await desk.call("hidden")
        turn = await desk.turn()
        in_turn = [await desk.in_turn(turn, name) for name in ("none", "hidden")]

    assert {(each.status, each.body) for each in (unknown, hidden, *in_turn)} == {(404, unknown.body)}
    assert desk.service.reached == []


async def test_decided_approvals(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path, *RULES) as desk:
        liz = desk.caller(LIZ)
        refused, granted = [pending_id(await desk.call("held", text)) for text in ("no", "yes")]
        await liz.rest("POST", f"/v1/approvals/{refused}/reject", {})
        await liz.rest("POST", f"/v1/approvals/{granted}/resolve", {})

        assert outcome_of(await desk.call("held", "no")) == (403, True)
        assert outcome_of(await desk.call("held", "yes")) == (200, False)


async def test_backend_that_rests_is_503_before_anything_is_written_down(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path) as desk:
        for tool in ("nowhere", "nowhere_pay"):
            failed = [await desk.call(tool) for _ in range(2)]
            rests = [await desk.call(tool), await desk.call(tool, "y", idempotency_key=f"key of {tool}")]
            again = await desk.call(tool, "y", idempotency_key=f"key of {tool}")

            assert [outcome_of(each) for each in failed] == [(424, True)] * 2
            assert [outcome_of(each) for each in (*rests, again)] == [(503, True)] * 3
            assert [each.header("idempotency-replayed") for each in (*rests, again)] == [None] * 3
            assert all(1 <= int(each.header("retry-after") or 0) <= 40 for each in (*rests, again))
            ids = {each.json["callId"] for each in failed}
            assert (desk.started() & ids == ids) == (tool == "nowhere_pay")
            assert desk.started().isdisjoint(each.json["callId"] for each in (*rests, again))
            assert await over_mcp(desk, tool) == (200, True)
        spared = [each for each in entries(desk.database) if each.get("decision", {}).get("reason") == "backend-spared"]
    assert {(each["event"], each["outcome"]["state"]) for each in spared} == {("call-decided", "refused")}
    assert len(spared) == 8


async def test_keys_answer_with_the_status_of_the_first_outcome(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path) as desk:
        for number, (tool, text, status) in enumerate(
            [("pay", "x", 200), ("pay", "fail", 424), ("hasty", "hang", 424), ("typed", "x", 424), ("pay", 7, 422)]
        ):
            first = await desk.call(tool, text, idempotency_key=f"key {number}")
            reached = len(desk.service.reached)
            again = await desk.call(tool, text, idempotency_key=f"key {number}")
            other = await desk.call(tool, "another", idempotency_key=f"key {number}")

            assert outcome_of(first) == outcome_of(again) == (status, status != 200), (tool, text)
            assert len(desk.service.reached) == reached
            assert (first.header("idempotency-replayed"), again.header("idempotency-replayed")) == (None, "true")
            assert (other.status, other.json["code"]) == (409, "E_IDEMPOTENCY_CONFLICT")

        running = asyncio.create_task(desk.call("pay", "wait", idempotency_key="slow"))
        with anyio.fail_after(30):
            while not desk.service.reached[-1].endswith("wait"):
                await anyio.sleep(0.01)
        busy = await desk.call("pay", "wait", idempotency_key="slow")
        desk.service.goes_on.set()

        assert (busy.status, busy.json["code"], busy.header("retry-after")) == (409, "E_IDEMPOTENCY_RUNNING", "1")
        assert outcome_of(await running) == (200, False)


async def test_key_conflicts_are_refusals_on_every_wire(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path) as desk:
        await desk.call("pay", "first", idempotency_key="used")
        running = asyncio.create_task(desk.call("pay", "wait", idempotency_key="busy"))
        with anyio.fail_after(30):
            while not desk.service.reached[-1].endswith("wait"):
                await anyio.sleep(0.01)
        reached = len(desk.service.reached)
        caller = desk.caller()
        session = await caller.begin_legacy("desk")
        for key, text, code, wait in (
            ("used", "other", "E_IDEMPOTENCY_CONFLICT", {}),
            ("busy", "wait", "E_IDEMPOTENCY_RUNNING", {"retryAfter": 1}),
        ):
            rest = await desk.call("pay", text, idempotency_key=key)
            meta = {"gateway/idempotencyKey": key}
            modern = await caller.modern_call("desk", "pay", {"text": text}, **meta)
            params = {"name": "pay", "arguments": {"text": text}, "_meta": meta}
            legacy = await caller.legacy("desk", "tools/call", params, session=session)

            assert (rest.status, rest.json["code"]) == (409, code)
            data = {"code": code, "help": rest.json["help"], **wait}
            error = {"code": -32602, "message": rest.json["detail"], "data": data}
            assert (modern.status, modern.json["error"]) == (400, error)
            assert (legacy.status, legacy.json["error"]) == (200, error)
        assert len(desk.service.reached) == reached
        desk.service.goes_on.set()
        assert outcome_of(await running) == (200, False)


@contextmanager
def lock_database(database: Path) -> Iterator[None]:
    """Lock the database against other writers."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=20)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")


async def test_store_that_fails_is_503_before_the_tool_and_never_after_it(tmp_path: Path, forks: ForkServer) -> None:
    async with start_desk(forks, tmp_path) as desk:
        await desk.call("plain")  # opens all connections
        reached = len(desk.service.reached)
        with lock_database(desk.database):
            before = await desk.call("pay", idempotency_key="k")
        assert (before.status, before.json["code"]) == (503, "E_STORE_UNAVAILABLE")
        assert int(before.header("retry-after") or 0) >= 1
        assert len(desk.service.reached) == reached

        for tool in ("plain", "pay"):
            running = asyncio.create_task(desk.call(tool, f"wait {tool}"))
            with anyio.fail_after(30):
                while not desk.service.reached[-1].endswith(f"wait {tool}"):
                    await anyio.sleep(0.01)
            with lock_database(desk.database):
                desk.service.goes_on.set()
                after = await running
            desk.service.goes_on.clear()
            assert after.header("retry-after") is None
            assert after.json["callId"], after.body
            if tool == "plain":  # nothing of it is recorded, so no result is shown
                assert (after.status, after.json["code"]) == (424, "E_OUTCOME_NOT_RECORDED"), after.body
            else:
                assert outcome_of(after) == (200, False), after.body
                assert after.json["notRecorded"]["code"] == "E_OUTCOME_NOT_RECORDED"


TOOLS = ("plain", "pay", "hasty", "single", "typed", "brief", "nowhere", "nowhere_pay", "mute", "rated", "none")
TEXTS = ("x", "x", "fail", "cut", "long", "hang")


@pytest.mark.parametrize("seed", range(3))
async def test_no_call_that_began_is_answered_with_what_is_sent_again(
    seed: int, tmp_path: Path, forks: ForkServer
) -> None:
    """Many concurrent calls to a store that fails at times. Each text identifies its call, so the backend knows which
    ran.
    """
    chosen = random.Random(seed)
    answers: dict[str, Reply] = {}
    async with start_desk(forks, tmp_path, *RULES) as desk:
        await desk.call("plain")

        async def one(number: int) -> None:
            tool, text = chosen.choice(TOOLS), chosen.choice(TEXTS)
            if text == "hang":
                tool = "hasty"
            name = f"{text} {number}"
            more = {"idempotency_key": name} if chosen.random() < 0.3 else {}
            answers[name] = await desk.call(tool, name, **more)

        for batch in range(5):
            calls: list[Coroutine[Any, Any, None]] = [one(batch * 20 + number) for number in range(20)]
            if batch % 2:
                with lock_database(desk.database):
                    tasks = [asyncio.create_task(each) for each in calls]
                    await anyio.sleep(1.2)
                await asyncio.gather(*tasks)
            else:
                await asyncio.gather(*calls)
        ran = {line.partition(" ")[2] for line in desk.service.reached}
        began = desk.started()

    assert len(answers) == 100
    statuses = {name: reply.status for name, reply in answers.items()}
    assert {name for name in ran if statuses.get(name, 0) >= 500} == set()
    for name, reply in answers.items():
        assert reply.status in (200, 403, 404, 424, 429, 503), (name, reply.body)
        if reply.status == 503:
            assert int(reply.header("retry-after") or 0) >= 1
            assert json.loads(reply.body).get("callId") not in began
        if reply.status in (200, 424):
            assert reply.header("retry-after") is None
