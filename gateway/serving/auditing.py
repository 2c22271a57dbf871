"""What the decision log is told of calls: who asked for what, what was decided by which rule, and how it ended.

Contents never get there, only keyed hashes of them. An entry is made for every call, so what outlives a call is made
once and remembered.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from gateway.audit.contents import ContentKey
from gateway.audit.entries import (
    MAX_TEXT,
    Caller,
    CallPart,
    Client,
    CountPart,
    DecisionPart,
    DecisionValues,
    Entry,
    GateEntry,
    GatePart,
    ObjectPart,
    OutcomePart,
    OutcomeValues,
    Place,
    Target,
)
from gateway.audit.retention import OldBeginning, farewells
from gateway.audit.words import Effect, Event, Reason, State
from gateway.core.moments import microseconds
from gateway.governance.approvals import ApprovalChange, ApprovalRecord
from gateway.governance.principals import Principal
from gateway.governance.quarantines import QuarantineChange
from gateway.governance.records import AuditBody, StoredCall
from gateway.governance.refusals import RefusalCount
from gateway.governance.revocations import RevocationChange
from gateway.serving.current import ServedCall
from gateway.serving.origins import NOWHERE, Origin, current_origin
from gateway.serving.withholding import DefinitionTaken, DefinitionTurned
from gateway.snapshot import DeclaredTool, Offer, Query, Requested

_EVENTS: Final[dict[ApprovalChange, Event]] = {
    "requested": "approval-requested",
    "expired": "approval-expired",
    "taken": "approval-used",
    "returned": "approval-returned",
    "void": "approval-voided",
    "withdrawn": "approval-withdrawn",
}


class Auditor:
    """Makes entries for one process; `place` says where, and by which revision, at any moment."""

    def __init__(
        self,
        place: Callable[[], Place],
        key: ContentKey,
        *,
        clock: Callable[[], int],
        of_revision: Callable[[str], Place] | None = None,
    ) -> None:
        """`of_revision` is the place of a call that began with a revision which may have been replaced since."""
        self._place = place
        self._of_revision = of_revision or (lambda revision: place())
        self._key = key
        self._clock = clock
        self._caller = lru_cache(maxsize=4096)(self._recognised)

    def started(self, call: ServedCall, tool: DeclaredTool) -> AuditBody:
        """A call that may change something is about to run."""
        return self._body("call-started", call, tool, decided(call))

    def settled(self, call: ServedCall, stored: StoredCall, tool: DeclaredTool | None) -> AuditBody:
        """A call has come to its end; one that was refused or held did not run. Query tools are not declared."""
        found = decided(call)
        effect = found[0]
        event: Event = "call-settled" if effect == "allow" else "call-decided"
        return self._body(event, call, tool, found, self._outcome(call, stored, effect))

    def refused(self, call: ServedCall, reason: Reason) -> AuditBody:
        """Somebody asked for what is not there for them, or was refused what they wanted to read."""
        if call.decision is None:
            call.decide("deny", reason, None)
        return self._body("call-decided", call, None, decided(call), _ended("refused"))

    def had(self, call: ServedCall, asked: Query | Offer) -> AuditBody:
        """Somebody is told a result, or a prompt or a resource of another server, as it was decided."""
        return self._body("call-settled", call, asked, decided(call), _ended("ok"))

    def unknown(self, call: ServedCall) -> AuditBody:
        """A call was cut off after its start; nobody saw how it ended."""
        found = None if call.decision is None else decided(call)
        return self._body("call-unknown", call, None, found, _ended("unknown"))

    def replayed(self, call: ServedCall, earlier: StoredCall) -> AuditBody:
        """A call was sent again with its idempotency key, and answered with what the first one, which is named, was."""
        entry = Entry(
            "call-replayed",
            self._clock(),
            self._place(),
            self._caller_of(call),
            _target(earlier.tool, earlier.catalogue, earlier.identity, earlier.definition, None),
            CallPart(earlier.id, earlier.turn_id, call.idempotency_key, self._arguments(earlier.fingerprint)),
            outcome=OutcomePart("error" if earlier.is_error else "ok"),
        )
        return entry.at, entry.encode()

    def abandoned(self, call: StoredCall) -> AuditBody:
        """The process that ran the call is gone. What it had decided is in its own entries."""
        entry = Entry(
            "call-unknown",
            self._clock(),
            self._place(),
            _caller(call.principal),
            _target(call.tool, call.catalogue, call.identity, call.definition, None),
            CallPart(call.id, call.turn_id, call.idempotency_key, self._arguments(call.fingerprint)),
            outcome=OutcomePart("unknown"),
        )
        return entry.at, entry.encode()

    def summed(self, count: RefusalCount) -> AuditBody:
        """Refusals above the number that is told one by one. Made in the thread that writes."""
        reason: Any = count.reason  # only such words are counted by
        entry = Entry(
            "refusals-counted",
            self._clock(),
            self._place(),
            Caller(count.subject, count.tenant),
            decision=DecisionPart("deny", reason),
            counted=CountPart(count.number, count.since, count.until),
        )
        return entry.at, entry.encode()

    def approval(self, change: ApprovalChange, record: ApprovalRecord) -> AuditBody:
        """Something happens to an approval. Made in the thread that writes."""
        event = _EVENTS.get(change)
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

    def turned(self, turned: DefinitionTurned) -> AuditBody:
        """An upstream changed a tool, or changed it back. Nobody of ours asked for it."""
        withheld = turned.withheld
        event: Event = "definition-restored" if turned.lifted else "definition-changed"
        what = ObjectPart("tool", f"{withheld.upstream}.{withheld.tool}"[:MAX_TEXT], withheld.words)
        entry = Entry(event, self._clock(), self._place(), object=what)
        return entry.at, entry.encode()

    def taken(self, taken: DefinitionTaken) -> AuditBody:
        """The same where the terms of the upstream accept it."""
        name = f"{taken.upstream}.{taken.definition}"[:MAX_TEXT]
        what = ObjectPart("tool", name, f"its {taken.kind} is {taken.what}, which is accepted")
        entry = Entry("definition-accepted", self._clock(), self._place(), object=what)
        return entry.at, entry.encode()

    def farewells(self, beginnings: Iterable[OldBeginning]) -> list[AuditBody]:
        """That entries are about to go."""
        return [*farewells(beginnings, at=self._clock(), place=self._place())]

    def happened(self, event: Event) -> AuditBody:
        entry = Entry(event, self._clock(), self._place())
        return entry.at, entry.encode()

    def _body(
        self,
        event: Event,
        call: ServedCall,
        tool: Requested | None,
        decided: DecisionValues | None,
        outcome: OutcomeValues | None = None,
    ) -> AuditBody:
        turn = None if call.turn is None else call.turn.id
        part = (call.id, turn, call.idempotency_key, call.fingerprint or None, _is_valid(call, decided))
        identity = call.identity or (tool.name if tool is not None else None)
        tier = None if tool is None else tool.trust.tier.name
        target = (call.tool[:MAX_TEXT], call.catalogue, identity, call.definition, tier)
        place, caller = self._of_revision(call.revision), self._caller_of(call)
        gate = _gate(call.approvals[0]).encode() if call.approvals else None
        call.is_logged = True
        return self._clock(), (event, place.encoded, caller.encoded, target, part, decided, outcome, gate)

    def _caller_of(self, call: ServedCall) -> Caller:
        """Made once for each credential and program: a caller makes many calls."""
        principal = call.principal
        return self._caller(principal.subject, principal.tenant, principal.roles, current_origin())

    def _recognised(self, subject: str, tenant: str | None, roles: frozenset[str], origin: Origin) -> Caller:
        credential = origin.credential
        client = origin._replace(credential=None)
        told = None if client == NOWHERE else Client(client.name, client.version, client.address)
        if credential is None:
            return Caller(subject, tenant, sorted(roles), client=told)
        id = credential.token_id
        token = None if id is None else self._key.token(id)
        return Caller(subject, tenant, sorted(roles), credential.issuer, credential.method, token, told)

    def _arguments(self, fingerprint: str) -> str | None:
        """By the exact digest of tool and arguments, which every call has already."""
        return self._key.arguments(fingerprint.encode()) if fingerprint else None

    def _outcome(self, call: ServedCall, stored: StoredCall, effect: Effect) -> OutcomeValues:
        state: State = "ok"
        if call.is_cancelled:
            state = "cancelled"
        elif stored.is_error:
            state = "error" if effect == "allow" else "refused"
        size = 0
        artifact = content = None
        for piece in stored.results:
            size += piece.byte_length or 0
            artifact = artifact or piece.key
            if content is None:
                content = piece.content
        envelope = "trusted" if stored.is_trusted else "untrusted"
        return state, call.error, size, artifact, content, envelope


def quarantined(change: QuarantineChange, place: Place, *, at: int) -> AuditBody:
    """Somebody who operates the gateway has stopped something, or lets it go on."""
    target = change.quarantine.target
    event: Event = "quarantine-added" if change.action == "add" else "quarantine-lifted"
    return _acted(event, change, ObjectPart(target.kind, target.name, change.reason), place, at=at)


def revoked(change: RevocationChange, place: Place, *, at: int) -> AuditBody:
    """A token by its id, which is no secret: its hash, or what its issuer calls it."""
    event: Event = "token-revoked" if change.action == "revoke" else "token-restored"
    return _acted(event, change, ObjectPart("token", change.revocation.token_id, change.reason), place, at=at)


def _acted(
    event: Event, change: QuarantineChange | RevocationChange, acted_on: ObjectPart, place: Place, *, at: int
) -> AuditBody:
    until = (change.quarantine if isinstance(change, QuarantineChange) else change.revocation).until
    what = acted_on if until is None else acted_on._replace(until=microseconds(until))
    return at, Entry(event, at, place, _caller(Principal(change.by)), object=what).encode()


def decided(call: ServedCall) -> DecisionValues:
    """What was decided about a call that has ended, or is about to run. Where nobody decided, nothing ran."""
    if call.decision is not None:
        # Only such words are given; a stage that lets nothing through gives none.
        reason: Any = call.reason or "check-failed"
        return call.decision, reason, call.rules, call.position, call.observed
    return _INVALID


def _is_valid(call: ServedCall, decided: DecisionValues | None) -> bool | None:
    """Handlers are reached by valid arguments alone. Where nobody came to look, nobody knows."""
    if call.identity is not None:
        return True
    return False if decided is not None and decided[1] == _INVALID[1] else None


def _ended(state: State) -> OutcomeValues:
    return state, None, None, None, None, None


_INVALID: Final[DecisionValues] = ("deny", "arguments-invalid", (), None, ())


@lru_cache(maxsize=4096)
def _caller(principal: Principal) -> Caller:
    return Caller(principal.subject, principal.tenant, sorted(principal.roles))


@lru_cache(maxsize=4096)
def _target(tool: str, catalogue: str, identity: str | None, definition: str | None, tier: str | None) -> Target:
    return Target(tool, catalogue, identity, definition, tier)


def _gate(record: ApprovalRecord) -> GatePart:
    entries = [
        GateEntry(each.approver.subject, each.decision, microseconds(each.at), each.shown_digest, None, each.note)
        for each in record.entries
    ]
    return GatePart(record.id, record.digest, microseconds(record.created_at), microseconds(record.expires_at), entries)
