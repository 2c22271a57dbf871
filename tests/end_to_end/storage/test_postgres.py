"""Two gateways on one PostgreSQL database share all decisions and counters."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from gateway.app.secrets import SecretMissing
from gateway.errors import ForeignStore
from gateway.model.turns.events import now
from gateway.policy.stop_list import Stop, StopTarget
from gateway.storage.sql.postgres.connection import PostgresConnection
from gateway.storage.sql.postgres.database_setup import migrate_postgres
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, PEOPLE, code_of, grant, pay, pending_id, rule
from tests.support.gateways.projects import Caller, Reply, http_tool, start_call_counter, start_gateway
from tests.support.gateways.replicas import CONNECTION, replicas, write_replica_project
from tests.support.servers.postgres_server import PostgresServer, start_postgres

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(new_database: Callable[[], str]) -> str:
    return new_database()


async def test_held_call_of_one_gateway_is_granted_at_the_other(tmp_path: Path, address: str) -> None:
    waits = rule("leads-agree", HELD, holdFor="30s")
    async with replicas(tmp_path, address, waits) as ([one, other], backend):
        waiting = asyncio.create_task(pay(one.caller(ANA)))
        found: list[Any] = []
        with anyio.fail_after(20):
            while not found:
                found = (await other.caller(LIZ).rest("GET", "/v1/approvals")).json["approvals"]
            decided = await grant(other.caller(LIZ), found[0]["id"])
            answer = await waiting

    assert decided.json["state"] == "granted"
    assert answer.json["isError"] is False
    assert backend.paths == ["/pay"]


async def test_grant_is_used_once_whichever_gateway_is_asked(tmp_path: Path, address: str) -> None:
    async with replicas(tmp_path, address, rule("leads-agree", HELD)) as ([one, other], backend):
        await grant(one.caller(LIZ), pending_id(await pay(other.caller(ANA))))

        answers = await asyncio.gather(*(pay(each.caller(ANA)) for each in (one, other) * 10))

    assert sum(each.status == 200 for each in answers) == 1
    assert backend.paths == ["/pay"]


async def test_key_stands_for_one_call_everywhere(tmp_path: Path, address: str) -> None:
    async with replicas(tmp_path, address) as ([one, other], backend):
        first = await pay(one.caller(ANA), idempotency_key="k")
        again = await pay(other.caller(ANA), idempotency_key="k")
        another = await pay(other.caller(ANA), "other", idempotency_key="k")

    assert first.json["isError"] is False
    assert again.json["replayed"] is True
    assert again.json["result"] == first.json["result"]
    assert another.status == 409
    assert backend.paths == ["/pay"]


@pytest.mark.parametrize(
    "check",
    [
        pytest.param({"type": "rate", "limit": 7, "per": "1h"}, id="rate"),
        pytest.param({"type": "quota", "limit": 7, "per": "1d"}, id="quota"),
    ],
)
async def test_limit_is_one_for_all(tmp_path: Path, address: str, check: Any) -> None:
    limited = rule("limited", check, tools=["plain"])
    async with replicas(tmp_path, address, limited) as (gateways, backend):
        callers = [each.caller(ANA) for each in gateways] * 10
        answers = await asyncio.gather(*map(call_until_answered, callers))

    ran = [each for each in answers if each.status != 429]
    assert len(ran) == len(backend.paths) == 7
    assert all(each.json.get("isError") is False or each.json["code"] == "E_OUTCOME_NOT_RECORDED" for each in ran)
    assert "lets 7 calls through" in code_of(next(each for each in answers if each.status == 429))


async def call_until_answered(caller: Caller) -> Reply:
    """Repeat a call that the store was too slow for, as it may be on a busy machine: such a call was not made."""
    with anyio.fail_after(60):
        while (reply := await caller.rest_call("desk", "plain", {"text": "x"})).status == 503:
            assert reply.json["code"] in ("E_STORE_UNAVAILABLE", "E_CREDENTIAL_UNKNOWN"), reply.body
            await anyio.sleep(0.05)
    return reply


async def test_handle_is_taken_up_by_the_other(tmp_path: Path, address: str) -> None:
    untrusted = rule("no-egress", HELD, match={"flags": ["egress"]}, when='turn.saw("untrusted-output")')
    tools = [
        lambda port: http_tool("read", port, flags=["untrusted-output"]),
        lambda port: http_tool("keep", port, output={"artifact": "text", "inline": False}),
        lambda port: http_tool("send", port, flags=["egress"]),
    ]
    async with replicas(tmp_path, address, untrusted, tools=tools) as ([one, other], backend):
        here, there = one.caller(ANA), other.caller(ANA)
        read = (await here.modern_call("desk", "read", {"text": "x"})).json["result"]["_meta"]
        sent = await there.modern_call("desk", "send", {"text": "x"}, **{"gateway/turn": read["gateway/turn"]})
        large = "a line\n" * 40_000
        kept = (await here.modern_call("desk", "keep", {"text": large})).json["result"]["_meta"]
        uri = f"artifact://calls/{kept['gateway/turn']}/{kept['gateway/call']}"
        found = await there.modern("desk", "resources/read", {"uri": uri})

    assert "gateway/pending" in sent.json["result"]["_meta"]
    assert "/send" not in backend.paths
    assert "a line" in found.json["result"]["contents"][0]["text"]


async def test_kill_switch_of_one_stops_the_next_call_of_all(tmp_path: Path, address: str) -> None:
    async with replicas(tmp_path, address) as ([one, other], backend):
        before = await pay(other.caller(ANA))
        stop = Stop(StopTarget.parse("tool:pay"), "pays too much", "ops", now())
        await one.running.controlled.stops.add(stop)
        after = [await pay(each.caller(ANA)) for each in (one, other)]

    assert before.json["isError"] is False
    assert ["quarantined" in code_of(each) for each in after] == [True, True]
    assert backend.paths == ["/pay"]


async def test_calls_are_listed_wherever_they_were_made(tmp_path: Path, address: str) -> None:
    async with replicas(tmp_path, address) as ([one, other], _):
        for each in (one, other):
            await pay(each.caller(ANA))
        listed = (await one.caller(ANA).rest("GET", "/v1/calls")).json["calls"]
        status = await one.running.controlled.engine.sizes()

    assert len(listed) == 2
    assert status["databaseBytes"] > 1_000_000


async def test_database_that_is_not_set_up_stops_the_start(tmp_path: Path, postgres: PostgresServer) -> None:
    async with start_call_counter() as backend:
        project = write_replica_project(tmp_path, backend)
        environ = {CONNECTION: postgres.database()}
        with pytest.raises(ForeignStore, match="is not set up"):
            async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=environ):
                pass


async def test_database_of_a_newer_program_stops_the_start(tmp_path: Path, address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE schema_version SET version_num = '9999'")
    async with start_call_counter() as backend:
        project = write_replica_project(tmp_path, backend)
        with pytest.raises(ForeignStore, match="version 9999, which is newer than this program") as refused:
            async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ={CONNECTION: address}):
                pass

    assert "gateway storage migrate --to" in str(refused.value.help)


async def test_start_waits_for_others_who_have_the_database(
    tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = PostgresConnection(address, patience=None)
    other.execute("SET idle_in_transaction_session_timeout = 0")
    other.begin()
    other.execute("LOCK TABLE audit IN SHARE MODE")

    async def let_go() -> None:
        while "the start waits for the store: another process holds the database" not in caplog.text:
            await anyio.sleep(0.01)
        other.close()

    async with start_call_counter() as backend, asyncio.timeout(30):
        project = write_replica_project(tmp_path, backend)
        letting = asyncio.create_task(let_go())
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ={CONNECTION: address}) as gateway:
            answer = await pay(gateway.caller(ANA))
        await letting

    assert answer.json["isError"] is False


async def test_connection_that_is_not_given_stops_the_start(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = write_replica_project(tmp_path, backend)
        with pytest.raises(SecretMissing, match=CONNECTION):
            async with start_gateway(project, tmp_path / "data", people=PEOPLE):
                pass


# Faults


@pytest.fixture(scope="module")
def stoppable() -> Iterator[PostgresServer]:
    with start_postgres() as cluster:
        yield cluster


async def calls_of(caller: Caller) -> list[Any]:
    found: list[Any] = (await caller.rest("GET", "/v1/calls")).json["calls"]
    return found


async def test_calls_are_refused_while_the_database_is_gone(tmp_path: Path, stoppable: PostgresServer) -> None:
    address = stoppable.database()
    migrate_postgres(address)
    async with replicas(tmp_path, address, count=1) as ([gateway], backend):
        ana = gateway.caller(ANA)
        assert (await pay(ana, "before")).json["isError"] is False
        backend.goes_on = asyncio.Event()
        running = asyncio.create_task(pay(ana, "running"))
        with anyio.fail_after(10):
            while not any(b"running" in body for _, _, body in backend.requests):
                await anyio.sleep(0.01)
        stoppable.stop()
        backend.goes_on.set()
        reply = await running

        with anyio.fail_after(3):
            refused = await pay(ana, "during")
        with anyio.fail_after(5):
            while (unready := await ana.rest("GET", "/readyz")).status == 200:
                await anyio.sleep(0.05)
        alive = await ana.rest("GET", "/livez")

        stoppable.start()
        with anyio.fail_after(5):
            while (ready := await ana.rest("GET", "/readyz")).status != 200:
                await anyio.sleep(0.05)
        after = await pay(ana, "after")
        with anyio.fail_after(10):
            while len(listed := await calls_of(ana)) < 3:  # a record is visible when its call is over
                await anyio.sleep(0.1)

    assert (reply.status, reply.json["notRecorded"]["code"]) == (200, "E_OUTCOME_NOT_RECORDED")
    assert sorted(each["status"] for each in listed) == ["settled"] * 3
    assert refused.status == 503
    assert "reached" in unready.json["reasons"][0] or "stopped" in unready.json["reasons"][0]
    assert (alive.status, ready.status) == (200, 200)
    assert after.json["isError"] is False
    assert [body for _, _, body in backend.requests if b"during" in body] == []
