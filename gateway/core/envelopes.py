"""Trust envelopes: how text of different authority is marked so that it cannot pass for another.

Every tag carries a nonce in its name, in opener and closer. For tool results and standing instructions it is an HMAC
under the turn's secret, so the author of a fetched page cannot compute it; the full checksum of a call is in the
attribute `call`. In addition every look-alike of our tags in a body is neutralised, reversibly.
"""

import asyncio
import hmac
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Final, Literal

from gateway.core.artifacts import SpooledArtifact
from gateway.core.calls import ToolCall
from gateway.core.canonical import js_string
from gateway.core.look_alikes import AMPERSANDS, STARTS, find_look_alikes

Authority = Literal["trusted", "untrusted"]

_NONCE_HEX: Final = 32
"""128 bits."""
LARGE: Final = 1 << 16
"""Characters of a body that is neutralised in a thread: a hostile one of this size takes tens of milliseconds."""
_BLOCK: Final = 64
_INNER: Final = bytes(value ^ 0x36 for value in range(256))
_OUTER: Final = bytes(value ^ 0x5C for value in range(256))

_WRITTEN: Final = re.compile(r"&#x([0-9a-f]{4,5});")
_TAG_SAFE: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ATTRIBUTE_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_UNSAFE_IN_ATTRIBUTE: Final = re.compile(r'[&<>"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')


@dataclass(slots=True)
class Envelope:
    """One tagged text. The tag's name ends in the nonce, and an attribute repeats it."""

    tag: str
    body: str
    nonce: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    def render(self) -> str:
        """Opener, newline, body, newline, closer; look-alikes in the body are neutralised."""
        return wrap(self.tag, neutralise(self.body), self.nonce, self.attributes)


def wrap(tag: str, content: str, nonce: str, attributes: Mapping[str, str] = MappingProxyType({})) -> str:
    """Content between the tags, as it is: it holds no look-alikes, or is itself made of envelopes."""
    nonce = tag_safe(nonce)
    pairs = {"nonce": nonce, **attributes}
    written = "".join([f' {key}="{escape_attribute(value)}"' for key, value in pairs.items()])
    return f"<{tag}_{nonce}{written}>\n{content}\n</{tag}_{nonce}>"


def nonce_for(secret: bytes, checksum: str, id: str) -> str:
    """Bound to one call of one turn, and not computable without the turn's secret."""
    message = f"{checksum}{id}".encode("utf-8", "surrogatepass")
    if len(secret) > _BLOCK:
        return hmac.digest(secret, message, "sha256").hex()[:_NONCE_HEX]
    # RFC 2104 for keys that fit into one block: OpenSSL looks its algorithms up by name, which takes twenty times as
    # long as computing this.
    block = secret.ljust(_BLOCK, b"\0")
    inner = sha256(block.translate(_INNER) + message).digest()
    return sha256(block.translate(_OUTER) + inner).hexdigest()[:_NONCE_HEX]


def tag_safe(nonce: str) -> str:
    """Ids of records serve as nonces and may hold anything; one that cannot stand in a tag name is hashed."""
    return nonce if _TAG_SAFE.fullmatch(nonce) else sha256(nonce.encode("utf-8", "surrogatepass")).hexdigest()


def neutralise(body: str) -> str:
    """Escape the bracket of whatever looks like one of our tags; `restore` undoes it exactly."""
    starts = find_look_alikes(body)
    if not starts:
        return body
    pieces: list[str] = []
    last = 0
    for start in starts:
        char = body[start]
        pieces += (body[last:start], f"{char}amp;" if char in AMPERSANDS else _reference_to(char))
        last = start + 1
    return "".join([*pieces, body[last:]])


def restore(body: str) -> str:
    """The text that `neutralise` was given."""
    pieces: list[str] = []
    last = 0
    for start in find_look_alikes(body):
        original, end = _original(body, start)
        pieces += (body[last:start], original)
        last = end
    return "".join([*pieces, body[last:]])


def escape_attribute(value: str) -> str:
    if _UNSAFE_IN_ATTRIBUTE.search(value) is None:
        return value
    return _UNSAFE_IN_ATTRIBUTE.sub(lambda found: _ATTRIBUTE_ESCAPES.get(found[0], f"&#{ord(found[0])};"), value)


_escaped_name: Final = lru_cache(maxsize=4096)(escape_attribute)


def content_envelope(authority: Authority, body: str, *, nonce: str, attributes: Mapping[str, str]) -> Envelope:
    return Envelope(f"{authority}_content", body, nonce, attributes)


def result_envelope(call: ToolCall, secret: bytes, authority: Authority, body: str, kind: str) -> str:
    """What `content_envelope` renders for the result of a call, which is what most envelopes are."""
    checksum = call.checksum
    nonce = nonce_for(secret, checksum, call.id)
    name = f"{authority}_content_{nonce}"
    # A record computes its checksum, which is hexadecimal digits; its name is whatever the tool is called by.
    attributes = f'nonce="{nonce}" kind="{kind}" tool="{_escaped_name(call.tool)}" call="{checksum}"'
    return f"<{name} {attributes}>\n{neutralise(body)}\n</{name}>"


async def render_apart(render: Callable[[str], str], body: str) -> str:
    """What a function renders of a body; a large one never keeps the event loop waiting."""
    if len(body) < LARGE:
        return render(body)
    return await asyncio.get_running_loop().run_in_executor(_renderer(), render, body)


@cache
def _renderer() -> ThreadPoolExecutor:
    """One thread: more would only compete with the event loop for the interpreter."""
    return ThreadPoolExecutor(1, thread_name_prefix="envelopes")


def instructions_envelope(body: str, version: str | None = None, *, nonce: str) -> Envelope:
    """Standing instructions, which only the harness writes."""
    extra = {} if version is None else {"version": version}
    return Envelope("system_instructions", body, nonce, {"kind": "developer-rules", **extra})


async def handle_text(call_id: str, artifact: SpooledArtifact, *, encoding: str | None = None) -> str:
    """What stands for an artifact whose body was left out: its sizes, and how to query it."""
    lines = [
        "The result was kept as an artifact and left out here to save context.",
        f"callId: {call_id if call_id.isprintable() else js_string(call_id)}",
        f"kind: {type(artifact).__name__}",
        f"byteLength: {await _size(artifact, 'byte_length')}",
        f"lineCount: {await _size(artifact, 'line_count')}",
    ]
    if encoding is not None:
        lines.append(f"estimatedTokens: {await _size(artifact, 'estimate_tokens', encoding)} ({encoding})")
    lines.append("Query it with one of these tools, passing the callId above:")
    lines += [f"- {method.name}: {method.description}" for method in type(artifact).effective_methods()]
    lines.append("The artifact stays available for the rest of this turn.")
    return "\n".join(lines)


async def _size(artifact: SpooledArtifact, method: str, *args: str) -> int:
    try:
        size: int = await getattr(artifact, method)(*args)
    except Exception:  # a size that cannot be read must not cost the model the handle
        return 0
    return size


def _reference_to(bracket: str) -> str:
    return "&lt;" if bracket == "<" else f"&#x{ord(bracket):04x};"


def _original(body: str, start: int) -> tuple[str, int]:
    """What stood at the start of a look-alike, and where what was written for it ends."""
    char = body[start]
    if char in AMPERSANDS and body.startswith("amp;", start + 1):
        return char, start + 5
    if body.startswith("&lt;", start):
        return "<", start + 4
    written = _WRITTEN.match(body, start)
    if written is not None and (bracket := chr(int(written[1], 16))) in STARTS and bracket != "<":
        return bracket, written.end()
    return char, start + 1
