"""A call that is over, with what its caller is told beside its record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.calls import ToolCall
from gateway.governance.approvals import ApprovalRecord
from gateway.serving.course import Fault
from gateway.serving.current import ServedCall, Unconfirmed
from gateway.serving.relayed import Aside
from gateway.serving.turns import Turn


@dataclass(slots=True)
class Settled:
    """`is_replay` says that an earlier call with the same key settled it."""

    record: ToolCall
    turn: Turn
    is_replay: bool = False
    pending: Mapping[str, Any] | None = None
    """What a program is told of a call that waits for people."""
    limited: Mapping[str, Any] | None = None
    """What it is told of one that a rate or a quota stopped."""
    approvals: Sequence[ApprovalRecord] = ()
    """What a call that waits for people waits for."""
    aside: Aside | None = None
    """What another server said beside its result."""
    is_confirmed: bool = False
    """Whether its caller has confirmed a call that waits for people."""
    unconfirmed: Unconfirmed | None = None
    """What its caller has to answer before it runs."""
    has_begun: bool = True
    """Whether its tool may have had an effect; of a replayed call, that of the first one."""
    fault: Fault | None = None
    """What stopped it, if something did and this process saw it."""
    reason: str = ""
    """The word of the decision log for what was decided."""
    is_recorded: bool = True
    """Whether its outcome is on record. The start is, and the store writes the outcome when it recovers."""


def settled_as(record: ToolCall, turn: Turn, call: ServedCall) -> Settled:
    settled = Settled(record, turn, False, call.pending, call.limited)
    settled.aside = call.aside
    settled.is_recorded = not call.is_unwritten
    settled.has_begun, settled.fault, settled.reason = call.course.has_begun, call.fault, call.reason
    if call.decision == "hold":
        settled.unconfirmed = call.unconfirmed
        settled.approvals = call.approvals
        settled.is_confirmed = any(call.holding.has_confirmed(each.digest) for each in call.approvals)
    return settled
