"""What the decision log is told of calls: who asked for what, what was decided by which rule, and how it ended.

Contents never get there, only keyed hashes of them. An entry is made for every call, so what outlives a call is made
once and remembered.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from gateway.approvals.approving import Announcement
from gateway.audit.contents import ContentKey
from gateway.audit.entries import (
    Caller,
    CallPart,
    DecisionPart,
    Entry,
    GateEntry,
    GatePart,
    ObjectPart,
    OutcomePart,
    Place,
    Target,
)
from gateway.audit.words import Event, Reason, State
from gateway.core.events import now
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.principals import Principal
from gateway.governance.quarantines import QuarantineChange
from gateway.governance.records import AuditBody, StoredCall
from gateway.serving.current import ServedCall
from gateway.snapshot import DeclaredTool

_EVENTS: Final[dict[str, Event]] = {
    "requested": "approval-requested",
    "expired": "approval-expired",
    "taken": "approval-used",
    "void": "approval-voided",
}


class Auditor:
    """Makes entries for one process; `place` says where, and by which revision, at any moment."""

    def __init__(self, place: Callable[[], Place], key: ContentKey, *, clock: Callable[[], int]) -> None:
        self._place = place
        self._key = key
        self._clock = clock

    def started(self, call: ServedCall, tool: DeclaredTool) -> AuditBody:
        """A call that may change something is about to run."""
        return self._body("call-started", call, tool)

    def settled(self, call: ServedCall, stored: StoredCall, tool: DeclaredTool | None) -> AuditBody:
        """A call has come to its end; one that was refused or held did not run."""
        event: Event = "call-decided" if call.decision in ("deny", "hold") else "call-settled"
        return self._body(event, call, tool, outcome=self._outcome(call, stored))

    def refused(self, call: ServedCall, reason: Reason) -> AuditBody:
        """Somebody asked for what is not there for them."""
        call.decide("deny", reason, None)
        return self._body("call-decided", call, None, outcome=OutcomePart("refused"))

    def unknown(self, call: ServedCall) -> AuditBody:
        """A call was cut off after its start; nobody saw how it ended."""
        return self._body("call-unknown", call, None, outcome=OutcomePart("unknown"))

    def announced(self, announcement: Announcement) -> AuditBody:
        record = announcement.approval
        event = _EVENTS.get(announcement.kind)
        if event is None:
            event = "approval-refused" if record.entries[-1].decision == "refuse" else "approval-granted"
        action = record.request.action
        target = _target(record.request.advertised, action.catalogue, action.tool, action.definition, None)
        entry = Entry(
            event,
            self._clock(),
            self._place(),
            _caller(record.requester),
            target,
            gate=_gate(record),
        )
        return entry.at, entry.encode()

    def quarantined(self, change: QuarantineChange) -> AuditBody:
        event: Event = "quarantine-added" if change.action == "add" else "quarantine-lifted"
        until = change.quarantine.until
        target = change.quarantine.target
        entry = Entry(
            event,
            self._clock(),
            self._place(),
            _caller(Principal(change.by)),
            object=ObjectPart(target.kind, target.name, change.reason, None if until is None else _microseconds(until)),
        )
        return entry.at, entry.encode()

    def happened(self, event: Event) -> AuditBody:
        entry = Entry(event, self._clock(), self._place())
        return entry.at, entry.encode()

    def _body(
        self, event: Event, call: ServedCall, tool: DeclaredTool | None, *, outcome: OutcomePart | None = None
    ) -> AuditBody:
        at = self._clock()
        identity = call.identity or (tool.name if tool is not None else None)
        tier = None if tool is None else tool.trust.tier.name
        entry = Entry(
            event,
            at,
            self._place(),
            _caller(call.principal),
            _target(call.tool[:512], call.catalogue, identity, call.definition, tier),
            CallPart(
                call.id,
                None if call.turn is None else call.turn.id,
                call.idempotency_key,
                self._key.canonical_arguments(call.checksum.encode()) if call.checksum else None,
            ),
            DecisionPart(call.decision or "deny", _reason(call), call.rules, call.position, call.observed),
            outcome,
            _gate(call.approvals[0]) if call.approvals else None,
        )
        return at, entry.encode()

    def _outcome(self, call: ServedCall, stored: StoredCall) -> OutcomePart:
        state: State = "ok"
        if stored.is_error:
            state = "refused" if call.decision in ("deny", "hold") else "error"
        size = 0
        artifact = result = None
        for piece in stored.results:
            size += piece.byte_length or 0
            artifact = artifact or piece.key
            if result is None and piece.content is not None:
                result = self._key.result(piece.content)
        envelope = "trusted" if stored.trusted and not stored.is_error else "untrusted"
        return OutcomePart(state, call.error, size, artifact, result, envelope)


def _reason(call: ServedCall) -> Reason:
    if call.reason:
        return cast("Reason", call.reason)  # only such words are given
    return "arguments-invalid" if call.decision is None else "permitted"


@lru_cache(maxsize=4096)
def _caller(principal: Principal) -> Caller:
    return Caller(principal.subject, principal.tenant, sorted(principal.roles))


@lru_cache(maxsize=4096)
def _target(tool: str, catalogue: str, identity: str | None, definition: str | None, tier: str | None) -> Target:
    return Target(tool, catalogue, identity, definition, tier)


def _gate(record: ApprovalRecord) -> GatePart:
    entries: Sequence[Any] = [
        GateEntry(each.approver.subject, each.decision, _microseconds(each.at), each.shown_digest, None, each.note)
        for each in record.entries
    ]
    return GatePart(
        record.id, record.digest, _microseconds(record.created_at), _microseconds(record.expires_at), entries
    )


def _microseconds(moment: Any) -> int:
    return int(moment.timestamp() * 1_000_000)


def clock() -> int:
    """Microseconds since 1970."""
    return _microseconds(now())
