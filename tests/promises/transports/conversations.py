"""One turn over REST, over MCP without sessions, and over MCP with one: the same interface for all three."""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

from tests.promises.transports.asgi_client import AsgiReply
from tests.promises.transports.gateway import Gateway

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
TURN, CALL = "gateway/turn", "gateway/call"


@dataclass(frozen=True)
class ConversationReply:
    """The answer to a call. `refused` is a protocol error."""

    text: str = ""
    is_error: bool = False
    id: str = ""
    turn: str = ""
    blocks: list[dict[str, Any]] = field(default_factory=list)
    refused: str | None = None


class Conversation:
    """A turn that begins with its first call."""

    wire: ClassVar[str]

    def __init__(self, gateway: Gateway, *, catalogue: str = "promises", who: str = "ana") -> None:
        self.gateway = gateway
        self.catalogue = catalogue
        self.who = who
        self.turn = ""

    async def begin(self) -> str:
        """Start the turn without a queryable result, and return its id."""
        if not self.turn:
            await self.call("say", {"text": 1})
        return self.turn

    async def call(self, tool: str, args: dict[str, Any] | None = None, *, id: str | None = None) -> ConversationReply:
        reply = await self.call_text(tool, json.dumps(args or {}), id=id)
        self.turn = reply.turn or self.turn
        return reply

    async def call_text(self, tool: str, arguments: str, *, id: str | None = None) -> ConversationReply:
        """Call with the exact JSON text of the arguments, and with the caller's own id if the transport supports it."""
        raise NotImplementedError

    async def tools(self) -> dict[str, dict[str, Any]]:
        """Return the tools listed now, by name, as MCP describes them."""
        raise NotImplementedError

    async def record(self, reply: ConversationReply) -> dict[str, Any]:
        assert reply.refused is None, reply
        return await self.gateway.record(reply.id, reply.turn)

    async def callable_ids(self, tool: str) -> list[str]:
        """Return the possible values of `callId` of a query tool; empty if the schema accepts any text."""
        tools = await self.tools()
        ids: list[str] = tools[tool]["inputSchema"]["properties"]["callId"].get("enum", []) if tool in tools else []
        return ids


class RestTalk(Conversation):
    wire = "rest"

    async def begin(self) -> str:
        if not self.turn:
            opened = await self._post("/v1/turns", json.dumps({"catalogue": self.catalogue}))
            self.turn = opened.json["id"]
        return self.turn

    async def call_text(self, tool: str, arguments: str, *, id: str | None = None) -> ConversationReply:
        turn = await self.begin()
        own = f', "id": {json.dumps(id)}' if id else ""
        body = f'{{"tool": {json.dumps(tool)}, "arguments": {arguments}{own}}}'
        heard = await self._post(f"/v1/turns/{quote(turn)}/calls", body)
        if "callId" not in heard.json:
            return ConversationReply(
                refused=f"{heard.status} {heard.json.get('detail') or heard.json.get('title')}", turn=turn
            )
        answered = heard.json
        return ConversationReply(
            answered["rendered"], answered["isError"], answered["callId"], answered["turn"], [answered["result"]]
        )

    async def tools(self) -> dict[str, dict[str, Any]]:
        listed = await self.gateway.get(f"/v1/turns/{await self.begin()}/tools?format=mcp", who=self.who)
        return {each["name"]: each for each in listed["tools"]}

    async def _post(self, target: str, body: str) -> AsgiReply:
        return await self.gateway.ask("POST", target, body.encode(), who=self.who)


class McpTalk(Conversation):
    version: ClassVar[str]

    def __init__(self, gateway: Gateway, *, catalogue: str = "promises", who: str = "ana") -> None:
        super().__init__(gateway, catalogue=catalogue, who=who)
        self._requests = 0

    async def call_text(self, tool: str, arguments: str, *, id: str | None = None) -> ConversationReply:
        assert id is None, "MCP has no place for it"
        answer = await self.request("tools/call", f'"name": {json.dumps(tool)}, "arguments": {arguments}', name=tool)
        if "error" in answer:
            return ConversationReply(refused=answer["error"]["message"], turn=self.turn)
        result = answer["result"]
        text = "\n".join(each["text"] for each in result["content"] if each["type"] == "text")
        meta = result["_meta"]
        self.turn = meta[TURN]
        return ConversationReply(text, result["isError"], meta[CALL], meta[TURN], result["content"])

    async def tools(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in (await self.request("tools/list"))["result"]["tools"]}

    async def request(self, method: str, params: str = "", *, name: str | None = None) -> Any:
        """Send a request and return the response. `params` are the members of the object, as JSON text."""
        raise NotImplementedError

    async def _post(self, method: str, members: str, headers: dict[str, str]) -> AsgiReply:
        self._requests += 1
        body = f'{{"jsonrpc": "2.0", "id": {self._requests}, "method": "{method}", "params": {{{members}}}}}'
        accepted = {"accept": "application/json, text/event-stream", "mcp-protocol-version": self.version}
        target = f"/{self.catalogue}/mcp"
        return await self.gateway.ask("POST", target, body.encode(), who=self.who, headers={**accepted, **headers})


class ModernTalk(McpTalk):
    """Each request stands alone; the handle in the first answer keeps them in one turn."""

    wire = "mcp-modern"
    version = MODERN

    async def request(self, method: str, params: str = "", *, name: str | None = None) -> Any:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            **({TURN: self.turn} if self.turn else {}),
        }
        members = ", ".join(part for part in (params, f'"_meta": {json.dumps(meta)}') if part)
        named = {"mcp-name": name} if name else {}
        return _answer(await self._post(method, members, {"mcp-method": method, **named}))


class LegacyTalk(McpTalk):
    """The session is the turn."""

    wire = "mcp-legacy"
    version = LEGACY

    def __init__(self, gateway: Gateway, *, catalogue: str = "promises", who: str = "ana") -> None:
        super().__init__(gateway, catalogue=catalogue, who=who)
        self._session = ""

    async def request(self, method: str, params: str = "", *, name: str | None = None) -> Any:
        if not self._session:
            await self._initialise()
        return _answer(await self._post(method, params, {"mcp-session-id": self._session}))

    async def _initialise(self) -> None:
        client = '"capabilities": {}, "clientInfo": {"name": "promises", "version": "0"}'
        heard = await self._post("initialize", f'"protocolVersion": "{LEGACY}", {client}', {})
        self._session = heard.headers["mcp-session-id"]


def _answer(heard: AsgiReply) -> Any:
    is_stream = heard.headers.get("content-type") == "text/event-stream"
    return heard.events[-1][1] if is_stream else heard.json


TALKS: tuple[type[Conversation], ...] = (RestTalk, ModernTalk, LegacyTalk)
