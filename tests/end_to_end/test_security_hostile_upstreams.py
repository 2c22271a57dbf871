"""Services that hang, drip, lie and break off: the call ends in time with a word for it, and nothing stays behind."""

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
from secured import (
    Caller,
    Person,
    Started,
    catalogue,
    counting,
    frame,
    http_tool,
    started,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))
DEADLINE = 1.0
TOLERANCE = 0.25
CALLS = 4
"""As many as the tool may have at once: what the first ones hold must be free for the next ones."""

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
LATE = (f"no answer within {DEADLINE:g}s", f"no result within {DEADLINE:g} s")
"""Of the stage and of the backend, whichever comes first."""
NOT_HTTP = "the service answered something that is not HTTP"
ENDED_EARLY = "the answer ended early"
CLOSED = "the service closed the connection"


# --- services ---


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def drip(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: bytes, byte: bytes, *, every: float = 1.0
) -> None:
    """One byte a second until nobody listens any more."""
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
    """As much as is taken, until nobody takes it any more."""
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


async def nothing_at_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Closes at once."""


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


TOLD: dict[Behaviour, tuple[str, ...]] = {
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
    garbage_compression: ("the answer is not what its encoding says",),
    nothing_at_all: (CLOSED,),
    reset_in_body: (ENDED_EARLY, CLOSED),
    too_little: (ENDED_EARLY,),
    too_few_chunks: (ENDED_EARLY,),
    two_lengths: (NOT_HTTP,),
    negative_length: (NOT_HTTP,),
    redirect_to_itself: ("the service redirects too often",),
    redirect_elsewhere: ("the service redirects to another host, which is not followed",),
}
"""What a model reads of each; where two are given, it depends on what arrives first."""


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


# --- the gateway between them ---


@asynccontextmanager
async def desk(folder: Path, hostile_port: int, sound_port: int) -> AsyncIterator[tuple[Started, Caller]]:
    limits = {"timeout": f"{DEADLINE:g}s", "concurrent": CALLS}
    documents = [
        *frame(["tokens"]),
        tokens_of([ANA]),
        http_tool("spoilt", hostile_port, tier="community", limits=limits),
        http_tool("sound", sound_port),
        catalogue("desk", ["role:staff"], ["*"]),
    ]
    policy = "p, role:staff, *, tool:*, discover|invoke|read, community, allow\n"
    project = write_project(folder / "p", documents, policy=policy)
    async with started(project, folder / "data", people=[ANA]) as gateway:
        yield gateway, gateway.caller(ANA)


async def checked(caller: Caller, expected: tuple[str, ...]) -> float:
    """One call of the hostile tool: what was answered, what is on record, and the seconds it took by the record."""
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


async def checked_by_mcp(caller: Caller, expected: tuple[str, ...]) -> None:
    result = (await caller.modern_call("desk", "spoilt", {"text": "x"})).json["result"]

    assert result["isError"] is True
    assert "structuredContent" not in result
    [block] = result["content"]
    assert any(f"\nthe tool failed while running: {each}" in block["text"] for each in expected), block["text"]
    assert block["text"].startswith("<untrusted_content_")
    assert block["_meta"] == {"tier": "community", "trusted": False, "hazard": "extractable-instructions"}


async def answering(caller: Caller, over: asyncio.Event) -> int:
    """Calls of another tool, one after the other, as long as the hostile ones run."""
    done = 0
    while not over.is_set() or not done:
        answer = (await caller.rest_call("desk", "sound", {"text": "x"})).json
        assert answer["isError"] is False
        done += 1
    return done


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


def open_files() -> set[str]:
    """What this process has open, but for what an event loop opens for itself."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(f"{each} {os.readlink(f'/proc/self/fd/{each}')}")
    return found


@pytest.mark.parametrize("behave", TOLD, ids=lambda each: each.__name__)
async def test_hostile_service_ends_in_a_word_in_time_and_leaves_nothing(behave: Behaviour, tmp_path: Path) -> None:
    expected = TOLD[behave]
    tasks, files = asyncio.all_tasks(), open_files()
    async with (
        hostile(behave) as service,
        counting() as sound,
        desk(tmp_path, service.port, sound.port) as (gateway, caller),
    ):
        over = asyncio.Event()
        others = asyncio.create_task(answering(caller, over))
        took: list[float] = []
        for _ in range(2):
            took += await asyncio.gather(*(checked(caller, expected) for _ in range(CALLS)))
        await checked_by_mcp(caller, expected)
        over.set()

        assert await others > 0
        assert service.asked >= 2 * CALLS + 1
        assert min(took) <= DEADLINE + TOLERANCE, took
        await until(lambda: not service.open)
        assert len(gateway.running.service.running) == 0
        assert [path for path in (tmp_path / "data").rglob("incoming/*/*") if path.is_file()] == []

    gc.collect()
    await until(lambda: asyncio.all_tasks() == tasks)
    await until(lambda: open_files() <= files)


async def test_service_that_gets_well_is_called_again(tmp_path: Path) -> None:
    """No slot, connection or circuit of the tool is held by what went wrong before."""

    async def well(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"content-length: 2\r\nconnection: close\r\n\r\nok")

    async with (
        hostile(hang) as service,
        counting() as sound,
        desk(tmp_path, service.port, sound.port) as (_, caller),
    ):
        await asyncio.gather(*(checked(caller, TOLD[hang]) for _ in range(CALLS)))
        service.behave = well
        answers: list[Any] = [(await caller.rest_call("desk", "spoilt", {"text": "x"})).json for _ in range(2 * CALLS)]

    assert [(each["isError"], each["result"]["text"]) for each in answers] == [(False, "ok")] * (2 * CALLS)
