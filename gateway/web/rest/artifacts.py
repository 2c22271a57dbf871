"""Artifacts: what calls yielded, to be looked at, downloaded and queried by whoever made the call, while they may."""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final

from gateway.core.artifacts import calls_named_by, is_artifact, piece_id
from gateway.core.calls import ToolCall
from gateway.core.media import Media
from gateway.errors import ArtifactGone, InvalidInitialToolCallValue, UnknownCall, UnknownTurn
from gateway.governance.records import StoredCall
from gateway.serving.course import Course
from gateway.serving.current import NOT_WAITING
from gateway.serving.settled import Settled
from gateway.snapshot import CONTENT
from gateway.web.problems import Response
from gateway.web.rest.answers import answer
from gateway.web.rest.asking import Asked
from gateway.web.rest.calls import call_answer, idempotency_key
from gateway.web.rest.catalogues import catalogue_for
from gateway.web.rest.downloads import content_type, download_of, sent
from gateway.web.rest.operations import Rest
from gateway.web.rest.refusals import InvalidRequest
from gateway.web.rest.shapes import artifact_data, media_data

MAX_PARTS: Final = 10_000


async def get_artifact(rest: Rest, asked: Asked) -> Response:
    stored, pieces, chosen = await _readable(rest, asked)
    type = _type(stored)
    wanted = range(len(pieces)) if chosen is None else [chosen]
    try:
        parts = [await _part(pieces[part], stored, type, part, of=len(pieces)) for part in wanted]
    except ArtifactGone:
        raise UnknownCall() from None
    first = pieces[wanted[0]]
    declared = rest.service.published.types.declared(type)
    body = {
        **(parts[0] if is_artifact(first) else _media_as_artifact(parts[0], stored)),
        "turn": stored.turn_id,
        "tool": stored.tool,
        "catalogue": stored.catalogue,
        "contentType": content_type(first)[0] if is_artifact(first) else first.mime_type,
        "trusted": stored.is_trusted,
        "createdAt": stored.completed_at,
        "parts": parts,
        "queries": _queries(first) if len(parts) == 1 else [],
    }
    return answer({**body, "sensitivity": declared.sensitivity} if declared else body)


async def download(rest: Rest, asked: Asked) -> Response:
    stored, pieces, chosen = await _readable(rest, asked, is_read=True)
    part = asked.query["part"] if chosen is None else chosen
    if part >= len(pieces):
        raise UnknownCall()
    revision = rest.service.published.snapshot.revision
    name = stored.id if part == 0 else f"{stored.id}-{part}"
    try:
        found = await download_of(pieces[part], name=name, version=f"{stored.turn_id}:{stored.id}:{part}:{revision}")
        return await sent(found, asked)
    except ArtifactGone:
        raise UnknownCall() from None


async def query(rest: Rest, asked: Asked) -> Response:
    """Ask the artifact by one of the tools that are forged for it, in its own turn as long as that is open."""
    stored, pieces, chosen = await _readable(rest, asked, is_queried=True)
    catalogue_for(rest.service, asked.principal, stored.catalogue)
    if chosen is None and len(pieces) > 1:
        first, last = (piece_id(stored.id, part, of=len(pieces)) for part in (0, len(pieces) - 1))
        raise InvalidRequest("the result has several artifacts", help=f"name one of them: {first} to {last}")
    part = chosen or 0
    tool = _query_tool(pieces[part], asked.body)
    handle = await _handle(rest, asked, stored)
    arguments = {**asked.body.get("arguments", {}), "callId": piece_id(stored.id, part, of=len(pieces))}
    key = idempotency_key(asked)

    def call(course: Course) -> Awaitable[Settled]:
        return rest.service.call_alone(
            asked.principal, stored.catalogue, tool, arguments, handle=handle, key=key, course=course
        )

    return await call_answer(rest, call)


async def _readable(
    rest: Rest, asked: Asked, *, is_read: bool = False, is_queried: bool = False
) -> tuple[StoredCall, list[Any], int | None]:
    """The record, the pieces of its result, and the number of the piece that is asked for, if it is one by its own id.

    Whatever is missing, gone or not the caller's is one answer. With `is_read` the content is about to be sent: that is
    decided, counted and on record before the bytes are opened. With `is_queried` it is the query tool that decides.
    """
    wanted, turn_id = asked.path["callId"], asked.query.get("turn")
    stored = await _stored(rest, asked, wanted, turn_id=turn_id)
    id = stored.id
    if is_read:
        await rest.service.read(asked.principal, stored, holding=NOT_WAITING)
    elif not rest.service.may_read(asked.principal, stored, by=_named(rest, asked, stored) if is_queried else CONTENT):
        raise UnknownCall()
    try:
        _, record = await rest.service.find_call(asked.principal, id, turn_id=stored.turn_id)
    except (ArtifactGone, InvalidInitialToolCallValue):
        raise UnknownCall() from None
    pieces = _pieces(record)
    if wanted == id:
        return stored, pieces, None
    numbers = {piece_id(id, number, of=len(pieces)): number for number in range(len(pieces))}
    if wanted not in numbers:
        raise UnknownCall()
    return stored, pieces, numbers[wanted]


async def _stored(rest: Rest, asked: Asked, id: str, *, turn_id: str | None) -> StoredCall:
    """The call of that id, or the one that an artifact of that id is a piece of."""
    exact, *others = calls_named_by(id)
    try:
        return await rest.service.stored_call(asked.principal, exact, turn_id=turn_id)
    except UnknownCall:
        if not others:
            raise
        return await rest.service.stored_call(asked.principal, others[0], turn_id=turn_id)


def _named(rest: Rest, asked: Asked, stored: StoredCall) -> str:
    """The query tool that a body names, as the class of the result has it."""
    offered = _queries_of(rest.service.published.types.named(_type(stored)))
    named = [each for each in offered for key in ("tool", "method") if asked.body.get(key) == each[key]]
    return str(named[0]["tool"]) if named else CONTENT


def _pieces(record: ToolCall) -> list[Any]:
    results: Any = record.results
    pieces = results if isinstance(results, list) else [results]
    if not all(is_artifact(each) or isinstance(each, Media) for each in pieces):
        raise UnknownCall()
    return pieces


def _type(stored: StoredCall) -> str:
    return next((each.type for each in stored.results if each.kind == "artifact"), None) or "text"


async def _part(piece: Any, stored: StoredCall, type: str, part: int, *, of: int) -> dict[str, Any]:
    if isinstance(piece, Media):
        return media_data(piece, stored.id, turn_id=stored.turn_id, part=part)
    return await artifact_data(piece, stored.id, turn_id=stored.turn_id, type=type, part=part, of=of)


def _media_as_artifact(media: dict[str, Any], stored: StoredCall) -> dict[str, Any]:
    return {
        "callId": stored.id,
        "kind": "Media",
        "type": media["kind"],
        "byteLength": None,
        "href": media["contentHref"].replace("/content?", "?", 1),
        "contentHref": media["contentHref"],
    }


def _queries(artifact: Any) -> list[dict[str, Any]]:
    """What the artifact can be asked. The callId is the artifact's own and left out."""
    return _queries_of(type(artifact))


def _queries_of(kind: Any) -> list[dict[str, Any]]:
    if not hasattr(kind, "effective_methods"):
        return []
    return [
        {
            "tool": each.name,
            "method": each.method,
            "description": each.description,
            "inputSchema": {"type": "object", "properties": {}, **(each.args_schema or {})},
        }
        for each in kind.effective_methods()
        if kind.offers(each.method)
    ]


def _query_tool(piece: Any, body: dict[str, Any]) -> str:
    offered = _queries(piece)
    wanted = next((name for name in ("tool", "method") if name in body), "tool")
    found = next((each["tool"] for each in offered if each[wanted] == body[wanted]), None)
    if found is None:
        names = ", ".join(each[wanted] for each in offered)
        raise InvalidRequest(
            f"the artifact has no such query {wanted}", help=f"use one of {names}" if names else "download it instead"
        )
    return str(found)


async def _handle(rest: Rest, asked: Asked, stored: StoredCall) -> str | None:
    """The artifact's turn if it is open. Without it a query finds the newest call of that id: it must be this one."""
    with suppress(UnknownTurn):
        return (await rest.service.turns.find(asked.principal, stored.turn_id)).id
    newest = await rest.service.stored_call(asked.principal, stored.id)
    if newest.turn_id != stored.turn_id:
        raise UnknownCall()
    return None
