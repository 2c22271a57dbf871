"""Services on loopback that answer exactly the bytes a test chooses."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Received:
    line: str
    headers: dict[str, str]
    names: list[str]
    body: bytes

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]


@dataclass
class Service:
    host: str
    port: int = 0
    received: list[Received] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


def plain(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def raw(*chunks: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()

    return answer


@asynccontextmanager
async def start_service(
    *answers: Answer | bytes, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Service]:
    """Answer the n-th request with the n-th answer, and further requests with the last one.

    An answer that returns early leaves the connection open for the next request; one that closed the writer ends it.
    """
    service = Service(host)
    open_: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_.add(task)
        service.connections += 1
        try:
            while (request := await _request(reader)) is not None:
                service.received.append(request)
                answer = answers[min(len(service.received), len(answers)) - 1]
                await (raw(answer) if isinstance(answer, bytes) else answer)(writer)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            open_.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, host, port, limit=1 << 20, ssl=tls)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield service
    finally:
        server.close()
        for _ in range(3):  # a connection may be accepted and not yet in `open_`, or closed and not yet gone
            for task in open_:
                task.cancel()
            if open_:
                await asyncio.wait(open_)
            await asyncio.sleep(0)
        await server.wait_closed()


async def _request(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    line, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
    pairs = [(name.lower(), value.strip()) for name, _, value in (header.partition(":") for header in rest)]
    headers = dict(pairs)
    return Received(
        line, headers, [name for name, _ in pairs], await reader.readexactly(int(headers.get("content-length", 0)))
    )
