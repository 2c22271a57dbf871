"""Event streams of callers who lost access: every kind of stream ends within seconds, in every worker."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.end_to_end.gates.test_workers import fork_gateway, run_command
from tests.end_to_end.security.test_tokens import now_claims, written
from tests.identity.token_samples import signed
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.projects import (
    LEGACY,
    MODERN,
    Caller,
    environ_of,
    send_http,
    start_call_counter,
    start_gateway,
)

pytestmark = pytest.mark.anyio

ENDS_WITHIN = 60.0
"""Seconds. One second is expected; busy machines are slow."""
META = "io.modelcontextprotocol/"

Stop = Callable[[], Awaitable[object]]


class Streams:
    """Open streams of one caller, each on its own connection."""

    def __init__(self, url: str, session: aiohttp.ClientSession, token: str) -> None:
        self._url = url
        self._session = session
        self._headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
        self.caller = Caller(send_http(session, url), token)
        self.open: list[aiohttp.ClientResponse] = []

    async def events(self) -> str:
        """Open the event stream of a turn over REST and return the turn."""
        turn = str((await self.caller.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"])
        await self._add(self._session.get(f"{self._url}/v1/turns/{turn}/events", headers=self._headers))
        return turn

    async def session(self) -> None:
        """Open the stream of server messages of an MCP session."""
        id = await self.caller.begin_legacy("desk")
        headers = {**self._headers, "mcp-session-id": id, "mcp-protocol-version": LEGACY}
        await self._add(self._session.get(f"{self._url}/desk/mcp", headers=headers))

    async def subscription(self) -> None:
        meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
        params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
        await self._post("subscriptions/listen", params)

    async def ended(self) -> list[bytes]:
        """Wait for the end of all streams and return the rest of each."""
        async with asyncio.timeout(ENDS_WITHIN):
            return list(await asyncio.gather(*(each.read() for each in self.open)))

    def are_open(self) -> bool:
        return not any(each.content.is_eof() for each in self.open)

    async def _post(self, method: str, params: dict[str, Any]) -> None:
        headers = {**self._headers, "mcp-protocol-version": MODERN, "mcp-method": method}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        await self._add(self._session.post(f"{self._url}/desk/mcp", json=message, headers=headers))

    async def _add(self, asking: Any) -> None:
        answer = await asking
        assert (answer.status, answer.content_type) == (200, "text/event-stream"), await answer.text()
        self.open.append(answer)


@asynccontextmanager
async def streams_of(url: str, token: str) -> AsyncIterator[Streams]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # spreads connections over the workers
    async with aiohttp.ClientSession(connector=connector) as session:
        streams = Streams(url, session, token)
        try:
            yield streams
        finally:
            for each in streams.open:
                each.close()


async def test_all_kinds_of_streams_end_with_their_token_in_every_worker(forks: ForkServer, tmp_path: Path) -> None:
    project, data = write(tmp_path / "p", approval_client(9)), tmp_path / "data"
    with fork_gateway(forks, project, data, workers=2) as gateway:
        async with (
            streams_of(gateway.url, ANA.token) as streams,
            streams_of(gateway.url, PEOPLE[1].token) as others,
        ):
            await others.subscription()
            opening = [kind() for kind in (streams.events, streams.session, streams.subscription) for _ in range(3)]
            await asyncio.gather(*opening)
            await asyncio.sleep(1.5)
            assert streams.are_open()
            digest = sha256(ANA.token.encode()).hexdigest()
            database = ("--database", str(data / "gateway.db"))
            await run_command("token", "revoke", digest, "--reason", "lost", *database, env={})
            endings = await streams.ended()
            assert others.are_open()

    assert len(endings) == 9


async def _quarantine(gateway: GatewayFork, data: Path, project: Path) -> None:
    database = ("--database", str(data / "gateway.db"))
    await run_command("quarantine", "add", "principal:user:ana", "--reason", "odd", *database, env={})


async def _remove(gateway: GatewayFork, data: Path, project: Path) -> None:
    write(project, approval_client(9, people=PEOPLE[1:]))
    gateway.signal(signal.SIGHUP)


@pytest.mark.parametrize("stop", [_quarantine, _remove], ids=["quarantine", "identity removed by a reload"])
async def test_streams_end_when_their_principal_is_stopped(stop: Any, forks: ForkServer, tmp_path: Path) -> None:
    project, data = write(tmp_path / "p", approval_client(9)), tmp_path / "data"
    with fork_gateway(forks, project, data) as gateway:
        async with streams_of(gateway.url, ANA.token) as streams, streams_of(gateway.url, PEOPLE[1].token) as others:
            await asyncio.gather(streams.events(), streams.session(), streams.subscription(), others.session())
            await stop(gateway, data, project)
            endings = await streams.ended()
            assert others.are_open()

    assert len(endings) == 3


async def test_stream_ends_when_its_token_expires(forks: ForkServer, tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project, data = written(tmp_path / "p", backend.port), tmp_path / "data"
        env = {**environ_of([]), "TOKEN_OF_BOT": "0" * 64, "GATEWAY_DATA_DIR": str(data)}
        gateway = await asyncio.to_thread(forks.start, project, data, env=env)
        ends = int(time.time()) - 10  # clocks may differ by half a minute
        token = signed(now_claims(iat=ends - 300, exp=ends))
        async with streams_of(gateway.url, token) as streams:
            await asyncio.gather(streams.events(), streams.session(), streams.subscription())
            endings = await streams.ended()
        gateway.kill()

    assert len(endings) == 3


async def test_no_event_follows_a_revocation(tmp_path: Path) -> None:
    """Later events of the turn are not sent, although the stream has not been checked yet."""
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            turn = (await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"]
            reading = asyncio.ensure_future(ana.rest("GET", f"/v1/turns/{turn}/events"))
            await ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "plain", "arguments": {"text": "before"}})
            calling = asyncio.ensure_future(
                ana.rest("POST", f"/v1/turns/{turn}/calls", {"tool": "plain", "arguments": {"text": "after"}})
            )
            backend.goes_on = asyncio.Event()
            async with asyncio.timeout(ENDS_WITHIN):
                while len(backend.requests) < 2:
                    await asyncio.sleep(0)
            gateway.running.identities.revoke(subject="user:ana")
            backend.goes_on.set()
            await calling
            async with asyncio.timeout(ENDS_WITHIN):
                heard = await reading

    assert heard.body.count(b'"isComplete":true') == 1, heard.body


@pytest.mark.parametrize("wire", ["modern", "legacy"])
async def test_answer_that_became_a_stream_ends_without_its_result(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.mcp.responses.IDLE_SECONDS", 0.05)  # until a slow answer becomes a stream
    async with start_call_counter() as backend:
        backend.goes_on = asyncio.Event()
        project = write(tmp_path / "p", approval_client(backend.port))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            params = {"name": "plain", "arguments": {"text": "x"}}
            if wire == "modern":
                asking = asyncio.ensure_future(ana.modern_call("desk", "plain", {"text": "x"}))
            else:
                session = await ana.begin_legacy("desk")
                asking = asyncio.ensure_future(ana.legacy("desk", "tools/call", params, session=session))
            async with asyncio.timeout(ENDS_WITHIN):
                while not backend.requests:
                    await asyncio.sleep(0)
            await asyncio.sleep(0.5)
            gateway.running.identities.revoke(subject="user:ana")
            await asyncio.sleep(2)
            backend.goes_on.set()
            async with asyncio.timeout(ENDS_WITHIN):
                heard = await asking

    assert heard.header("content-type") == "text/event-stream"
    assert b'"result"' not in heard.body
