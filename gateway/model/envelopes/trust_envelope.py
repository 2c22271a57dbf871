"""Trust envelopes: tags that mark the authority of a text, and that its author cannot forge.

The name of every tag ends in a nonce, in opener and closer. For tool results and standing instructions it is an HMAC
under the turn's secret, so the author of a fetched page cannot compute it; the attribute `call` has the full checksum
of a call. In addition, every look-alike of our tags in a body is escaped, reversibly.
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

from gateway.model.envelopes.tag_look_alikes import AMPERSANDS, STARTS, find_look_alikes
from gateway.model.primitives.canonical_json import format_js_string
from gateway.model.tools.artifact import Artifact
from gateway.model.tools.tool_call import ToolCall

Authority = Literal["trusted", "untrusted"]

_NONCE_HEX: Final = 32
"""Hex digits: 128 bits."""
LARGE: Final = 1 << 16
"""Bodies of this many characters are escaped in a thread: a hostile one of this size takes tens of milliseconds."""
_BLOCK: Final = 64
_INNER: Final = bytes(value ^ 0x36 for value in range(256))
_OUTER: Final = bytes(value ^ 0x5C for value in range(256))

_WRITTEN: Final = re.compile(r"&#x([0-9a-f]{4,5});")
_TAG_SAFE: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ATTRIBUTE_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_UNSAFE_IN_ATTRIBUTE: Final = re.compile(r'[&<>"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]')


@dataclass(slots=True)
class TrustEnvelope:
    """One tagged text. The tag's name ends in the nonce, and an attribute repeats it."""

    tag: str
    body: str
    nonce: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    def render(self) -> str:
        """Return opener, newline, body, newline, closer; look-alikes in the body are escaped."""
        return wrap(self.tag, escape_tags(self.body), self.nonce, self.attributes)


def wrap(tag: str, content: str, nonce: str, attributes: Mapping[str, str] = MappingProxyType({})) -> str:
    """Put content between tags without escaping it: it has no look-alikes, or consists of envelopes."""
    nonce = to_tag_name(nonce)
    pairs = {"nonce": nonce, **attributes}
    written = "".join([f' {key}="{escape_attribute(value)}"' for key, value in pairs.items()])
    return f"<{tag}_{nonce}{written}>\n{content}\n</{tag}_{nonce}>"


def compute_nonce(secret: bytes, checksum: str, id: str) -> str:
    """Return the nonce of one call of one turn; it cannot be computed without the turn's secret."""
    message = f"{checksum}{id}".encode("utf-8", "surrogatepass")
    if len(secret) > _BLOCK:
        return hmac.digest(secret, message, "sha256").hex()[:_NONCE_HEX]
    # RFC 2104 for keys that fit into one block. OpenSSL would look the algorithm up by name, which is 20 times slower.
    block = secret.ljust(_BLOCK, b"\0")
    inner = sha256(block.translate(_INNER) + message).digest()
    return sha256(block.translate(_OUTER) + inner).hexdigest()[:_NONCE_HEX]


def to_tag_name(nonce: str) -> str:
    """Return the nonce, or its hash if it cannot be part of a tag name: the id of a record may be any text."""
    return nonce if _TAG_SAFE.fullmatch(nonce) else sha256(nonce.encode("utf-8", "surrogatepass")).hexdigest()


def escape_tags(body: str) -> str:
    """Escape the bracket of everything that looks like one of our tags; `unescape_tags` reverses it exactly."""
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


def unescape_tags(body: str) -> str:
    """Return the text that `escape_tags` was called with."""
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


def content_envelope(authority: Authority, body: str, *, nonce: str, attributes: Mapping[str, str]) -> TrustEnvelope:
    return TrustEnvelope(f"{authority}_content", body, nonce, attributes)


def result_envelope(call: ToolCall, secret: bytes, authority: Authority, kind: str, body: str) -> str:
    """Return what `content_envelope` renders for the result of a call. A fast path: most envelopes are of this kind."""
    checksum = call.checksum
    nonce = compute_nonce(secret, checksum, call.id)
    name = f"{authority}_content_{nonce}"
    # The checksum is computed, so it consists of hex digits; the name of the tool may be any text.
    attributes = f'nonce="{nonce}" kind="{kind}" tool="{_escaped_name(call.tool)}" call="{checksum}"'
    return f"<{name} {attributes}>\n{escape_tags(body)}\n</{name}>"


async def render_off_loop(render: Callable[[str], str], body: str) -> str:
    """Return `render(body)`; a large body is rendered in a thread, so that it does not block the event loop."""
    if len(body) < LARGE:
        return render(body)
    return await asyncio.get_running_loop().run_in_executor(_renderer(), render, body)


@cache
def _renderer() -> ThreadPoolExecutor:
    """Return an executor of one thread: more would compete with the event loop for the interpreter."""
    return ThreadPoolExecutor(1, thread_name_prefix="envelopes")


def instructions_envelope(body: str, version: str | None = None, *, nonce: str) -> TrustEnvelope:
    """Return the envelope of standing instructions, which only the harness writes."""
    extra = {} if version is None else {"version": version}
    return TrustEnvelope("system_instructions", body, nonce, {"kind": "developer-rules", **extra})


async def describe_artifact(call_id: str, artifact: Artifact, *, encoding: str | None = None) -> str:
    """Return a text that replaces the body of an artifact: its sizes, and how to query it."""
    lines = [
        "The result was stored as an artifact and left out here to save context.",
        f"callId: {call_id if call_id.isprintable() else format_js_string(call_id)}",
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


async def _size(artifact: Artifact, method: str, *args: str) -> int:
    try:
        size: int = await getattr(artifact, method)(*args)
    except Exception:  # the model gets the handle even if a size cannot be read
        return 0
    return size


def _reference_to(bracket: str) -> str:
    return "&lt;" if bracket == "<" else f"&#x{ord(bracket):04x};"


def _original(body: str, start: int) -> tuple[str, int]:
    """Return the original character at the start of a look-alike, and the end of its escaped form."""
    char = body[start]
    if char in AMPERSANDS and body.startswith("amp;", start + 1):
        return char, start + 5
    if body.startswith("&lt;", start):
        return "<", start + 4
    written = _WRITTEN.match(body, start)
    if written is not None and (bracket := chr(int(written[1], 16))) in STARTS and bracket != "<":
        return bracket, written.end()
    return char, start + 1
