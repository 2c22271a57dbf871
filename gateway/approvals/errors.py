"""Errors of approvals, each with a code, a status and help.

The model reads only the message of a held call, so these messages themselves state what to do next.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gateway.approvals.approval_store import ApprovalRecord, ApprovalState
from gateway.errors import GateError, GatewayError, Missing, Refused, RuleHeld

_SHORT: Final = 12
"""Characters of a revision that are shown."""


class UnknownApproval(Missing):
    """Also raised for approvals that the caller may not see: both cases look the same."""

    code = "E_UNKNOWN_APPROVAL"
    default_message = "there is no such approval"


class SelfApprovalRefused(Refused):
    code = "E_OWN_REQUEST"
    default_message = "the requester of an approval cannot decide it"

    def __init__(self) -> None:
        super().__init__(help="ask another approver, whatever roles you hold yourself")


class ApprovalClosed(GatewayError):
    code = "E_APPROVAL_CLOSED"
    status = 409
    default_message = "the approval is no longer open"

    def __init__(self, state: ApprovalState) -> None:
        super().__init__(f"the approval is {state} already", help="nothing was changed")
        self.state = state


class StaleApproval(GatewayError):
    """No call can use the approval: calls made now are of the served revision."""

    code = "E_APPROVAL_STALE"
    status = 409

    def __init__(self, asked_under: str, served: str) -> None:
        super().__init__(
            f"the approval was requested under revision {asked_under[:_SHORT]}, but {served[:_SHORT]} is served here: "
            "no call can use it",
            help="the requester has to call again, which requests another approval; this one can be refused",
        )


class AlreadyDecided(GatewayError):
    code = "E_ALREADY_DECIDED"
    status = 409
    default_message = "you have decided this approval before"

    def __init__(self) -> None:
        super().__init__(help="it waits for other approvers")


class DisplayChanged(GatewayError):
    code = "E_SHOWN_OTHERWISE"
    status = 409
    default_message = "the view you decided on is not the one that would be approved"

    def __init__(self) -> None:
        super().__init__(help="view the approval again, and decide on what it shows then")


class InvalidResolution(GatewayError):
    """`errors` has one entry per defect; the message lists all of them. The approval stays open."""

    code = "E_INVALID_RESOLUTION"
    status = 422
    default_message = "the resolution is invalid; the approval stays open"

    def __init__(
        self,
        message: str,
        *,
        help: str = "send a resolution that fits its schema",
        details: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(f"{message}; the approval stays open", help=help)
        self.errors = [{"at": _pointer(each["path"]), "detail": each["message"]} for each in details]


class TooManyPending(Refused):
    code = "E_TOO_MANY_APPROVALS"
    status = 429

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} calls of this caller already wait for approval, or were withdrawn a short time ago",
            help="wait until some of them are decided or expire",
        )


class ApprovalMismatch(Refused):
    """The call is not the one that was approved. `differs` names what differs, never the values."""

    code = "E_APPROVAL_MISMATCH"
    status = 409

    def __init__(self, differs: Iterable[str]) -> None:
        self.differs = tuple(differs)
        super().__init__(
            f"this is not the call that the approval is about: {', '.join(self.differs)} changed",
            help="call again without naming the approval, which requests another one",
        )


class ApprovalPending(RuleHeld):
    """Approvers have not decided yet. `approvals` has one entry for each rule that holds the call."""

    code = "E_APPROVAL_PENDING"

    def __init__(self, approvals: Sequence[ApprovalRecord], *, retry_after: int) -> None:
        self.approvals = tuple(approvals)
        self.retry_after = retry_after
        waits = "; ".join(f"{each.request.reason}: {_waits_for(each)}" for each in approvals)
        super().__init__(
            f"this call waits for approval ({waits}); call again with the same arguments, in {retry_after} s or later: "
            "once approved, it runs"
        )


class ApprovalRefused(Refused):
    code = "E_APPROVAL_REFUSED"

    def __init__(self, approval: ApprovalRecord) -> None:
        self.approval = approval
        notes = [each.note for each in approval.entries if each.decision == "refuse" and each.note]
        note = f": {notes[0]!r}" if notes else ""
        super().__init__(
            f"an approver refused this call{note}; do not try it again, "
            f"the refusal stands until {approval.expires_at:%Y-%m-%d %H:%M} UTC"
        )


class ApprovalExpired(GateError):
    code = "E_APPROVAL_EXPIRED"
    status = 408
    default_message = "no approver decided on this call in time; call again to request approval once more"


class GateRefused(GateError):
    """Raised in a handler whose gate was refused."""

    code = "E_GATE_REFUSED"
    status = 403
    default_message = "an approver refused"


class ApprovalVoid(Refused):
    code = "E_APPROVAL_VOID"
    default_message = "the approval of this call is no longer valid; call again to request another"


class ApprovalUsed(Refused):
    code = "E_APPROVAL_USED"
    status = 409
    default_message = (
        "the approval was used by another call with the same arguments; "
        "look at what that call did, and call again only if it has to be done once more"
    )


class ApprovalWithdrawn(Refused):
    code = "E_APPROVAL_WITHDRAWN"
    status = 409
    default_message = "this call was withdrawn before it ran; call again to request approval once more"


class ConfirmationPending(RuleHeld):
    """The caller was asked to confirm the call and has not answered yet."""

    code = "E_CONFIRMATION_PENDING"
    default_message = "this call waits for its caller to confirm it"


class ConfirmationRefused(Refused):
    code = "E_CONFIRMATION_REFUSED"
    default_message = "the caller did not confirm this call; do not try it again unless they ask for it"


class ConfirmationImpossible(Refused):
    code = "E_CONFIRMATION_IMPOSSIBLE"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"this call has to be confirmed by its caller, and {why}",
            help="use a client that declares elicitation over MCP",
        )


def _waits_for(approval: ApprovalRecord) -> str:
    granted = sum(each.decision == "grant" for each in approval.entries)
    return f"{granted} of {approval.request.needed} by {', '.join(approval.request.approvers)}"


def _pointer(path: Iterable[str | int]) -> str:
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
