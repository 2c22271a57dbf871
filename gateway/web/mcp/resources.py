"""Results as resources: what a caller's own calls yielded, listed and read under the same rights as anywhere else."""

import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from gateway.core.artifacts import piece_id
from gateway.core.calls import ToolCall
from gateway.core.media_blocks import safe_mime, safe_name
from gateway.core.rendering import media_of
from gateway.core.tokens import Tokenizable
from gateway.errors import Missing
from gateway.governance.principals import Principal
from gateway.governance.records import CallFilter, StoredCall, StoredResult
from gateway.serving.artifact_types import ArtifactTypes
from gateway.serving.content import artifact_uri, media_meta, mime_type_of, shown_text, vouching
from gateway.serving.current import Client
from gateway.serving.service import Service
from gateway.serving.turns import Turn
from gateway.web.mcp.protocol import INVALID_PARAMS, ProtocolError

PAGE: Final = 50
MAX_READ: Final = 16 << 20
"""Bytes of a result that are read at once; larger ones are queried."""

_URI: Final = re.compile(r"artifact://calls/([^/?#]+)/([^/?#]+?)(?:/([0-9]{1,4}))?")


async def list_resources(service: Service, principal: Principal, *, catalogue: str, cursor: Any) -> dict[str, Any]:
    """A page of the caller's own artifacts and media, newest first."""
    if cursor is not None and not isinstance(cursor, str):
        raise ProtocolError(INVALID_PARAMS, "the cursor is not one of this list")
    wanted = CallFilter(tenant=principal.tenant, subject=principal.subject, catalogue=catalogue, status="settled")
    try:
        calls, more = await service.list_calls(wanted, limit=PAGE, before=cursor or None)
    except ValueError:
        raise ProtocolError(INVALID_PARAMS, "the cursor is not one of this list") from None
    readable = [call for call in calls if call.principal.tenant == principal.tenant and _is_kept(call)]
    types = service.published.types
    told = [each for call in readable if service.may_read(principal, call) for each in _told(call, types)]
    return {"resources": told, **({"nextCursor": more} if more else {})}


async def read_resource(
    service: Service,
    principal: Principal,
    *,
    catalogue: str,
    uri: Any,
    into: Turn | None = None,
    client: Client | None = None,
) -> list[dict[str, Any]]:
    """What a URI of ours names. Raises `Missing` for everything that is not there for this caller.

    The turn that it is read into remembers it: what comes after is judged by that, too.
    """
    found = _URI.fullmatch(uri) if isinstance(uri, str) else None
    if found is None:
        raise Missing()
    turn_id, call_id, piece = unquote(found[1]), unquote(found[2]), found[3]
    stored = await service.stored_call(principal, call_id, turn_id=turn_id)
    if stored.catalogue != catalogue or not _is_kept(stored):
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
        mime, blob = safe_mime(asset.mime_type), await asset.as_base64()
        return {"uri": uri, "mimeType": mime, "blob": blob, "_meta": media_meta(asset)}
    results: Any = record.results
    several = results if isinstance(results, list) else [results]
    if isinstance(results, Tokenizable) or (piece or 0) >= len(several):
        raise Missing()
    if piece is not None:
        results = several[piece]
    wanted = stored.results if piece is None else stored.results[piece : piece + 1]
    _refuse_large(sum(each.byte_length or 0 for each in wanted))
    turn = await service.turns.look_at(principal, stored.turn_id)
    whole = record.replace(inline=True, results=results)
    text = await shown_text(turn, whole)
    return {"uri": uri, "mimeType": mime_type_of(results), "text": text, "_meta": vouching(turn, whole)}


def _told(call: StoredCall, types: ArtifactTypes) -> Sequence[dict[str, Any]]:
    several = len(call.results)
    return [
        {
            "uri": artifact_uri(call.turn_id, call.id, index if several > 1 else None),
            "name": safe_name(
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
        return safe_mime(str(piece.details.get("mimeType")))
    return mime_type_of(types.named(piece.type or "text"))


def _is_kept(call: StoredCall) -> bool:
    return not call.is_error and not call.from_artifact_tool and any(each.kind != "text" for each in call.results)


def _refuse_large(size: int | None) -> None:
    if size is not None and size > MAX_READ:
        raise ProtocolError(
            INVALID_PARAMS, f"it has {size} bytes, too many to read at once; query it with artifact_* tools"
        )
