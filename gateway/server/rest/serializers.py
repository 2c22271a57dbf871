"""Calls, records, turns and results as JSON data. Every link names the turn, because ids are unique only within it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from gateway.engine import (
    ABSENT,
    RAN_UNRECORDED,
    ArtifactTypes,
    CallOutcome,
    ContentRenderer,
    ResultContent,
    Turn,
    build_trust_meta,
    render_text,
)
from gateway.mcp import NEXT_PAGE_META
from gateway.model import (
    Media,
    Tokenizable,
    ToolCall,
    format_size,
    is_artifact,
    media_of,
    piece_id,
    sanitize_file_name,
    sanitize_mime_type,
)
from gateway.storage import StoredCall, StoredResult, argument_data

_UNRESERVED: Final = re.compile(r"[A-Za-z0-9_.~-]*")
MAX_TEXT: Final = 1 << 20
"""Maximum bytes of an inline result that a response repeats as plain text, besides the text for a model."""


async def outcome_data(settled: CallOutcome, contents: ContentRenderer) -> dict[str, Any]:
    """Return the response body of a call."""
    record, turn = settled.record, settled.turn
    found = {
        "callId": record.id,
        "turn": turn.id,
        "tool": record.tool,
        "checksum": record.checksum,
        "isError": record.is_error,
        "inline": record.inline,
        "trusted": build_trust_meta(turn, record)["trusted"],
        "result": await result_data(record, turn_id=turn.id, type=_artifact_type(turn, record.tool)),
        "rendered": await render_result_text(turn, record),
        "startedAt": record.created_at,
        "completedAt": record.completed_at,
    }
    content = await contents.render_structured(settled)
    if content is not None:
        found |= _structured_data(content, record)
    if settled.aside is not None and NEXT_PAGE_META in settled.aside.meta:
        found["next"] = settled.aside.meta[NEXT_PAGE_META]
    if settled.pending is not None:
        found["pending"] = _pending_data(settled.pending)
    if settled.limited is not None:
        found["limited"] = settled.limited
    if not settled.is_recorded:
        found["notRecorded"] = RAN_UNRECORDED
    return {**found, "replayed": True} if settled.is_replay else found


def _structured_data(content: ResultContent, record: ToolCall) -> dict[str, Any]:
    """Return the JSON of a result, or the error that replaces a result that violates its output schema."""
    if content.is_error and not record.is_error:
        text = content.blocks[0]["text"]
        return {"isError": True, "trusted": False, "result": {"kind": "text", "text": text}, "rendered": text}
    return {} if content.structured is ABSENT else {"structuredContent": content.structured}


def _pending_data(pending: Mapping[str, Any]) -> dict[str, Any]:
    """Return the approvals that a call waits for, with links."""
    approvals = [{**each, "href": f"/v1/approvals/{quote(each['id'], safe='')}"} for each in pending["approvals"]]
    return {**pending, "approvals": approvals}


async def result_data(record: ToolCall, *, turn_id: str, type: str) -> dict[str, Any]:
    results: Any = record.results
    if isinstance(results, Tokenizable):
        return {"kind": "text", "text": str(results)}
    pieces = results if isinstance(results, list) else [results]
    if media_of(results):
        media = [media_data(each, record.id, turn_id=turn_id, part=part) for part, each in enumerate(pieces)]
        return {"kind": "media", "media": media}
    several = len(pieces)
    artifacts = [
        await artifact_data(each, record.id, turn_id=turn_id, type=type, part=part, of=several)
        for part, each in enumerate(pieces)
    ]
    if isinstance(results, list):
        return {"kind": "artifact", "artifacts": artifacts}
    text = await _inline_text(record, pieces[0], artifacts[0]["byteLength"])
    return {"kind": "artifact", "artifact": artifacts[0], **({} if text is None else {"text": text})}


async def render_result_text(turn: Turn, record: ToolCall) -> str:
    """Return the text that a model reads; it names media without their bytes."""
    if media := media_of(record.results):
        return "\n".join([await _media_text(each) for each in media])
    return await render_text(turn, record)


def record_data(stored: StoredCall) -> dict[str, Any]:
    """Return a record without its result. Who allowed it and why is for operators, not for callers."""
    found = {
        "callId": stored.id,
        "turn": stored.turn_id,
        "tool": stored.tool,
        "catalogue": stored.catalogue,
        "revision": stored.revision,
        **argument_data(stored),
        "checksum": stored.checksum,
        "status": stored.status,
        "decision": stored.decision,
        "isError": stored.is_error,
        "inline": stored.inline,
        "trusted": stored.is_trusted and stored.inline,  # handles never are
        "fromArtifactTool": stored.from_artifact_tool,
        "startedAt": stored.created_at,
        "completedAt": stored.completed_at,
        "href": _href("calls", stored.id, turn_id=stored.turn_id),
    }
    return {**found, "idempotencyKey": stored.idempotency_key} if stored.idempotency_key else found


def result_summary(stored: StoredCall, types: ArtifactTypes) -> dict[str, Any] | None:
    """Return what is known of a record's result without reading bytes; `None` unless it is an artifact."""
    pieces: Sequence[StoredResult] = stored.results
    if not pieces or pieces[0].kind != "artifact":
        return None
    artifacts = [
        _artifact(
            stored.id,
            types.get(each.type or "text").__name__,
            each.type or "text",
            stored.turn_id,
            part,
            of=len(pieces),
        )
        | {"byteLength": None if types.is_masked(each.type or "text") else each.byte_length, "lineCount": None}
        for part, each in enumerate(pieces)
    ]
    named = {"artifact": artifacts[0]} if len(artifacts) == 1 else {"artifacts": artifacts}
    return {"kind": "artifact", **named}


def turn_data(turn: Turn) -> dict[str, Any]:
    stored = turn.stored
    found: dict[str, Any] = {
        "id": stored.id,
        "catalogue": stored.catalogue,
        "revision": stored.revision,
        "createdAt": stored.created_at,
        "expiresAt": stored.expires_at,
        "stash": turn.stash,
        "href": f"/v1/turns/{_quote(stored.id)}",
    }
    if stored.ended_at is not None:
        found |= {"endedAt": stored.ended_at, "ending": stored.ending}
    return found


async def artifact_data(
    artifact: Any, id: str, *, turn_id: str, type: str, part: int = 0, of: int = 1
) -> dict[str, Any]:
    """Return the metadata of an artifact that is part `part` of `of` parts of a call's result."""
    sizes = {"byteLength": await artifact.byte_length(), "lineCount": await artifact.line_count()}
    return _artifact(id, artifact.__class__.__name__, type, turn_id, part, of=of) | sizes


def media_data(media: Media, id: str, *, turn_id: str, part: int) -> dict[str, Any]:
    """Return the metadata of media. The bytes are fetched only for a download."""
    return {
        **{key: value for key, value in _media_members(media.to_json()).items() if value is not None},
        "contentHref": _content_href(id, turn_id, part),
    }


def _media_members(media: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "kind", "mimeType", "filename", "trustTier", "modalityHazard", "source")
    return {name: media.get(name) for name in names}


def _artifact(id: str, kind: str, type: str, turn_id: str, part: int, *, of: int) -> dict[str, Any]:
    own = piece_id(id, part, of=of)
    return {
        "callId": own,
        "kind": kind,
        "type": type,
        "href": _href("artifacts", own, turn_id=turn_id),
        "contentHref": _content_href(id, turn_id, part),
    }


def _href(collection: str, id: str, *, turn_id: str) -> str:
    return f"/v1/{collection}/{_quote(id)}?turn={_quote(turn_id)}"


def _content_href(id: str, turn_id: str, part: int) -> str:
    which = f"&part={part}" if part else ""
    return f"/v1/artifacts/{_quote(id)}/content?turn={_quote(turn_id)}{which}"


def _quote(id: str) -> str:
    """Return an id as a part of a URL. Nearly all ids have unreserved characters only."""
    return id if _UNRESERVED.fullmatch(id) else quote(id, safe="")


def _artifact_type(turn: Turn, tool: str) -> str:
    declared = turn.published.tool(turn.stored.catalogue, tool)
    return declared.artifact if declared is not None else "text"


async def _inline_text(record: ToolCall, artifact: Any, size: int) -> str | None:
    return await _text(artifact) if record.inline and size <= MAX_TEXT else None


async def _text(piece: Any) -> str:
    if isinstance(piece, Tokenizable):
        return str(piece)
    if hasattr(piece, "as_string"):
        return str(await piece.as_string())
    assert is_artifact(piece), "a result is text, an artifact or media"  # noqa: S101 - held by the record
    return "\n".join(await piece.cat())


async def _media_text(media: Media) -> str:
    size = format_size(await media.byte_length())
    return f"[media: {sanitize_file_name(media.filename)}, {sanitize_mime_type(media.mime_type)}, {size}]"
