"""The guard of everything a caller can request: a call, a read of a result, a prompt or a resource.

It checks policy, stop list and rules, asks for approvals and confirmations, and counts limits.

Rules are evaluated with the state of the turn. Deny ends a call; hold asks people, and however long that takes, the
call runs only if everything decided before still holds then. Limits are counted before people are asked, so that no
approval is spent on a call that a limit stops, and given back if they refuse: only calls that run count.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Final

from gateway.approvals import (
    ApprovalMismatch,
    ApprovalPending,
    ApprovalRequest,
    ApprovalService,
    ApprovalSubject,
    ApprovalVoid,
    ConfirmationImpossible,
    ConfirmationPending,
    ConfirmationRefused,
    HoldState,
    HoldStatus,
    make_action,
    outcome_error,
)
from gateway.engine.call import DEFAULT_HOLD_POLICY, Call
from gateway.engine.caller_interaction import ask_confirmation
from gateway.engine.gates.call_limits import CallLimits, LimitClaim
from gateway.engine.gates.definition_guard import DefinitionChanged, DefinitionGuard, get_definition_key
from gateway.errors import GatewayError, NotPermitted, RuleDenied, RuleHeld, StoreUnavailable
from gateway.model import BackendError, now, now_microseconds
from gateway.policy import (
    Access,
    AccessQuestion,
    ApprovalCheck,
    CallQuarantined,
    ConfigExpired,
    ConfirmationCheck,
    GateOutcome,
    GateRule,
    KillSwitch,
    LimitStore,
    RuleVerdict,
    Sightings,
    Taint,
    Validity,
)
from gateway.registries import DeclaredDefinition, DeclaredTool, Query, Requested

if TYPE_CHECKING:
    from gateway.engine.turns.turn_store import SharedTurnState

ATTEMPTS: Final = 3
"""How often a call is evaluated again because others were counted meanwhile; then it is refused."""

_PROGRESS_INTERVAL: Final = 5.0
"""Seconds between two progress messages to a client whose call waits."""

_AGAINST: Final[Mapping[HoldState, str]] = {
    "refused": "approval-refused",
    "expired": "approval-expired",
    "withdrawn": "approval-withdrawn",
}


@dataclass(frozen=True, slots=True)
class GuardDependencies:
    """What gates need from the process. If one is missing, calls that need it are refused."""

    approvals: ApprovalService | None = None
    limits: LimitStore | None = None
    switch: KillSwitch | None = None
    revision: Callable[[], str] | None = None
    """Returns the revision that is published now."""
    definition_guard: DefinitionGuard | None = None
    """Which definitions upstreams have changed. Without it, nothing is compared and all tools are called."""
    turns: "SharedTurnState | None" = None
    """For turns that other processes may serve, too; without it, no other process does."""
    sightings: Sightings | None = None
    """Which flags callers have seen."""
    validity: Validity | None = None
    """How long the served configuration is valid; without it, for ever."""


@dataclass(frozen=True, slots=True)
class CallGuard:
    """The guard of one object in one catalogue. `definition` is the hash of its definition."""

    asked: Requested
    catalogue: str
    access: Access
    rules: tuple[GateRule, ...]
    controls: GuardDependencies
    definition: str
    is_consequential: bool
    looks_back: bool = False
    """Whether a rule depends on what the turn has seen and done, here or in another process."""
    identity: str = field(init=False)
    """Its name in records, counts and approvals."""
    taint: Taint = field(init=False)
    """The taint it adds to a turn."""
    reads_sightings: bool = field(init=False)
    """Whether a rule depends on what the caller has seen in any turn."""
    remote_name: str | None = field(init=False)
    """The upstream's name of a definition that can be blocked; `None` if it cannot."""
    limits: CallLimits | None = field(init=False)

    def __post_init__(self) -> None:
        asked = self.asked
        object.__setattr__(self, "identity", asked.object if isinstance(asked, DeclaredDefinition) else asked.name)
        object.__setattr__(self, "taint", self.access.taint_of_tool(asked))
        object.__setattr__(self, "reads_sightings", any(rule.watched_flags for rule in self.rules))
        object.__setattr__(self, "remote_name", _blockable_key(asked))
        store = self.controls.limits
        limits = None if store is None else CallLimits(store, self.rules, self.identity, self.catalogue)
        object.__setattr__(self, "limits", limits)

    @classmethod
    def of(
        cls,
        target: Requested,
        catalogue: str,
        access: Access,
        controls: GuardDependencies,
        definition: str,
        *,
        is_consequential: bool = False,
    ) -> "CallGuard":
        """Return the guard with the rules that apply."""
        rules = tuple(access.find_rules(target, catalogue))
        looks_back = any(rule.reads_turn_state for rule in rules)
        return cls(target, catalogue, access, rules, controls, definition, is_consequential, looks_back)

    async def decide(
        self, call: Call, args: Mapping[str, Any], *, refuse: Callable[[], None] | None = None
    ) -> LimitClaim | None:
        """Allow a request or raise; the decision is set on the call. Return what was counted for it.

        `refuse` raises while the backend must not be called.
        """
        call.definition = self.definition
        try:
            self._authorize_and_time(call)
            if self.remote_name is not None:
                await self.wait_for_comparison(call)
            if refuse is not None:
                _refuse_unavailable(refuse, call)
            counted: LimitClaim | None = None
            # Approvals that a removed rule asked for are still checked.
            if self.rules or call.holding is not DEFAULT_HOLD_POLICY:
                counted = await self.check(call, args)
            else:
                call.turn_state.reserve_call(call.fingerprint)
            await self._record_taint(call, counted)
            return counted
        except Exception as error:
            call.error = code_of(error)
            if call.decision == "allow":  # the last decision did not refuse: a check failed
                call.set_decision("deny", "check-failed", call.error)
            raise

    def _authorize_and_time(self, call: Call) -> None:
        since = time_ns()
        try:
            self.authorize(call)
        finally:
            if call.seen is not None:
                call.seen.record_step("authorise", since=since, is_cached=call.is_decision_cached)

    def authorize(self, call: Call) -> None:
        """Raise unless the caller may have what they request now. Every handler does this first."""
        target = self.asked
        call.identity = self.identity
        if isinstance(target, DeclaredTool):
            self._refuse_unserved(call, target)
        self._refuse_expired(call)
        self._refuse_stopped(call)
        if self.remote_name is not None:
            self._refuse_blocked(call, self.remote_name)
        grants = self.access.list_grants(call.principal)
        call.grants = tuple([each.id for each in grants]) if grants else ()
        decision = self.access.permits(call.principal, self.catalogue, target)
        call.row, call.is_decision_cached = decision.row, decision.is_cached
        if not decision.allowed:
            call.set_decision("deny", "not-permitted", decision.reason)
            raise NotPermitted()
        call.set_decision("allow", "permitted", decision.reason)

    async def wait_for_comparison(self, call: Call) -> None:
        """Wait until an upstream was compared for the first time, and refuse a definition that is blocked then."""
        definition_guard, upstream, name = self.controls.definition_guard, self.asked.upstream, self.remote_name
        if (
            definition_guard is not None
            and upstream is not None
            and name is not None
            and not definition_guard.is_compared(upstream)
        ):
            await definition_guard.wait_compared(upstream)
            self._refuse_blocked(call, name)

    async def check(self, call: Call, args: Mapping[str, Any]) -> LimitClaim | None:
        """Allow the call or raise. It is counted in the turn from the moment the rules were evaluated."""
        since = time_ns()
        try:
            outcome = await self._reserve(call, args)
        finally:
            if call.seen is not None and self.rules:
                call.seen.record_step("rules", since=since)
        memory = call.turn_state
        counted: LimitClaim | None = None
        try:
            counted = await self._count(call, outcome, args)
            over = () if counted is None else counted.over
            if outcome.decision == "hold" or over or call.holding.approvals:
                await self._hold(call, outcome, args, over)
            elif outcome.verdicts:
                call.checked = tuple(each.rule.name for each in outcome.verdicts)
                call.set_decision("allow", "rule-allowed", call.because)
            return counted
        except BaseException:
            memory.release_call(call.fingerprint)
            if counted is not None:
                await asyncio.shield(counted.give_back())
            raise

    async def _reserve(self, call: Call, args: Mapping[str, Any]) -> GateOutcome:
        """Return the outcome of rules for a call that none of them denies, and count the call in its turn."""
        await self._load_sightings(call)
        turn, turns = call.turn, self.controls.turns
        call.decided = now_microseconds()
        if turn is None or turns is None or not self.looks_back:
            outcome = self._evaluate(call, args)
            self._refuse_denied(call, outcome)
            call.turn_state.reserve_call(call.fingerprint)
            return outcome
        is_current = turns.is_current(turn.remembers)
        if not is_current:
            await turns.refresh(turn.remembers)
            is_current = turns.is_current(turn.remembers)
        for _ in range(ATTEMPTS):
            call.decided = now_microseconds()
            outcome = self._evaluate(call, args)
            self._refuse_denied(call, outcome)
            bounds = outcome.bounds
            # What may have an effect is counted durably before it runs; the record of any other call counts it.
            if bounds is None or (is_current and not self.is_consequential):
                call.turn_state.reserve_call(call.fingerprint)
                return outcome
            if await turns.reserve(turn.remembers, call.fingerprint, bounds):
                return outcome
        raise StoreUnavailable("too many calls are made in this turn at once", help="send fewer of them at a time")

    async def _load_sightings(self, call: Call) -> None:
        """Read what the caller has seen in any turn, if a rule depends on it."""
        if self.reads_sightings:
            call.sightings = await self._sightings().of(call.principal)

    def _sightings(self) -> Sightings:
        if self.controls.sightings is None:
            raise StoreUnavailable("sightings of callers are not stored here", help="serve with a store for sightings")
        return self.controls.sightings

    async def _record_taint(self, call: Call, counted: LimitClaim | None) -> None:
        """Make the taint that a request adds to an implicit turn, and its sightings, durable before it is allowed.

        Any process may serve the next call.
        """
        turn, turns, taint = call.turn, self.controls.turns, self.taint
        implicit = None if turn is None or turns is None else turn.implicit
        watched = self.access.watched_flags.intersection(taint.flags)
        is_new = implicit is not None and (implicit.is_behind or not implicit.state.has_seen(taint))
        if not watched and not is_new:
            return
        try:
            if watched:
                await self._sightings().note(call.principal, sorted(watched))
            if turns is not None and implicit is not None and is_new:
                implicit.is_behind = True  # another call may read it meanwhile, or this one fail
                implicit.state.record_read(taint)
                await turns.keep(implicit)
                implicit.is_behind = False
        except BaseException:
            call.turn_state.release_call(call.fingerprint)
            if counted is not None:
                await asyncio.shield(counted.give_back())
            raise

    def _evaluate(self, call: Call, args: Mapping[str, Any]) -> GateOutcome:
        at = now()
        about = (call.principal, self.catalogue, self.asked.name, at, args, call.turn_state, call.fingerprint)
        outcome = self.access.evaluate_rules(
            AccessQuestion(*about, sightings=call.sightings or {}), self.asked, self.rules
        )
        observed = outcome.observed_refusals
        call.observed = tuple(each.rule.name for each in observed) if observed else ()
        return outcome

    def _refuse_denied(self, call: Call, outcome: GateOutcome) -> None:
        verdict = outcome.decided_by
        if verdict is not None and outcome.decision == "deny":
            _blame(call, verdict, "deny", "rule-denied")
            raise RuleDenied(verdict.judgement.reason)

    def _refuse_unserved(self, call: Call, tool: DeclaredTool) -> None:
        if not tool.trust.callable:
            call.set_decision("deny", "tier-refused", f"tier {tool.trust.tier.name}")
            raise NotPermitted(f"{tool.name} cannot be called right now")
        if not tool.is_active and not tool.is_callable_on(now().date()):
            call.set_decision("deny", "not-in-service", tool.lifecycle)
            raise NotPermitted(f"{tool.name} cannot be called right now")

    def _refuse_expired(self, call: Call) -> None:
        validity = self.controls.validity
        if validity is not None and validity.is_refused(is_consequential=self.is_consequential):
            call.set_decision("deny", "config-expired", f"the bundle was valid until {validity.describe}")
            raise ConfigExpired(help="ask the operators of the gateway")

    def _refuse_stopped(self, call: Call) -> None:
        switch = self.controls.switch
        if switch is None:
            return
        target, subject = self.asked, call.principal.subject
        # Results of a stopped tool are stopped with it.
        for name in (target.name, target.maker.name) if isinstance(target, Query) else (target.name,):
            stopped = switch.find_stop(
                tool=name, subject=subject, upstream=target.upstream, is_consequential=self.is_consequential
            )
            if stopped is not None:
                call.set_decision("deny", "quarantined", f"quarantine of {stopped.target}")
                raise CallQuarantined(stopped)

    def _refuse_blocked(self, call: Call, name: str) -> None:
        definition_guard, upstream = self.controls.definition_guard, self.asked.upstream
        withheld = (
            None if definition_guard is None or upstream is None else definition_guard.find_blocked(upstream, name)
        )
        if withheld is not None:
            call.set_decision("deny", "definition-changed", f"{withheld.why} at {upstream}")
            raise DefinitionChanged(withheld)

    # --- approvals and confirmations ---

    async def _hold(self, call: Call, outcome: GateOutcome, args: Mapping[str, Any], over: Sequence[GateRule]) -> None:
        """Ask the caller to confirm the call, then approvers to approve it. Raise if a rule holds it without asking.

        `over` are quotas that the call exceeds, and that approvers decide about.
        """
        required = [(rule, rule.check) for rule in outcome.holds if isinstance(rule.check, ApprovalCheck)]
        confirming = [(rule, rule.check) for rule in outcome.holds if isinstance(rule.check, ConfirmationCheck)]
        approvals = self.controls.approvals
        is_waited_for = len(required) + len(confirming) < len(outcome.holds)
        required += [(rule, rule.approval) for rule in over if rule.approval is not None]
        if is_waited_for or (required and approvals is None):
            other = next(each for each in outcome.verdicts if each.rule in (*outcome.holds, *over))
            _blame(call, other, "hold", "rule-held")
            raise RuleHeld(f"{other.judgement.reason}; try again later")
        action = make_action(
            call.principal,
            catalogue=self.catalogue,
            tool=self.identity,
            definition=self.definition,
            revision=call.revision,
            arguments=args,
        )
        holding = (*outcome.holds, *over)
        call.rules = tuple(rule.name for rule in holding)
        call.position = next((str(rule.position) for rule in holding), None)
        held_by = f"{', '.join(call.rules)} at {call.position}" if call.rules else "a rule that held it before"
        if confirming:
            await self._require_confirmation(call, [check for _, check in confirming], action, held_by)
        if approvals is not None and (required or call.holding.approvals):
            await self._require_approval(call, required, action, approvals=approvals, held_by=held_by)
        await self._recheck(call, args)
        if required or call.holding.approvals:
            call.set_decision("allow", "approval-approved", f"{held_by}, approved")
        else:
            call.set_decision("allow", "confirmed", f"{held_by}, confirmed by the caller")

    async def _require_confirmation(
        self, call: Call, checks: Sequence[ConfirmationCheck], action: ApprovalSubject, held_by: str
    ) -> None:
        """Ask the caller to confirm exactly this action; raise if they refuse, or have to be asked first."""
        try:
            answer = await ask_confirmation(call, checks, action)
        except ConfirmationImpossible:
            call.set_decision("deny", "confirmation-impossible", held_by)
            raise
        except ConfirmationPending:
            call.set_decision("hold", "confirmation-pending", held_by)
            raise
        if answer != "accept":
            call.set_decision("deny", "confirmation-refused", held_by)
            raise ConfirmationRefused()

    async def _require_approval(
        self,
        call: Call,
        required: Sequence[tuple[GateRule, ApprovalCheck]],
        action: ApprovalSubject,
        *,
        approvals: ApprovalService,
        held_by: str,
    ) -> None:
        since = time_ns()
        status = await self._request_approvals(call, required, action, approvals)
        call.approvals = status.approvals
        if call.seen is not None:
            call.seen.add_wait(", ".join(call.rules) or "earlier", since=since, outcome=status.state)
        refusal = outcome_error(status, now())
        if isinstance(refusal, ApprovalPending):
            call.set_decision("hold", "approval-pending", held_by)
            call.pending = build_pending_data(refusal)
        elif refusal is not None:
            call.set_decision("deny", _AGAINST.get(status.state, "approval-mismatch"), held_by)
        if refusal is not None:
            try:
                raise refusal
            finally:
                del refusal  # an exception refers to the frame that raises it

    async def _request_approvals(
        self,
        call: Call,
        required: Sequence[tuple[GateRule, ApprovalCheck]],
        action: ApprovalSubject,
        approvals: ApprovalService,
    ) -> HoldStatus:
        """Return the status of the call's approvals: those it resumes, or those it requests."""
        if earlier := call.holding.approvals:
            try:
                return await approvals.resume(earlier, action, rules=[rule.name for rule, _ in required])
            except ApprovalMismatch as mismatch:
                call.set_decision("deny", "approval-mismatch", ", ".join(mismatch.differs))
                raise
        requests = [_request(call, rule, check, action) for rule, check in required]
        hold_for = max(rule.hold_for for rule, _ in required) if call.holding.waits else timedelta(0)
        async with _send_progress(call, hold_for):
            return await approvals.ask(requests, hold_for=hold_for)

    async def _recheck(self, call: Call, args: Mapping[str, Any]) -> None:
        """Check everything again that may have changed while people were asked."""
        if call.turn is not None and self.controls.turns is not None and self.looks_back:
            await self.controls.turns.refresh(call.turn.remembers)
        await self._load_sightings(call)
        revision = self.controls.revision
        if revision is not None and revision() != call.revision:
            call.set_decision("deny", "approval-mismatch", "another revision was published")
            raise ApprovalVoid()
        self.authorize(call)
        call.turn_state.release_call(call.fingerprint)  # the call must not count as made before itself
        try:
            self._refuse_denied(call, self._evaluate(call, args))
        finally:
            call.turn_state.reserve_call(call.fingerprint)

    # --- limits ---

    async def _count(self, call: Call, outcome: GateOutcome, args: Mapping[str, Any]) -> LimitClaim | None:
        if not outcome.limits:
            return None
        if self.limits is None:
            raise StoreUnavailable("calls cannot be counted here", help="serve with a store that counts")
        return await self.limits.count(call, outcome.limits, args)


def code_of(error: Exception) -> str:
    """Return the code of an error; for foreign errors only their type, because their text may be content."""
    return error.code if isinstance(error, GatewayError) else type(error).__name__


def _blockable_key(target: Requested) -> str | None:
    """Return the key of a definition that is compared with the approved one: of upstreams, not of their results."""
    if isinstance(target, Query) or target.upstream is None:
        return None
    if isinstance(target, DeclaredTool):
        return target.remote_name or ""
    return get_definition_key(target) if target.kind == "prompt" else None


def _refuse_unavailable(refuse: Callable[[], None], call: Call) -> None:
    try:
        refuse()
    except BackendError as spared:
        call.set_decision("deny", "backend-spared", spared.code)
        raise


def build_pending_data(refusal: ApprovalPending) -> dict[str, Any]:
    """Return the data for programs about a call that waits for approvers."""
    approvals = [
        {
            "id": each.id,
            "rule": each.request.rule,
            "reason": each.request.reason,
            "expiresAt": each.expires_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        }
        for each in refusal.approvals
    ]
    return {"status": "pending", "retryAfter": refusal.retry_after, "approvals": approvals}


def _request(call: Call, rule: GateRule, check: ApprovalCheck, action: ApprovalSubject) -> ApprovalRequest:
    return ApprovalRequest(
        action,
        call.tool,
        rule.name,
        str(rule.position),
        check.reason,
        check.approvers,
        check.timeout or timedelta(minutes=15),
        needed=check.count,
        show=check.show,
        resolution=check.resolution,
        reuse_for=check.reuse_for,
        turn_id=None if call.turn is None else call.turn.id,
        call_id=call.id,
        trace=None if call.seen is None else call.seen.traceparent,
    )


def _blame(call: Call, verdict: RuleVerdict, decision: Any, reason: str) -> None:
    rule = verdict.rule
    call.rules = (rule.name,)
    call.position = str(rule.position)
    call.set_decision(decision, rule.check.refusal_reason or reason, verdict.because)


@asynccontextmanager
async def _send_progress(call: Call, hold_for: timedelta) -> AsyncIterator[None]:
    """Send progress to a client that asked for it while its call waits."""
    client = call.client
    if client is None or not hold_for:
        yield
        return
    total = hold_for.total_seconds()

    began = monotonic()

    async def send() -> None:
        while True:
            client.send_progress(monotonic() - began, total, "the call waits for approval")
            await asyncio.sleep(_PROGRESS_INTERVAL)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
