"""Approvals over REST: list, show and decide those that the caller may decide or has requested.

The approver is the authenticated caller; no field of a body can change that. Any other approval is reported like one
that does not exist.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from gateway.approvals import (
    APPROVAL_STATES,
    MAX_NOTE,
    ApprovalRecord,
    ApprovalService,
    ApprovalVote,
    Vote,
    escape_invisible,
    present_approval,
    summarize_approvals,
)
from gateway.errors import GatewayError, StoreUnavailable
from gateway.model import Principal
from gateway.server.http.asgi import Response
from gateway.server.rest.operation import (
    RestDependencies,
    RestRequest,
)
from gateway.server.rest.responses import InvalidRequest, send_json
from gateway.server.rest.schemas import ANYTHING, FLAG, TEXT, TIMESTAMP, Document, array_of, object_of, ref

_NOTE: Final[Document] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_NOTE,
    "description": "A note to the requester, which is recorded.",
}
_SHOWN: Final[Document] = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "The `shownDigest` that the approver saw; the decision is refused if it is not the current one.",
}
_COUNT: Final[Document] = {"type": "integer", "minimum": 0}

REQUESTS: Final[Mapping[str, Document]] = {
    "ResolveRequest": object_of(
        {
            "resolution": {"description": "A value that satisfies the approval's `resolutionSchema`."},
            "note": _NOTE,
            "shownDigest": _SHOWN,
        },
        optional=("resolution", "note", "shownDigest"),
    ),
    "RejectRequest": object_of({"note": _NOTE, "shownDigest": _SHOWN}, optional=("note", "shownDigest")),
}

_SUMMARY: Final[Document] = {
    "id": TEXT,
    "state": {"enum": list(APPROVAL_STATES)},
    "tool": TEXT,
    "catalogue": TEXT,
    "rule": TEXT,
    "reason": TEXT,
    "requester": TEXT,
    "approvers": array_of(TEXT),
    "needed": _COUNT,
    "granted": {**_COUNT, "description": "How many approvers have agreed so far."},
    "createdAt": TIMESTAMP,
    "expiresAt": TIMESTAMP,
    "mayDecide": {**FLAG, "description": "Whether the caller can still decide it, if only to refuse."},
    "stale": {
        **FLAG,
        "description": "Whether it was requested under a revision that is not served here, so that no call can use it. "
        "It can be refused, but not granted; the requester has to call again.",
    },
    "excerpt": {
        **TEXT,
        "description": "The shown arguments on one line, truncated: enough to distinguish calls, not to decide.",
    },
    "href": TEXT,
}
_DETAILS: Final[Document] = {
    "ruleAt": {**TEXT, "description": "Where the rule is defined."},
    "identity": {**TEXT, "description": "The name of the tool in policies."},
    "definition": TEXT,
    "revision": {**TEXT, "description": "The revision under which it was requested, and to which it is bound."},
    "servedRevision": {**TEXT, "description": "The revision that is served here, if the approval is stale."},
    "mayNot": {
        **object_of({"grant": TEXT, "refuse": TEXT}, optional=("grant", "refuse")),
        "description": "Why the caller cannot grant or refuse it; absent if they can.",
    },
    "digest": {**TEXT, "description": "Digest of the exact call that is approved: caller, tool, arguments, policy."},
    "arguments": array_of(
        object_of(
            {
                "name": TEXT,
                "value": {**TEXT, "description": "JSON, with escapes for all invisible characters."},
                "unseen": {**_COUNT, "description": "How many characters are invisible."},
                "origin": {"enum": ["caller"], "description": "Who wrote it. Its content is not verified."},
            }
        )
    ),
    "leftOut": {**_COUNT, "description": "Arguments that the rule does not show."},
    "shownDigest": {**TEXT, "description": "Digest of everything shown here that the decision is about."},
    "entries": array_of(
        object_of(
            {
                "approver": TEXT,
                "decision": {"enum": ["grant", "refuse"]},
                "at": TIMESTAMP,
                "note": TEXT,
                "shownDigest": TEXT,
            },
            optional=("note",),
        )
    ),
    "resolutionSchema": ANYTHING,
    "callId": TEXT,
    "decidedAt": TIMESTAMP,
    "usedAt": TIMESTAMP,
    "reuseUntil": TIMESTAMP,
}

ANSWERS: Final[Mapping[str, Document]] = {
    "ApprovalSummary": object_of(_SUMMARY),
    "Approvals": object_of({"approvals": array_of(ref("ApprovalSummary")), "next": TEXT}, optional=("next",)),
    "Approval": object_of(
        {**_SUMMARY, **_DETAILS},
        optional=("servedRevision", "resolutionSchema", "callId", "decidedAt", "usedAt", "reuseUntil"),
    ),
}

PATH_PARAMETERS: Final = {"approval": "The id of an approval."}

_VOTES: Final[tuple[Vote, ...]] = ("grant", "refuse")


async def list_approvals(rest: RestDependencies, request: RestRequest) -> Response:
    approvals, query = _approvals(rest), request.query
    try:
        found, cursor = await approvals.page(
            request.principal,
            state=None if query["state"] == "any" else query["state"],
            tool=query.get("tool"),
            role=query.get("role"),
            limit=query["limit"],
            before=query.get("cursor"),
        )
    except ValueError as error:
        raise InvalidRequest(f"the query: {error}", help="use the `next` of the previous page") from None
    excerpts = await summarize_approvals(found)
    page = [_summary(rest, each, request.principal, short) for each, short in zip(found, excerpts, strict=True)]
    return send_json({"approvals": page, **({} if cursor is None else {"next": cursor})})


async def get_approval(rest: RestDependencies, request: RestRequest) -> Response:
    record = await _approvals(rest).find(request.path["approval"], request.principal)
    return send_json(await _details(rest, record, request.principal))


async def resolve_approval(rest: RestDependencies, request: RestRequest) -> Response:
    return await _decide(rest, request, "grant")


async def reject_approval(rest: RestDependencies, request: RestRequest) -> Response:
    return await _decide(rest, request, "refuse")


def _approvals(rest: RestDependencies) -> ApprovalService:
    if rest.approvals is None:
        raise StoreUnavailable("approvals are not stored here", help="serve with a store that has approvals")
    return rest.approvals


async def _decide(rest: RestDependencies, request: RestRequest, vote: Vote) -> Response:
    approvals, body = _approvals(rest), request.body
    deciding = None if request.seen is None else request.seen.observe_decision()
    record = await approvals.decide(
        request.path["approval"],
        request.principal,
        vote,
        resolution=body.get("resolution"),
        note=body.get("note"),
        shown_digest=body.get("shownDigest"),
        trace=None if deciding is None else deciding.traceparent,
    )
    if deciding is not None:
        deciding.end(record)
    return send_json(await _details(rest, record, request.principal))


def _summary(rest: RestDependencies, record: ApprovalRecord, viewer: Principal, excerpt: str) -> dict[str, Any]:
    approvals, request = _approvals(rest), record.request
    return {
        "id": record.id,
        "state": record.state,
        "tool": escape_invisible(request.advertised),
        "catalogue": request.action.catalogue,
        "rule": request.rule,
        "reason": request.reason,
        "requester": escape_invisible(record.requester.subject),
        "approvers": list(request.approvers),
        "needed": request.needed,
        "granted": sum(each.decision == "grant" for each in record.entries),
        "createdAt": record.created_at,
        "expiresAt": record.expires_at,
        "mayDecide": approvals.may_decide(record, viewer),
        "stale": approvals.is_stale(record),
        "excerpt": excerpt,
        "href": f"/v1/approvals/{quote(record.id, safe='')}",
    }


async def _details(rest: RestDependencies, record: ApprovalRecord, viewer: Principal) -> dict[str, Any]:
    request, action = record.request, record.request.action
    seen, [excerpt] = await present_approval(record), await summarize_approvals([record])
    summary = _summary(rest, record, viewer, excerpt)
    details = {
        "ruleAt": request.rule_at,
        "identity": action.tool,
        "definition": action.definition,
        "revision": action.revision,
        "mayNot": _obstacles(rest, record, viewer),
        "digest": action.digest,
        "arguments": [
            {"name": each.name, "value": each.value, "unseen": each.unseen, "origin": each.origin}
            for each in seen.arguments
        ],
        "leftOut": seen.left_out,
        "shownDigest": seen.digest,
        "entries": [_entry(each) for each in record.entries],
    }
    known = {
        "servedRevision": _approvals(rest).served() if summary["stale"] else None,
        "resolutionSchema": request.resolution,
        "callId": request.call_id,
        "decidedAt": record.decided_at,
        "usedAt": record.used_at,
        "reuseUntil": record.reuse_until,
    }
    return {**summary, **details, **{name: value for name, value in known.items() if value is not None}}


def _obstacles(rest: RestDependencies, record: ApprovalRecord, viewer: Principal) -> dict[str, str]:
    found = {vote: _approvals(rest).vote_error(record, viewer, vote) for vote in _VOTES}
    return {vote: _explain(obstacle) for vote, obstacle in found.items() if obstacle is not None}


def _explain(obstacle: GatewayError) -> str:
    return obstacle.message if obstacle.help is None else f"{obstacle.message}; {obstacle.help}"


def _entry(entry: ApprovalVote) -> dict[str, Any]:
    found = {
        "approver": escape_invisible(entry.approver.subject),
        "decision": entry.decision,
        "at": entry.at,
        "shownDigest": entry.shown_digest,
    }
    return found if entry.note is None else {**found, "note": escape_invisible(entry.note)}
