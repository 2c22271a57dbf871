"""The HTTP status of the response to a call, derived from its outcome by one table.

Proxies and client libraries send a request again after 502, 503 and 504. So a call whose tool may have begun never gets
one of those: it gets 200 if the tool succeeded and 424 if it failed, whatever the failure was. 503 is for calls that
never began, and always has Retry-After.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any, Final, Literal, NamedTuple

from gateway.engine import CallOutcome
from gateway.errors import LoopStopped
from gateway.model import now_microseconds

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
