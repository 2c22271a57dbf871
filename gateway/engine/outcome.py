"""The outcome of a call: its record, and what its caller receives beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.approvals import ApprovalRecord
from gateway.engine.call import Call, PendingConfirmation
from gateway.engine.progress import Fault
from gateway.engine.turns.turn import Turn
from gateway.model import ToolCall, UpstreamMeta


@dataclass(slots=True)
class CallOutcome:
    """`is_replay`: an earlier call with the same key settled it."""

    record: ToolCall
    turn: Turn
    is_replay: bool = False
    pending: Mapping[str, Any] | None = None
    """Data for programs about a call that waits for approvers."""
    limited: Mapping[str, Any] | None = None
    """Data for programs about a call that a rate or a quota stopped."""
    approvals: Sequence[ApprovalRecord] = ()
    """The approvals that a held call waits for."""
    aside: UpstreamMeta | None = None
    """What the upstream sent beside its result."""
    is_confirmed: bool = False
    """Whether its caller has confirmed a call that waits for approvers."""
    unconfirmed: PendingConfirmation | None = None
    """The question that its caller has to answer before it runs."""
    has_begun: bool = True
    """Whether its tool may have had an effect; for a replayed call, whether the first one may have."""
    fault: Fault | None = None
    """What stopped it, if anything did and this process saw it."""
    reason: str = ""
    """The decision's reason, a word of the audit vocabulary."""
    is_recorded: bool = True
    """Whether its outcome is on record. The start is, and the store writes the outcome when it recovers."""


def to_outcome(record: ToolCall, turn: Turn, call: Call) -> CallOutcome:
    settled = CallOutcome(record, turn, False, call.pending, call.limited)
    settled.aside = call.aside
    settled.is_recorded = not call.is_unwritten
    settled.has_begun, settled.fault, settled.reason = call.course.has_begun, call.fault, call.reason
    if call.decision == "hold":
        settled.unconfirmed = call.unconfirmed
        settled.approvals = call.approvals
        settled.is_confirmed = any(call.holding.has_confirmed(each.digest) for each in call.approvals)
    return settled
