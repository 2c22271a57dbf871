"""The HTTP status of a call's answer, derived from its outcome in one table.

Proxies and client libraries send a request again after 502, 503 and 504. So a call whose tool may have begun is never
answered with one of those: it has 200 if the tool succeeded and 424 if it failed, whatever the failure was. 503 is for
calls that never began, and always says when to come again.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, Literal, NamedTuple

from gateway.core.moments import clock
from gateway.errors import LoopStopped
from gateway.serving.settled import Settled

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
    "done": "The tool ran and succeeded. With `notRecorded`, its outcome is not on record yet: do not send it again.",
    "pending": "The call waits for people and has not run; see `pending`.",
    "denied": "The policy, a gate rule, a quarantine, an approver or a stage refused the call; it has not run.",
    "missing": "The turn has no such tool; nothing ran.",
    "invalid": "The arguments do not satisfy the tool's input schema, or a query cannot run them; nothing ran.",
    "failed": "The tool may have run, and failed, timed out or broke its output schema. Send the call again only "
    "if running it twice does no harm.",
    "limited": "A rate, a quota, a loop rule, a budget or the tool's own concurrency stopped the call; it has not run.",
    "unavailable": "The call never began: the store, the tool's backend or the gateway cannot take it at present.",
}

COMES_AGAIN: Final[frozenset[Outcome]] = frozenset({"pending", "limited", "unavailable"})
"""Outcomes whose answer has the header Retry-After."""

_OF_FAULTS: Final[Mapping[int, Outcome]] = {404: "missing", 422: "invalid", 429: "limited", 503: "unavailable"}
_OF_REASONS: Final[Mapping[str, Outcome]] = {
    "config-expired": "denied",  # only an operator can change that, however long a client waits
    "rate-exceeded": "limited",
    "quota-exceeded": "limited",
    "loop-stopped": "limited",
    "budget-spent": "limited",
}
_OF_A_TURN: Final = frozenset({"loop-stopped", "budget-spent"})
"""Limits that last as long as the turn."""
_SOON: Final = 1
"""Seconds to wait where nothing says more."""


class Status(NamedTuple):
    """`retry_after`, in seconds, is there if and only if the outcome is one of `COMES_AGAIN`."""

    outcome: Outcome
    code: int
    retry_after: int | None


def status_of(settled: Settled, body: Mapping[str, Any]) -> Status:
    """The status of a settled call that is answered with `body`."""
    outcome = _outcome(settled, is_error=body["isError"])
    return Status(outcome, STATUSES[outcome], _wait(settled) if outcome in COMES_AGAIN else None)


def _outcome(settled: Settled, *, is_error: bool) -> Outcome:
    if not is_error:
        return "done"
    fault = settled.fault
    if settled.is_replay:
        return "invalid" if fault is not None else "failed"
    if settled.has_begun or fault is None:
        return "failed"
    if settled.pending is not None:
        return "pending"
    return _OF_REASONS.get(settled.reason) or _OF_FAULTS.get(fault.status, "denied")


def _wait(settled: Settled) -> int:
    told = settled.pending or settled.limited
    if told is not None:
        return int(told["retryAfter"])
    fault = settled.fault
    if settled.reason in _OF_A_TURN or (fault is not None and fault.code == LoopStopped.code):
        return max(_SOON, ceil((settled.turn.stored.expires - clock()) / 1_000_000))
    return _SOON if fault is None or fault.retry_after is None else fault.retry_after
