"""Approvals: what the caller may decide or asked for, and deciding it.

Who decides is whoever the request is authenticated as; no field of a body can say otherwise. An approval that is none
of the caller's business is answered like one that does not exist.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from gateway.approvals.approving import MAX_NOTE, Approvals, excerpts_of, shown_of
from gateway.approvals.showing import plain
from gateway.errors import GatewayError, StoreUnavailable
from gateway.governance.approvals import APPROVAL_STATES, ApprovalEntry, ApprovalRecord, Vote
from gateway.governance.principals import Principal
from gateway.web.problems import Response
from gateway.web.rest.answers import answer
from gateway.web.rest.asking import Asked
from gateway.web.rest.components import ANYTHING, FLAG, MOMENT, TEXT, Document, closed, many, ref
from gateway.web.rest.operations import Operation, Parameter, Rest, Success
from gateway.web.rest.refusals import InvalidRequest

_NOTE: Final[Document] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_NOTE,
    "description": "Words for whoever asked, and for the record.",
}
_SHOWN: Final[Document] = {
    "type": "string",
    "pattern": "^[0-9a-f]{64}$",
    "description": "The `shownDigest` of what was looked at; refused if that is not what would be approved.",
}
_COUNT: Final[Document] = {"type": "integer", "minimum": 0}

REQUESTS: Final[Mapping[str, Document]] = {
    "ResolveRequest": closed(
        {
            "resolution": {"description": "What the approval's `resolutionSchema` asks for."},
            "note": _NOTE,
            "shownDigest": _SHOWN,
        },
        optional=("resolution", "note", "shownDigest"),
    ),
    "RejectRequest": closed({"note": _NOTE, "shownDigest": _SHOWN}, optional=("note", "shownDigest")),
}

_SUMMARY: Final[Document] = {
    "id": TEXT,
    "state": {"enum": list(APPROVAL_STATES)},
    "tool": TEXT,
    "catalogue": TEXT,
    "rule": TEXT,
    "reason": TEXT,
    "requester": TEXT,
    "approvers": many(TEXT),
    "needed": _COUNT,
    "granted": {**_COUNT, "description": "How many have agreed so far."},
    "createdAt": MOMENT,
    "expiresAt": MOMENT,
    "mayDecide": {**FLAG, "description": "Whether the caller could still decide it, if only to refuse."},
    "stale": {
        **FLAG,
        "description": "Whether it was asked for under a revision that is not served here, so that no call can use it. "
        "It cannot be granted, and can be refused; whoever asked has to call again.",
    },
    "excerpt": {
        **TEXT,
        "description": "The arguments that are shown, on one line and cut short: to tell calls apart, not to decide.",
    },
    "href": TEXT,
}
_DETAILS: Final[Document] = {
    "ruleAt": {**TEXT, "description": "Where the rule stands."},
    "identity": {**TEXT, "description": "What policies call the tool."},
    "definition": TEXT,
    "revision": {**TEXT, "description": "What it was asked for under, and is bound to."},
    "servedRevision": {**TEXT, "description": "What is served here instead, if it is stale."},
    "mayNot": {
        **closed({"grant": TEXT, "refuse": TEXT}, optional=("grant", "refuse")),
        "description": "Why the caller cannot grant or refuse it; without a reason, they can.",
    },
    "digest": {**TEXT, "description": "Of the exact call that is approved: caller, tool, arguments, policy."},
    "arguments": many(
        closed(
            {
                "name": TEXT,
                "value": {**TEXT, "description": "JSON, with escapes for every character that would not be seen."},
                "unseen": {**_COUNT, "description": "How many characters would not have been seen."},
                "origin": {"enum": ["caller"], "description": "Who wrote it: nobody vouches for its content."},
            }
        )
    ),
    "leftOut": {**_COUNT, "description": "Arguments that the rule does not show."},
    "shownDigest": {**TEXT, "description": "Of everything shown here that is decided upon."},
    "entries": many(
        closed(
            {
                "approver": TEXT,
                "decision": {"enum": ["grant", "refuse"]},
                "at": MOMENT,
                "note": TEXT,
                "shownDigest": TEXT,
            },
            optional=("note",),
        )
    ),
    "resolutionSchema": ANYTHING,
    "callId": TEXT,
    "decidedAt": MOMENT,
    "usedAt": MOMENT,
    "reuseUntil": MOMENT,
}

ANSWERS: Final[Mapping[str, Document]] = {
    "ApprovalSummary": closed(_SUMMARY),
    "Approvals": closed({"approvals": many(ref("ApprovalSummary")), "next": TEXT}, optional=("next",)),
    "Approval": closed(
        {**_SUMMARY, **_DETAILS},
        optional=("servedRevision", "resolutionSchema", "callId", "decidedAt", "usedAt", "reuseUntil"),
    ),
}

PATH_PARAMETERS: Final = {"approval": "The id of an approval."}

_QUERY: Final = (
    Parameter(
        "state",
        "Only approvals in this state.",
        {"type": "string", "enum": [*APPROVAL_STATES, "any"], "default": "pending"},
    ),
    Parameter(
        "role",
        "Only those that the caller may be asked about, or those that the caller asked for.",
        {"type": "string", "enum": ["approver", "requester"]},
    ),
    Parameter("tool", "Only approvals of this tool, by the name it was called by."),
    Parameter("limit", "Approvals per page.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
    Parameter("cursor", "The `next` of the page before."),
)
_CONFLICT: Final = {
    403: "The caller asked for it.",
    409: "It is decided or over, the caller has decided it before, or it is not what the caller was shown.",
}
_VOTES: Final[tuple[Vote, ...]] = ("grant", "refuse")


async def list_approvals(rest: Rest, asked: Asked) -> Response:
    approvals, query = _kept(rest), asked.query
    try:
        found, cursor = await approvals.page(
            asked.principal,
            state=None if query["state"] == "any" else query["state"],
            tool=query.get("tool"),
            role=query.get("role"),
            limit=query["limit"],
            before=query.get("cursor"),
        )
    except ValueError as error:
        raise InvalidRequest(f"the query: {error}", help="use the `next` of the page before") from None
    excerpts = await excerpts_of(found)
    page = [_summary(rest, each, asked.principal, short) for each, short in zip(found, excerpts, strict=True)]
    return answer({"approvals": page, **({} if cursor is None else {"next": cursor})})


async def get_approval(rest: Rest, asked: Asked) -> Response:
    record = await _kept(rest).find(asked.path["approval"], asked.principal)
    return answer(await _details(rest, record, asked.principal))


async def resolve_approval(rest: Rest, asked: Asked) -> Response:
    return await _decide(rest, asked, "grant")


async def reject_approval(rest: Rest, asked: Asked) -> Response:
    return await _decide(rest, asked, "refuse")


def _kept(rest: Rest) -> Approvals:
    if rest.approvals is None:
        raise StoreUnavailable("approvals are not kept here", help="serve with a store that keeps them")
    return rest.approvals


async def _decide(rest: Rest, asked: Asked, vote: Vote) -> Response:
    approvals, body = _kept(rest), asked.body
    deciding = None if asked.seen is None else asked.seen.deciding()
    record = await approvals.decide(
        asked.path["approval"],
        asked.principal,
        vote,
        resolution=body.get("resolution"),
        note=body.get("note"),
        shown_digest=body.get("shownDigest"),
        trace=None if deciding is None else deciding.traceparent,
    )
    if deciding is not None:
        deciding.decided(record)
    return answer(await _details(rest, record, asked.principal))


def _summary(rest: Rest, record: ApprovalRecord, viewer: Principal, excerpt: str) -> dict[str, Any]:
    approvals, request = _kept(rest), record.request
    return {
        "id": record.id,
        "state": record.state,
        "tool": plain(request.advertised),
        "catalogue": request.action.catalogue,
        "rule": request.rule,
        "reason": request.reason,
        "requester": plain(record.requester.subject),
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


async def _details(rest: Rest, record: ApprovalRecord, viewer: Principal) -> dict[str, Any]:
    request, action = record.request, record.request.action
    seen, [excerpt] = await shown_of(record), await excerpts_of([record])
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
        "servedRevision": _kept(rest).served() if summary["stale"] else None,
        "resolutionSchema": request.resolution,
        "callId": request.call_id,
        "decidedAt": record.decided_at,
        "usedAt": record.used_at,
        "reuseUntil": record.reuse_until,
    }
    return {**summary, **details, **{name: value for name, value in known.items() if value is not None}}


def _obstacles(rest: Rest, record: ApprovalRecord, viewer: Principal) -> dict[str, str]:
    found = {vote: _kept(rest).obstacle(record, viewer, vote) for vote in _VOTES}
    return {vote: _told(obstacle) for vote, obstacle in found.items() if obstacle is not None}


def _told(obstacle: GatewayError) -> str:
    return obstacle.message if obstacle.help is None else f"{obstacle.message}; {obstacle.help}"


def _entry(entry: ApprovalEntry) -> dict[str, Any]:
    found = {
        "approver": plain(entry.approver.subject),
        "decision": entry.decision,
        "at": entry.at,
        "shownDigest": entry.shown_digest,
    }
    return found if entry.note is None else {**found, "note": plain(entry.note)}


APPROVAL_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "listApprovals",
        "GET",
        "/v1/approvals",
        "The approvals that the caller may decide or asked for, newest first",
        list_approvals,
        Success("A page of approvals.", "Approvals"),
        "approvals",
        query=_QUERY,
    ),
    Operation(
        "getApproval",
        "GET",
        "/v1/approvals/{approval}",
        "One approval, with everything there is to decide upon",
        get_approval,
        Success("The approval.", "Approval"),
        "approvals",
    ),
    Operation(
        "resolveApproval",
        "POST",
        "/v1/approvals/{approval}/resolve",
        "Agree, as the caller",
        resolve_approval,
        Success("The approval; granted once enough have agreed.", "Approval"),
        "approvals",
        body="ResolveRequest",
        also={
            **_CONFLICT,
            409: f"{_CONFLICT[409]} Likewise if it is stale.",
            422: "The resolution does not fit its schema; the approval stays open.",
        },
    ),
    Operation(
        "rejectApproval",
        "POST",
        "/v1/approvals/{approval}/reject",
        "Refuse, as the caller; that ends it",
        reject_approval,
        Success("The refused approval.", "Approval"),
        "approvals",
        body="RejectRequest",
        also=_CONFLICT,
    ),
)
"""For the table of operations; `REQUESTS`, `ANSWERS` and `PATH_PARAMETERS` describe them."""
