"""Records and artifacts of ended calls, with downloads and queries, for the caller who made the calls."""

from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, Final

from gateway.engine import NOT_WAITING, CallOutcome, Course, is_intact, recompute_fingerprint
from gateway.errors import ArtifactGone, InvalidInitialToolCallValue, Refused, UnknownCall, UnknownTurn
from gateway.model import Media, Principal, ToolCall, call_id, candidate_call_ids, is_artifact, piece_id
from gateway.registries import CONTENT
from gateway.server.http.asgi import Response
from gateway.server.rest.calls_and_turns import call_response, find_turn, read_idempotency_key
from gateway.server.rest.catalogues import find_catalogue
from gateway.server.rest.downloads import build_download, download_response, get_content_type
from gateway.server.rest.operation import RestDependencies, RestRequest
from gateway.server.rest.responses import InvalidRequest, send_json
from gateway.server.rest.serializers import artifact_data, media_data, record_data, result_data, result_summary
from gateway.storage import CallFilter, StoredCall

MAX_PARTS: Final = 10_000


async def get_artifact(rest: RestDependencies, request: RestRequest) -> Response:
    stored, pieces, chosen = await _find_artifact(rest, request)
    type = _type(stored)
    wanted = range(len(pieces)) if chosen is None else [chosen]
    try:
        parts = [await _part(pieces[part], stored, type, part, of=len(pieces)) for part in wanted]
    except ArtifactGone:
        raise UnknownCall() from None
    first = pieces[wanted[0]]
    declared = rest.service.published.types.get_declared(type)
    body = {
        **(parts[0] if is_artifact(first) else _media_as_artifact(parts[0], stored)),
        "turn": stored.turn_id,
        "tool": stored.tool,
        "catalogue": stored.catalogue,
        "contentType": get_content_type(first)[0] if is_artifact(first) else first.mime_type,
        "trusted": stored.is_trusted,
        "createdAt": stored.completed_at,
        "parts": parts,
        "queries": _queries(first) if len(parts) == 1 else [],
    }
    return send_json({**body, "sensitivity": declared.sensitivity} if declared else body)


async def download(rest: RestDependencies, request: RestRequest) -> Response:
    stored, pieces, chosen = await _find_artifact(rest, request, is_read=True)
    part = request.query["part"] if chosen is None else chosen
    if part >= len(pieces):
        raise UnknownCall()
    revision = rest.service.published.snapshot.revision
    name = stored.id if part == 0 else f"{stored.id}-{part}"
    try:
        found = await build_download(pieces[part], name=name, version=f"{stored.turn_id}:{stored.id}:{part}:{revision}")
        return await download_response(found, request)
    except ArtifactGone:
        raise UnknownCall() from None


async def query(rest: RestDependencies, request: RestRequest) -> Response:
    """Query the artifact with one of its query tools, in its own turn as long as that is open."""
    stored, pieces, chosen = await _find_artifact(rest, request, is_queried=True)
    find_catalogue(rest.service, request.principal, stored.catalogue)
    if chosen is None and len(pieces) > 1:
        first, last = (piece_id(stored.id, part, of=len(pieces)) for part in (0, len(pieces) - 1))
        raise InvalidRequest("the result has several artifacts", help=f"name one of them: {first} to {last}")
    part = chosen or 0
    tool = _query_tool(pieces[part], request.body)
    handle = await _handle(rest, request, stored)
    arguments = {**request.body.get("arguments", {}), "callId": piece_id(stored.id, part, of=len(pieces))}
    key = read_idempotency_key(request)

    def call(course: Course) -> Awaitable[CallOutcome]:
        return rest.service.call_tool(
            request.principal, stored.catalogue, tool, arguments, handle=handle, key=key, course=course
        )

    return await call_response(rest, call)


async def _find_artifact(
    rest: RestDependencies, request: RestRequest, *, is_read: bool = False, is_queried: bool = False
) -> tuple[StoredCall, list[Any], int | None]:
    """Return the record, the pieces of its result, and the number of the piece whose own id was requested, if any.

    Raises `UnknownCall` if it is missing, deleted or not the caller's. With `is_read` the content is about to be sent:
    the read is decided, counted and recorded before the bytes are opened. With `is_queried` the query tool decides.
    """
    wanted, turn_id = request.path["callId"], request.query.get("turn")
    stored = await _find_stored(rest, request, wanted, turn_id=turn_id)
    id = stored.id
    if is_read:
        await rest.service.read(request.principal, stored, holding=NOT_WAITING)
    elif not rest.service.may_read(
        request.principal, stored, by=_query_of(rest, request, stored) if is_queried else CONTENT
    ):
        raise UnknownCall()
    try:
        _, record = await rest.service.find_call(request.principal, id, turn_id=stored.turn_id)
    except (ArtifactGone, InvalidInitialToolCallValue):
        raise UnknownCall() from None
    pieces = _pieces(record)
    if wanted == id:
        return stored, pieces, None
    numbers = {piece_id(id, number, of=len(pieces)): number for number in range(len(pieces))}
    if wanted not in numbers:
        raise UnknownCall()
    return stored, pieces, numbers[wanted]


async def _find_stored(rest: RestDependencies, request: RestRequest, id: str, *, turn_id: str | None) -> StoredCall:
    """Return the call with that id, or the one whose result has a piece with that id."""
    exact, *others = candidate_call_ids(id)
    try:
        return await rest.service.get_stored_call(request.principal, exact, turn_id=turn_id)
    except UnknownCall:
        if not others:
            raise
        return await rest.service.get_stored_call(request.principal, others[0], turn_id=turn_id)


def _query_of(rest: RestDependencies, request: RestRequest, stored: StoredCall) -> str:
    """Return the query tool that a body names, if the class of the result has it, else `CONTENT`."""
    offered = _queries_of(rest.service.published.types.get(_type(stored)))
    named = [each for each in offered for key in ("tool", "method") if request.body.get(key) == each[key]]
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
    """Return the queries of the artifact, without their callId, which is the artifact's own."""
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
        if kind.allows_query(each.method)
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


async def _handle(rest: RestDependencies, request: RestRequest, stored: StoredCall) -> str | None:
    """Return the artifact's turn if it is open. Else a query uses the newest call with that id: it must be this one."""
    with suppress(UnknownTurn):
        return (await rest.service.turns.find(request.principal, stored.turn_id)).id
    newest = await rest.service.get_stored_call(request.principal, stored.id)
    if newest.turn_id != stored.turn_id:
        raise UnknownCall()
    return None


_ROUNDED: Final = (
    "the arguments differ from the recorded ones in digits that the checksum does not cover, "
    "or the record is from a version of the gateway that stored no exact digest"
)


async def list_calls(rest: RestDependencies, request: RestRequest) -> Response:
    return await _page(rest, request, turn_id=request.query.get("turn"))


async def list_turn_calls(rest: RestDependencies, request: RestRequest) -> Response:
    turn = await find_turn(rest, request)
    return await _page(rest, request, turn_id=turn.id)


async def get_call(rest: RestDependencies, request: RestRequest) -> Response:
    return await _record(rest, request, turn_id=request.query.get("turn"))


async def get_turn_call(rest: RestDependencies, request: RestRequest) -> Response:
    turn = await find_turn(rest, request)
    return await _record(rest, request, turn_id=turn.id)


async def verify_call(rest: RestDependencies, request: RestRequest) -> Response:
    """Recompute both digests from the stored arguments. The checksum rounds integers past 2^53; the other one decides.

    The arguments of a refused call are not stored, so its digests cannot be computed.
    """
    turn_id = request.query.get("turn")
    stored = await rest.service.get_stored_call(request.principal, request.path["callId"], turn_id=turn_id)
    is_whole = stored.excerpt is None
    computed = call_id(stored.tool, dict(stored.args)) if is_whole else None
    body: dict[str, Any] = {
        "callId": stored.id,
        "turn": stored.turn_id,
        "checksum": stored.checksum,
        "computed": computed,
        "digest": stored.fingerprint,
        "computedDigest": recompute_fingerprint(stored) if is_whole else None,
        "isIntact": is_intact(stored) if is_whole else None,
    }
    if computed == stored.checksum and not body["isIntact"]:
        body["detail"] = _ROUNDED
    return send_json(body)


async def sees_result(rest: RestDependencies, principal: Principal, stored: StoredCall) -> bool:
    """Whether the caller sees the result: errors always, everything else only if they may read its artifact now.

    Reading the result of a query counts as querying again.
    """
    if stored.is_error:
        return True
    target = await _target(rest, principal, stored) if stored.from_artifact_tool else stored
    if target is None:
        return False
    by = stored.tool if stored.from_artifact_tool else CONTENT
    try:
        await rest.service.read(principal, target, by=by, holding=NOT_WAITING)
    except (Refused, UnknownCall):
        return False
    return True


async def _target(rest: RestDependencies, principal: Principal, query: StoredCall) -> StoredCall | None:
    """Return the call whose artifact was queried, of the same turn or of an earlier one."""
    names = candidate_call_ids(str(query.args.get("callId")))
    for turn_id in (query.turn_id, None):
        for id in names:
            with suppress(UnknownCall):
                return await rest.service.get_stored_call(principal, id, turn_id=turn_id)
    return None


async def _page(rest: RestDependencies, request: RestRequest, *, turn_id: str | None) -> Response:
    query, principal = request.query, request.principal
    filter = CallFilter(
        tenant=principal.tenant,
        subject=principal.subject,
        turn_id=turn_id,
        catalogue=query.get("catalogue"),
        tool=query.get("tool"),
        status=query["status"],
    )
    try:
        found, cursor = await rest.service.list_calls(filter, limit=query["limit"], before=query.get("cursor"))
    except ValueError as error:
        raise InvalidRequest(str(error), help="use the value of 'next' of the previous page") from None
    # checked again, because a filter without a tenant matches every tenant
    own = [each for each in found if _is_own(each, principal)]
    body: dict[str, Any] = {"calls": [_summary(rest, principal, each) for each in own]}
    return send_json({**body, "next": cursor} if cursor else body)


def _is_own(stored: StoredCall, principal: Principal) -> bool:
    return stored.principal.subject == principal.subject and stored.principal.tenant == principal.tenant


def _summary(rest: RestDependencies, principal: Principal, stored: StoredCall) -> dict[str, Any]:
    data = record_data(stored)
    found = result_summary(stored, rest.service.published.types) if rest.service.may_read(principal, stored) else None
    return {**data, "result": found} if found else data


async def _record(rest: RestDependencies, request: RestRequest, *, turn_id: str | None) -> Response:
    stored = await rest.service.get_stored_call(request.principal, request.path["callId"], turn_id=turn_id)
    data = record_data(stored)
    if stored.status != "settled" or not await sees_result(rest, request.principal, stored):
        return send_json(data)
    try:
        _, record = await rest.service.find_call(request.principal, stored.id, turn_id=stored.turn_id)
        kind = next((each.type for each in stored.results if each.kind == "artifact"), None) or "text"
        return send_json({**data, "result": await result_data(record, turn_id=stored.turn_id, type=kind)})
    except (InvalidInitialToolCallValue, ArtifactGone):  # tampered with (`verify` reports it), or deleted
        return send_json(data)
