"""Results of calls over MCP: as resources of their caller, and as JSON in the form of each protocol revision."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

import orjson

from gateway.engine import (
    ABSENT,
    RAN_UNRECORDED,
    ArtifactTypes,
    CallOutcome,
    OutcomeLost,
    ResultContent,
    Service,
    Turn,
    artifact_uri,
    build_trust_meta,
    media_meta,
    mime_type_of,
    render_text,
)
from gateway.errors import Missing
from gateway.mcp import (
    INVALID_PARAMS,
    META_CALL,
    META_LIMITED,
    META_NOT_RECORDED,
    META_PENDING,
    META_TURN,
    STATELESS_VERSION,
    ProtocolError,
)
from gateway.model import (
    CallerChannel,
    Principal,
    Tokenizable,
    ToolCall,
    media_of,
    piece_id,
    sanitize_file_name,
    sanitize_mime_type,
)
from gateway.storage import CallFilter, StoredCall, StoredResult

PAGE: Final = 50
MAX_READ: Final = 16 << 20
"""Maximum bytes of a result that is read as a resource; larger ones are queried."""

_URI: Final = re.compile(r"artifact://calls/([^/?#]+)/([^/?#]+?)(?:/([0-9]{1,4}))?")


async def list_result_resources(
    service: Service, principal: Principal, *, catalogue: str, cursor: Any
) -> dict[str, Any]:
    """Return a page of the caller's own artifacts and media, newest first."""
    if cursor is not None and not isinstance(cursor, str):
        raise ProtocolError(INVALID_PARAMS, "the cursor is not valid for this list")
    wanted = CallFilter(tenant=principal.tenant, subject=principal.subject, catalogue=catalogue, status="settled")
    try:
        calls, more = await service.list_calls(wanted, limit=PAGE, before=cursor or None)
    except ValueError:
        raise ProtocolError(INVALID_PARAMS, "the cursor is not valid for this list") from None
    readable = [call for call in calls if call.principal.tenant == principal.tenant and _has_resources(call)]
    types = service.published.types
    found = [each for call in readable if service.may_read(principal, call) for each in _describe(call, types)]
    return {"resources": found, **({"nextCursor": more} if more else {})}


async def read_result_resource(
    service: Service,
    principal: Principal,
    *,
    catalogue: str,
    uri: Any,
    into: Turn | None = None,
    client: CallerChannel | None = None,
) -> list[dict[str, Any]]:
    """Return the contents of a result by its URI. Raises `Missing` if it does not exist or the caller may not read it.

    The read is recorded in the turn `into`, and counts for decisions about later calls of that turn.
    """
    found = _URI.fullmatch(uri) if isinstance(uri, str) else None
    if found is None:
        raise Missing()
    turn_id, call_id, piece = unquote(found[1]), unquote(found[2]), found[3]
    stored = await service.get_stored_call(principal, call_id, turn_id=turn_id)
    if stored.catalogue != catalogue or not _has_resources(stored):
        raise Missing()
    await service.read(principal, stored, into=into, client=client)
    _, record = await service.find_call(principal, call_id, turn_id=stored.turn_id)
    return [await _contents(service, principal, stored, record, uri, None if piece is None else int(piece))]


async def _contents(
    service: Service, principal: Principal, stored: StoredCall, record: ToolCall, uri: str, piece: int | None
) -> dict[str, Any]:
    if media := media_of(record.results):
        if (piece or 0) >= len(media):
            raise Missing()
        asset = media[piece or 0]
        _refuse_large(await asset.byte_length())
        mime, blob = sanitize_mime_type(asset.mime_type), await asset.as_base64()
        return {"uri": uri, "mimeType": mime, "blob": blob, "_meta": media_meta(asset)}
    results: Any = record.results
    several = results if isinstance(results, list) else [results]
    if isinstance(results, Tokenizable) or (piece or 0) >= len(several):
        raise Missing()
    if piece is not None:
        results = several[piece]
    wanted = stored.results if piece is None else stored.results[piece : piece + 1]
    _refuse_large(sum(each.byte_length or 0 for each in wanted))
    turn = await service.turns.find_any(principal, stored.turn_id)
    whole = record.replace(inline=True, results=results)
    text = await render_text(turn, whole)
    return {"uri": uri, "mimeType": mime_type_of(results), "text": text, "_meta": build_trust_meta(turn, whole)}


def _describe(call: StoredCall, types: ArtifactTypes) -> Sequence[dict[str, Any]]:
    several = len(call.results)
    return [
        {
            "uri": artifact_uri(call.turn_id, call.id, index if several > 1 else None),
            "name": sanitize_file_name(
                str(piece.details.get("filename") or f"{call.tool} {piece_id(call.id, index, of=several)}")
            ),
            "mimeType": _mime_type(piece, types),
            **({"size": piece.byte_length} if piece.byte_length is not None else {}),
        }
        for index, piece in enumerate(call.results)
        if piece.kind != "text"
    ]


def _mime_type(piece: StoredResult, types: ArtifactTypes) -> str:
    if piece.kind == "media":
        return sanitize_mime_type(str(piece.details.get("mimeType")))
    return mime_type_of(types.get(piece.type or "text"))


def _has_resources(call: StoredCall) -> bool:
    return not call.is_error and not call.from_artifact_tool and any(each.kind != "text" for each in call.results)


def _refuse_large(size: int | None) -> None:
    if size is not None and size > MAX_READ:
        raise ProtocolError(
            INVALID_PARAMS, f"it has {size} bytes, too many to read at once; query it with artifact_* tools"
        )


OLDEST: Final = "2025-03-26"


def build_call_result(content: ResultContent, settled: CallOutcome, version: str, meta: dict[str, Any]) -> bytes:
    """Return the JSON of a call's result. `meta` is the `_meta` of every result of the server."""
    blocks = content.blocks
    if version == OLDEST:
        blocks = [_without_meta(each) for each in blocks if each["type"] != "resource_link"]
    if not settled.is_recorded:
        blocks = [*blocks, {"type": "text", "text": RAN_UNRECORDED["message"]}]
    result: dict[str, Any] = {"content": blocks}
    if content.structured is not ABSENT and _may_be_structured(content.structured, version):
        result["structuredContent"] = content.structured
    result["isError"] = content.is_error
    if version == STATELESS_VERSION:
        result["resultType"] = "complete"
    aside = content.aside
    if aside is not None and aside.fields:
        result = {**aside.fields, **result}
    foreign = {} if aside is None else aside.meta
    result["_meta"] = {**foreign, **meta, META_TURN: settled.turn.id, META_CALL: settled.record.id}
    if settled.pending is not None:
        result["_meta"][META_PENDING] = settled.pending
    if settled.limited is not None:
        result["_meta"][META_LIMITED] = settled.limited
    if not settled.is_recorded:
        result["_meta"][META_NOT_RECORDED] = RAN_UNRECORDED
    return dump_json(result)


def build_lost_result(lost: OutcomeLost, version: str, meta: dict[str, Any]) -> bytes:
    """Return the result of a call whose tool may have run, and whose outcome is lost."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": f"{lost.message} ({lost.help})"}], "isError": True}
    if version == STATELESS_VERSION:
        result["resultType"] = "complete"
    error = {"code": lost.code, "message": lost.message}
    result["_meta"] = {**meta, META_TURN: lost.turn_id, META_CALL: lost.call_id, META_NOT_RECORDED: error}
    return dump_json(result)


def dump_json(value: Any) -> bytes:
    """Return JSON of any value that a tool may return, including huge integers and invalid Unicode."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_encodable(value), ensure_ascii=False, allow_nan=False).encode()


def _without_meta(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "_meta"}


def _may_be_structured(value: Any, version: str) -> bool:
    return version == STATELESS_VERSION or (version != OLDEST and isinstance(value, dict))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value
