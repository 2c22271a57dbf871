"""The table of operations: every path and method that is served below `/v1`."""

from dataclasses import replace
from typing import Final

from gateway.serving.claims import MAX_KEY
from gateway.web.rest import artifacts, calls, catalogues, records, turns
from gateway.web.rest.components import ENDINGS
from gateway.web.rest.examples import called_example
from gateway.web.rest.operations import Operation, Parameter, Success
from gateway.web.rest.statuses import COMES_AGAIN, MEANINGS, STATUSES, Outcome

_FORMAT: Final = Parameter(
    "format",
    "Whose shape tool definitions have; `gateway` is our own, with tier, flags and lifecycle.",
    {"type": "string", "enum": list(catalogues.FORMATS), "default": "gateway"},
)
_KEY: Final = Parameter(
    "Idempotency-Key",
    "A call with a key runs once, however often it is sent while the key is kept: as long as the catalogue's pipeline "
    "says, a day if it says nothing. The first outcome is answered again. "
    "Calls that were held or refused have not run: their key is free.",
    {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -~]*$"},
)
_ANY_TEXT: Final = {"type": "string"}
_KNOWN: Final = Parameter("If-None-Match", "The ETag of what the client has; 304 if that is still it.", _ANY_TEXT)
_TURN: Final = Parameter("turn", "The turn of the call; without it the newest call of that id is meant.")
_PAGE: Final = (
    Parameter("tool", "Only calls of this tool, by the name it was called by."),
    Parameter("catalogue", "Only calls through this catalogue."),
    Parameter(
        "status",
        "`unknown` are calls that began and whose end nobody saw.",
        {"type": "string", "enum": ["settled", "unknown"], "default": "settled"},
    ),
    Parameter("limit", "Calls per page.", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
    Parameter("cursor", "The `next` of the page before."),
)
_PART: Final = Parameter(
    "part",
    "Which of several results, counted from 0.",
    {"type": "integer", "minimum": 0, "maximum": artifacts.MAX_PARTS, "default": 0},
)
_CONFLICT: Final = {
    409: "The idempotency key stands for another call, for one that still runs, or for one whose end nobody saw."
}
_TAGGED: Final = {"ETag": "Names what this caller is shown now."}
_REPLAYED: Final = {"Idempotency-Replayed": "`true` if the key was sent before; nothing ran this time."}
_WAIT: Final = {"Retry-After": "Seconds after which to send the call again, with the same arguments."}


def _answered(outcome: Outcome) -> Success:
    """How a call with that outcome is answered: always with its record."""
    headers = {**(_WAIT if outcome in COMES_AGAIN else _REPLAYED)}
    status, example = STATUSES[outcome], called_example(outcome)
    return Success(MEANINGS[outcome], "Called", status=status, headers=headers, example=example)


_DONE: Final = _answered("done")
_NOT_DONE: Final = tuple(_answered(outcome) for outcome in STATUSES if outcome != "done")
_LOST: Final = {424: "The tool may have run, and its outcome could not be kept or shown."}
_DOWNLOADED: Final = {"ETag": "Names these bytes.", "Content-Disposition": "Always an attachment."}
_REFUSED_READ: Final = {
    403: "A gate rule or a quarantine refuses it, or somebody has to agree first.",
    429: "A rate or a quota refuses it for now.",
}
_UNCHANGED: Final = {304: "The client has it already."}

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "listCatalogues",
        "GET",
        "/v1/catalogues",
        "The catalogues that admit the caller",
        catalogues.list_catalogues,
        Success("The catalogues.", "Catalogues", headers=_TAGGED),
        "catalogues",
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    Operation(
        "getCatalogue",
        "GET",
        "/v1/catalogues/{catalogue}",
        "One catalogue",
        catalogues.get_catalogue,
        Success("The catalogue.", "Catalogue", headers=_TAGGED),
        "catalogues",
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    Operation(
        "listTools",
        "GET",
        "/v1/catalogues/{catalogue}/tools",
        "The tools of a catalogue that the caller is shown",
        catalogues.list_tools,
        Success("The tools.", "Tools", headers=_TAGGED),
        "catalogues",
        query=(_FORMAT,),
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    Operation(
        "getTool",
        "GET",
        "/v1/catalogues/{catalogue}/tools/{name}",
        "One tool",
        catalogues.get_tool,
        Success("The tool, in the format that was asked for.", "AnyTool", headers=_TAGGED),
        "catalogues",
        query=(_FORMAT,),
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    Operation(
        "callTool",
        "POST",
        "/v1/catalogues/{catalogue}/tools/{name}/call",
        "Call a tool, in a turn of its own unless a handle is given",
        calls.call_tool,
        _DONE,
        "calls",
        headers=(_KEY,),
        body="CallRequest",
        also=_CONFLICT | _LOST,
        instead=_NOT_DONE,
    ),
    Operation(
        "openTurn",
        "POST",
        "/v1/turns",
        "Open a turn",
        turns.open_turn,
        Success("The turn.", "Turn", status=201, headers={"Location": "Where the turn is."}),
        "turns",
        body="TurnRequest",
    ),
    Operation(
        "getTurn",
        "GET",
        "/v1/turns/{turn}",
        "One turn, open or ended",
        turns.get_turn,
        Success("The turn.", "Turn"),
        "turns",
    ),
    Operation(
        "listTurnTools",
        "GET",
        "/v1/turns/{turn}/tools",
        "The tools of the turn, with query tools for its artifacts",
        turns.list_turn_tools,
        Success("The tools.", "Tools", headers=_TAGGED),
        "turns",
        query=(_FORMAT,),
        headers=(_KNOWN,),
        also=_UNCHANGED,
    ),
    Operation(
        "callInTurn",
        "POST",
        "/v1/turns/{turn}/calls",
        "Call a tool in the turn, under the caller's own id if one is given",
        turns.call_in_turn,
        replace(_DONE, description=f"{_DONE.description} An id that the turn has already gets a suffix."),
        "turns",
        headers=(_KEY,),
        body="TurnCallRequest",
        also={409: f"{_CONFLICT[409]} Or the turn has ended.", **_LOST},
        instead=_NOT_DONE,
    ),
    Operation(
        "listTurnCalls",
        "GET",
        "/v1/turns/{turn}/calls",
        "The records of the turn's calls, newest first",
        records.list_turn_calls,
        Success("A page of records.", "Records"),
        "turns",
        query=_PAGE,
    ),
    Operation(
        "getTurnCall",
        "GET",
        "/v1/turns/{turn}/calls/{callId}",
        "One record of the turn, with its result while that may be read",
        records.get_turn_call,
        Success("The record.", "Record"),
        "turns",
    ),
    Operation(
        "endTurn",
        "POST",
        "/v1/turns/{turn}/end",
        f"End the turn with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}",
        turns.end_turn,
        Success("The ended turn.", "Turn"),
        "turns",
        body="EndRequest",
        also={409: "The turn has ended another way."},
    ),
    Operation(
        "renderTurn",
        "GET",
        "/v1/turns/{turn}/render",
        "The messages that a model would read next",
        turns.render_turn,
        Success("Messages in the shape of chat completions.", "Rendering"),
        "turns",
        also=_REFUSED_READ,
    ),
    Operation(
        "followTurn",
        "GET",
        "/v1/turns/{turn}/events",
        "What happens in the turn, as it happens",
        turns.follow_turn,
        Success(
            "Server-sent events, until the turn ends. `dropped` tells how many were missed.", type="text/event-stream"
        ),
        "turns",
        headers=(
            Parameter("Last-Event-ID", "The id of the event that was seen last; those after it follow.", _ANY_TEXT),
        ),
        also={204: "The turn has ended.", 429: "Too many streams of the turn are open."},
    ),
    Operation(
        "listCalls",
        "GET",
        "/v1/calls",
        "The records of the caller's calls, newest first",
        records.list_calls,
        Success("A page of records.", "Records"),
        "records",
        query=(Parameter("turn", "Only calls of this turn."), *_PAGE),
    ),
    Operation(
        "getCall",
        "GET",
        "/v1/calls/{callId}",
        "One record, with its result while that may be read",
        records.get_call,
        Success("The record.", "Record"),
        "records",
        query=(_TURN,),
    ),
    Operation(
        "verifyCall",
        "GET",
        "/v1/calls/{callId}/verify",
        "Whether the stored arguments are still those of the call",
        records.verify_call,
        Success("Checksums and exact digests, stored and computed.", "Verification"),
        "records",
        query=(_TURN,),
    ),
    Operation(
        "getArtifact",
        "GET",
        "/v1/artifacts/{callId}",
        "What is known of a result, and what it can be asked",
        artifacts.get_artifact,
        Success("The artifact.", "ArtifactDetails"),
        "artifacts",
        query=(_TURN,),
    ),
    Operation(
        "downloadArtifact",
        "GET",
        "/v1/artifacts/{callId}/content",
        "The content of a result as it is shown",
        artifacts.download,
        Success(
            "The content, of the type that its class has.",
            type="*/*",
            headers=_DOWNLOADED,
        ),
        "artifacts",
        query=(_TURN, _PART),
        headers=(
            Parameter("Range", "One range of bytes. Several at once are answered with the whole.", _ANY_TEXT),
            Parameter("If-Range", "The range counts only for this ETag.", _ANY_TEXT),
            _KNOWN,
        ),
        also={
            **_REFUSED_READ,
            304: "The client has it already.",
            416: "No bytes are in that range.",
        },
        instead=(
            Success(
                "The range.", type="*/*", status=206, headers=_DOWNLOADED | {"Content-Range": "Which bytes of all."}
            ),
        ),
    ),
    Operation(
        "queryArtifact",
        "POST",
        "/v1/artifacts/{callId}/query",
        "Ask an artifact by one of its query tools",
        artifacts.query,
        _DONE,
        "artifacts",
        query=(_TURN,),
        headers=(_KEY,),
        body="QueryRequest",
        also=_CONFLICT | _LOST,
        instead=_NOT_DONE,
    ),
)
