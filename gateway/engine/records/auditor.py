"""Audit entries for calls: who requested what, which rule decided what, and how the call ended.

Entries never contain content, only keyed hashes of it. An entry is made for every call, so parts that several calls
share are cached.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from gateway.approvals import ApprovalChange, ApprovalRecord
from gateway.audit import (
    MAX_TEXT,
    AuditApproval,
    AuditCall,
    AuditCaller,
    AuditClient,
    AuditDecision,
    AuditEntry,
    AuditObject,
    AuditOrigin,
    AuditOutcome,
    AuditTarget,
    AuditVote,
    ContentKey,
    CountPart,
    DecisionValues,
    Effect,
    Event,
    ExpiredPrefix,
    OutcomeValues,
    Reason,
    State,
    prune_entries,
)
from gateway.engine.call import UNKNOWN_ORIGIN, Call, RequestOrigin, get_request_origin
from gateway.engine.gates.definition_guard import DefinitionAccepted, DefinitionStatusChanged
from gateway.model import Principal, to_microseconds
from gateway.policy import GrantAction, GrantChange, StopChange
from gateway.registries import DeclaredDefinition, DeclaredTool, Query, Requested
from gateway.storage import AuditBody, RefusalCount, StoredCall

_EVENTS: Final[dict[ApprovalChange, Event]] = {
    "requested": "approval-requested",
    "expired": "approval-expired",
    "taken": "approval-used",
    "returned": "approval-returned",
    "void": "approval-voided",
    "withdrawn": "approval-withdrawn",
}


class Auditor:
    """Builds the entries of one process; `place` returns the process and its current revision."""

    def __init__(
        self,
        place: Callable[[], AuditOrigin],
        key: ContentKey,
        *,
        clock: Callable[[], int],
        of_revision: Callable[[str], AuditOrigin] | None = None,
    ) -> None:
        """`of_revision` returns the origin of a call that began under a revision that may have been replaced since."""
        self._place = place
        self._of_revision = of_revision or (lambda revision: place())
        self._key = key
        self._clock = clock
        self._caller = lru_cache(maxsize=4096)(self._make_caller)

    def start_entry(self, call: Call, tool: DeclaredTool) -> AuditBody:
        """Return the entry for a call that may change something and is about to run."""
        return self._body("call-started", call, tool, decision_of(call))

    def outcome_entry(self, call: Call, stored: StoredCall, tool: DeclaredTool | None) -> AuditBody:
        """Return the entry for the end of a call. Refused or held calls did not run. Query tools are not declared."""
        found = decision_of(call)
        effect = found[0]
        event: Event = "call-settled" if effect == "allow" else "call-decided"
        return self._body(event, call, tool, found, self._outcome(call, stored, effect))

    def refusal_entry(self, call: Call, reason: Reason) -> AuditBody:
        """Return the entry for a request that was refused, or whose target does not exist for the caller."""
        if call.decision is None:
            call.set_decision("deny", reason, None)
        return self._body("call-decided", call, None, decision_of(call), _bare_outcome("refused"))

    def read_entry(self, call: Call, target: Query | DeclaredDefinition) -> AuditBody:
        """Return the entry for a read of a result, prompt or resource, as it was decided."""
        return self._body("call-settled", call, target, decision_of(call), _bare_outcome("ok"))

    def unknown_outcome_entry(self, call: Call) -> AuditBody:
        """Return the entry for a call that was cut off after its start, so that its outcome is unknown."""
        found = None if call.decision is None else decision_of(call)
        return self._body("call-unknown", call, None, found, _bare_outcome("unknown"))

    def replay_entry(self, call: Call, earlier: StoredCall) -> AuditBody:
        """Return the entry for a call sent again with its idempotency key; it names the first call."""
        entry = AuditEntry(
            "call-replayed",
            self._clock(),
            self._place(),
            self._caller_of(call),
            _target(earlier.tool, earlier.catalogue, earlier.identity, earlier.definition, None),
            AuditCall(earlier.id, earlier.turn_id, call.idempotency_key, self._arguments(earlier.fingerprint)),
            outcome=AuditOutcome("error" if earlier.is_error else "ok"),
        )
        return entry.at, entry.encode()

    def abandoned_call_entry(self, call: StoredCall) -> AuditBody:
        """Return the entry for a call whose process is gone. That process wrote the entries about its decision."""
        entry = AuditEntry(
            "call-unknown",
            self._clock(),
            self._place(),
            _caller(call.principal),
            _target(call.tool, call.catalogue, call.identity, call.definition, None),
            AuditCall(call.id, call.turn_id, call.idempotency_key, self._arguments(call.fingerprint)),
            outcome=AuditOutcome("unknown"),
        )
        return entry.at, entry.encode()

    def refusal_count_entry(self, count: RefusalCount) -> AuditBody:
        """Return the entry for refusals beyond those logged one by one. Called in the thread that writes."""
        reason: Any = count.reason  # counts have only words of the vocabulary
        entry = AuditEntry(
            "refusals-counted",
            self._clock(),
            self._place(),
            AuditCaller(count.subject, count.tenant),
            decision=AuditDecision("deny", reason),
            counted=CountPart(count.number, count.since, count.until),
        )
        return entry.at, entry.encode()

    def approval_entry(self, change: ApprovalChange, record: ApprovalRecord) -> AuditBody:
        """Return the entry for a change of an approval. Called in the thread that writes."""
        event = _EVENTS.get(change)
        if event is None:
            event = "approval-refused" if record.entries[-1].decision == "refuse" else "approval-granted"
        action = record.request.action
        target = _target(record.request.advertised, action.catalogue, action.tool, action.definition, None)
        entry = AuditEntry(
            event,
            self._clock(),
            self._place(),
            _caller(record.requester),
            target,
            gate=_gate(record),
        )
        return entry.at, entry.encode()

    def grant_entry(self, change: GrantChange) -> AuditBody:
        """Return the entry for a change of a grant. Called in the thread that writes."""
        return grant_entry(change, self._place(), at=self._clock())

    def blocked_definition_entry(self, turned: DefinitionStatusChanged) -> AuditBody:
        """Return the entry for a tool that an upstream changed, or changed back. It has no caller."""
        withheld = turned.withheld
        event: Event = "definition-restored" if turned.lifted else "definition-changed"
        what = AuditObject("tool", f"{withheld.upstream}.{withheld.tool}"[:MAX_TEXT], withheld.words)
        entry = AuditEntry(event, self._clock(), self._place(), object=what)
        return entry.at, entry.encode()

    def accepted_definition_entry(self, taken: DefinitionAccepted) -> AuditBody:
        """Return the entry for such a change that the settings of the upstream accept."""
        name = f"{taken.upstream}.{taken.definition}"[:MAX_TEXT]
        what = AuditObject("tool", name, f"its {taken.kind} is {taken.what}, which is accepted")
        entry = AuditEntry("definition-accepted", self._clock(), self._place(), object=what)
        return entry.at, entry.encode()

    def retention_entries(self, beginnings: Iterable[ExpiredPrefix]) -> list[AuditBody]:
        """Return the entries that record an upcoming deletion of old entries."""
        return [*prune_entries(beginnings, at=self._clock(), place=self._place())]

    def event_entry(self, event: Event) -> AuditBody:
        entry = AuditEntry(event, self._clock(), self._place())
        return entry.at, entry.encode()

    def _body(
        self,
        event: Event,
        call: Call,
        tool: Requested | None,
        decided: DecisionValues | None,
        outcome: OutcomeValues | None = None,
    ) -> AuditBody:
        turn = None if call.turn is None else call.turn.id
        # Handlers receive only valid arguments. `None` if the call did not get that far.
        is_valid = True if call.identity is not None else _is_valid(decided)
        part = (call.id, turn, call.idempotency_key, call.fingerprint or None, is_valid)
        identity = call.identity or (tool.name if tool is not None else None)
        tier = None if tool is None else tool.trust.tier.name
        target = (call.tool[:MAX_TEXT], call.catalogue, identity, call.definition, tier)
        place, caller = self._of_revision(call.revision), self._caller_of(call)
        gate = _gate(call.approvals[0]).encode() if call.approvals else None
        call.is_logged = True
        return self._clock(), (event, place.encoded, caller.encoded, target, part, decided, outcome, gate)

    def _caller_of(self, call: Call) -> AuditCaller:
        """Return the caller, cached for each credential and program: a caller makes many calls."""
        principal = call.principal
        return self._caller(principal.subject, principal.tenant, principal.roles, get_request_origin())

    def _make_caller(
        self, subject: str, tenant: str | None, roles: frozenset[str], origin: RequestOrigin
    ) -> AuditCaller:
        credential = origin.credential
        client = origin._replace(credential=None)
        client_part = None if client == UNKNOWN_ORIGIN else AuditClient(client.name, client.version, client.address)
        if credential is None:
            return AuditCaller(subject, tenant, sorted(roles), client=client_part)
        id = credential.token_id
        token = None if id is None else self._key.token(id)
        return AuditCaller(subject, tenant, sorted(roles), credential.issuer, credential.method, token, client_part)

    def _arguments(self, fingerprint: str) -> str | None:
        """Return the hash of the exact digest of tool and arguments, which every call already has."""
        return self._key.arguments(fingerprint.encode()) if fingerprint else None

    def _outcome(self, call: Call, stored: StoredCall, effect: Effect) -> OutcomeValues:
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


def stop_entry(change: StopChange, place: AuditOrigin, *, at: int) -> AuditBody:
    """Return the entry of a stop that an operator added or lifted. The id of a token is no secret."""
    target, until, is_added = change.stop.target, change.stop.until, change.action == "add"
    event: Event = "quarantine-added" if is_added else "quarantine-lifted"
    if target.is_token:
        event = "token-revoked" if is_added else "token-restored"
    end = None if until is None else to_microseconds(until)
    what = AuditObject(target.kind, target.name, change.reason, end)
    return at, AuditEntry(event, at, place, _caller(Principal(change.by)), object=what).encode()


_GRANT_EVENTS: Final[dict[GrantAction, Event]] = {
    "request": "grant-requested",
    "approve": "grant-approved",
    "refuse": "grant-refused",
    "revoke": "grant-revoked",
}


def grant_entry(change: GrantChange, place: AuditOrigin, *, at: int) -> AuditBody:
    """Return the entry of a change of a grant. Its caller is who made the change: a principal, or an operator."""
    grant = change.grant
    note = f"{grant.role} for {grant.subject} by {grant.policy}: {change.reason}"
    end = None if grant.until is None else to_microseconds(grant.until)
    what = AuditObject("grant", grant.id, note, end)
    return at, AuditEntry(_GRANT_EVENTS[change.action], at, place, _caller(change.by), object=what).encode()


def decision_of(call: Call) -> DecisionValues:
    """Return the decision about a call that has ended, or is about to run. Without a decision, it did not run."""
    if call.decision is not None:
        # Decisions have only words of the vocabulary; a stage that refuses sets none.
        reason: Any = call.reason or "check-failed"
        return call.decision, reason, call.rules, call.position, call.observed, call.grants
    return _INVALID


def _is_valid(decided: DecisionValues | None) -> bool | None:
    """Return `False` if the arguments are invalid by the decision about a call; otherwise `None`."""
    return False if decided is not None and decided[1] == _INVALID[1] else None


def _bare_outcome(state: State) -> OutcomeValues:
    return state, None, None, None, None, None


_INVALID: Final[DecisionValues] = ("deny", "arguments-invalid", (), None, (), ())


@lru_cache(maxsize=4096)
def _caller(principal: Principal) -> AuditCaller:
    return AuditCaller(principal.subject, principal.tenant, sorted(principal.roles))


@lru_cache(maxsize=4096)
def _target(tool: str, catalogue: str, identity: str | None, definition: str | None, tier: str | None) -> AuditTarget:
    return AuditTarget(tool, catalogue, identity, definition, tier)


def _gate(record: ApprovalRecord) -> AuditApproval:
    entries = [
        AuditVote(each.approver.subject, each.decision, to_microseconds(each.at), each.shown_digest, None, each.note)
        for each in record.entries
    ]
    return AuditApproval(
        record.id, record.digest, to_microseconds(record.created_at), to_microseconds(record.expires_at), entries
    )
