"""How far a call has come, and what stopped it: the facts from which a server derives the status of its response.

A failure after the tool began may hide an effect; a failure before it cannot. Only the handler of a tool knows which
of the two it is, so it records the beginning here. The server reads it, whether the call returned or raised.
"""

from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, Final, NamedTuple

from gateway.errors import GatewayError, InvalidToolArgs, JsonPathInvalid, PatternNotSupported, ToolDownstreamError


@dataclass(slots=True)
class Course:
    """`has_begun` is true from the moment the tool may have had an effect. The ids are known before that."""

    has_begun: bool = False
    call_id: str = ""
    turn_id: str = ""


class OutcomeLost(GatewayError):
    """The tool may have run, and its outcome cannot be shown. `call_id` leads to the record of the call."""

    code = "E_OUTCOME_LOST"
    status = 424
    default_message = "the tool may have run, and its outcome could not be shown; do not repeat the call"

    def __init__(self, course: Course) -> None:
        super().__init__(help="look at the record of the call first; with the same idempotency key it runs once")
        self.call_id = course.call_id
        self.turn_id = course.turn_id


class OutcomeNotRecorded(OutcomeLost):
    """The tool ran, its outcome cannot be recorded right now, and nothing unrecorded is shown."""

    code = "E_OUTCOME_NOT_RECORDED"
    default_message = "the tool ran, but its outcome could not be recorded and is not shown; do not repeat the call"


RAN_UNRECORDED: Final = {
    "code": OutcomeNotRecorded.code,
    "message": "The tool ran. Its outcome could not be recorded yet; the gateway does that when its store recovers. "
    "Do not repeat the call.",
}
"""Sent beside the result of a call whose start is on record and whose outcome is not."""


class Fault(NamedTuple):
    """What stopped a call: the code and the HTTP-like status of the error, and when to send the call again."""

    code: str
    status: int
    retry_after: int | None = None
    """Seconds, rounded up; `None` if the error does not define it."""


def fault_of(error: Exception) -> Fault:
    """Return the fault behind an error. Foreign errors count as the worst."""
    cause = error.cause if isinstance(error, ToolDownstreamError) else error
    if isinstance(cause, GatewayError):
        return Fault(cause.code, cause.status, _seconds(getattr(cause, "retry_after", None)))
    return Fault(type(cause).__name__, GatewayError.status)


def refuses_arguments(error: Exception) -> bool:
    """Whether the arguments are at fault: they break the schema, or a query cannot run what they ask for."""
    if isinstance(error, ToolDownstreamError):
        return isinstance(error.cause, PatternNotSupported | JsonPathInvalid)
    return isinstance(error, InvalidToolArgs)


def _seconds(wait: Any) -> int | None:
    if isinstance(wait, timedelta):
        return max(1, ceil(wait.total_seconds()))
    return wait if isinstance(wait, int) else None
