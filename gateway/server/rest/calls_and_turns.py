"""Calls and turns over REST. A turn belongs to the caller who opened it; a call without a handle has its own turn.

Proxies and client libraries send a request again after 502, 503 and 504. So a call whose tool may have begun never gets
one of those: it gets 200 if the tool succeeded and 424 if it failed, whatever the failure was. 503 is for calls that
never began, and always has Retry-After.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from math import ceil
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from gateway.engine import MAX_KEY, CallOutcome, Course, OutcomeLost, Turn, is_key
from gateway.errors import GatewayError, LoopStopped, RecordConflict, UnknownTurn
from gateway.model import Renderer, assemble_prompt, now_microseconds
from gateway.server.http.asgi import Response
from gateway.server.http.json_body import NotStrictJson, TooManyBodyValues, parse_strict_json
from gateway.server.rest.catalogues import REST_PROTOCOL, find_catalogue, tools_response
from gateway.server.rest.events import event_stream
from gateway.server.rest.operation import RestDependencies, RestRequest
from gateway.server.rest.responses import (
    NO_STORE,
    InvalidRequest,
    TooManyJsonValues,
    TurnEnded,
    empty_response,
    send_json,
)
from gateway.server.rest.serializers import outcome_data, turn_data

_log: Final = logging.getLogger(__name__)


async def call_tool(rest: RestDependencies, request: RestRequest) -> Response:
    catalogue = find_catalogue(rest.service, request.principal, request.path["catalogue"])
    given, key = await read_arguments(request), read_idempotency_key(request)

    def call(course: Course) -> Awaitable[CallOutcome]:
        return rest.service.call_tool(
            request.principal,
            catalogue.name,
            request.path["name"],
            given,
            handle=request.body.get("turn"),
            key=key,
            request=request.seen,
            course=course,
        )

    return await call_response(rest, call)


async def call_response(rest: RestDependencies, call: Callable[[Course], Awaitable[CallOutcome]]) -> Response:
    """Make a call; return a response with its record and the status of its outcome.

    An error before the tool began is raised like any other. After that it becomes `OutcomeLost`, because its own status
    might make a client send the call again.
    """
    course = Course()
    try:
        settled = await call(course)
        body = await outcome_data(settled, rest.contents)
    except Exception as error:
        if not course.has_begun or isinstance(error, OutcomeLost):
            raise
        _log.exception("a call has run, but its outcome cannot be rendered")
        raise OutcomeLost(course) from error
    status = status_of(settled, body)
    headers = {} if status.retry_after is None else {b"retry-after": b"%d" % status.retry_after}
    if settled.is_replay:
        headers[b"idempotency-replayed"] = b"true"
    return send_json(body, status=status.code, headers=headers)


async def read_arguments(request: RestRequest) -> dict[str, Any] | None:
    """Return the arguments. Text is parsed as strictly as the body, and only here; blank text means no arguments."""
    given: dict[str, Any] | str | None = request.body.get("arguments")
    if not isinstance(given, str):
        return given
    if not given.strip():
        return None
    try:
        read = await parse_strict_json(given.encode())
    except TooManyBodyValues as error:
        raise TooManyJsonValues(f"the arguments cannot be read: {error}") from None
    except NotStrictJson as error:
        raise InvalidRequest(f"the arguments cannot be read: {error}") from None
    if not isinstance(read, dict):
        raise InvalidRequest("the text of the arguments is not a JSON object")
    return read


def read_idempotency_key(request: RestRequest) -> str | None:
    key = request.header(b"idempotency-key")
    if key is not None and not is_key(key):
        raise InvalidRequest(f"the header Idempotency-Key must have 1 to {MAX_KEY} printable ASCII characters")
    return key


async def open_turn(rest: RestDependencies, request: RestRequest) -> Response:
    catalogue = find_catalogue(rest.service, request.principal, request.body["catalogue"])
    turn = await rest.service.turns.open(request.principal, catalogue.name, stash=request.body.get("stash"))
    rest.logs.get(turn.buses)  # starts the log, so that later readers miss nothing
    location = f"/v1/turns/{quote(turn.id, safe='')}"
    return send_json(turn_data(turn), status=201, headers={b"location": location.encode()})


async def get_turn(rest: RestDependencies, request: RestRequest) -> Response:
    return send_json(turn_data(await find_turn(rest, request)))


async def list_turn_tools(rest: RestDependencies, request: RestRequest) -> Response:
    turn = await _find_synced(rest, request)
    catalogue = find_catalogue(rest.service, request.principal, turn.stored.catalogue)
    listing = rest.service.list_tools(request.principal, catalogue.name, turn=turn)
    return await tools_response(rest, request, catalogue, listing)


async def call_in_turn(rest: RestDependencies, request: RestRequest) -> Response:
    turn = await _find_open(rest, request)
    rest.logs.get(turn.buses)  # another process may have opened it
    given, key = await read_arguments(request), read_idempotency_key(request)

    def call(course: Course) -> Awaitable[CallOutcome]:
        return rest.service.call_in_turn(
            turn,
            request.body["tool"],
            given,
            id=request.body.get("id"),
            key=key,
            request=request.seen,
            course=course,
        )

    return await call_response(rest, call)


async def end_turn(rest: RestDependencies, request: RestRequest) -> Response:
    """End the turn. Ending it again the same way changes nothing; ending it another way is refused."""
    ending = request.body["as"]
    turn = await find_turn(rest, request)
    if turn.stored.ended_at is None:
        try:
            await rest.service.turns.end(turn, ending)
        except RecordConflict:  # another request was faster
            turn = await find_turn(rest, request)
    if turn.stored.ending != ending:
        raise TurnEnded(f"the turn has ended already, with {turn.stored.ending}")
    return send_json(turn_data(turn))


async def render_turn(rest: RestDependencies, request: RestRequest) -> Response:
    """Return the messages of the next model request, in the form of chat completions."""
    turn = await rest.service.turns.load_records(await _find_synced(rest, request))
    await rest.service.read_turn(turn)
    renderer = Renderer(unsupported_media="fallback-stash")
    return send_json({"messages": await assemble_prompt(turn.ctx, renderer)})


async def follow_turn(rest: RestDependencies, request: RestRequest) -> Response:
    """Stream events as they happen; 204 if the turn has ended, after which clients do not reconnect."""
    turn = await find_turn(rest, request)
    if turn.stored.ended_at is not None:
        return empty_response(204, NO_STORE)
    if not rest.service.may_read_turn(turn):
        raise UnknownTurn()
    log = rest.logs.get(turn.buses)

    async def may_read() -> bool:
        try:
            seen = await find_turn(rest, request)
            return seen.buses is turn.buses and rest.service.may_read_turn(seen)
        except GatewayError:
            return False

    return event_stream(log, last_event_id=request.header(b"last-event-id"), may_read=may_read)


async def find_turn(rest: RestDependencies, request: RestRequest) -> Turn:
    """Return the caller's own turn, open or ended. Turns of catalogues that REST does not publish are unknown."""
    turn = await rest.service.turns.find_any(request.principal, request.path["turn"])
    catalogue: Any = rest.service.published.snapshot.catalogues.get(turn.stored.catalogue)
    if catalogue is None or REST_PROTOCOL not in catalogue.protocols:
        raise UnknownTurn()
    return turn


async def _find_synced(rest: RestDependencies, request: RestRequest) -> Turn:
    """Return the turn with the calls that other processes have made in it."""
    turn = await find_turn(rest, request)
    if rest.catch_up is not None and turn.stored.ended_at is None:
        await rest.catch_up(turn)
    return turn


async def _find_open(rest: RestDependencies, request: RestRequest) -> Turn:
    turn = await find_turn(rest, request)
    if turn.stored.ended_at is not None:
        raise TurnEnded(help="open another one")
    return turn


Outcome = Literal["done", "pending", "denied", "missing", "invalid", "failed", "limited", "unavailable"]

STATUSES: Final[Mapping[Outcome, int]] = {
    "done": 200,
    "pending": 202,
    "denied": 403,
    "missing": 404,
    "invalid": 422,
    "failed": 424,
    "limited": 429,
    "unavailable": 503,
}

MEANINGS: Final[Mapping[Outcome, str]] = {
    "done": "The tool ran and succeeded. With `notRecorded`, its outcome is not recorded yet: do not send it again.",
    "pending": "The call waits for approvers and has not run; see `pending`.",
    "denied": "The policy, a gate rule, a quarantine, an approver or a stage refused the call; it has not run.",
    "missing": "The turn has no such tool; no tool ran.",
    "invalid": "The arguments do not satisfy the tool's input schema, or a query cannot run with them; no tool ran.",
    "failed": "The tool may have run, and failed, timed out or broke its output schema. Send the call again only "
    "if running it twice does no harm.",
    "limited": "A rate, a quota, a loop rule, a budget or the tool's own concurrency stopped the call; it has not run.",
    "unavailable": "The call never began: the store, the tool's backend or the gateway cannot take it at present.",
}

RETRYABLE: Final[frozenset[Outcome]] = frozenset({"pending", "limited", "unavailable"})
"""Outcomes whose response has the header Retry-After."""

_BY_FAULT_STATUS: Final[Mapping[int, Outcome]] = {404: "missing", 422: "invalid", 429: "limited", 503: "unavailable"}
_BY_REASON: Final[Mapping[str, Outcome]] = {
    "config-expired": "denied",  # only an operator can change that, so waiting does not help
    "rate-exceeded": "limited",
    "quota-exceeded": "limited",
    "loop-stopped": "limited",
    "budget-spent": "limited",
}
_TURN_LIMITS: Final = frozenset({"loop-stopped", "budget-spent"})
"""Limits that last as long as the turn."""
_SOON: Final = 1
"""Default seconds to wait."""


class Status(NamedTuple):
    """An outcome and its HTTP status. `retry_after`, in seconds, is set if and only if the outcome is `RETRYABLE`."""

    outcome: Outcome
    code: int
    retry_after: int | None


def status_of(settled: CallOutcome, body: Mapping[str, Any]) -> Status:
    """Return the status of a call whose response has `body`."""
    outcome = _outcome(settled, is_error=body["isError"])
    return Status(outcome, STATUSES[outcome], _wait(settled) if outcome in RETRYABLE else None)


def _outcome(settled: CallOutcome, *, is_error: bool) -> Outcome:
    if not is_error:
        return "done"
    fault = settled.fault
    if settled.is_replay:
        return "invalid" if fault is not None else "failed"
    if settled.has_begun or fault is None:
        return "failed"
    if settled.pending is not None:
        return "pending"
    return _BY_REASON.get(settled.reason) or _BY_FAULT_STATUS.get(fault.status, "denied")


def _wait(settled: CallOutcome) -> int:
    details = settled.pending or settled.limited
    if details is not None:
        return int(details["retryAfter"])
    fault = settled.fault
    if settled.reason in _TURN_LIMITS or (fault is not None and fault.code == LoopStopped.code):
        return max(_SOON, ceil((settled.turn.stored.expires - now_microseconds()) / 1_000_000))
    return _SOON if fault is None or fault.retry_after is None else fault.retry_after
