"""Services that hang, drip, lie or disconnect: the call ends in time with an error text and releases everything."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.projects import (
    Caller,
    GatewayUnderTest,
    Person,
    base_documents,
    catalogue,
    http_tool,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))
DEADLINE = 1.0
TOLERANCE = 0.25
CALLS = 4
"""The concurrency limit of the tool: the first calls must release their slots for the next ones."""

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
LATE = (f"no answer within {DEADLINE:g}s", f"no result within {DEADLINE:g} s")
"""Messages of the stage and of the backend; either may come first."""
NOT_HTTP = "the service answered something that is not HTTP"
ENDED_EARLY = "the answer ended early"
CLOSED = "the service closed the connection"


# --- services ---


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def drip(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: bytes, byte: bytes, *, every: float = 1.0
) -> None:
    """Send one byte a second until the client disconnects."""
    writer.write(start)
    gone = asyncio.create_task(reader.read())
    while not gone.done():
        writer.write(byte)
        await asyncio.wait({gone}, timeout=every)
    await gone


async def drip_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await drip(reader, writer, HEAD + b"content-length: 1000000\r\n\r\n", b"x")


async def drip_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await drip(reader, writer, HEAD + b"x-slow: ", b"x")


async def drip_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await drip(reader, writer, HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n")


async def drip_error(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await drip(reader, writer, b"HTTP/1.1 500 No\r\ncontent-length: 1000000\r\n\r\n", b"x")


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: bytes, piece: bytes) -> None:
    """Send as much as the client reads, until it disconnects."""
    writer.write(start)
    with suppress(ConnectionError):
        while True:
            writer.write(piece)
            await writer.drain()


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await flood(reader, writer, HEAD, b"x-more: and more\r\n" * 64)


async def one_endless_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await flood(reader, writer, HEAD + b"x-more: ", b"x" * 1024)


async def endless_interim_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await drip(reader, writer, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 8, every=0.01)


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01\x00 this is no HTTP \x00\xff\r\n\r\n")


async def garbage_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nnothing\r\n")


async def garbage_compression(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"content-encoding: gzip\r\ncontent-length: 7\r\n\r\nno gzip")


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close at once."""


async def reset_in_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"content-length: 100\r\n\r\nhalf of")
    await writer.drain()
    writer.transport.abort()


async def too_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"content-length: 100\r\n\r\nshort")


async def too_few_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nshort\r\n")


async def two_lengths(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"content-length: 2\r\ncontent-length: 5\r\n\r\nok")


async def negative_length(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"content-length: -5\r\n\r\nok")


async def redirect_to_itself(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 307 Again\r\nlocation: /spoilt\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")


async def redirect_elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 302 There\r\nlocation: http://169.254.169.254/latest\r\ncontent-length: 0\r\n\r\n")


EXPECTED: dict[Behaviour, tuple[str, ...]] = {
    hang: LATE,
    drip_body: LATE,
    drip_head: LATE,
    drip_chunks: LATE,
    drip_error: (*LATE, "the service answered 500 Internal Server Error"),
    endless_headers: (NOT_HTTP,),
    one_endless_header: (NOT_HTTP,),
    endless_interim_answers: LATE,
    garbage: (NOT_HTTP,),
    garbage_chunks: (ENDED_EARLY, NOT_HTTP),
    garbage_compression: ("the answer does not match its content encoding",),
    close_at_once: (CLOSED,),
    reset_in_body: (ENDED_EARLY, CLOSED),
    too_little: (ENDED_EARLY,),
    too_few_chunks: (ENDED_EARLY,),
    two_lengths: (NOT_HTTP,),
    negative_length: (NOT_HTTP,),
    redirect_to_itself: ("the service redirects too often",),
    redirect_elsewhere: ("the service redirects to another host, which is not followed",),
}
"""The error text for the model; where there are two, it depends on what arrives first."""


@dataclass
class Hostile:
    behave: Behaviour
    port: int = 0
    asked: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        self.open.add(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await self.behave(reader, writer)
            with suppress(ConnectionError):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open.discard(writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def hostile(behave: Behaviour) -> AsyncIterator[Hostile]:
    service = Hostile(behave)
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()
        await server.wait_closed()


# --- the gateway ---


@asynccontextmanager
async def desk(folder: Path, hostile_port: int, sound_port: int) -> AsyncIterator[tuple[GatewayUnderTest, Caller]]:
    limits = {"timeout": f"{DEADLINE:g}s", "concurrent": CALLS}
    documents = [
        *base_documents(["tokens"]),
        tokens_of([ANA]),
        http_tool("spoilt", hostile_port, tier="community", limits=limits),
        http_tool("sound", sound_port),
        catalogue("desk", ["role:staff"], ["*"]),
    ]
    policy = "p, role:staff, *, tool:*, discover|invoke|read, community, allow\n"
    project = write_project(folder / "p", documents, policy=policy)
    async with start_gateway(project, folder / "data", people=[ANA]) as gateway:
        yield gateway, gateway.caller(ANA)


async def check_call(caller: Caller, expected: tuple[str, ...]) -> float:
    """Call the hostile tool, check answer and record, and return the recorded seconds."""
    called = (await caller.rest_call("desk", "spoilt", {"text": "x"})).json
    record = (await caller.rest("GET", f"/v1/calls/{called['callId']}?turn={called['turn']}")).json

    text = called["result"]["text"]
    assert text.startswith(tuple(f"the tool failed while running: {each}" for each in expected)), text
    assert "Traceback" not in text
    assert called["rendered"].startswith("<untrusted_content_")
    assert text in called["rendered"]
    assert (called["isError"], called["trusted"]) == (True, False)
    assert (record["status"], record["isError"], record["decision"]) == ("settled", True, "allow")
    assert record["result"] == {"kind": "text", "text": text}
    began, ended = (datetime.fromisoformat(record[each]) for each in ("startedAt", "completedAt"))
    return (ended - began).total_seconds()


async def check_mcp_call(caller: Caller, expected: tuple[str, ...]) -> None:
    result = (await caller.modern_call("desk", "spoilt", {"text": "x"})).json["result"]

    assert result["isError"] is True
    assert "structuredContent" not in result
    [block] = result["content"]
    assert any(f"\nthe tool failed while running: {each}" in block["text"] for each in expected), block["text"]
    assert block["text"].startswith("<untrusted_content_")
    assert block["_meta"] == {"tier": "community", "trusted": False, "hazard": "extractable-instructions"}


async def call_repeatedly(caller: Caller, over: asyncio.Event) -> int:
    """Call another tool, up to fifty times a second, while the hostile calls run; return how often."""
    done = 0
    while not over.is_set() or not done:
        answer = (await caller.rest_call("desk", "sound", {"text": "x"})).json
        assert answer["isError"] is False
        done += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), 0.02)
    return done


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


def open_files() -> set[str]:
    """Return the open files of this process, without those of an event loop."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(f"{each} {os.readlink(f'/proc/self/fd/{each}')}")
    return found


@pytest.mark.parametrize("behave", EXPECTED, ids=lambda each: each.__name__)
async def test_hostile_service_ends_in_a_word_in_time_and_leaves_nothing(behave: Behaviour, tmp_path: Path) -> None:
    expected = EXPECTED[behave]
    tasks, files = asyncio.all_tasks(), open_files()
    async with (
        hostile(behave) as service,
        start_call_counter() as sound,
        desk(tmp_path, service.port, sound.port) as (gateway, caller),
    ):
        over = asyncio.Event()
        others = asyncio.create_task(call_repeatedly(caller, over))
        took: list[float] = []
        for _ in range(2):
            took += await asyncio.gather(*(check_call(caller, expected) for _ in range(CALLS)))
        await check_mcp_call(caller, expected)
        over.set()

        assert await others > 0
        assert service.asked >= 2 * CALLS + 1
        assert min(took) <= DEADLINE + TOLERANCE, took
        await wait_until(lambda: not service.open)
        assert len(gateway.running.service.running) == 0
        assert [path for path in (tmp_path / "data").rglob("incoming/*/*") if path.is_file()] == []

    gc.collect()
    await wait_until(lambda: asyncio.all_tasks() == tasks)
    await wait_until(lambda: open_files() <= files)


async def test_service_that_gets_well_is_called_again(tmp_path: Path) -> None:
    """Earlier failures hold no slot, connection or circuit of the tool."""

    async def well(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"content-length: 2\r\nconnection: close\r\n\r\nok")

    async with (
        hostile(hang) as service,
        start_call_counter() as sound,
        desk(tmp_path, service.port, sound.port) as (_, caller),
    ):
        await asyncio.gather(*(check_call(caller, EXPECTED[hang]) for _ in range(CALLS)))
        service.behave = well
        answers: list[Any] = [(await caller.rest_call("desk", "spoilt", {"text": "x"})).json for _ in range(2 * CALLS)]

    assert [(each["isError"], each["result"]["text"]) for each in answers] == [(False, "ok")] * (2 * CALLS)
