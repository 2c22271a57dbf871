"""Three gateway processes on one PostgreSQL database, behind a plain proxy."""

import asyncio
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import httpx2
import psycopg
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.app.cluster.peer_router import derive_peer_id
from gateway.audit.verification import verify
from gateway.storage.sql.postgres.connection import PostgresAuditReader
from gateway.storage.sql.postgres.database_setup import migrate_postgres
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, grant, pay, pending_id, rule
from tests.support.gateways.projects import MODERN, Caller, GatewayUnderTest, http_tool, send_http, start_call_counter
from tests.support.gateways.replicas import (
    CONNECTION,
    IN_A_BUCKET,
    bucket_documents,
    forked_replicas,
    placed_replicas,
    replicas,
    round_robin,
    write_replica_project,
)
from tests.support.servers.object_store import ObjectStore
from tests.support.servers.postgres_server import start_postgres
from tests.support.servers.round_robin_proxy import round_robin_proxy

pytestmark = pytest.mark.anyio

LIVING = "SELECT count(*) FROM leases WHERE until > clock_timestamp()"
LEFT_BEHIND = """
SELECT count(*) FROM calls WHERE status = 'started'
AND process NOT IN (SELECT id FROM leases WHERE until > clock_timestamp())
"""
TEXT = re.compile(r"call-\d+")
ROUNDS = int(os.environ.get("REPLICA_ROUNDS", "1"))


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


@asynccontextmanager
async def behind_a_proxy(gateways: list[GatewayFork]) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


def query(address: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


async def test_session_lives_in_one_and_is_reached_through_all(forks: ForkServer, tmp_path: Path, address: str) -> None:
    async with start_call_counter() as backend:
        project = write_replica_project(tmp_path, backend)
        with forked_replicas(forks, project, tmp_path / "data", address) as gateways:
            async with behind_a_proxy(gateways) as session:
                ana = Caller(round_robin(session, gateways), ANA.token)
                id = await ana.begin_legacy("desk")
                listed = [await ana.legacy("desk", "tools/list", session=id, id=each) for each in range(4)]
                arguments = {"name": "pay", "arguments": {"text": "x"}}
                called = [await ana.legacy("desk", "tools/call", arguments, session=id, id=each) for each in range(4)]
                stranger = Caller(round_robin(session, gateways), LIZ.token)
                refused = [await stranger.legacy("desk", "tools/list", session=id) for _ in range(3)]
                invented = await ana.legacy("desk", "tools/list", session="0123456789ab.none")

                [owner] = [each for each in gateways if owns(each, id)]
                owner.kill()
                rest = [each for each in gateways if each is not owner]
                left = Caller(round_robin(session, rest), ANA.token)
                gone = [await left.legacy("desk", "tools/list", session=id) for _ in range(2)]
                again = await left.begin_legacy("desk")

    assert all("result" in each.json for each in listed)
    assert all(each.json["result"]["isError"] is False for each in called)
    assert backend.paths == ["/pay"] * 4
    assert {each.status for each in refused} == {404}
    assert invented.status == 404
    assert {each.status for each in gone} == {404}
    assert again != id


def owns(gateway: GatewayFork, id: str) -> bool:
    """Whether the gateway owns the session; the session id names its owner."""
    return id.startswith(f"{derive_peer_id(gateway.peer_url)}.")


async def test_call_held_by_one_is_granted_at_another_and_run_by_a_third(
    forks: ForkServer, tmp_path: Path, address: str
) -> None:
    """The gateway that held the call is gone when it runs."""
    async with start_call_counter() as backend:
        project = write_replica_project(tmp_path, backend, rule("leads-agree", HELD))
        with forked_replicas(forks, project, tmp_path / "data", address) as [a, b, c]:
            async with behind_a_proxy([a, b, c]) as session:
                callers = [Caller(send_http(session, each.url), ANA.token) for each in (a, b, c)]
                held = await pay(callers[0])
                a.kill()
                decided = await grant(Caller(send_http(session, b.url), LIZ.token), pending_id(held))
                ran = await pay(callers[2])
                again = await pay(callers[1])

    assert decided.json["state"] == "granted"
    assert ran.json["isError"] is False
    assert pending_id(again) != pending_id(held)
    assert backend.paths == ["/pay"]


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_real_client_works_with_every_request_at_another_gateway(
    mode: Any, forks: ForkServer, tmp_path: Path, address: str, s3: ObjectStore
) -> None:
    """The client uses its session, progress, a result in the object store, and a held call."""
    env = {CONNECTION: address, **bucket_documents(s3)}
    async with start_call_counter() as backend:
        tools = [lambda port: http_tool("keep", port, output={"artifact": "text", "inline": False})]
        held = rule("leads-agree", HELD, holdFor="1s")
        project = write_replica_project(tmp_path, backend, held, tools=tools, blobs=IN_A_BUCKET)
        backend.answer = lambda body: body * 5_000 if b"large" in body else body
        with placed_replicas(forks, project, tmp_path, env) as places:
            async with (
                round_robin_proxy([each.url for each in places]) as proxy,
                aiohttp.ClientSession() as session,
                httpx2.AsyncClient(headers={"authorization": f"Bearer {ANA.token}"}, timeout=30) as http,
                Client(streamable_http_client(f"{proxy.url}/desk/mcp", http_client=http), mode=mode) as client,
            ):
                names = {each.name for each in (await client.list_tools()).tools}
                answers = [await client.call_tool("plain", {"text": f"{number}"}) for number in range(4)]
                kept = await client.call_tool("keep", {"text": "large"})
                assert kept.meta is not None
                asked = {"callId": kept.meta["gateway/call"], "pattern": "large"}
                meta: Any = {"gateway/turn": kept.meta["gateway/turn"]}
                found = await client.call_tool("artifact_grep", asked, meta=meta)
                waits = await client.call_tool("pay", {"text": "x"})
                [approval] = waits.structured_content["approvals"]
                await grant(Caller(send_http(session, proxy.url), LIZ.token), approval["id"])
                paid = await client.call_tool("pay", {"text": "x"})

    assert {"plain", "keep", "pay"} <= names
    assert [each.is_error for each in (*answers, kept, found, paid)] == [False] * 7
    assert "large" in str(found.content)
    assert len(s3.paths(env["S3_PREFIX"])) == 2
    assert backend.paths.count("/pay") == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
async def test_gateway_that_is_killed_under_load_loses_and_repeats_nothing(
    forks: ForkServer, tmp_path: Path, address: str, round_: int
) -> None:
    """Every call runs at most once and has one record; calls whose end was not seen become unknown within seconds."""
    async with start_call_counter() as backend:
        project = write_replica_project(tmp_path, backend)
        with forked_replicas(forks, project, tmp_path / "data", address) as gateways:
            async with behind_a_proxy(gateways) as session:
                victim = random.choice(gateways)
                answered: list[str] = []
                sent = iter(range(100_000))
                is_over = asyncio.Event()

                async def client(gateway: GatewayFork) -> None:
                    ana = Caller(send_http(session, gateway.url), ANA.token)
                    while not is_over.is_set():
                        text = f"call-{next(sent)}"
                        try:
                            reply = await pay(ana, text)
                        except (aiohttp.ClientError, OSError):
                            return
                        assert reply.json["isError"] is False, reply.body
                        answered.append(text)

                clients = [asyncio.create_task(client(each)) for each in gateways for _ in range(4)]
                while len(answered) < 60:
                    await anyio.sleep(0.01)
                os.kill(victim.pid, signal.SIGKILL)
                with anyio.fail_after(20):
                    while query(address, LIVING) != [(2,)] or query(address, LEFT_BEHIND) != [(0,)]:
                        await anyio.sleep(0.1)
                is_over.set()
                await asyncio.gather(*clients)

    bodies = [body.decode() for _, _, body in backend.requests]
    rows = query(address, "SELECT args, status FROM calls")
    by_text = {args.split('"')[3]: status for args, status in rows}
    assert len(bodies) == len(set(bodies)), "a call ran twice"
    assert len(by_text) == len(rows)
    assert all(by_text[text] == "settled" for text in answered)
    assert set(by_text.values()) <= {"settled", "unknown"}


async def test_database_that_crashes_under_load_costs_no_record_and_no_call_twice(tmp_path: Path) -> None:
    """Calls that ran have one record with their outcome, answered calls are settled, and the decision log verifies."""
    with start_postgres() as cluster:
        address = cluster.address("postgres")
        migrate_postgres(address)
        async with replicas(tmp_path, address) as (gateways, backend):
            answered: list[str] = []
            sent = iter(range(100_000))
            is_over = asyncio.Event()

            async def client(gateway: GatewayUnderTest) -> None:
                ana = gateway.caller(ANA)
                while not is_over.is_set():
                    text = f"call-{next(sent)}"
                    reply = await pay(ana, text)
                    if reply.status == 200 and reply.json["isError"] is False:
                        answered.append(text)
                    else:
                        await anyio.sleep(0.01)

            clients = [asyncio.create_task(client(each)) for each in gateways for _ in range(4)]
            for _ in range(3 * ROUNDS):
                until = len(answered) + 30
                with anyio.fail_after(30):
                    while len(answered) < until:
                        await anyio.sleep(0.01)
                await asyncio.to_thread(cluster.stop)
                await anyio.sleep(random.uniform(0, 0.5))
                await asyncio.to_thread(cluster.start)
            is_over.set()
            await asyncio.gather(*clients)
            with anyio.fail_after(20):
                while query(address, "SELECT count(*) FROM calls WHERE status = 'started'") != [(0,)]:
                    await anyio.sleep(0.1)
        rows = query(address, "SELECT args, status FROM calls")
        with PostgresAuditReader(address) as log:
            report = verify(log, anchors=None, keys=[])

    ran = [TEXT.search(body.decode())[0] for _, _, body in backend.requests]  # type: ignore[index] # all have one
    by_text = {args.split('"')[3]: status for args, status in rows}
    assert len(ran) == len(set(ran)), "a call ran twice"
    assert all(by_text[text] == "settled" for text in answered)
    assert set(ran) <= by_text.keys(), "a call ran without a record"
    assert report.entries > len(answered)
    assert report.findings == ()
