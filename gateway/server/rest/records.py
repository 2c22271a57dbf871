"""Records of ended calls, for the caller who made the calls, while they may read them."""

from contextlib import suppress
from typing import Any, Final

from gateway.engine import NOT_WAITING, is_intact, recompute_fingerprint
from gateway.errors import ArtifactGone, InvalidInitialToolCallValue, Refused, UnknownCall
from gateway.model import Principal, call_id, candidate_call_ids
from gateway.registries import CONTENT
from gateway.server.http.asgi import Response
from gateway.server.rest.calls import find_turn
from gateway.server.rest.operations import RestDependencies
from gateway.server.rest.request import RestRequest
from gateway.server.rest.responses import InvalidRequest, send_json
from gateway.server.rest.serializers import record_data, result_data, result_summary
from gateway.storage import CallFilter, StoredCall

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
