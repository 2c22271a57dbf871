"""The backend that calls a tool of an upstream MCP server and converts its result.

Text becomes an artifact of the tool's class. If there are other blocks, each block is stored separately and in order.
Unknown fields are preserved. Metadata of a block determines neither trust nor hazard.
"""

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, Final, Literal

import orjson

from gateway.artifacts import encode_utf8
from gateway.backends.mcp.connection import UpstreamConnection, end_with_error
from gateway.backends.mcp.server_requests import (
    CallerRelay,
    fetch_legacy_result,
    resolve_input_requests,
    supports_legacy_tasks,
)
from gateway.backends.result_conversion import MediaTemplate, OutputMismatch, too_many_values
from gateway.mcp import RAW_BLOCK, TEXT_BLOCK, Json, filter_foreign_meta
from gateway.model import (
    LARGE,
    MAX_STRUCTURED_SIZE,
    NO_VALUE,
    BackendError,
    CallerChannel,
    Deadline,
    InMemoryMediaReader,
    Invocation,
    Media,
    OutboundRequest,
    OutputSchema,
    TooManyValues,
    UpstreamMeta,
    check_values,
    current_deadline,
    modality_hazard,
    parse_output,
    run_in_json_thread,
    sanitize_mime_type,
)

MAX_BLOCKS: Final = 1_000
MAX_STRUCTURED: Final = 1 << 20
"""Maximum number of bytes of structured content beside a text."""
MAX_BESIDE: Final = 16 << 10
"""Maximum number of bytes of all other fields."""

_KNOWN: Final = frozenset({"content", "structuredContent", "isError", "resultType", "_meta", "ttlMs", "cacheScope"})
_LONGEST_ERROR: Final = 16_000


def parse_blocks(result: Json) -> list[Json]:
    """Return the content blocks of a result. Raise `BackendError` if they are malformed."""
    blocks = result.get("content", [])
    if not isinstance(blocks, list) or len(blocks) > MAX_BLOCKS:
        raise BackendError("failed", "the upstream server did not answer with a list of blocks")
    if not all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in blocks):
        raise BackendError("failed", "the upstream server answered with a block that has no type")
    return blocks


def to_tool_error(blocks: Sequence[Json]) -> BackendError:
    """Return the error text of a tool with its line breaks; other unprintable characters are escaped."""
    text = join_text(blocks).strip() or "the tool failed"
    shown = "".join(map(_escape, text[:_LONGEST_ERROR]))
    return BackendError("failed", shown, kind="tool_error")


def to_result(
    blocks: Sequence[Json], structured: bytes | None, *, json_results: bool, media: MediaTemplate | None = None
) -> str | bytes | Media | list[Media]:
    """Return text, JSON or media; `structured` is the structured content. Raise `BackendError` for invalid blocks."""
    if json_results:
        return _read_json(blocks) if structured is None else structured
    if all(each["type"] == "text" for each in blocks):
        texts = [_get_text(each) for each in blocks]
        if not texts and structured is not None:
            return structured
        return texts[0] if len(texts) == 1 else "\n\n".join(texts)
    found = [_block_to_media(each, number, media) for number, each in enumerate(blocks)]
    return found[0] if len(found) == 1 else found


def extract_meta(result: Json, *, with_structured: bool) -> UpstreamMeta | None:
    """Return the fields beside the blocks, if there are any; fields that are too large are dropped."""
    if result.keys() <= {"content", "isError", "resultType"}:
        return None
    structured = result["structuredContent"] if with_structured else NO_VALUE
    meta = filter_foreign_meta(result.get("_meta"))
    fields = {key: value for key, value in result.items() if key not in _KNOWN}
    if (meta or fields) and len(orjson.dumps([meta, fields])) > MAX_BESIDE:
        meta, fields = {}, {}
    return UpstreamMeta(structured, meta, fields) if structured is not NO_VALUE or meta or fields else None


def _read_json(blocks: Sequence[Json]) -> bytes:
    text = join_text(blocks)
    content = text.encode("utf-8", "replace")
    try:
        check_values(content)
    except TooManyValues as error:
        raise too_many_values(error) from None
    if parse_output(content) is NO_VALUE:
        help = "give the tool another artifact class"
        raise BackendError("failed", "the upstream server's result is not JSON that can be read exactly", help=help)
    return content


def join_text(blocks: Sequence[Json]) -> str:
    return "\n".join(_get_text(each) for each in blocks if each["type"] == "text")


def _get_text(block: Json) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise BackendError("failed", "the upstream server answered with a text block that has no text")
    return text


def _block_to_media(block: Json, number: int, template: MediaTemplate | None) -> Media:
    kind = block["type"]
    if kind == "text":
        return _document(_get_text(block).encode("utf-8", "replace"), "text/plain", f"block-{number}.txt", TEXT_BLOCK)
    if kind == "image":
        return _to_media(block, "image", number, template)
    if kind == "audio":
        return _to_media(block, "audio", number, template)
    return _document(orjson.dumps(block), "application/json", f"block-{number}.json", RAW_BLOCK)


def _to_media(block: Json, kind: Literal["image", "audio"], number: int, template: MediaTemplate | None) -> Media:
    data, mime = block.get("data"), block.get("mimeType")
    try:
        content = b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        content = None
    if content is None or not isinstance(mime, str):
        raise BackendError("failed", f"the upstream server answered with an {kind} that cannot be read")
    if template is not None and template.kind == kind:
        return template.media(content)
    return Media(
        kind=kind,
        mime_type=sanitize_mime_type(mime),
        filename=f"{kind}-{number}",
        reader=InMemoryMediaReader(content),
        trust_tier="third-party-private",
        modality_hazard=modality_hazard(kind),
    )


def _document(content: bytes, mime: str, name: str, source: str) -> Media:
    return Media(
        kind="document",
        mime_type=mime,
        filename=name,
        reader=InMemoryMediaReader(content),
        trust_tier="third-party-private",
        modality_hazard="extractable-instructions",
        source=source,
    )


def _escape(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii")


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool of an upstream server. `arranged` converts the caller's arguments to the tool's."""

    name: str
    json_results: bool = False
    media: MediaTemplate | None = None
    timeout: timedelta = timedelta(seconds=60)
    arranged: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    promise: OutputSchema | None = None
    """The schema that its results must match."""
    as_task: bool = False
    """Whether a legacy server runs it only as a task."""


class McpBackend:
    """A backend that calls one tool. The caller closes the connection: other tools of the server share it."""

    def __init__(self, tool: RemoteTool, connection: UpstreamConnection) -> None:
        self._tool = tool
        self._connection = connection
        self._seconds = tool.timeout.total_seconds()

    async def run(self, call: Invocation) -> Any:
        tool = self._tool
        arguments = call.args if tool.arranged is None else tool.arranged(call.args)
        params: dict[str, Any] = {"name": tool.name, "arguments": dict(arguments)}
        if call.hops is None:
            return await self._call_tool(call, params, None)
        host, port = self._connection.peer or (None, None)
        hop = call.hops.mcp("tools/call", tool=tool.name, upstream=self._connection.name, host=host, port=port)
        if hop is None:
            return await self._call_tool(call, params, None)
        params["_meta"] = dict(hop.fields)
        try:
            value = await self._call_tool(call, params, hop)
        except BaseException as error:
            end_with_error(hop, error)
            raise
        hop.end()
        return value

    async def _call_tool(self, call: Invocation, params: dict[str, Any], hop: OutboundRequest | None) -> Any:
        tool = self._tool
        client = call.call.client if call.call is not None else None
        outer = current_deadline()
        if outer is not None and outer.remaining_seconds <= self._seconds:  # the outer deadline ends the call earlier
            result = await self._send_call(params, CallerRelay(client, call.principal, outer), hop)
        else:
            result = await self._call_in_time(call, params, client, outer, hop)
        try:
            blocks = parse_blocks(result)
            if result.get("isError") is True:
                if hop is not None:
                    hop.end(error="tool_error")
                raise to_tool_error(blocks)
            result, structured = _find_structured(result, blocks, tool.promise)
            value = await self._convert(blocks, structured)
            limit = MAX_STRUCTURED if tool.promise is None else MAX_STRUCTURED_SIZE
            is_beside = structured is not None and not tool.json_results and len(structured) <= limit
            meta = extract_meta(result, with_structured=is_beside)
        except (TypeError, ValueError, RecursionError) as error:  # not all parsed JSON can be serialized again
            raise BackendError("failed", "the upstream server's result is nested too deeply") from error
        if call.call is not None:
            call.call.aside = meta
        if tool.promise is None or not isinstance(value, str):
            return value
        if tool.promise.extract(value) == result["structuredContent"]:
            return value
        return await call.keep([encode_utf8(value)])  # the text alone does not contain the structured content

    async def _convert(self, blocks: Sequence[Json], structured: bytes | None) -> Any:
        """Return the value, computed outside the event loop if it is large JSON text."""
        convert = partial(to_result, blocks, structured, json_results=self._tool.json_results, media=self._tool.media)
        is_large = self._tool.json_results and any(len(str(each.get("text", ""))) >= LARGE for each in blocks)
        return await run_in_json_thread(convert) if is_large else convert()

    async def _call_in_time(
        self,
        call: Invocation,
        params: dict[str, Any],
        client: CallerChannel | None,
        outer: Deadline | None,
        hop: OutboundRequest | None,
    ) -> Json:
        deadline = Deadline(monotonic() + self._seconds, monotonic, outer)
        try:
            async with asyncio.timeout(self._seconds) as scope:
                deadline.scope = scope
                return await self._send_call(params, CallerRelay(client, call.principal, deadline), hop)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise BackendError("unavailable", f"no result within {self._seconds:g} s") from error
        finally:
            deadline.scope = None

    def _send_call(self, params: dict[str, Any], relay: CallerRelay, hop: OutboundRequest | None) -> Awaitable[Json]:
        relay.hop = hop
        if meta := relay.meta:
            params["_meta"] = {**meta, **params.get("_meta", {})}
        if self._tool.as_task and supports_legacy_tasks(self._connection):
            return self._call_as_task(params, relay)
        return resolve_input_requests(self._connection, "tools/call", params, relay)

    async def _call_as_task(self, params: dict[str, Any], relay: CallerRelay) -> Json:
        """Call as a task of a legacy server and wait for its result."""
        as_task = {**params, "task": {"ttl": int(self._seconds * 1000)}}
        created = await resolve_input_requests(self._connection, "tools/call", as_task, relay)
        return await fetch_legacy_result(self._connection, created, relay) if "task" in created else created

    async def close(self) -> None:
        """Do nothing: the connection is shared."""


def _find_structured(result: Json, blocks: Sequence[Json], promise: OutputSchema | None) -> tuple[Json, bytes | None]:
    """Return the result, and its structured content as JSON text.

    With a promise there is structured content that matches it, perhaps from the text. Raise `OutputMismatch` otherwise.
    """
    value = result.get("structuredContent", NO_VALUE)
    if promise is None:
        return result, None if value is NO_VALUE else orjson.dumps(value)
    if value is NO_VALUE and (value := promise.extract(join_text(blocks))) is not NO_VALUE:
        return {**result, "structuredContent": value}, orjson.dumps(value)
    if value is NO_VALUE:
        raise OutputMismatch("it has no structured content")
    if not promise.matches(value):
        raise OutputMismatch(promise.mismatch(value))
    structured = orjson.dumps(value)
    if len(structured) > MAX_STRUCTURED_SIZE:
        raise OutputMismatch(f"it has more than {MAX_STRUCTURED_SIZE >> 20} MiB")
    return result, structured
