"""The result of a call as content for a client: text, media, and links to results that are not shown inline.

Programs read `structured`, which stays as the tool returned it; text for models is marked with its trust, in the text
and in the `_meta` of every block.
"""

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypedDict
from urllib.parse import quote

from gateway.approvals import ApprovalRecord
from gateway.artifacts import SpooledArtifact
from gateway.engine.call import Call, Fault, PendingConfirmation
from gateway.engine.live_revision import LiveRevision
from gateway.engine.turns.turn import Turn
from gateway.errors import ArtifactError
from gateway.mcp import RAW_BLOCK, TEXT_BLOCK, filter_foreign_meta
from gateway.model import (
    LARGE,
    MAX_STRUCTURED_SIZE,
    NO_VALUE,
    Authority,
    ContentBlock,
    Media,
    OutputSchema,
    Renderer,
    Tokenizable,
    ToolCall,
    TooManyValues,
    UpstreamMeta,
    check_values,
    describe_artifacts,
    join_bodies,
    mcp_block,
    media_of,
    piece_id,
    render_inline,
    render_off_loop,
    result_authority,
    result_envelope,
    run_in_json_thread,
    sanitize_file_name,
    sanitize_mime_type,
    text_block,
)
from gateway.registries import DeclaredTool


@dataclass(slots=True)
class CallOutcome:
    """`is_replay`: an earlier call with the same key settled it."""

    record: ToolCall
    turn: Turn
    is_replay: bool = False
    pending: Mapping[str, Any] | None = None
    """Data for programs about a call that waits for approvers."""
    limited: Mapping[str, Any] | None = None
    """Data for programs about a call that a rate or a quota stopped."""
    approvals: Sequence[ApprovalRecord] = ()
    """The approvals that a held call waits for."""
    aside: UpstreamMeta | None = None
    """What the upstream sent beside its result."""
    is_confirmed: bool = False
    """Whether its caller has confirmed a call that waits for approvers."""
    unconfirmed: PendingConfirmation | None = None
    """The question that its caller has to answer before it runs."""
    has_begun: bool = True
    """Whether its tool may have had an effect; for a replayed call, whether the first one may have."""
    fault: Fault | None = None
    """What stopped it, if anything did and this process saw it."""
    reason: str = ""
    """The decision's reason, a word of the audit vocabulary."""
    is_recorded: bool = True
    """Whether its outcome is on record. The start is, and the store writes the outcome when it recovers."""


def to_outcome(record: ToolCall, turn: Turn, call: Call) -> CallOutcome:
    settled = CallOutcome(
        record,
        turn,
        pending=call.pending,
        limited=call.limited,
        aside=call.aside,
        has_begun=call.course.has_begun,
        fault=call.fault,
        reason=call.reason,
        is_recorded=not call.is_unwritten,
    )
    if call.decision == "hold":
        settled.unconfirmed = call.unconfirmed
        settled.approvals = call.approvals
        settled.is_confirmed = any(call.holding.has_confirmed(each.digest) for each in call.approvals)
    return settled


ABSENT: Final = NO_VALUE

MAX_STRUCTURED: Final = 1 << 20
"""Maximum bytes of a result that programs receive as JSON beside its text."""

_RENDERER: Final = Renderer()


@dataclass(slots=True)
class ResultContent:
    """Blocks in the shape of MCP. `structured` is `ABSENT` or any JSON value, `aside` what the upstream added."""

    blocks: list[ContentBlock]
    is_error: bool = False
    structured: Any = ABSENT
    aside: UpstreamMeta | None = None


def artifact_uri(turn_id: str, call_id: str, piece: int | None = None) -> str:
    """Return the URI to read a result again. It grants no rights: the reader is authenticated and authorised."""
    path = f"{quote(turn_id, safe='')}/{quote(call_id, safe='')}"
    return f"artifact://calls/{path}" if piece is None else f"artifact://calls/{path}/{piece}"


def advertised_output_schema(published: LiveRevision, catalogue: str, tool: DeclaredTool) -> Mapping[str, Any] | None:
    """Return the output schema that clients are promised; `None` if the JSON may be missing in a response."""
    served = published.catalogues[catalogue]
    if not tool.inline or served.inlining is not None or served.catalogue.structured == "off":
        return None
    if tool.output_schema is not None or tool.upstream_output_schema is None:
        return tool.output_schema
    types = published.types
    is_json = tool.request is None or hasattr(types.get(tool.artifact), "json_type")
    return tool.upstream_output_schema if is_json and not types.is_masked(tool.artifact) else None


class ContentRenderer:
    """Renders settled calls; output schemas are compiled once per revision."""

    def __init__(self) -> None:
        self._published: LiveRevision | None = None
        self._promises: dict[tuple[str, str], OutputSchema | None] = {}

    async def render(self, settled: CallOutcome) -> ResultContent:
        turn, record = settled.turn, settled.record
        results: Any = record.results  # the property copies on each access
        is_artifact = isinstance(results, SpooledArtifact)
        if not is_artifact and (media := media_of(results)):
            beside = None if record.is_error else self._beside(settled)
            structured = ABSENT if beside is None else beside.structured
            return ResultContent(await _media_blocks(turn, record, media), record.is_error, structured, beside)
        declared = turn.published.tool(turn.stored.catalogue, record.tool)
        is_text = isinstance(results, Tokenizable)
        if declared is not None and record.inline and (is_artifact or is_text) and _is_enveloped(turn):
            authority = result_authority(turn, record)  # the most common cases: an artifact, and a refusal
            body = results.render(turn) if is_text else str(await results.as_string())
            text = await render_inline(turn, record, authority, body)
            trust = _to_trust_meta(declared, is_trusted=authority == "trusted")
        else:
            text, trust = await render_text(turn, record), _trust_meta(turn, record, declared)
        blocks: list[ContentBlock] = [{"type": "text", "text": text, "_meta": trust}]
        notice = settled.pending or settled.limited
        if notice is not None and self._promise(turn, declared) is None:
            return ResultContent(blocks, record.is_error, notice)
        if record.is_error or is_text:
            return ResultContent(blocks, record.is_error)
        if not record.inline:
            several = results if isinstance(results, list) else [results]
            links = [await _link(turn, record, each, number, of=len(several)) for number, each in enumerate(several)]
            return ResultContent([*blocks, *links])
        promise = self._promise(turn, declared)
        if promise is None and settled.aside is None and not hasattr(results, "json_type"):
            return ResultContent(blocks)
        return await self._with_json(settled, results, blocks, promise)

    async def render_structured(self, settled: CallOutcome) -> ResultContent | None:
        """Render a result whose JSON is promised or came beside the text; `None` for any other."""
        turn = settled.turn
        declared = turn.published.tool(turn.stored.catalogue, settled.record.tool)
        if settled.aside is None and self._promise(turn, declared) is None:
            return None
        return await self.render(settled)

    def _beside(self, settled: CallOutcome) -> UpstreamMeta | None:
        """Return what the upstream added; `None` if the class masks values, because the addition is not masked."""
        if settled.aside is None:
            return None
        if settled.turn.catalogue.catalogue.structured == "off":
            return UpstreamMeta(meta=settled.aside.meta)
        declared = settled.turn.published.tool(settled.turn.stored.catalogue, settled.record.tool)
        is_bare = declared is not None and not settled.turn.published.types.is_masked(declared.artifact)
        return settled.aside if is_bare else None

    async def _with_json(
        self, settled: CallOutcome, results: Any, blocks: list[ContentBlock], promise: OutputSchema | None
    ) -> ResultContent:
        turn, record, beside = settled.turn, settled.record, self._beside(settled)
        if turn.catalogue.catalogue.structured == "off":
            return ResultContent(blocks, aside=beside)
        value = await _json_value(results, limit=MAX_STRUCTURED if promise is None else MAX_STRUCTURED_SIZE)
        if value is ABSENT and beside is not None:
            value = beside.structured
        if promise is None:
            return ResultContent(blocks, structured=value, aside=beside)
        if value is ABSENT:  # the JSON beside the text is not on record
            value = await _extract_json(results, promise)
        if promise.matches(value):
            return ResultContent(blocks, structured=value, aside=beside)
        text = f"the tool ran, but its result does not fit its output schema: {promise.mismatch(value)}"
        failed = record.replace(is_error=True, results=Tokenizable(text))
        declared = turn.published.tool(turn.stored.catalogue, record.tool)
        block = {**text_block(await render_text(turn, failed)), "_meta": _trust_meta(turn, failed, declared)}
        return ResultContent([block, *(blocks if settled.is_replay else ())], is_error=True)

    def _promise(self, turn: Turn, tool: DeclaredTool | None) -> OutputSchema | None:
        """Return the schema that the JSON of a result must match, errors included: clients validate all of it."""
        if tool is None:
            return None
        if self._published is not turn.published:
            self._published, self._promises = turn.published, {}
        key = (turn.stored.catalogue, tool.name)
        if key not in self._promises:
            found = advertised_output_schema(turn.published, turn.stored.catalogue, tool)
            self._promises[key] = None if found is None else OutputSchema(found)
        return self._promises[key]


class MediaMeta(TypedDict):
    """Trust metadata of media. Bytes that a model looks at are never trusted, whatever their source."""

    tier: str
    trusted: Literal[False]
    hazard: str


def media_meta(media: Media) -> MediaMeta:
    return {"tier": media.trust_tier, "trusted": False, "hazard": media.modality_hazard}


def render_text(turn: Turn, record: ToolCall) -> Awaitable[str]:
    """Return the text of a result as its catalogue shows it: in its envelope, or bare."""
    if not _is_enveloped(turn):
        return _bare_text(turn, record)
    return _query_text(turn, record) if record.from_artifact_tool else _RENDERER.text(turn, record)


async def _bare_text(turn: Turn, record: ToolCall) -> str:
    results: Any = record.results
    if isinstance(results, Tokenizable):
        return results.render(turn.ctx if results.is_dynamic else None)
    return await join_bodies(results) if record.inline else await describe_artifacts(record.id, results)


def build_trust_meta(turn: Turn, record: ToolCall) -> dict[str, Any]:
    """Return the trust metadata of a text: its tier, whether it is trusted, and its hazard to a model."""
    return _trust_meta(turn, record, turn.published.tool(turn.stored.catalogue, record.tool))


def _trust_meta(turn: Turn, record: ToolCall, declared: DeclaredTool | None) -> dict[str, Any]:
    is_trusted = declared is not None and result_authority(turn, record) == "trusted" and record.inline
    return _to_trust_meta(declared, is_trusted=is_trusted)


def _to_trust_meta(declared: DeclaredTool | None, *, is_trusted: bool) -> dict[str, Any]:
    hazard = "inert" if is_trusted else "extractable-instructions"
    return {"tier": _tier(declared), "trusted": is_trusted, "hazard": hazard}


async def _query_text(turn: Turn, record: ToolCall) -> str:
    """Render the result of a query tool. It is never trusted, whatever tool made the artifact."""
    results: Any = record.results
    if not isinstance(results, Tokenizable):
        return await _RENDERER.text(turn, record)
    return await _envelope(turn, record, "untrusted", results.render(turn.ctx if results.is_dynamic else None))


async def _media_blocks(turn: Turn, record: ToolCall, media: list[Media]) -> list[ContentBlock]:
    blocks: list[ContentBlock] = []
    for index, each in enumerate(media):
        if each.source in (TEXT_BLOCK, RAW_BLOCK):
            blocks.append(await _relay_block(turn, record, each))
            continue
        meta = media_meta(each)
        block = {**await mcp_block(each), "_meta": meta}
        if "resource" in block:  # give it a URI under which it can be read again
            uri = artifact_uri(turn.id, record.id, index if len(media) > 1 else None)
            block["resource"] = {**block["resource"], "uri": uri}
        caption = each.stash.get("text:caption")
        if isinstance(caption, dict) and caption.get("trust_tier") == "first-party":
            blocks.append({**text_block(f"[{sanitize_file_name(each.filename)}] {caption['value']}"), "_meta": meta})
        blocks.append(block)
    return blocks


async def _relay_block(turn: Turn, record: ToolCall, media: Media) -> ContentBlock:
    """Return an upstream's block unchanged, except for its trust metadata and texts, which are enveloped as usual."""
    content = await media.as_bytes()
    trust = build_trust_meta(turn, record)
    if media.source == TEXT_BLOCK:
        return {**text_block(await _relay_text(turn, record, content.decode("utf-8", "replace"))), "_meta": trust}
    block: ContentBlock = json.loads(content)
    resource = block.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        block["resource"] = {**resource, "text": await _relay_text(turn, record, resource["text"])}
    return {**block, "_meta": {**filter_foreign_meta(block.get("_meta")), **trust}}


async def _relay_text(turn: Turn, record: ToolCall, text: str) -> str:
    return await _envelope(turn, record, result_authority(turn, record), text) if _is_enveloped(turn) else text


async def _envelope(turn: Turn, record: ToolCall, authority: Authority, text: str) -> str:
    return await render_off_loop(partial(result_envelope, record, turn.turn_secret, authority, "tool-result"), text)


def _is_enveloped(turn: Turn) -> bool:
    return turn.catalogue.catalogue.render == "envelope"


async def _link(turn: Turn, record: ToolCall, artifact: Any, number: int, *, of: int) -> ContentBlock:
    declared = turn.published.tool(turn.stored.catalogue, record.tool)
    link: ContentBlock = {
        "type": "resource_link",
        "uri": artifact_uri(turn.id, record.id, None if of == 1 else number),
        "name": sanitize_file_name(f"{record.tool} {piece_id(record.id, number, of=of)}"),
        "mimeType": mime_type_of(artifact),
        "_meta": {"tier": _tier(declared), "trusted": False, "hazard": "extractable-instructions"},
    }
    try:
        return {**link, "size": int(await artifact.byte_length())}
    except ArtifactError:
        return link


def mime_type_of(results: Any) -> str:
    if isinstance(results, Media):
        return sanitize_mime_type(results.mime_type)
    return "application/json" if hasattr(results, "json_type") else "text/plain"


async def _json_value(results: Any, *, limit: int) -> Any:
    """Return the value of one JSON document that is not too large, otherwise `ABSENT`."""
    json_type = getattr(results, "json_type", None)
    if json_type is None:
        return ABSENT
    try:
        size = await results.byte_length()
        if size > limit:
            return ABSENT
        if size >= LARGE:
            await run_in_json_thread(check_values, str(await results.as_string()))
        return await results.value() if await json_type() == "json" else ABSENT
    except (ArtifactError, TooManyValues):
        return ABSENT


async def _extract_json(results: Any, promise: OutputSchema) -> Any:
    """Return the JSON value that a text contains; `ABSENT` if there is none or it is too large."""
    try:
        if isinstance(results, list) or await results.byte_length() > MAX_STRUCTURED_SIZE:
            return ABSENT
        return promise.extract(str(await results.as_string()))
    except ArtifactError:
        return ABSENT


def _tier(declared: DeclaredTool | None) -> str | None:
    return None if declared is None else declared.trust.tier.name
