"""A settled call as content for a client: text in its envelope or bare, media, links to what was left out.

What a program reads (`structured`) stays as the tool gave it; what a model reads is marked with who vouches for it, in
the text and in the `_meta` of every block.
"""

import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict
from urllib.parse import quote

from gateway.core.artifacts import SpooledArtifact, piece_id
from gateway.core.bounded_json import LARGE, TooManyValues, check_values, read_apart
from gateway.core.calls import ToolCall
from gateway.core.envelopes import Authority, render_apart, result_envelope
from gateway.core.media import Media
from gateway.core.media_blocks import Block, mcp_block, safe_mime, safe_name, text_block
from gateway.core.promises import MAX_PROMISED, NOTHING, Promise
from gateway.core.rendering import Renderer, authority_of, handle_texts, media_of, shown_whole, whole_texts
from gateway.core.tokens import Tokenizable
from gateway.errors import ArtifactError
from gateway.serving.published import Published
from gateway.serving.relayed import RAW_BLOCK, TEXT_BLOCK, Aside, foreign_meta
from gateway.serving.settled import Settled
from gateway.serving.turns import Turn
from gateway.snapshot import DeclaredTool

ABSENT: Final = NOTHING

MAX_STRUCTURED: Final = 1 << 20
"""Bytes of a result that programs are given as JSON beside its text."""

_RENDERER: Final = Renderer()


@dataclass(slots=True)
class Content:
    """Blocks in the shape of MCP. `structured` is `ABSENT` or any JSON value, `aside` what another server added."""

    blocks: list[Block]
    is_error: bool = False
    structured: Any = ABSENT
    aside: Aside | None = None


def artifact_uri(turn_id: str, call_id: str, piece: int | None = None) -> str:
    """Where a client reads a result again. The names are no rights: whoever asks is asked who they are."""
    path = f"{quote(turn_id, safe='')}/{quote(call_id, safe='')}"
    return f"artifact://calls/{path}" if piece is None else f"artifact://calls/{path}/{piece}"


def output_schema(published: Published, catalogue: str, tool: DeclaredTool) -> Mapping[str, Any] | None:
    """What clients are promised of a result's JSON; nothing where it may be left out of an answer."""
    served = published.catalogues[catalogue]
    if not tool.inline or served.inlining is not None or served.catalogue.structured == "off":
        return None
    if tool.output_schema is not None or tool.brought_output is None:
        return tool.output_schema
    types = published.types
    is_json = tool.request is None or hasattr(types.named(tool.artifact), "json_type")
    return tool.brought_output if is_json and not types.is_masked(tool.artifact) else None


class Contents:
    """Makes content of settled calls; schemas of outputs are compiled once per revision."""

    def __init__(self) -> None:
        self._published: Published | None = None
        self._promises: dict[tuple[str, str], Promise | None] = {}

    async def of(self, settled: Settled) -> Content:
        turn, record = settled.turn, settled.record
        results: Any = record.results  # a copy, each time it is asked for
        is_artifact = isinstance(results, SpooledArtifact)
        if not is_artifact and (media := media_of(results)):
            beside = None if record.is_error else self._beside(settled)
            structured = ABSENT if beside is None else beside.structured
            return Content(await _media_blocks(turn, record, media), record.is_error, structured, beside)
        declared = turn.published.tool(turn.stored.catalogue, record.tool)
        if is_artifact and declared is not None and record.inline and _is_enveloped(turn):  # what most results are
            authority = authority_of(turn, record)
            text = await shown_whole(turn, record, authority, str(await results.as_string()))
            vouched = _vouched_for(declared, is_trusted=authority == "trusted")
        else:
            text, vouched = await shown_text(turn, record), _vouched(turn, record, declared)
        blocks: list[Block] = [{"type": "text", "text": text, "_meta": vouched}]
        told = settled.pending or settled.limited
        if told is not None and self._promise(turn, declared) is None:
            return Content(blocks, record.is_error, told)
        if record.is_error or isinstance(results, Tokenizable):
            return Content(blocks, record.is_error)
        if not record.inline:
            several = results if isinstance(results, list) else [results]
            links = [await _link(turn, record, each, number, of=len(several)) for number, each in enumerate(several)]
            return Content([*blocks, *links])
        promise = self._promise(turn, declared)
        if promise is None and settled.aside is None and not hasattr(results, "json_type"):
            return Content(blocks)
        return await self._with_json(settled, results, blocks, promise)

    async def promised(self, settled: Settled) -> Content | None:
        """The content of a result whose JSON programs count on: it is promised, or came beside the text."""
        turn = settled.turn
        declared = turn.published.tool(turn.stored.catalogue, settled.record.tool)
        if settled.aside is None and self._promise(turn, declared) is None:
            return None
        return await self.of(settled)

    def _beside(self, settled: Settled) -> Aside | None:
        """Nothing where a class masks what it shows: nobody has masked what stands beside."""
        if settled.aside is None:
            return None
        if settled.turn.catalogue.catalogue.structured == "off":
            return Aside(meta=settled.aside.meta)
        declared = settled.turn.published.tool(settled.turn.stored.catalogue, settled.record.tool)
        is_bare = declared is not None and not settled.turn.published.types.is_masked(declared.artifact)
        return settled.aside if is_bare else None

    async def _with_json(self, settled: Settled, results: Any, blocks: list[Block], promise: Promise | None) -> Content:
        turn, record, beside = settled.turn, settled.record, self._beside(settled)
        if turn.catalogue.catalogue.structured == "off":
            return Content(blocks, aside=beside)
        value = await _json_value(results, limit=MAX_STRUCTURED if promise is None else MAX_PROMISED)
        if value is ABSENT and beside is not None:
            value = beside.structured
        if promise is None:
            return Content(blocks, structured=value, aside=beside)
        if value is ABSENT:  # what stood beside the text is not on record
            value = await _found(results, promise)
        if promise.is_kept(value):
            return Content(blocks, structured=value, aside=beside)
        text = f"the tool ran, but its result does not fit its output schema: {promise.broken(value)}"
        failed = record.replace(is_error=True, results=Tokenizable(text))
        declared = turn.published.tool(turn.stored.catalogue, record.tool)
        shown = {**text_block(await shown_text(turn, failed)), "_meta": _vouched(turn, failed, declared)}
        return Content([shown, *(blocks if settled.is_replay else ())], is_error=True)

    def _promise(self, turn: Turn, tool: DeclaredTool | None) -> Promise | None:
        """What the JSON of a result has to fit, errors included: clients check whatever they are given."""
        if tool is None:
            return None
        if self._published is not turn.published:
            self._published, self._promises = turn.published, {}
        key = (turn.stored.catalogue, tool.name)
        if key not in self._promises:
            found = output_schema(turn.published, turn.stored.catalogue, tool)
            self._promises[key] = None if found is None else Promise(found)
        return self._promises[key]


class MediaMeta(TypedDict):
    """What is said of media. Nobody vouches for bytes that a model looks at, whoever made them."""

    tier: str
    trusted: Literal[False]
    hazard: str


def media_meta(media: Media) -> MediaMeta:
    return {"tier": media.trust_tier, "trusted": False, "hazard": media.modality_hazard}


def shown_text(turn: Turn, record: ToolCall) -> Awaitable[str]:
    """The text of a result as its catalogue shows it: in its envelope, or bare."""
    if not _is_enveloped(turn):
        return _bare_text(turn, record)
    return _query_text(turn, record) if record.from_artifact_tool else _RENDERER.text(turn, record)


async def _bare_text(turn: Turn, record: ToolCall) -> str:
    results: Any = record.results
    if isinstance(results, Tokenizable):
        return results.render(turn.ctx)
    return await whole_texts(results) if record.inline else await handle_texts(record.id, results)


def vouching(turn: Turn, record: ToolCall) -> dict[str, Any]:
    """Who vouches for a text, and what it may do to a model that reads it."""
    return _vouched(turn, record, turn.published.tool(turn.stored.catalogue, record.tool))


def _vouched(turn: Turn, record: ToolCall, declared: DeclaredTool | None) -> dict[str, Any]:
    is_trusted = declared is not None and authority_of(turn, record) == "trusted" and record.inline
    return _vouched_for(declared, is_trusted=is_trusted)


def _vouched_for(declared: DeclaredTool | None, *, is_trusted: bool) -> dict[str, Any]:
    hazard = "inert" if is_trusted else "extractable-instructions"
    return {"tier": _tier(declared), "trusted": is_trusted, "hazard": hazard}


async def _query_text(turn: Turn, record: ToolCall) -> str:
    """Query tools live as long as their dispatch; what they answer is never trusted, whoever made the artifact."""
    results: Any = record.results
    if not isinstance(results, Tokenizable):
        return await _RENDERER.text(turn, record)
    return await _enveloped(turn, record, "untrusted", results.render(turn.ctx))


async def _media_blocks(turn: Turn, record: ToolCall, media: list[Media]) -> list[Block]:
    blocks: list[Block] = []
    for index, each in enumerate(media):
        if each.source in (TEXT_BLOCK, RAW_BLOCK):
            blocks.append(await _relayed_block(turn, record, each))
            continue
        meta = media_meta(each)
        block = {**await mcp_block(each), "_meta": meta}
        if "resource" in block:  # by a name under which it can be read again
            uri = artifact_uri(turn.id, record.id, index if len(media) > 1 else None)
            block["resource"] = {**block["resource"], "uri": uri}
        caption = each.stash.get("text:caption")
        if isinstance(caption, dict) and caption.get("trust_tier") == "first-party":
            blocks.append({**text_block(f"[{safe_name(each.filename)}] {caption['value']}"), "_meta": meta})
        blocks.append(block)
    return blocks


async def _relayed_block(turn: Turn, record: ToolCall, media: Media) -> Block:
    """A block of another server, as it came but for who vouches for it: text in it is shown as any other text."""
    content = await media.as_bytes()
    vouched = vouching(turn, record)
    if media.source == TEXT_BLOCK:
        return {**text_block(await _relayed_text(turn, record, content.decode("utf-8", "replace"))), "_meta": vouched}
    block: Block = json.loads(content)
    resource = block.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        block["resource"] = {**resource, "text": await _relayed_text(turn, record, resource["text"])}
    return {**block, "_meta": {**foreign_meta(block.get("_meta")), **vouched}}


async def _relayed_text(turn: Turn, record: ToolCall, text: str) -> str:
    return await _enveloped(turn, record, authority_of(turn, record), text) if _is_enveloped(turn) else text


async def _enveloped(turn: Turn, record: ToolCall, authority: Authority, text: str) -> str:
    return await render_apart(
        lambda body: result_envelope(record, turn.turn_secret, authority, body, "tool-result"), text
    )


def _is_enveloped(turn: Turn) -> bool:
    return turn.catalogue.catalogue.render == "envelope"


async def _link(turn: Turn, record: ToolCall, artifact: Any, number: int, *, of: int) -> Block:
    declared = turn.published.tool(turn.stored.catalogue, record.tool)
    link: Block = {
        "type": "resource_link",
        "uri": artifact_uri(turn.id, record.id, None if of == 1 else number),
        "name": safe_name(f"{record.tool} {piece_id(record.id, number, of=of)}"),
        "mimeType": mime_type_of(artifact),
        "_meta": {"tier": _tier(declared), "trusted": False, "hazard": "extractable-instructions"},
    }
    try:
        return {**link, "size": int(await artifact.byte_length())}
    except ArtifactError:
        return link


def mime_type_of(results: Any) -> str:
    if isinstance(results, Media):
        return safe_mime(results.mime_type)
    return "application/json" if hasattr(results, "json_type") else "text/plain"


async def _json_value(results: Any, *, limit: int) -> Any:
    """The value of one JSON document that is not too large, else `ABSENT`."""
    json_type = getattr(results, "json_type", None)
    if json_type is None:
        return ABSENT
    try:
        size = await results.byte_length()
        if size > limit:
            return ABSENT
        if size >= LARGE:
            await read_apart(check_values, str(await results.as_string()))
        return await results.value() if await json_type() == "json" else ABSENT
    except (ArtifactError, TooManyValues):
        return ABSENT


async def _found(results: Any, promise: Promise) -> Any:
    """The JSON that a text stands for."""
    try:
        if isinstance(results, list) or await results.byte_length() > MAX_PROMISED:
            return ABSENT
        return promise.found_in(str(await results.as_string()))
    except ArtifactError:
        return ABSENT


def _tier(declared: DeclaredTool | None) -> str | None:
    return None if declared is None else declared.trust.tier.name
