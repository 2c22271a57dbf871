"""Readers of events, envelopes and artifacts."""

import re
from typing import Any

from tests.promises.transports.asgi_client import AsgiReply
from tests.promises.transports.conversations import Conversation, ConversationReply
from tests.promises.transports.gateway import Gateway

ENVELOPE = re.compile(r'<(un)?trusted_content_(?P<tag>[0-9a-f]{32}) nonce="(?P<nonce>[0-9a-f]{32})" (?P<rest>[^>]*)>\n')


def names(heard: AsgiReply, *wanted: str) -> list[str]:
    return [name for name, _ in heard.events if not wanted or name in wanted]


def find_events(heard: AsgiReply, name: str) -> list[Any]:
    return [data for each, data in heard.events if each == name]


def envelope(text: str) -> dict[str, str]:
    """Return the attributes of the one envelope around a text, its `authority` and its `nonce`."""
    opening = ENVELOPE.match(text)
    assert opening is not None, text
    closing = f"</{'un' if opening[1] else ''}trusted_content_{opening['tag']}>"
    assert text.endswith(closing)
    assert text.count(closing) == 1
    attributes = dict(re.findall(r'(\w+)="([^"]*)"', opening["rest"]))
    return {**attributes, "nonce": opening["nonce"], "authority": "untrusted" if opening[1] else "trusted"}


def body(text: str) -> str:
    """Return the text inside the envelope."""
    return text.partition("\n")[2].rpartition("\n")[0]


async def content(gateway: Gateway, reply: ConversationReply) -> bytes:
    """Return the bytes of a result from REST."""
    heard = await gateway.ask("GET", f"/v1/artifacts/{reply.id}/content?turn={reply.turn}")
    assert heard.status == 200, heard.body
    return heard.body


async def query(talk: Conversation, tool: str, reply: ConversationReply, **args: Any) -> ConversationReply:
    return await talk.call(tool, {"callId": reply.id, **args})


async def offered(talk: Conversation) -> dict[str, Any]:
    """Return the tools of the turn by name, from REST, whatever the transport of the calls."""
    listed = (await talk.gateway.get(f"/v1/turns/{talk.turn}/tools?format=mcp"))["tools"]
    assert len({each["name"] for each in listed}) == len(listed)
    return {each["name"]: each["inputSchema"] for each in listed}


async def selectable(talk: Conversation, tool: str) -> list[str]:
    """Return the ids that a query tool offers for `callId`, in the turn."""
    ids: list[str] = (await offered(talk))[tool]["properties"]["callId"]["enum"]
    return ids


BASE_SEVEN = {
    "artifact_head",
    "artifact_tail",
    "artifact_grep",
    "artifact_cat",
    "artifact_byte_length",
    "artifact_line_count",
    "artifact_estimate_tokens",
}
JSON_TOOLS = {f"artifact_json_{name}" for name in ("type", "keys", "length", "get", "filter", "slice", "pluck")}


async def queries(talk: Conversation) -> set[str]:
    """Return the names of the query tools of the turn."""
    return {name for name in await offered(talk) if name.startswith("artifact_")}
