"""Floods of refused calls with large arguments: the disk stays small, every refusal is logged, allowed calls go on."""

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest

from gateway.storage.refusal_store import MAX_REFUSALS
from tests.support.audit_log import assert_good, entries
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    approval_client,
    rule,
    start_gate_project,
    write,
)
from tests.support.gateways.projects import Caller, Person, Reply, environ_of, http_tool, send_http, start_call_counter
from tests.support.gateways.replicas import replicas

pytestmark = pytest.mark.anyio

LARGE = "x" * 300_000
EACH = 80
SMALL_DISK = 6 << 20
"""Bytes. Each test below sends ten times as much."""
LOG = 18 << 20
"""Bytes of SQLite's write-ahead log before it is checkpointed and reused."""


@asynccontextmanager
async def callers(gateway: GatewayFork, *people: Person) -> AsyncIterator[list[Caller]]:
    connector = aiohttp.TCPConnector(limit=12, force_close=True)  # spreads connections over the workers
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        yield [Caller(send_http(session, gateway.url), each.token) for each in people]


@contextmanager
def fork_gateway(forks: ForkServer, project: Path, data: Path, *options: str) -> Iterator[GatewayFork]:
    gateway = forks.start(project, data, env={**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(data)}, options=options)
    try:
        yield gateway
    finally:
        gateway.kill()


def disk(data: Path) -> int:
    return sum(each.stat().st_size for each in data.rglob("*") if each.is_file() and "-rates" not in each.name)


def count_refusals(found: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """Return the refusals by subject and reason, including those logged only as a count."""
    counts: Counter[tuple[str, str]] = Counter()
    for each in found:
        if each["event"] in ("call-decided", "refusals-counted"):
            number = each["counted"]["number"] if each["event"] == "refusals-counted" else 1
            counts[each["caller"]["subject"], each["decision"]["reason"]] += number
    return counts


async def flood(calls: list[Callable[[], Awaitable[Reply]]]) -> list[Reply]:
    return list(await asyncio.gather(*(each() for each in calls)))


async def test_disk_stays_small_and_every_refusal_is_logged(tmp_path: Path, forks: ForkServer) -> None:
    data = tmp_path / "data"
    limited = rule("once", {"type": "rate", "limit": 1, "per": "1h"}, tools=["slow"])
    async with start_call_counter() as backend:
        tools = [http_tool("slow", backend.port)]
        project = write(tmp_path / "p", approval_client(backend.port, tools=tools, rules=[limited]))
        with fork_gateway(forks, project, data) as gateway:
            async with callers(gateway, ANA, LIZ) as [ana, liz]:
                await ana.rest_call("desk", "slow", {"text": "x"})
                before = disk(data)
                answers = await flood(
                    [
                        *[lambda: liz.rest_call("desk", "plain", {"text": LARGE})] * EACH,
                        *[lambda: liz.modern_call("desk", "plain", {"text": LARGE})] * EACH,
                        *[lambda: ana.rest_call("desk", "plain", {"text": 7, "more": LARGE})] * EACH,
                        *[lambda: ana.modern_call("desk", "slow", {"text": LARGE})] * EACH,
                        *[lambda: ana.rest_call("desk", "nothing", {"text": LARGE})] * EACH,
                        *[lambda: ana.rest_call("desk", "plain", {"text": "fine"})] * 20,
                    ]
                )
                grown = disk(data) - before
                fine = [each for each in answers if each.status == 200 and each.json.get("isError") is False]
            gateway.stop()

    assert grown < SMALL_DISK + LOG
    assert (data / "gateway.db").stat().st_size < SMALL_DISK
    assert len(fine) == 20
    assert len(backend.paths) == 21
    assert count_refusals(entries(data / "gateway.db")) == {
        ("user:liz", "not-permitted"): 2 * EACH,
        ("user:ana", "arguments-invalid"): EACH,
        ("user:ana", "rate-exceeded"): EACH,
        ("user:ana", "unknown-tool"): EACH,
    }
    assert_good(data / "gateway.db")


async def test_keys_do_not_make_refusals_larger(tmp_path: Path, forks: ForkServer) -> None:
    data = tmp_path / "data"
    async with start_call_counter() as backend:
        with fork_gateway(forks, write(tmp_path / "p", approval_client(backend.port)), data) as gateway:
            async with callers(gateway, LIZ) as [liz]:
                before = disk(data)

                def keyed(number: int) -> Callable[[], Awaitable[Reply]]:
                    return lambda: liz.rest_call("desk", "plain", {"text": LARGE}, idempotency_key=f"k{number}")

                await flood([keyed(number) for number in range(3 * EACH)])
                grown = disk(data) - before
            gateway.stop()

    # The database reuses the space of refused calls but does not shrink: the file keeps its largest size.
    assert grown < 12 * len(LARGE) + SMALL_DISK + LOG
    assert count_refusals(entries(data / "gateway.db")) == {("user:liz", "not-permitted"): 3 * EACH}
    assert_good(data / "gateway.db")


async def test_workers_count_together_even_if_one_is_killed(tmp_path: Path, forks: ForkServer) -> None:
    data = tmp_path / "data"
    answered = before = 0
    sent = 6 * EACH
    async with start_call_counter() as backend:
        with fork_gateway(
            forks, write(tmp_path / "p", approval_client(backend.port)), data, "--workers", "2"
        ) as gateway:
            async with callers(gateway, LIZ) as [liz]:
                killed = False

                async def call() -> None:
                    nonlocal answered, before, killed
                    try:
                        reply = await liz.rest_call("desk", "plain", {"text": LARGE[:1000]})
                    except aiohttp.ClientError:  # its worker is gone
                        return
                    answered += reply.status < 500
                    if answered > EACH and not killed:
                        killed, before = True, answered
                        os.kill(workers_of(gateway.pid)[0], signal.SIGKILL)

                await asyncio.gather(*(call() for _ in range(sent)))
            gateway.stop()

    assert killed
    [number] = count_refusals(entries(data / "gateway.db")).values()
    # The killed worker may have counted some in memory: of those before, and of those on the way on 12 connections.
    assert answered - (before - MAX_REFUSALS + 12) <= number <= sent
    assert answered > sent // 2
    assert_good(data / "gateway.db")


def workers_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    return [int(each) for each in found.stdout.split()]


async def test_gateways_on_one_database_count_together(tmp_path: Path, new_database: Callable[[], str]) -> None:
    address = new_database()
    with psycopg.connect(address, autocommit=True) as connection:

        def asked(statement: str) -> Any:
            return connection.execute(statement).fetchall()

        size = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace > 16000"
        async with replicas(tmp_path, address) as (gateways, backend):
            [[before]] = asked(size)
            refused = [each.caller(LIZ) for each in gateways] * EACH
            allowed = [each.caller(ANA) for each in gateways] * 5
            answers = await asyncio.gather(
                *(each.rest_call("desk", "plain", {"text": LARGE}) for each in refused),
                *(each.rest_call("desk", "plain", {"text": "fine"}) for each in allowed),
            )
            [[after]] = asked(size)

        [[kept, counted]] = asked("SELECT sum(kept), sum(counted) FROM refusals")
        [[calls]] = asked("SELECT count(*) FROM calls WHERE decision = 'deny'")
        bodies = [json.loads(body) for [body] in asked("SELECT body FROM audit")]
    # A busy machine may be too slow for all of them: callers that get that answer need not be counted, all others are.
    answered = [each for each in answers[: len(refused)] if each.status < 500]
    assert len(answered) <= kept + counted <= len(refused)
    assert calls == kept
    assert count_refusals(bodies) == {("user:liz", "not-permitted"): kept + counted}
    assert (after or 0) - (before or 0) < SMALL_DISK
    fine = [each for each in answers[len(refused) :] if each.status < 500]
    assert [each.json["isError"] for each in fine] == [False] * len(fine)
    assert len(fine) <= len(backend.paths) <= len(allowed)


# Contents of a refused call


SECRETIVE = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "password": {"type": "string"}, "pin": {"type": "string"}},
}


async def test_record_of_a_refused_call_has_an_excerpt(tmp_path: Path) -> None:
    tools = [lambda port: http_tool("open", port, input={"schema": SECRETIVE})]
    never = rule("never", {"type": "rate", "limit": 1, "per": "1h"}, tools=["open"])
    given = {"text": "hello", "password": "hunter2", "pin": "4711"}
    async with start_gate_project(tmp_path, never, tools=tools) as (gateway, _):
        ana = gateway.caller(ANA)
        allowed = (await ana.rest_call("desk", "open", given)).json
        denied = (await ana.rest_call("desk", "open", given)).json
        whole = (await ana.rest("GET", f"/v1/calls/{allowed['callId']}")).json
        found = (await ana.rest("GET", f"/v1/calls/{denied['callId']}")).json
        [listed, _] = (await ana.rest("GET", "/v1/calls")).json["calls"]
        verified = (await ana.rest("GET", f"/v1/calls/{denied['callId']}/verify")).json

    assert whole["arguments"] == given
    assert "arguments" not in found
    assert found["checksum"] == whole["checksum"]
    excerpt = found["argumentsExcerpt"]
    assert excerpt["text"] == 'text="hello" password=[redacted] pin=[redacted]'
    assert excerpt["bytes"] == len(json.dumps(given, separators=(",", ":")))
    assert listed["argumentsExcerpt"] == excerpt
    assert (verified["computed"], verified["isIntact"]) == (None, None)


async def test_turn_with_a_refused_call_goes_on_after_a_restart(tmp_path: Path) -> None:
    never = rule("never", {"type": "rate", "limit": 1, "per": "1h"}, tools=["pay"])
    async with start_gate_project(tmp_path, never) as (gateway, _):
        ana = gateway.caller(ANA)
        turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
        for _ in range(2):
            await ana.rest_call("desk", "pay", {"text": "x"}, gateway_turn=turn)
            await ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "pay", "arguments": {"text": "x"}})
    async with start_gate_project(tmp_path, never) as (gateway, _):
        ana = gateway.caller(ANA)
        again = await ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "plain", "arguments": {"text": "x"}})
        listed = (await ana.rest("GET", f"/v1/turns/{turn}/calls")).json["calls"]

    assert again.status == 200, again.body
    shapes = [("argumentsExcerpt" in each, each["decision"]) for each in listed]
    assert shapes[0] == (False, "allow")
    assert (True, "deny") in shapes


async def test_call_that_people_are_asked_about_keeps_its_arguments(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, rule("leads-agree", HELD)) as (gateway, _):
        ana = gateway.caller(ANA)
        first = (await ana.rest_call("desk", "pay", {"text": "x"})).json
        again = (await ana.rest_call("desk", "pay", {"text": "x"})).json
        found = [(await ana.rest("GET", f"/v1/calls/{each['callId']}")).json for each in (first, again)]

    assert found[0]["arguments"] == {"text": "x"}
    assert found[1]["argumentsExcerpt"]["text"] == 'text="x"'


async def test_status_counts_refused_calls(tmp_path: Path) -> None:
    from gateway.app.status_report import build_status

    async with start_gate_project(tmp_path, max_refusals=2) as (gateway, _):
        liz = gateway.caller(LIZ)
        for _ in range(5):
            await liz.rest_call("desk", "plain", {"text": "x"})
        status = await build_status(gateway.running)

    [(reason, counts)] = status["refusals"].items()
    assert reason == "not-permitted"
    assert counts["recorded"] + counts["counted"] == 5
    assert counts["counted"] >= 1
