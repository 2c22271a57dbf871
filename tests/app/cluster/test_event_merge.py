"""Events of one turn from several processes are merged into one stream, which starts before the first event is sent."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from gateway.app.cluster.event_merge import EventSource, merge_events
from gateway.app.cluster.proxy import create_forwarding_session

pytestmark = pytest.mark.anyio

PATH = "/v1/turns/t/events"
SLOWLY = 0.3
"""Seconds until the second of the other processes answers."""


def event(log: str, name: str) -> bytes:
    return b"id: %s-1\nevent: %s\ndata: {}\n\n" % (log.encode(), name.encode())


class Other:
    """Another process: a real server with one event, which can delay its confirmation that it follows the turn."""

    def __init__(self, log: str, *, wait: float = 0.0) -> None:
        self.log, self.wait = log, wait

    async def handle(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.wait)
        headers = {"content-type": "text/event-stream", "gateway-event-logs": self.log}
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        await answer.write(event(self.log, "call"))
        await asyncio.sleep(5)
        return answer


@pytest.fixture
async def others() -> AsyncIterator[Sequence[EventSource]]:
    runners, sources = [], []
    carrier = create_forwarding_session(aiohttp.TCPConnector())
    for other in (Other("a" * 8), Other("b" * 8, wait=SLOWLY)):
        app = web.Application()
        app.router.add_get(PATH, other.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        sources.append(EventSource(other.log, carrier, URL(f"http://127.0.0.1:{runner.addresses[0][1]}")))
    yield sources
    await carrier.close()
    for runner in runners:
        await runner.cleanup()


async def read(others: Sequence[EventSource], events: int, *headers: tuple[bytes, bytes]) -> list[Any]:
    """Read the stream until that many events have arrived."""
    received: list[Any] = []
    has_all = asyncio.Event()

    async def ours(_scope: Any, _receive: Any, send: Any) -> None:
        logs = [(b"content-type", b"text/event-stream"), (b"gateway-event-logs", b"c" * 8)]
        await send({"type": "http.response.start", "status": 200, "headers": logs})
        await send({"type": "http.response.body", "body": event("c" * 8, "call"), "more_body": True})
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        received.append(message)
        if sum(b"event: call" in each.get("body", b"") for each in received) == events:
            has_all.set()

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def all_others() -> Sequence[EventSource]:
        return others

    scope = {"raw_path": PATH.encode(), "query_string": b"", "headers": list(headers)}
    reading = asyncio.ensure_future(merge_events(ours, all_others, scope, receive, send))
    try:
        async with asyncio.timeout(10):
            await asyncio.wait([reading, asyncio.ensure_future(has_all.wait())], return_when="FIRST_COMPLETED")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    return received


async def test_stream_begins_before_what_others_sent_while_it_was_being_joined(others: Sequence[EventSource]) -> None:
    received = await read(others, 3)

    assert [each["type"] for each in received] == ["http.response.start", *["http.response.body"] * 3]
    assert dict(received[0]["headers"])[b"gateway-event-logs"] == b"aaaaaaaa,bbbbbbbb,cccccccc"


async def test_reader_of_a_lost_log_is_notified_before_any_event(others: Sequence[EventSource]) -> None:
    received = await read(others, 3, (b"last-event-id", b"dddddddd-7"))

    assert received[1]["body"] == b'event: dropped\ndata: {"missed":null}\n\n'
    assert b"dddddddd" not in b"".join(each["body"] for each in received[1:])
