"""Records of calls: those of the caller, and nobody else's. A record exists once its call is over."""

from contextlib import suppress
from typing import Any, Final

from gateway.core.artifacts import calls_named_by
from gateway.core.canonical import call_id
from gateway.errors import ArtifactGone, InvalidInitialToolCallValue, Refused, UnknownCall
from gateway.governance.principals import Principal
from gateway.governance.records import CallFilter, StoredCall
from gateway.serving.current import NOT_WAITING
from gateway.serving.keeping import is_intact, recomputed
from gateway.snapshot import CONTENT
from gateway.web.problems import Response
from gateway.web.rest.answers import answer
from gateway.web.rest.asking import Asked
from gateway.web.rest.operations import Rest
from gateway.web.rest.refusals import InvalidRequest
from gateway.web.rest.shapes import record_data, result, summary
from gateway.web.rest.turns import seen_turn

_ROUNDED: Final = (
    "the arguments differ from the recorded ones in digits that the checksum does not cover, "
    "or a version of the gateway that kept no exact digest wrote the record"
)


async def list_calls(rest: Rest, asked: Asked) -> Response:
    return await _page(rest, asked, turn_id=asked.query.get("turn"))


async def list_turn_calls(rest: Rest, asked: Asked) -> Response:
    turn = await seen_turn(rest, asked)
    return await _page(rest, asked, turn_id=turn.id)


async def get_call(rest: Rest, asked: Asked) -> Response:
    return await _record(rest, asked, turn_id=asked.query.get("turn"))


async def get_turn_call(rest: Rest, asked: Asked) -> Response:
    turn = await seen_turn(rest, asked)
    return await _record(rest, asked, turn_id=turn.id)


async def verify_call(rest: Rest, asked: Asked) -> Response:
    """Both digests, computed again from what is stored. The checksum rounds integers past 2^53; the other decides.

    Too little is stored of a refused call, so nothing can be computed.
    """
    stored = await rest.service.stored_call(asked.principal, asked.path["callId"], turn_id=asked.query.get("turn"))
    is_whole = stored.excerpt is None
    computed = call_id(stored.tool, dict(stored.args)) if is_whole else None
    body: dict[str, Any] = {
        "callId": stored.id,
        "turn": stored.turn_id,
        "checksum": stored.checksum,
        "computed": computed,
        "digest": stored.fingerprint,
        "computedDigest": recomputed(stored) if is_whole else None,
        "isIntact": is_intact(stored) if is_whole else None,
    }
    if computed == stored.checksum and not body["isIntact"]:
        body["detail"] = _ROUNDED
    return answer(body)


async def sees_result(rest: Rest, principal: Principal, stored: StoredCall) -> bool:
    """What went wrong is told to whoever called; everything else only if they may read its artifact now.

    Reading an answer of a query is as much as asking again.
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


async def _target(rest: Rest, principal: Principal, query: StoredCall) -> StoredCall | None:
    """What a query was about: an artifact of its own turn, or one of an earlier turn."""
    names = calls_named_by(str(query.args.get("callId")))
    for turn_id in (query.turn_id, None):
        for id in names:
            with suppress(UnknownCall):
                return await rest.service.stored_call(principal, id, turn_id=turn_id)
    return None


async def _page(rest: Rest, asked: Asked, *, turn_id: str | None) -> Response:
    query, principal = asked.query, asked.principal
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
        raise InvalidRequest(str(error), help="use the value of 'next' of the page before") from None
    # Again here, because a filter without a tenant is about every tenant.
    own = [each for each in found if _is_own(each, principal)]
    body: dict[str, Any] = {"calls": [_listed(rest, principal, each) for each in own]}
    return answer({**body, "next": cursor} if cursor else body)


def _is_own(stored: StoredCall, principal: Principal) -> bool:
    return stored.principal.subject == principal.subject and stored.principal.tenant == principal.tenant


def _listed(rest: Rest, principal: Principal, stored: StoredCall) -> dict[str, Any]:
    data = record_data(stored)
    found = summary(stored, rest.service.published.types) if rest.service.may_read(principal, stored) else None
    return {**data, "result": found} if found else data


async def _record(rest: Rest, asked: Asked, *, turn_id: str | None) -> Response:
    stored = await rest.service.stored_call(asked.principal, asked.path["callId"], turn_id=turn_id)
    data = record_data(stored)
    if stored.status != "settled" or not await sees_result(rest, asked.principal, stored):
        return answer(data)
    try:
        _, record = await rest.service.find_call(asked.principal, stored.id, turn_id=stored.turn_id)
        kind = next((each.type for each in stored.results if each.kind == "artifact"), None) or "text"
        return answer({**data, "result": await result(record, turn_id=stored.turn_id, type=kind)})
    except (InvalidInitialToolCallValue, ArtifactGone):  # changed behind our back, as `verify` says, or deleted
        return answer(data)
