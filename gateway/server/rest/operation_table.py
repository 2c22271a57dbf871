"""The table of operations: every path and method that is served below `/v1`."""

from dataclasses import replace
from typing import Final

from gateway.approvals import APPROVAL_STATES
from gateway.engine import MAX_KEY
from gateway.server.rest import approvals, calls_and_turns, catalogues, records_and_artifacts
from gateway.server.rest.api_documentation import call_example, documentation_operations
from gateway.server.rest.calls_and_turns import MEANINGS, RETRYABLE, STATUSES, Outcome
from gateway.server.rest.grants import GRANT_OPERATIONS
from gateway.server.rest.operation import OperationParameter, RestOperation, SuccessResponse
from gateway.server.rest.schemas import TURN_ENDINGS

_FORMAT: Final = OperationParameter(
    "format",
    "The format of tool definitions; `gateway` is the gateway's own, with tier, flags and lifecycle.",
    {"type": "string", "enum": list(catalogues.FORMATS), "default": "gateway"},
)
_KEY: Final = OperationParameter(
    "Idempotency-Key",
    "A call with a key runs once, however often it is sent while the key is stored: for the time that the catalogue's "
    "pipeline sets, by default one day. Repeated requests return the first outcome. "
    "Calls that were held or refused have not run: their key is free.",
    {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -~]*$"},
)
_ANY_TEXT: Final = {"type": "string"}
_KNOWN: Final = OperationParameter(
    "If-None-Match", "The ETag that the client has; 304 if it is still current.", _ANY_TEXT
)
_TURN: Final = OperationParameter("turn", "The turn of the call; the default is the newest call with that id.")
_PAGE: Final = (
    OperationParameter("tool", "Only calls of this tool, by the name it was called by."),
    OperationParameter("catalogue", "Only calls through this catalogue."),
    OperationParameter(
        "status",
        "`unknown` are calls that began and whose end was not recorded.",
        {"type": "string", "enum": ["settled", "unknown"], "default": "settled"},
    ),
    OperationParameter("limit", "Calls per page.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
    OperationParameter("cursor", "The `next` of the previous page."),
)
_PART: Final = OperationParameter(
    "part",
    "Which of several results, counted from 0.",
    {"type": "integer", "minimum": 0, "maximum": records_and_artifacts.MAX_PARTS, "default": 0},
)
_CONFLICT: Final = {
    409: "The idempotency key belongs to another call, to one that still runs, or to one whose end was not recorded."
}
_TAGGED: Final = {"ETag": "Identifies what this caller sees now."}
_REPLAYED: Final = {"Idempotency-Replayed": "`true` if the key was sent before; the tool did not run again."}
_WAIT: Final = {"Retry-After": "Seconds after which to send the call again, with the same arguments."}


def _call_response(outcome: Outcome) -> SuccessResponse:
    """Return the response to a call with that outcome, which always has the record of the call."""
    headers = {**(_WAIT if outcome in RETRYABLE else _REPLAYED)}
    status, example = STATUSES[outcome], call_example(outcome)
    return SuccessResponse(MEANINGS[outcome], "Called", status=status, headers=headers, example=example)


_DONE: Final = _call_response("done")
_NOT_DONE: Final = tuple(_call_response(outcome) for outcome in STATUSES if outcome != "done")
_LOST: Final = {424: "The tool may have run, but its outcome could not be stored or rendered."}
_DOWNLOADED: Final = {"ETag": "Identifies these bytes.", "Content-Disposition": "Always an attachment."}
_REFUSED_READ: Final = {
    403: "A gate rule or a quarantine refuses it, or it needs an approval first.",
    429: "A rate or a quota refuses it for now.",
}
_UNCHANGED: Final = {304: "The client has it already."}
_APPROVALS_PAGE: Final = (
    OperationParameter(
        "state",
        "Only approvals in this state.",
        {"type": "string", "enum": [*APPROVAL_STATES, "any"], "default": "pending"},
    ),
    OperationParameter(
        "role",
        "Only approvals that the caller may decide, or only those that the caller requested.",
        {"type": "string", "enum": ["approver", "requester"]},
    ),
    OperationParameter("tool", "Only approvals of this tool, by the name it was called by."),
    OperationParameter(
        "limit", "Approvals per page.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}
    ),
    OperationParameter("cursor", "The `next` of the previous page."),
)
_DECIDED: Final = {
    403: "The caller requested it.",
    409: "It is decided or has expired, the caller has voted before, or it is not what the caller saw.",
}

_TOOL_OPERATIONS: Final[tuple[RestOperation, ...]] = (
    RestOperation(
        "listCatalogues",
        "GET",
        "/v1/catalogues",
        "List the catalogues that admit the caller",
        catalogues.list_catalogues,
        SuccessResponse("The catalogues.", "Catalogues", headers=_TAGGED),
        "catalogues",
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    RestOperation(
        "getCatalogue",
        "GET",
        "/v1/catalogues/{catalogue}",
        "Get one catalogue",
        catalogues.get_catalogue,
        SuccessResponse("The catalogue.", "Catalogue", headers=_TAGGED),
        "catalogues",
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    RestOperation(
        "listTools",
        "GET",
        "/v1/catalogues/{catalogue}/tools",
        "List the tools of a catalogue that the caller may see",
        catalogues.list_tools,
        SuccessResponse("The tools.", "Tools", headers=_TAGGED),
        "catalogues",
        query=(_FORMAT,),
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    RestOperation(
        "getTool",
        "GET",
        "/v1/catalogues/{catalogue}/tools/{name}",
        "Get one tool",
        catalogues.get_tool,
        SuccessResponse("The tool, in the requested format.", "AnyTool", headers=_TAGGED),
        "catalogues",
        query=(_FORMAT,),
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    RestOperation(
        "callTool",
        "POST",
        "/v1/catalogues/{catalogue}/tools/{name}/call",
        "Call a tool, in a new turn unless a turn handle is given",
        calls_and_turns.call_tool,
        _DONE,
        "calls",
        headers=(_KEY,),
        body="CallRequest",
        also=_CONFLICT | _LOST,
        instead=_NOT_DONE,
    ),
    RestOperation(
        "openTurn",
        "POST",
        "/v1/turns",
        "Open a turn",
        calls_and_turns.open_turn,
        SuccessResponse("The turn.", "Turn", status=201, headers={"Location": "Where the turn is."}),
        "turns",
        body="TurnRequest",
    ),
    RestOperation(
        "getTurn",
        "GET",
        "/v1/turns/{turn}",
        "Get one turn, open or ended",
        calls_and_turns.get_turn,
        SuccessResponse("The turn.", "Turn"),
        "turns",
    ),
    RestOperation(
        "listTurnTools",
        "GET",
        "/v1/turns/{turn}/tools",
        "List the tools of the turn, with query tools for its artifacts",
        calls_and_turns.list_turn_tools,
        SuccessResponse("The tools.", "Tools", headers=_TAGGED),
        "turns",
        query=(_FORMAT,),
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    RestOperation(
        "callInTurn",
        "POST",
        "/v1/turns/{turn}/calls",
        "Call a tool in the turn, with the caller's own id if one is given",
        calls_and_turns.call_in_turn,
        replace(_DONE, description=f"{_DONE.description} An id that the turn has already gets a suffix."),
        "turns",
        headers=(_KEY,),
        body="TurnCallRequest",
        also={409: f"{_CONFLICT[409]} Or the turn has ended.", **_LOST},
        instead=_NOT_DONE,
    ),
    RestOperation(
        "listTurnCalls",
        "GET",
        "/v1/turns/{turn}/calls",
        "List the records of the turn's calls, newest first",
        records_and_artifacts.list_turn_calls,
        SuccessResponse("A page of records.", "Records"),
        "turns",
        query=_PAGE,
    ),
    RestOperation(
        "getTurnCall",
        "GET",
        "/v1/turns/{turn}/calls/{callId}",
        "Get one record of the turn, with its result if the caller may read it",
        records_and_artifacts.get_turn_call,
        SuccessResponse("The record.", "Record"),
        "turns",
    ),
    RestOperation(
        "endTurn",
        "POST",
        "/v1/turns/{turn}/end",
        f"End the turn with {', '.join(TURN_ENDINGS[:-1])} or {TURN_ENDINGS[-1]}",
        calls_and_turns.end_turn,
        SuccessResponse("The ended turn.", "Turn"),
        "turns",
        body="EndRequest",
        also={409: "The turn has ended in another way."},
    ),
    RestOperation(
        "renderTurn",
        "GET",
        "/v1/turns/{turn}/render",
        "Get the messages of the next model request",
        calls_and_turns.render_turn,
        SuccessResponse("Messages in the form of chat completions.", "Rendering"),
        "turns",
        also=_REFUSED_READ,
    ),
    RestOperation(
        "followTurn",
        "GET",
        "/v1/turns/{turn}/events",
        "Follow the events of the turn as they happen",
        calls_and_turns.follow_turn,
        SuccessResponse(
            "Server-sent events, until the turn ends. `dropped` counts missed events.", type="text/event-stream"
        ),
        "turns",
        headers=(
            OperationParameter(
                "Last-Event-ID", "The id of the last event that was received; the stream continues after it.", _ANY_TEXT
            ),
        ),
        also={204: "The turn has ended.", 429: "Too many streams of the turn are open."},
    ),
    RestOperation(
        "listCalls",
        "GET",
        "/v1/calls",
        "List the records of the caller's calls, newest first",
        records_and_artifacts.list_calls,
        SuccessResponse("A page of records.", "Records"),
        "records",
        query=(OperationParameter("turn", "Only calls of this turn."), *_PAGE),
    ),
    RestOperation(
        "getCall",
        "GET",
        "/v1/calls/{callId}",
        "Get one record, with its result if the caller may read it",
        records_and_artifacts.get_call,
        SuccessResponse("The record.", "Record"),
        "records",
        query=(_TURN,),
    ),
    RestOperation(
        "verifyCall",
        "GET",
        "/v1/calls/{callId}/verify",
        "Check whether the stored arguments are still those of the call",
        records_and_artifacts.verify_call,
        SuccessResponse("Checksums and exact digests, stored and computed.", "Verification"),
        "records",
        query=(_TURN,),
    ),
    RestOperation(
        "getArtifact",
        "GET",
        "/v1/artifacts/{callId}",
        "Get the metadata of a result and its queries",
        records_and_artifacts.get_artifact,
        SuccessResponse("The artifact.", "ArtifactDetails"),
        "artifacts",
        query=(_TURN,),
    ),
    RestOperation(
        "downloadArtifact",
        "GET",
        "/v1/artifacts/{callId}/content",
        "Download the content of a result",
        records_and_artifacts.download,
        SuccessResponse(
            "The content, with the media type of its class.",
            type="*/*",
            headers=_DOWNLOADED,
        ),
        "artifacts",
        query=(_TURN, _PART),
        headers=(
            OperationParameter("Range", "One range of bytes. Several ranges return the whole.", _ANY_TEXT),
            OperationParameter("If-Range", "The range is used only for this ETag.", _ANY_TEXT),
            _KNOWN,
        ),
        also={
            **_REFUSED_READ,
            304: "The client has it already.",
            416: "The content has no bytes in that range.",
        },
        instead=(
            SuccessResponse(
                "The range.", type="*/*", status=206, headers=_DOWNLOADED | {"Content-Range": "Range and total size."}
            ),
        ),
    ),
    RestOperation(
        "queryArtifact",
        "POST",
        "/v1/artifacts/{callId}/query",
        "Query an artifact with one of its query tools",
        records_and_artifacts.query,
        _DONE,
        "artifacts",
        query=(_TURN,),
        headers=(_KEY,),
        body="QueryRequest",
        also=_CONFLICT | _LOST,
        instead=_NOT_DONE,
    ),
)

APPROVAL_OPERATIONS: Final[tuple[RestOperation, ...]] = (
    RestOperation(
        "listApprovals",
        "GET",
        "/v1/approvals",
        "List the approvals that the caller may decide or requested, newest first",
        approvals.list_approvals,
        SuccessResponse("A page of approvals.", "Approvals"),
        "approvals",
        query=_APPROVALS_PAGE,
    ),
    RestOperation(
        "getApproval",
        "GET",
        "/v1/approvals/{approval}",
        "Get one approval, with everything needed to decide",
        approvals.get_approval,
        SuccessResponse("The approval.", "Approval"),
        "approvals",
    ),
    RestOperation(
        "resolveApproval",
        "POST",
        "/v1/approvals/{approval}/resolve",
        "Grant an approval as the caller",
        approvals.resolve_approval,
        SuccessResponse("The approval; it is granted once enough approvers have agreed.", "Approval"),
        "approvals",
        body="ResolveRequest",
        also={
            **_DECIDED,
            409: f"{_DECIDED[409]} Likewise if it is stale.",
            422: "The resolution does not satisfy its schema; the approval stays open.",
        },
    ),
    RestOperation(
        "rejectApproval",
        "POST",
        "/v1/approvals/{approval}/reject",
        "Refuse an approval as the caller; one refusal is final",
        approvals.reject_approval,
        SuccessResponse("The refused approval.", "Approval"),
        "approvals",
        body="RejectRequest",
        also=_DECIDED,
    ),
)

_DESCRIBED: Final = (*_TOOL_OPERATIONS, *APPROVAL_OPERATIONS, *GRANT_OPERATIONS)
OPERATIONS: Final = (*_DESCRIBED, *documentation_operations(_DESCRIBED))
OPEN_PATHS: Final = tuple(sorted({each.path for each in OPERATIONS if each.is_open}))
"""Paths that need no credential."""
