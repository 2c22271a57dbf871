"""An in-process reader of server-sent events: reads block by block, and can disconnect."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.server.rest.gateway import Gateway


@dataclass(frozen=True)
class RestEvent:
    """One event, or a comment."""

    name: str
    data: Any = None
    id: str | None = None


class Reader:
    def __init__(self) -> None:
        self.start: dict[str, Any] = {}
        self.has_started = asyncio.Event()
        self.gone = asyncio.Event()
        self.may_take = asyncio.Event()
        self.may_take.set()
        self._blocks: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            self.has_started.set()
            return
        await self.may_take.wait()
        self._blocks.put_nowait(message.get("body", b"") if message.get("more_body") else None)

    async def next(self) -> RestEvent | None:
        """The next event, or `None` at the end."""
        block = await asyncio.wait_for(self._blocks.get(), 10)
        return None if block is None else _parse_event(block.decode())

    async def until(self, name: str) -> list[RestEvent]:
        found: list[RestEvent] = []
        while (event := await self.next()) is not None:
            found.append(event)
            if event.name == name:
                return found
        raise AssertionError(f"the stream ended without {name}, after {[each.name for each in found]}")

    async def rest(self) -> list[RestEvent]:
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def open_sse_reader(
    gateway: Gateway, turn: str, who: str = "ann", *, method: str = "GET", last: str | None = None
) -> AsyncIterator[Reader]:
    reader = Reader()
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {who}".encode())]
    headers += [(b"last-event-id", last.encode())] if last else []
    scope = {"type": "http", "method": method, "path": f"/v1/turns/{turn}/events", "headers": headers}
    task = asyncio.ensure_future(gateway.app({**scope, "query_string": b""}, reader.receive, reader.send))
    try:
        await asyncio.wait_for(reader.has_started.wait(), 10)
        yield reader
    finally:
        reader.gone.set()
        reader.may_take.set()
        await asyncio.wait_for(task, 10)


def _parse_event(block: str) -> RestEvent:
    if block.startswith(":"):
        return RestEvent(block[1:].strip())
    lines = dict(line.split(": ", 1) for line in block.strip().splitlines())
    return RestEvent(lines["event"], json.loads(lines["data"]), lines.get("id"))
