"""Grants over REST: request, list, approve, refuse and revoke, as the authenticated caller.

A grant that the caller may not know of is reported like one that does not exist.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from gateway.errors import StoreUnavailable
from gateway.model import Principal
from gateway.policy import LONGEST_GRANT, LONGEST_REASON, Grant, GrantService
from gateway.server.http.asgi import Response
from gateway.server.rest.operation import RestDependencies, RestOperation, RestRequest, SuccessResponse
from gateway.server.rest.responses import send_json
from gateway.server.rest.schemas import NAME, TEXT, TIMESTAMP, Document, array_of, object_of, ref

_STATUSES: Final = ("pending", "lapsed", "in-force", "ended", "refused", "revoked")
_SECONDS: Final[Document] = {
    "type": "integer",
    "minimum": 1,
    "maximum": int(LONGEST_GRANT.total_seconds()),
    "description": "For how long, from the approval on.",
}
_MOMENT: Final[Document] = {"anyOf": [TIMESTAMP, {"type": "null"}]}
_TEXT: Final[Document] = {"type": ["string", "null"]}

REQUESTS: Final[Mapping[str, Document]] = {
    "GrantRequest": object_of(
        {
            "subject": {**NAME, "description": "The caller who gets the role; operators may name another one."},
            "role": NAME,
            "seconds": _SECONDS,
            "reason": {
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_REASON,
                "description": "Why, in one line; it is shown to approvers and recorded.",
            },
        }
    ),
    "GrantDecision": {**object_of({}), "description": "An empty object: the path and the credential say everything."},
}

ANSWERS: Final[Mapping[str, Document]] = {
    "Grant": object_of(
        {
            "id": TEXT,
            "status": {
                "enum": list(_STATUSES),
                "description": "`lapsed` requests were not decided in time. A grant in force adds its role only as far "
                "as the served policy allows it.",
            },
            "subject": TEXT,
            "tenant": _TEXT,
            "role": TEXT,
            "policy": {**TEXT, "description": "The GrantPolicy that allows it."},
            "seconds": _SECONDS,
            "reason": TEXT,
            "requester": TEXT,
            "decidedBy": _TEXT,
            "revokedBy": _TEXT,
            "requestedAt": TIMESTAMP,
            "lapsesAt": TIMESTAMP,
            "since": _MOMENT,
            "until": _MOMENT,
            "revokedAt": _MOMENT,
        }
    ),
    "Grants": object_of({"grants": array_of(ref("Grant"))}),
}

PATH_PARAMETERS: Final = {"grant": "The id of a grant."}


async def list_grants(rest: RestDependencies, request: RestRequest) -> Response:
    grants = _grants(rest)
    found = await grants.list_visible(request.principal)
    at = grants.now()
    return send_json({"grants": [dict(each.to_dict(at)) for each in found]})


async def request_grant(rest: RestDependencies, request: RestRequest) -> Response:
    grants, body = _grants(rest), request.body
    grant = await grants.request(
        request.principal,
        subject=body["subject"],
        role=body["role"],
        duration=timedelta(seconds=body["seconds"]),
        reason=body["reason"],
    )
    return send_json(dict(grant.to_dict(grants.now())), status=201)


async def approve_grant(rest: RestDependencies, request: RestRequest) -> Response:
    return await _change(rest, request, _grants(rest).approve)


async def refuse_grant(rest: RestDependencies, request: RestRequest) -> Response:
    return await _change(rest, request, _grants(rest).refuse)


async def revoke_grant(rest: RestDependencies, request: RestRequest) -> Response:
    return await _change(rest, request, _grants(rest).revoke)


async def _change(
    rest: RestDependencies, request: RestRequest, change: Callable[[str, Principal], Awaitable[Grant]]
) -> Response:
    grant = await change(request.path["grant"], request.principal)
    found: dict[str, Any] = dict(grant.to_dict(_grants(rest).now()))
    return send_json(found)


def _grants(rest: RestDependencies) -> GrantService:
    if rest.grants is None:
        raise StoreUnavailable("grants are not stored here", help="serve with a store that has grants")
    return rest.grants


_REFUSALS: Final = {
    403: "No grant policy allows it, or the caller may not decide: requesters and recipients never approve.",
    409: "The grant is decided already, or over.",
}

GRANT_OPERATIONS: Final[tuple[RestOperation, ...]] = (
    RestOperation(
        "listGrants",
        "GET",
        "/v1/grants",
        "List the grants that the caller requested, holds, or may decide, newest first",
        list_grants,
        SuccessResponse("The grants. Operators see those of all callers of their tenant.", "Grants"),
        "grants",
    ),
    RestOperation(
        "requestGrant",
        "POST",
        "/v1/grants",
        "Request a role for a time; it is in force once an approver approves",
        request_grant,
        SuccessResponse("The request.", "Grant", status=201),
        "grants",
        body="GrantRequest",
        also={403: _REFUSALS[403], 422: "The subject, the role or the reason is not valid."},
    ),
    RestOperation(
        "approveGrant",
        "POST",
        "/v1/grants/{grant}/approve",
        "Approve a grant as the caller; it is in force from now on",
        approve_grant,
        SuccessResponse("The grant.", "Grant"),
        "grants",
        body="GrantDecision",
        also=_REFUSALS,
    ),
    RestOperation(
        "refuseGrant",
        "POST",
        "/v1/grants/{grant}/refuse",
        "Refuse a grant as the caller",
        refuse_grant,
        SuccessResponse("The grant.", "Grant"),
        "grants",
        body="GrantDecision",
        also=_REFUSALS,
    ),
    RestOperation(
        "revokeGrant",
        "POST",
        "/v1/grants/{grant}/revoke",
        "End a grant or a request at once",
        revoke_grant,
        SuccessResponse("The grant.", "Grant"),
        "grants",
        body="GrantDecision",
        also={409: _REFUSALS[409]},
    ),
)
