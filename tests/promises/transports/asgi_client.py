"""Sends requests directly to an ASGI application; answers can be read while they arrive."""

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import orjson


@dataclass
class AsgiReply:
    """An answer, as far as it has arrived."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    grew: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Return name and data of every server-sent event so far."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            lines = [line.partition(": ") for line in block.split("\n") if not line.startswith(":")]
            fields = {name: value for name, _, value in lines}
            if fields.get("data"):
                found.append((fields.get("event", "message"), orjson.loads(fields["data"])))
        return found

    async def wait_for_event(self, name: str) -> Any:
        """Wait for the first event of a name."""
        while name not in dict(self.events):
            self.grew.clear()
            await asyncio.wait_for(self.grew.wait(), 30)
        return next(data for each, data in self.events if each == name)


async def ask(
    app: Any,
    method: str,
    target: str,
    *,
    headers: Mapping[str, str],
    body: bytes = b"",
    heard: AsgiReply | None = None,
) -> AsgiReply:
    """Send one request and return the whole answer. `heard` is filled meanwhile; the client never disconnects."""
    reply = heard or AsgiReply()
    path, _, query = target.partition("?")
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()
        return requests.pop()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")
        reply.grew.set()

    await app(scope, receive, send)
    return reply
