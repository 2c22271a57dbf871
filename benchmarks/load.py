"""The load of the benchmarks over HTTP: requests, connections that repeat them, and what they cost the server."""

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import uvloop

JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
MODERN = {**JSON, "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
TEXT = {"text": "hello"}

MANY = 1_000_000_000
"""A limit that no benchmark reaches."""
WARM = 0.5
"""Seconds of load before each measurement."""
REST = 0.5
"""Seconds after each measurement, so that late work of one server does not count for the next."""


class UnexpectedAnswer(Exception):
    """A call failed that should not, or the other way round."""


@dataclass(frozen=True)
class Load:
    """A request, and how its answer is recognised: a success that contains `expects`, or a refusal with that text."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    expects: bytes = b""
    refusal: bytes = b""

    def is_answered(self, head: bytes, body: bytes) -> bool:
        if self.refusal:
            return self.refusal in head or self.refusal in body
        return head.startswith(b"HTTP/1.1 20") and b'"isError":true' not in body and self.expects in body

    def with_id(self, id: int) -> "Load":
        """Return the request with its own JSON-RPC id, which calls of one session that run at once need."""
        return replace(self, body=self.body.replace(b'"id":1,', b'"id":%d,' % id))

    def to_wire(self, port: int) -> bytes:
        headers = {"host": f"127.0.0.1:{port}", "content-length": str(len(self.body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self.path} HTTP/1.1\r\n{lines}\r\n".encode() + self.body


def mcp_call(
    tool: str,
    arguments: Mapping[str, Any] = TEXT,
    *,
    path: str = "/bench/mcp",
    headers: Mapping[str, str] | None = None,
    expects: bytes = b"hello",
    refusal: bytes = b"",
) -> Load:
    """Return a call of MCP 2026-07-28 without a session."""
    body = call_message(tool, arguments, _meta=META)
    return Load(path, {**MODERN, "mcp-name": tool, **(headers or {})}, body, expects, refusal)


def rest_call(
    tool: str,
    arguments: Mapping[str, Any] = TEXT,
    *,
    catalogue: str = "bench",
    expects: bytes = b"hello",
    **more: str,
) -> Load:
    body = json.dumps({"arguments": arguments, **more}, separators=(",", ":")).encode()
    return Load(f"/v1/catalogues/{catalogue}/tools/{tool}/call", {"content-type": "application/json"}, body, expects)


def call_message(tool: str, arguments: Mapping[str, Any], **params: Any) -> bytes:
    given = {"name": tool, "arguments": arguments, **params}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": given}
    return json.dumps(message, separators=(",", ":")).encode()


class Conversation(Protocol):
    """What the connections send, opened anew before each measurement."""

    def open(self, port: int, connections: int) -> Sequence[Load]: ...


@dataclass(frozen=True)
class Repeated:
    """The same request over all connections."""

    load: Load

    def open(self, port: int, connections: int) -> Sequence[Load]:
        return [self.load] * connections


@dataclass
class Turns:
    """A few conversations, each shared by several connections, from the call number `at` on.

    Those of an early call are new in every measurement. Others are opened once, because their first calls take time.
    """

    start: Callable[["Connection"], Load]
    """Opens a session or a turn and returns the request that continues it."""
    at: int = 10
    count: int = 4
    _opened: list[Load] = field(default_factory=list)

    def open(self, port: int, connections: int) -> Sequence[Load]:
        if not self._opened or self.at <= 10:
            opened = [self.start(Connection(port)) for _ in range(min(self.count, connections))]
            loads = [opened[number % len(opened)].with_id(number) for number in range(connections)]
            make_calls(port, loads, self.at * len(opened) // connections)
            self._opened = loads
        return self._opened


def in_session(
    tool: str, arguments: Mapping[str, Any] = TEXT, *, path: str = "/bench/mcp", expects: bytes = b"hello"
) -> Callable[["Connection"], Load]:
    """Return the opener of a session of MCP 2025-11-25."""
    body = call_message(tool, arguments)
    return lambda connection: Load(path, connection.open_session(path), body, expects)


def with_handle(
    tool: str, arguments: Mapping[str, Any], *, catalogue: str, expects: bytes
) -> Callable[["Connection"], Load]:
    """Return the opener of a turn over REST whose later calls name its handle."""
    call = partial(rest_call, tool, arguments, catalogue=catalogue, expects=expects)
    return lambda connection: call(turn=json.loads(connection.send(call()))["turn"])


@dataclass(frozen=True)
class Figures:
    per_second: float
    cpu: float
    """Microseconds of the server and its children per call."""
    p50: float
    p99: float


@dataclass(frozen=True)
class Run:
    """A running server and what is sent to it."""

    pid: int
    port: int
    conversation: Conversation


def measure(run: Run, *, seconds: float, connections: int) -> Figures:
    """Keep the connections busy with one server."""
    loads = run.conversation.open(run.port, connections)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(keep_all_busy(run, loads, seconds))
    time.sleep(REST)
    return figures


async def keep_all_busy(run: Run, loads: Sequence[Load], seconds: float) -> Figures:
    times: list[float] = []
    await _repeat(run.port, loads, [], seconds=WARM)
    before, started = cpu_seconds(run.pid), time.perf_counter()
    await _repeat(run.port, loads, times, seconds=seconds)
    took, cpu = time.perf_counter() - started, cpu_seconds(run.pid) - before
    times.sort()
    count = len(times)
    return Figures(count / took, cpu / count * 1e6, times[count // 2] * 1e3, times[int(count * 0.99)] * 1e3)


async def _repeat(
    port: int, loads: Sequence[Load], times: list[float], *, seconds: float = 3600.0, calls: int = MANY
) -> None:
    until = time.perf_counter() + seconds
    async with asyncio.timeout(seconds + 60):
        await asyncio.gather(*(keep_busy(port, partial(Busy, load, port, until, times, calls=calls)) for load in loads))


def make_calls(port: int, loads: Sequence[Load], calls: int) -> None:
    """Send each request so many times, over a connection of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_repeat(port, loads, [], calls=calls))


async def keep_busy(port: int, busy: Callable[["asyncio.Future[None]"], "Busy"]) -> None:
    """Run one connection until it ends."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    transport, _ = await loop.create_connection(lambda: busy(ended), "127.0.0.1", port)
    try:
        await ended
    finally:
        transport.close()


class Busy(asyncio.Protocol):
    """Sends the same request again as soon as it is answered, with minimal overhead: the client shares the machine with
    the server it measures.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        load: Load,
        port: int,
        until: float,
        times: list[float],
        ended: "asyncio.Future[None]",
        calls: int = MANY,
    ) -> None:
        self.load = load
        self.request = load.to_wire(port)
        self.until = until
        self.times = times
        self.left = calls
        self.ended = ended
        self.answer = b""
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream's
        self.send()

    def send(self) -> None:
        self.began = time.perf_counter()
        self.left -= 1
        if self.began < self.until and self.left >= 0:
            self.transport.write(self.request)
        elif not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.answer = answer = self.answer + data
        head, found, body = answer.partition(b"\r\n\r\n")
        if not found or not is_whole(head.lower(), body):
            return
        self.answer = b""
        self.answered(head, body)

    def answered(self, head: bytes, body: bytes) -> None:
        if not self.load.is_answered(head, body):
            self.fail(head + body)
            return
        self.times.append(time.perf_counter() - self.began)
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(self.answer)

    def fail(self, answer: bytes) -> None:
        if not self.ended.done():
            self.ended.set_exception(UnexpectedAnswer(answer[:2000].decode(errors="replace")))


class Connection:
    """One connection that sends one request at a time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._socket.close()

    def send(self, load: Load) -> bytes:
        """Send one request and return the body of its answer."""
        head, body = self.exchange(load)
        if not load.is_answered(head, body):
            raise UnexpectedAnswer((head + body)[:2000].decode(errors="replace"))
        return body

    def exchange(self, load: Load) -> tuple[bytes, bytes]:
        """Send one request and return head and body of its answer."""
        self._socket.sendall(load.to_wire(self._port))
        answer = b""
        while more := self._socket.recv(1 << 16):
            answer += more
            head, found, body = answer.partition(b"\r\n\r\n")
            if found and (head[9:12] == b"202" or is_whole(head.lower(), body)):
                return head, body
        raise SystemExit(f"the connection was closed after {answer[:2000]!r}")

    def open_session(self, path: str) -> dict[str, str]:
        """Open a session of 2025-11-25 and return the headers of its requests."""
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}
        head, _ = self.exchange(Load(path, JSON, json.dumps(hello).encode()))
        found = re.search(rb"(?i)mcp-session-id: (\S+)", head)
        if found is None:
            raise SystemExit(f"no session: {head!r}")
        headers = {**JSON, "mcp-session-id": found[1].decode(), "mcp-protocol-version": "2025-11-25"}
        self.send(Load(path, headers, b'{"jsonrpc":"2.0","method":"notifications/initialized"}'))
        return headers


def is_whole(head: bytes, body: bytes) -> bool:
    if length := re.search(rb"content-length: (\d+)", head):
        return len(body) >= int(length[1])
    return body.endswith(b"0\r\n\r\n")


def cpu_seconds(pid: int) -> float:
    """Return CPU seconds of the process and its children that still run."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    total = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for child in children(pid):
        with suppress(FileNotFoundError):  # it has just ended
            total += cpu_seconds(child)
    return total


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="ascii").split()]


def resident(pid: int) -> float:
    """Return the resident memory of a process, in megabytes."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return float(found[1]) / 1024 if found else 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {port}")
