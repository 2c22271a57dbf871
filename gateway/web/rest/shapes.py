"""What is told of calls, records, turns and their results. Every link names the turn: ids are unique only there."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from gateway.core.artifacts import is_artifact, piece_id
from gateway.core.calls import ToolCall
from gateway.core.media import Media
from gateway.core.media_blocks import safe_mime, safe_name, size_text
from gateway.core.rendering import media_of
from gateway.core.tokens import Tokenizable
from gateway.governance.records import StoredCall, StoredResult, argument_data
from gateway.serving.artifact_types import ArtifactTypes
from gateway.serving.content import ABSENT, Content, Contents, shown_text, vouching
from gateway.serving.course import RAN_UNRECORDED
from gateway.serving.relayed import NEXT
from gateway.serving.settled import Settled
from gateway.serving.turns import Turn

MAX_TEXT: Final = 1 << 20
"""Bytes of an inline result up to which an answer repeats it as plain text, beside what a model reads."""


async def called(settled: Settled, contents: Contents) -> dict[str, Any]:
    """A settled call as it is answered."""
    record, turn = settled.record, settled.turn
    found = {
        "callId": record.id,
        "turn": turn.id,
        "tool": record.tool,
        "checksum": record.checksum,
        "isError": record.is_error,
        "inline": record.inline,
        "trusted": vouching(turn, record)["trusted"],
        "result": await result(record, turn_id=turn.id, type=_declared_type(turn, record.tool)),
        "rendered": await rendered(turn, record),
        "startedAt": record.created_at,
        "completedAt": record.completed_at,
    }
    content = await contents.promised(settled)
    if content is not None:
        found |= _for_programs(content, record)
    if settled.aside is not None and NEXT in settled.aside.meta:
        found["next"] = settled.aside.meta[NEXT]
    if settled.pending is not None:
        found["pending"] = _pending(settled.pending)
    if settled.limited is not None:
        found["limited"] = settled.limited
    if not settled.is_recorded:
        found["notRecorded"] = RAN_UNRECORDED
    return {**found, "replayed": True} if settled.is_replay else found


def _for_programs(content: Content, record: ToolCall) -> dict[str, Any]:
    """The JSON of a result, or, in place of one that breaks a promise, what is wrong with it."""
    if content.is_error and not record.is_error:
        text = content.blocks[0]["text"]
        return {"isError": True, "trusted": False, "result": {"kind": "text", "text": text}, "rendered": text}
    return {} if content.structured is ABSENT else {"structuredContent": content.structured}


def _pending(pending: Mapping[str, Any]) -> dict[str, Any]:
    """What a call waits for, and where to look at it."""
    approvals = [{**each, "href": f"/v1/approvals/{quote(each['id'], safe='')}"} for each in pending["approvals"]]
    return {**pending, "approvals": approvals}


async def result(record: ToolCall, *, turn_id: str, type: str) -> dict[str, Any]:
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


async def rendered(turn: Turn, record: ToolCall) -> str:
    """The text a model reads; media are named, and their bytes left where they are."""
    if media := media_of(record.results):
        return "\n".join([await _media_text(each) for each in media])
    return await shown_text(turn, record)


def record_data(stored: StoredCall) -> dict[str, Any]:
    """A record without its result. Who let it through and why is told to operators, not to callers."""
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


def summary(stored: StoredCall, types: ArtifactTypes) -> dict[str, Any] | None:
    """The result of a record as far as it is known without reading any bytes; texts are left to their record."""
    pieces: Sequence[StoredResult] = stored.results
    if not pieces or pieces[0].kind != "artifact":
        return None
    artifacts = [
        _artifact(
            stored.id,
            types.named(each.type or "text").__name__,
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
        "stash": turn.ctx.stash.all(),
        "href": f"/v1/turns/{quote(stored.id, safe='')}",
    }
    if stored.ended_at is not None:
        found |= {"endedAt": stored.ended_at, "ending": stored.ending}
    return found


async def artifact_data(
    artifact: Any, id: str, *, turn_id: str, type: str, part: int = 0, of: int = 1
) -> dict[str, Any]:
    """What is known of an artifact that is one of so many parts of a call's result."""
    sizes = {"byteLength": await artifact.byte_length(), "lineCount": await artifact.line_count()}
    return _artifact(id, artifact.__class__.__name__, type, turn_id, part, of=of) | sizes


def media_data(media: Media, id: str, *, turn_id: str, part: int) -> dict[str, Any]:
    """What is known of media. The bytes are fetched when somebody asks for them, not before."""
    return {
        **{key: value for key, value in _known(media.to_json()).items() if value is not None},
        "contentHref": _content_href(id, turn_id, part),
    }


def _known(media: Mapping[str, Any]) -> dict[str, Any]:
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
    return f"/v1/{collection}/{quote(id, safe='')}?turn={quote(turn_id, safe='')}"


def _content_href(id: str, turn_id: str, part: int) -> str:
    which = f"&part={part}" if part else ""
    return f"/v1/artifacts/{quote(id, safe='')}/content?turn={quote(turn_id, safe='')}{which}"


def _declared_type(turn: Turn, tool: str) -> str:
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
    size = size_text(await media.byte_length())
    return f"[media: {safe_name(media.filename)}, {safe_mime(media.mime_type)}, {size}]"
