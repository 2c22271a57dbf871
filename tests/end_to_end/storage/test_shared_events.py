"""Events of a turn, followed in one process while its calls run in others: workers of a host, and replicas."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, LIZ, PEOPLE, approval_client, write
from tests.support.gateways.projects import Caller, environ_of, send_http, start_call_counter
from tests.support.gateways.replicas import forked_replicas, round_robin, write_replica_project

pytestmark = pytest.mark.anyio

CALLS = 12
PATIENCE = 30.0
"""Seconds for which a gateway may answer that it is busy."""


class EventReader:
    """Reads events, and stores them and the last event id."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.last: str | None = None
        self.events: list[tuple[str, Any]] = []

    @property
    def texts(self) -> list[str]:
        """The texts of the calls that have started."""
        return [data["args"]["text"] for name, data in self.events if name == "toolExecutionStart"]

    async def next(self) -> bool:
        """Read one event; return whether there was one."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(30):
            async for line in self._answer.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if not name and fields.get("event"):
                    self.last = fields.get("id", self.last)
                    self.events.append((fields["event"], json.loads(fields["data"])))
                    return True
                fields |= {name: value} if name else {}
        return False

    async def until_ended(self, calls: int) -> None:
        while sum(name == "dispatchEnd" for name, _ in self.events) < calls:
            assert await self.next(), (self.status, self.events)

    async def rest(self) -> None:
        while await self.next():
            pass


@asynccontextmanager
async def follow(url: str, turn: str, *, token: str = ANA.token, last: str | None = None) -> AsyncIterator[EventReader]:
    headers = {"authorization": f"Bearer {token}", **({"last-event-id": last} if last else {})}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        answer = await session.get(f"{url}/v1/turns/{turn}/events", headers=headers)
        async with asyncio.timeout(PATIENCE):
            while answer.status == 503:  # a busy machine: clients retry
                answer.close()
                await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
                answer = await session.get(f"{url}/v1/turns/{turn}/events", headers=headers)
        async with answer:
            yield EventReader(answer)


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        yield session


async def open_turn(caller: Caller) -> str:
    return str((await caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"])


async def call_each(caller: Caller, turn: str, texts: Sequence[str]) -> None:
    """Call once for each text, naming the turn in each possible way."""
    ways = cycle(["path", "handle", "mcp"])
    for text, way in zip(texts, ways, strict=False):
        async with asyncio.timeout(PATIENCE):
            while (reply := await make_call(caller, turn, text, way)).status == 503:  # likewise: it did not run
                await asyncio.sleep(1)
        assert reply.status == 200, reply.body


async def make_call(caller: Caller, turn: str, text: str, way: str) -> Any:
    if way == "path":
        return await caller.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "pay", "arguments": {"text": text}})
    if way == "handle":
        body = {"arguments": {"text": text}, "turn": turn}
        return await caller.rest("POST", "/v1/catalogues/desk/tools/pay/call", body)
    return await caller.modern_call("desk", "pay", {"text": text}, **{"gateway/turn": turn})


def texts(begin: int, end: int) -> list[str]:
    return [f"call-{number}" for number in range(begin, end)]


async def test_events_of_every_worker_reach_a_follower_in_one(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend, open_session() as session:
        project = write(tmp_path / "p", approval_client(backend.port))
        env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        gateway = await asyncio.to_thread(forks.start, project, tmp_path / "data", env=env, options=("--workers", "3"))
        try:
            ana = Caller(send_http(session, gateway.url), ANA.token)
            turn = await open_turn(ana)
            async with follow(gateway.url, turn) as first:
                await call_each(ana, turn, texts(0, CALLS))
                await first.until_ended(CALLS)
            await call_each(ana, turn, texts(CALLS, 2 * CALLS))
            async with follow(gateway.url, turn, last=first.last) as second:
                await second.until_ended(CALLS)
                await ana.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})
                await second.rest()
        finally:
            await asyncio.to_thread(gateway.kill)

    assert sorted(first.texts) == sorted(texts(0, CALLS))
    assert sorted(second.texts) == sorted(texts(CALLS, 2 * CALLS))
    assert "dropped" not in [name for name, _ in second.events]
    assert second.events[-1][0] == "turnEnd"


@pytest.mark.parametrize("workers", [1, 2])
async def test_events_of_every_replica_reach_a_follower_in_one(
    forks: ForkServer, tmp_path: Path, new_database: Callable[[], str], workers: int
) -> None:
    async with start_call_counter() as backend, open_session() as session:
        project, more = write_replica_project(tmp_path, backend), {"GATEWAY_WORKERS": str(workers)}
        with forked_replicas(forks, project, tmp_path / "data", new_database(), env=more) as gateways:
            ana = Caller(round_robin(session, gateways), ANA.token)
            turn = await open_turn(ana)
            one, other, last = gateways
            async with follow(one.url, turn) as first:
                await call_each(ana, turn, texts(0, CALLS))
                await first.until_ended(CALLS)
            await call_each(ana, turn, texts(CALLS, 2 * CALLS))
            async with follow(other.url, turn, last=first.last) as second:
                await second.until_ended(CALLS)
                last.kill()
                rest = Caller(round_robin(session, [one, other]), ANA.token)
                await call_each(rest, turn, texts(2 * CALLS, 3 * CALLS))
                await second.until_ended(2 * CALLS)
                async with follow(one.url, turn, token=LIZ.token) as stranger:
                    pass
                await Caller(send_http(session, one.url), ANA.token).rest(
                    "POST", f"/v1/turns/{turn}/end", {"as": "ack"}
                )
                await second.rest()
            async with follow(other.url, turn) as ended:
                pass
            async with follow(other.url, await open_turn(rest), last=first.last) as elsewhere:
                await elsewhere.next()

    assert sorted(first.texts) == sorted(texts(0, CALLS))
    assert sorted(second.texts) == sorted(texts(CALLS, 3 * CALLS))
    assert "dropped" not in [name for name, _ in second.events]
    assert second.events[-1][0] == "turnEnd"
    assert (stranger.status, ended.status) == (404, 204)
    assert elsewhere.events == [("dropped", {"missed": None})]


async def test_turn_is_the_same_in_every_replica_and_over_in_all_when_it_is_in_one(
    forks: ForkServer, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    async with start_call_counter() as backend, open_session() as session:
        project = write_replica_project(tmp_path, backend)
        with forked_replicas(forks, project, tmp_path / "data", new_database(), count=2) as [one, other]:
            here, there = (Caller(send_http(session, each.url), ANA.token) for each in (one, other))
            turn = await open_turn(here)
            await call_each(here, turn, ["first"])
            await call_each(there, turn, texts(0, 3))
            listed = await here.rest("GET", f"/v1/turns/{turn}/tools")
            await here.rest("POST", f"/v1/turns/{turn}/end", {"as": "nack"})
            by_path = await there.rest(
                "POST", f"/v1/turns/{turn}/calls", {"tool": "pay", "arguments": {"text": "late"}}
            )
            body = {"arguments": {"text": "late"}, "turn": turn}
            by_handle = await there.rest("POST", "/v1/catalogues/desk/tools/pay/call", body)
            reply = await there.rest("GET", f"/v1/turns/{turn}")

    [ids] = [
        tool["inputSchema"]["properties"]["callId"]["enum"]
        for tool in listed.json["tools"]
        if tool["name"] == "artifact_grep"
    ]
    assert len(ids) == 4
    assert len(backend.requests) == 4
    assert by_path.status == 409
    assert by_handle.status == 404
    assert reply.json["ending"] == "nack"
