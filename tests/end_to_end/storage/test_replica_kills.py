"""Three gateways on PostgreSQL and an object store behind a plain proxy; one of them is killed every second.

`KILL_SECONDS` is the duration; the suite takes a few seconds.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import psycopg
import pytest

from gateway.audit.verification import verify
from gateway.storage.sql.postgres.connection import PostgresAuditReader
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, rule
from tests.support.gateways.projects import CallCounter, Caller, Reply, http_tool, send_http, start_call_counter
from tests.support.gateways.replicas import (
    CONNECTION,
    IN_A_BUCKET,
    Replica,
    bucket_documents,
    placed_replicas,
    write_replica_project,
)
from tests.support.servers.object_store import ObjectStore
from tests.support.servers.round_robin_proxy import RoundRobin, round_robin_proxy

pytestmark = pytest.mark.anyio

SECONDS = int(os.environ.get("KILL_SECONDS", "5"))
BUDGETS = SECONDS // 3 + 1
BUDGET = 20
CLIENTS = 4
"""Clients of each kind."""

LARGE = 5_000
"""Repetitions of the reader's text: more than fits in a record."""

RUNNING = "SELECT count(*) FROM calls WHERE status = 'started'"
RECORDS = "SELECT args, status FROM calls WHERE decision IS DISTINCT FROM 'deny'"


@dataclass
class Trial:
    """The calls of the clients, and their answers."""

    proxy: RoundRobin
    numbers: Any = field(default_factory=count)
    answered: dict[str, str] = field(default_factory=dict)
    """Handles of answered calls, by the text of the call."""
    unknown: set[str] = field(default_factory=set)
    spent: set[str] = field(default_factory=set)
    retried: Counter[str] = field(default_factory=Counter)
    odd: list[Reply] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    async def writes(self, ana: Caller, wire: str) -> None:
        while not self.is_over.is_set():
            await self.call(ana, wire, "pay", f"pay-{next(self.numbers)}")

    async def spends(self, ana: Caller, wire: str) -> None:
        """Use up one budget after the other."""
        for number in range(BUDGETS):
            tool = f"spend_{number}"
            while tool not in self.spent and not self.is_over.is_set():
                await self.call(ana, wire, tool, f"{tool}-{next(self.numbers)}")

    async def reads(self, ana: Caller) -> None:
        while not self.is_over.is_set():
            text = f"read-{next(self.numbers)}"
            await self.call(ana, "rest", "read", text)
            if text in self.answered:
                reply = await self.retry_until_final(partial(ana.raw, "GET", self.answered[text]))
                if reply.body.count(text.encode()) != LARGE:
                    self.odd.append(reply)

    async def call(self, ana: Caller, wire: str, tool: str, text: str) -> None:
        """Send a call until its answer is final, always with the same key."""
        if wire == "rest":
            reply = await self.retry_until_final(
                lambda: ana.rest_call("desk", tool, {"text": text}, idempotency_key=f"key-{text}")
            )
            body, words = reply.json, reply.body.decode()
            settled = reply.status == 200 and body["isError"] is False
            place = f"/v1/artifacts/{body['callId']}/content?turn={body['turn']}" if settled else ""
        else:
            meta = {"gateway/idempotencyKey": f"key-{text}"}
            reply = await self.retry_until_final(lambda: ana.modern_call("desk", tool, {"text": text}, **meta))
            words = reply.body.decode()
            settled = reply.status == 200 and reply.json.get("result", {}).get("isError") is False
            place = ""
        if settled:
            self.answered[text] = place
        elif "is not known" in words:
            self.unknown.add(text)
        elif f"lets {BUDGET} calls through" in words and tool.startswith("spend_"):
            self.spent.add(tool)
        else:
            self.odd.append(reply)

    async def retry_until_final(self, ask: Callable[[], Any]) -> Reply:
        while True:
            reply: Reply = await ask()
            why = _why_again(reply)
            if why is None:
                return reply
            self.retried[why] += 1
            await anyio.sleep(0.05)


def _why_again(reply: Reply) -> str | None:
    """Return why the client should retry: the proxy failed, the gateway is unavailable, or the first call of the key is
    running.
    """
    if reply.status == 502 and reply.body == b"no answer from upstream":
        return "proxy"
    if b"E_IDEMPOTENCY_RUNNING" in reply.body or b"is still running" in reply.body:
        return "running"
    if reply.status == 503 and reply.header("retry-after") is not None:
        return str(reply.json.get("code", "refused"))
    for code in ("E_OUTCOME_LOST", "E_OUTCOME_NOT_RECORDED"):
        if f'"code":"{code}"'.encode() in reply.body and reply.status == 424:  # it has a key: it does not run twice
            return code
    if b'"code":"E_STORE_UNAVAILABLE"' in reply.body:  # as an MCP error
        return "E_STORE_UNAVAILABLE"
    return None


@asynccontextmanager
async def start_replicas(
    forks: ForkServer, folder: Path, backend: CallCounter, env: dict[str, str]
) -> AsyncIterator[tuple[list[Replica], RoundRobin]]:
    tools = [
        lambda port: http_tool("read", port, output={"artifact": "text", "inline": False}),
        *(
            lambda port, number=number: http_tool(f"spend_{number}", port, flags=["writes"])
            for number in range(BUDGETS)
        ),
    ]
    budget = rule(
        "budget",
        {"type": "quota", "limit": BUDGET, "per": "365d", "by": ["tool"]},
        tools=[f"spend_{number}" for number in range(BUDGETS)],
    )
    project = write_replica_project(folder, backend, budget, tools=tools, blobs=IN_A_BUCKET)
    with placed_replicas(forks, project, folder, env) as replicas:
        async with round_robin_proxy([each.url for each in replicas]) as proxy:
            yield replicas, proxy


def restart(replica: Replica) -> None:
    """Start a replica as an operator does: retry if it exits at once because the database is overloaded."""
    for _ in range(5):
        with suppress(AssertionError):
            return replica.start()
    replica.start()


async def kill_every_second(replicas: list[Replica], seconds: int) -> int:
    """Kill a random replica every second and restart it at once; return the number of kills."""
    starting: set[asyncio.Task[None]] = set()
    kills = 0
    for _ in range(seconds):
        await anyio.sleep(1)
        living = [each for each in replicas if each.gateway is not None]
        if living:
            victim = random.choice(living)
            victim.kill()
            kills += 1
            starting.add(asyncio.create_task(asyncio.to_thread(restart, victim)))
    await asyncio.gather(*starting)
    return kills


def query(address: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


async def test_killing_a_gateway_every_second_loses_and_repeats_nothing(
    forks: ForkServer, tmp_path: Path, new_database: Callable[[], str], s3: ObjectStore
) -> None:
    address = new_database()
    env = {CONNECTION: address, **bucket_documents(s3)}
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        start_call_counter() as backend,
        start_replicas(forks, tmp_path, backend, env) as (replicas, proxy),
        aiohttp.ClientSession(connector=connector) as session,
    ):
        backend.answer = lambda body: body * LARGE if b'"read-' in body else body
        trial = Trial(proxy)
        ana = Caller(send_http(session, proxy.url), ANA.token)
        wires = ("rest", "mcp") * (CLIENTS // 2)
        clients = [trial.writes(ana, wire) for wire in wires] + [trial.spends(ana, wire) for wire in wires]
        clients += [trial.reads(ana) for _ in range(CLIENTS)]
        busy = [asyncio.create_task(each) for each in clients]
        kills = await kill_every_second(replicas, SECONDS)
        trial.is_over.set()
        with anyio.fail_after(60):
            await asyncio.gather(*busy)
            while query(address, RUNNING) != [(0,)]:
                await anyio.sleep(0.1)
        results = [await ana.raw("GET", trial.answered[text]) for text in trial.answered if text.startswith("read-")]
    kept = await asyncio.to_thread(s3.paths, env["S3_PREFIX"])

    rows = [(args.split('"')[3], status) for args, status in query(address, RECORDS)]
    records = dict(rows)
    ran = Counter(body.decode().split('"')[3] for _, _, body in backend.requests)
    wrote = Counter({text: times for text, times in ran.items() if not text.startswith("read-")})
    used = sorted(used for (used,) in query(address, "SELECT used FROM quotas"))
    by_budget = {tool: [text for text in ran if text.startswith(f"{tool}-")] for tool in trial.spent}
    with PostgresAuditReader(address) as log:
        report = verify(log, anchors=None, keys=[])
    print(
        f"{kills} kills in {SECONDS} s: {len(rows)} records, {len(trial.answered)} answered, {len(trial.unknown)} told "
        f"unknown, {len(results)} results, {len(trial.spent)} budgets used up; sent again: {dict(trial.retried)}"
    )

    assert Counter((each.status, each.body[:500]) for each in trial.odd) == {}
    assert kills > SECONDS // 2
    assert len(records) == len(rows), "a call has two records"
    assert set(records.values()) <= {"settled", "unknown"}
    assert {records.get(text) for text in trial.answered} == {"settled"}
    assert {records.get(text) for text in trial.unknown} <= {"unknown"}
    assert set(ran) <= records.keys(), "a call ran without a record"
    assert max(wrote.values()) == 1, "a call ran twice"
    assert {text for text in records if records[text] == "settled" and not text.startswith("read-")} <= set(wrote)
    assert len(trial.answered) > SECONDS
    assert max(used) == BUDGET
    assert used.count(BUDGET) == len(trial.spent)
    for tool, texts in by_budget.items():  # calls that counted and did not run are recorded as unknown
        assert len(texts) <= BUDGET <= sum(text.startswith(f"{tool}-") for text in records)
    assert results
    assert all(each.status == 200 for each in results)
    assert sum(path.endswith(".index") for path in kept) >= len(results)
    assert report.findings == ()
