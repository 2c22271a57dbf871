"""Requests as bytes, straight into the ASGI application: the test chooses every header and every disconnect."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.model.caller import Principal
from gateway.server.http.asgi import SCOPE_FIELDS, SCOPE_PRINCIPAL, HeaderFields
from tests.server.mcp.project import ANA

MODERN = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
NAMES = {"tools/call": "name", "resources/read": "uri", "prompts/get": "name"}


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_over: bool = False
    started: asyncio.Event = field(default_factory=asyncio.Event)
    grew: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type") == "text/event-stream"

    @property
    def events(self) -> list[dict[str, str]]:
        """The fields of every event so far; comments are left out."""
        found = []
        for block in self.body.decode().split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            if lines:
                found.append(dict(line.split(":", 1) for line in lines))
        return [{key: value.strip() for key, value in event.items()} for event in found]

    @property
    def messages(self) -> list[Any]:
        return [orjson.loads(event["data"]) for event in self.events if event.get("data")]

    @property
    def result(self) -> Any:
        """The result of a request, however it was answered."""
        message = self.messages[-1] if self.is_stream else self.json
        assert "result" in message, message
        return message["result"]

    @property
    def error(self) -> Any:
        message = self.messages[-1] if self.is_stream else self.json
        return message["error"]

    async def has_messages(self, count: int) -> list[Any]:
        while len(self.messages) < count:
            self.grew.clear()
            await asyncio.wait_for(self.grew.wait(), 5)
        return self.messages


class Wire:
    """One endpoint, and a way to send requests to it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._ids = 0

    async def send(
        self,
        body: bytes,
        headers: dict[str, str] | list[tuple[str, str]],
        *,
        principal: Principal = ANA,
        method: str = "POST",
        gone: asyncio.Event | None = None,
        answer: Answer | None = None,
    ) -> Answer:
        """`gone` is set when the client closes its connection; `answer` can be inspected while it arrives."""
        received = answer or Answer()
        pairs = headers.items() if isinstance(headers, dict) else headers
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
        scope = {
            "type": "http",
            "method": method,
            "path": "/mcp",
            "headers": raw,
            SCOPE_FIELDS: HeaderFields(raw),
            SCOPE_PRINCIPAL: principal,
        }
        is_read = False

        async def receive() -> dict[str, Any]:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": body, "more_body": False}
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                received.status = message["status"]
                received.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                received.started.set()
            else:
                received.body += message.get("body", b"")
                received.is_over = not message.get("more_body", False)
            received.grew.set()

        await self._app(scope, receive, send)
        return received

    def modern_headers(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        named = params.get(NAMES.get(method, ""))
        return {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": MODERN,
            "mcp-method": method,
            **({"mcp-name": named} if isinstance(named, str) else {}),
        }

    async def modern(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        meta: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        id: Any = 1,
        **how: Any,
    ) -> Answer:
        given = {**(params or {}), "_meta": {**META, **(meta or {})}}
        body = orjson.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": given})
        return await self.send(body, {**self.modern_headers(method, given), **(headers or {})}, **how)

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **how: Any) -> Answer:
        more = how.pop("params", {})
        return await self.modern("tools/call", {"name": tool, "arguments": arguments or {}, **more}, **how)


class LegacyClient:
    """A client of one of the older revisions."""

    def __init__(self, wire: Wire, version: str = "2025-11-25", principal: Principal = ANA) -> None:
        self.wire = wire
        self.version = version
        self.principal = principal
        self.session = ""
        self._ids = 0

    @property
    def headers(self) -> dict[str, str]:
        return {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": self.version,
            **({"mcp-session-id": self.session} if self.session else {}),
        }

    async def begin(self, capabilities: dict[str, Any] | None = None) -> Answer:
        info = {"name": "test", "version": "0"}
        params = {"protocolVersion": self.version, "capabilities": capabilities or {}, "clientInfo": info}
        answer = await self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        self.session = answer.headers["mcp-session-id"]
        await self.notify("notifications/initialized")
        return answer

    async def post(self, message: Any, **how: Any) -> Answer:
        headers = {**self.headers, **how.pop("headers", {})}
        return await self.wire.send(orjson.dumps(message), headers, principal=self.principal, **how)

    async def request(self, method: str, params: dict[str, Any] | None = None, **how: Any) -> Answer:
        self._ids += 1
        id = how.pop("id", self._ids)
        return await self.post({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}, **how)

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> Answer:
        return await self.post({"jsonrpc": "2.0", "method": method, "params": params or {}})

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **how: Any) -> Answer:
        params = {"name": tool, "arguments": arguments or {}, **how.pop("params", {})}
        return await self.request("tools/call", params, **how)

    async def get(self, *, last: str | None = None, **how: Any) -> Answer:
        extra = {"last-event-id": last} if last is not None else {}
        return await self.wire.send(b"", {**self.headers, **extra}, principal=self.principal, method="GET", **how)

    async def delete(self) -> Answer:
        return await self.wire.send(b"", self.headers, principal=self.principal, method="DELETE")
