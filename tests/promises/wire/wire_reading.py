"""What tests look for in events, envelopes and artifacts."""

import re
from typing import Any

from wire_asgi import Heard
from wire_gateway import Gateway
from wire_talks import Said, Talk

ENVELOPE = re.compile(r'<(un)?trusted_content_(?P<tag>[0-9a-f]{32}) nonce="(?P<nonce>[0-9a-f]{32})" (?P<rest>[^>]*)>\n')


def names(heard: Heard, *wanted: str) -> list[str]:
    return [name for name, _ in heard.events if not wanted or name in wanted]


def told(heard: Heard, name: str) -> list[Any]:
    return [data for each, data in heard.events if each == name]


def envelope(text: str) -> dict[str, str]:
    """The attributes of the one envelope around a text, its `authority` and its `nonce`."""
    opening = ENVELOPE.match(text)
    assert opening is not None, text
    closing = f"</{'un' if opening[1] else ''}trusted_content_{opening['tag']}>"
    assert text.endswith(closing)
    assert text.count(closing) == 1
    attributes = dict(re.findall(r'(\w+)="([^"]*)"', opening["rest"]))
    return {**attributes, "nonce": opening["nonce"], "authority": "untrusted" if opening[1] else "trusted"}


def body(text: str) -> str:
    """What stands in the envelope."""
    return text.partition("\n")[2].rpartition("\n")[0]


async def content(gateway: Gateway, said: Said) -> bytes:
    """The bytes of a result as REST gives them."""
    heard = await gateway.ask("GET", f"/v1/artifacts/{said.id}/content?turn={said.turn}")
    assert heard.status == 200, heard.body
    return heard.body


async def query(talk: Talk, tool: str, said: Said, **args: Any) -> Said:
    return await talk.call(tool, {"callId": said.id, **args})


async def offered(talk: Talk) -> dict[str, Any]:
    """The tools of the turn, by name, as REST tells them, whatever the wire of the calls was."""
    listed = (await talk.gateway.get(f"/v1/turns/{talk.turn}/tools?format=mcp"))["tools"]
    assert len({each["name"] for each in listed}) == len(listed)
    return {each["name"]: each["inputSchema"] for each in listed}


async def selectable(talk: Talk, tool: str) -> list[str]:
    """The ids that a query tool offers for `callId`, in the turn."""
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


async def queries(talk: Talk) -> set[str]:
    """The names of the query tools of the turn."""
    return {name for name in await offered(talk) if name.startswith("artifact_")}
