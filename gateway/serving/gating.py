"""The gate in front of everything a caller can ask for: a call, a look at a result, a prompt or a resource.

It asks the policy, the stop list and the rules, who has to agree, and what a request is counted by.

Rules are judged with what the turn remembers. Deny ends a call; hold asks people, and whatever time that takes, the
call runs only if everything that was decided before still holds then. Limits are taken before people are asked, so that
no approval is spent on a call that a limit stops, and given back if they do not agree: only calls that run count.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic, time_ns
from typing import TYPE_CHECKING, Any, Final

from gateway.access import Access, Call
from gateway.approvals.approving import Approvals, refusal_of
from gateway.approvals.deciding import Standing, StandingState
from gateway.approvals.digests import action_of
from gateway.approvals.refusals import (
    ApprovalMismatch,
    ApprovalPending,
    ApprovalVoid,
    ConfirmationImpossible,
    ConfirmationPending,
    ConfirmationRefused,
)
from gateway.core.events import now
from gateway.errors import GatewayError, NotPermitted, RuleDenied, RuleHeld, StoreUnavailable
from gateway.governance.approvals import Action, ApprovalRequest
from gateway.governance.limits import Limits
from gateway.governance.memory import Brought
from gateway.governance.ports import BackendFailed
from gateway.governance.quarantines import KillSwitch, Quarantined
from gateway.governance.rules import Approval, Budget, Confirmation, Flow, GateRule, Loop, Outcome, Verdict, Window
from gateway.governance.sightings import Sightings
from gateway.governance.validity import ConfigExpired, Validity
from gateway.serving.call_limits import CallLimits, Counted
from gateway.serving.confirming import confirmation_of
from gateway.serving.current import ORDINARY, ServedCall
from gateway.serving.withholding import DefinitionChanged, Vigil, name_of
from gateway.snapshot import DeclaredTool, Offer, Query, Requested

if TYPE_CHECKING:
    from gateway.serving.sharing import SharedTurns

ATTEMPTS: Final = 3
"""How often a call is judged anew because others were counted meanwhile; then it is refused."""

_TELL_EVERY: Final = 5.0
"""Seconds between two words to a client that waits with its call."""

_REASONS: Final[Mapping[type, str]] = {
    Window: "window-closed",
    Loop: "loop-stopped",
    Budget: "budget-spent",
    Flow: "flow-blocked",
}

_AGAINST: Final[Mapping[StandingState, str]] = {
    "refused": "approval-refused",
    "expired": "approval-expired",
    "withdrawn": "approval-withdrawn",
}


@dataclass(frozen=True, slots=True)
class Controls:
    """What gates need of the process. Where one is missing, calls that would need it are refused."""

    approvals: Approvals | None = None
    limits: Limits | None = None
    switch: KillSwitch | None = None
    revision: Callable[[], str] | None = None
    """The revision that is published now."""
    vigil: Vigil | None = None
    """What upstreams have changed. Without it nobody compares, and their tools are called as they are."""
    turns: "SharedTurns | None" = None
    """For turns that other processes may serve, too; where it is missing, none does."""
    sightings: Sightings | None = None
    """Which flags callers have seen."""
    validity: Validity | None = None
    """Until when what is served counts; where it is missing, for ever."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate in front of one thing in one catalogue. `definition` is the hash of what it is."""

    asked: Requested
    catalogue: str
    access: Access
    rules: tuple[GateRule, ...]
    controls: Controls
    definition: str
    is_consequential: bool
    looks_back: bool = False
    """Whether a rule depends on what the turn has seen and done, here or in another process."""
    identity: str = field(init=False)
    """What records, counts and approvals call it."""
    brought: Brought = field(init=False)
    """What it brings into a turn."""
    remote_name: str | None = field(init=False)
    """What its upstream calls a definition that can be withheld."""

    def __post_init__(self) -> None:
        asked = self.asked
        object.__setattr__(self, "identity", asked.object if isinstance(asked, Offer) else asked.name)
        object.__setattr__(self, "brought", self.access.brings(asked))
        object.__setattr__(self, "remote_name", _withholdable(asked))

    @classmethod
    def of(
        cls,
        asked: Requested,
        catalogue: str,
        access: Access,
        controls: Controls,
        definition: str,
        *,
        is_consequential: bool = False,
    ) -> "Gate":
        """With the rules that are about it."""
        rules = tuple(access.rules_about(asked, catalogue))
        looks_back = any(rule.looks_back for rule in rules)
        return cls(asked, catalogue, access, rules, controls, definition, is_consequential, looks_back)

    async def decide(
        self, call: ServedCall, args: Mapping[str, Any], *, refuse: Callable[[], None] | None = None
    ) -> Counted | None:
        """Let a request through, or raise; the call says what was decided. What was counted for it is given.

        `refuse` raises while the backend is spared.
        """
        call.definition = self.definition
        try:
            self.authorise(call)
            if self.remote_name is not None:
                await self.seen(call)
            if refuse is not None:
                _refuse_spared(refuse, call)
            counted: Counted | None = None
            if self.rules or call.holding is not ORDINARY:  # what it was held for by a rule that is gone still counts
                counted = await self.passed(call, args)
            else:
                call.memory.reserves(call.fingerprint)
            await self._expect(call, counted)
            return counted
        except Exception as error:
            call.error = code_of(error)
            if call.decision == "allow":  # what decided last was not what refused: a check could not be made
                call.decide("deny", "check-failed", call.error)
            raise

    def authorise(self, call: ServedCall) -> None:
        """The first thing that happens in every handler. Raises unless the caller may have what they ask for now."""
        asked = self.asked
        call.identity = self.identity
        if isinstance(asked, DeclaredTool):
            self._refuse_unserved(call, asked)
        self._refuse_expired(call)
        self._refuse_stopped(call)
        if self.remote_name is not None:
            self._refuse_withheld(call, self.remote_name)
        decision = self.access.permits(call.principal, self.catalogue, asked)
        if not decision.allowed:
            call.decide("deny", "not-permitted", decision.reason)
            raise NotPermitted()
        call.decide("allow", "permitted", decision.reason)

    async def seen(self, call: ServedCall) -> None:
        """Wait until an upstream was compared for the first time, and refuse what is withheld then."""
        vigil, upstream, name = self.controls.vigil, self.asked.upstream, self.remote_name
        if vigil is not None and upstream is not None and name is not None and not vigil.is_seen(upstream):
            await vigil.compared(upstream)
            self._refuse_withheld(call, name)

    async def passed(self, call: ServedCall, args: Mapping[str, Any]) -> Counted | None:
        """Let the call through, or raise. Its place in the turn is taken from the moment the rules have spoken."""
        outcome = await self._placed(call, args)
        memory = call.memory
        counted: Counted | None = None
        try:
            counted = await self._counted(call, outcome, args)
            over = () if counted is None else counted.over
            if outcome.decision == "hold" or over or call.holding.approvals:
                await self._hold(call, outcome, args, over)
            elif outcome.verdicts:
                call.decide("allow", "rule-allowed", call.because)
            return counted
        except BaseException:
            memory.releases(call.fingerprint)
            if counted is not None:
                await asyncio.shield(counted.give_back())
            raise

    async def _placed(self, call: ServedCall, args: Mapping[str, Any]) -> Outcome:
        """What the rules say of a call that none of them denies, and that is counted in its turn from here on."""
        await self._look_at_caller(call)
        turn, turns = call.turn, self.controls.turns
        if turn is None or turns is None or not self.looks_back:
            outcome = self._judged(call, args)
            self._refuse_denied(call, outcome)
            call.memory.reserves(call.fingerprint)
            return outcome
        await turns.remind(turn.remembers)
        for _ in range(ATTEMPTS):
            outcome = self._judged(call, args)
            self._refuse_denied(call, outcome)
            bounds = outcome.bounds
            if bounds is None:
                call.memory.reserves(call.fingerprint)
                return outcome
            if await turns.reserve(turn.remembers, call.fingerprint, bounds):
                return outcome
        raise StoreUnavailable("too many calls are made in this turn at once", help="send fewer of them at a time")

    async def _look_at_caller(self, call: ServedCall) -> None:
        """Ask what the caller has seen in whichever turn, if a rule depends on it."""
        if any(rule.watched_flags for rule in self.rules):
            call.sightings = await self._sightings().of(call.principal)

    def _sightings(self) -> Sightings:
        if self.controls.sightings is None:
            raise StoreUnavailable("what callers have seen is not kept here", help="serve with a store that keeps it")
        return self.controls.sightings

    async def _expect(self, call: ServedCall, counted: Counted | None) -> None:
        """Make durable what a request brings into an implicit turn and shows its caller, before it is let through.

        Any process may serve the next call.
        """
        turn, turns, brought = call.turn, self.controls.turns, self.brought
        implicit = None if turn is None or turns is None else turn.implicit
        watched = self.access.watched_flags.intersection(brought.flags)
        is_new = implicit is not None and (implicit.is_behind or not implicit.memory.has_seen(brought))
        if not watched and not is_new:
            return
        try:
            if watched:
                await self._sightings().note(call.principal, sorted(watched))
            if turns is not None and implicit is not None and is_new:
                implicit.is_behind = True  # another call may ask meanwhile, or this one fail
                implicit.memory.reads(brought)
                await turns.keep(implicit)
                implicit.is_behind = False
        except BaseException:
            call.memory.releases(call.fingerprint)
            if counted is not None:
                await asyncio.shield(counted.give_back())
            raise

    def _judged(self, call: ServedCall, args: Mapping[str, Any]) -> Outcome:
        at = now()
        about = (call.principal, self.catalogue, self.asked.name, at, args, call.memory, call.fingerprint)
        outcome = self.access.judged(Call(*about, sightings=call.sightings or {}), self.asked, self.rules)
        call.observed = tuple(each.rule.name for each in outcome.observed)
        return outcome

    def _refuse_denied(self, call: ServedCall, outcome: Outcome) -> None:
        verdict = outcome.decided_by
        if verdict is not None and outcome.decision == "deny":
            _blame(call, verdict, "deny", "rule-denied")
            raise RuleDenied(verdict.judgement.reason)

    def _refuse_unserved(self, call: ServedCall, tool: DeclaredTool) -> None:
        if not tool.trust.callable:
            call.decide("deny", "tier-refused", f"tier {tool.trust.tier.name}")
            raise NotPermitted(f"{tool.name} cannot be called at present")
        if not tool.is_active and not tool.is_in_use(now().date()):
            call.decide("deny", "not-in-service", tool.lifecycle)
            raise NotPermitted(f"{tool.name} cannot be called at present")

    def _refuse_expired(self, call: ServedCall) -> None:
        validity = self.controls.validity
        if validity is not None and validity.refuses(is_consequential=self.is_consequential):
            call.decide("deny", "config-expired", f"the bundle counted until {validity.told}")
            raise ConfigExpired(help="ask the operators of the gateway")

    def _refuse_stopped(self, call: ServedCall) -> None:
        switch = self.controls.switch
        if switch is None:
            return
        asked, subject = self.asked, call.principal.subject
        # What a stopped tool has yielded is stopped with it.
        for name in (asked.name, asked.maker.name) if isinstance(asked, Query) else (asked.name,):
            stopped = switch.stopped_by(
                tool=name, subject=subject, upstream=asked.upstream, is_consequential=self.is_consequential
            )
            if stopped is not None:
                call.decide("deny", "quarantined", f"quarantine of {stopped.target}")
                raise Quarantined(stopped)

    def _refuse_withheld(self, call: ServedCall, name: str) -> None:
        vigil, upstream = self.controls.vigil, self.asked.upstream
        withheld = None if vigil is None or upstream is None else vigil.withheld(upstream, name)
        if withheld is not None:
            call.decide("deny", "definition-changed", f"{withheld.why} at {upstream}")
            raise DefinitionChanged(withheld)

    # --- people ---

    async def _hold(
        self, call: ServedCall, outcome: Outcome, args: Mapping[str, Any], over: Sequence[GateRule]
    ) -> None:
        """Have people agree, and before them whoever calls. What holds without asking anybody is waited for.

        `over` are quotas that the call goes beyond, and that people decide about then.
        """
        asking = [(rule, rule.check) for rule in outcome.holds if isinstance(rule.check, Approval)]
        confirming = [(rule, rule.check) for rule in outcome.holds if isinstance(rule.check, Confirmation)]
        approvals = self.controls.approvals
        is_waited_for = len(asking) + len(confirming) < len(outcome.holds)
        asking += [(rule, rule.approval) for rule in over if rule.approval is not None]
        if is_waited_for or (asking and approvals is None):
            other = next(each for each in outcome.verdicts if each.rule in (*outcome.holds, *over))
            _blame(call, other, "hold", "rule-held")
            raise RuleHeld(f"{other.judgement.reason}; try again later")
        action = action_of(
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
            await self._confirmed(call, [check for _, check in confirming], action, held_by)
        if approvals is not None and (asking or call.holding.approvals):
            await self._approved(call, asking, action, approvals=approvals, held_by=held_by)
        await self._recheck(call, args)
        if asking or call.holding.approvals:
            call.decide("allow", "approval-approved", f"{held_by}, approved")
        else:
            call.decide("allow", "confirmed", f"{held_by}, confirmed by the caller")

    async def _confirmed(self, call: ServedCall, checks: Sequence[Confirmation], action: Action, held_by: str) -> None:
        """Have whoever calls confirm this very action; raise if they do not, or have to be asked first."""
        try:
            answer = await confirmation_of(call, checks, action)
        except ConfirmationImpossible:
            call.decide("deny", "confirmation-impossible", held_by)
            raise
        except ConfirmationPending:
            call.decide("hold", "confirmation-pending", held_by)
            raise
        if answer != "accept":
            call.decide("deny", "confirmation-refused", held_by)
            raise ConfirmationRefused()

    async def _approved(
        self,
        call: ServedCall,
        asking: Sequence[tuple[GateRule, Approval]],
        action: Action,
        *,
        approvals: Approvals,
        held_by: str,
    ) -> None:
        since = time_ns()
        standing = await self._stood(call, asking, action, approvals)
        call.approvals = standing.approvals
        if call.seen is not None:
            call.seen.waited(", ".join(call.rules) or "earlier", since=since, outcome=standing.state)
        refusal = refusal_of(standing, now())
        if isinstance(refusal, ApprovalPending):
            call.decide("hold", "approval-pending", held_by)
            call.pending = pending_of(refusal)
            raise refusal
        if refusal is not None:
            call.decide("deny", _AGAINST.get(standing.state, "approval-mismatch"), held_by)
            raise refusal

    async def _stood(
        self, call: ServedCall, asking: Sequence[tuple[GateRule, Approval]], action: Action, approvals: Approvals
    ) -> Standing:
        """How the approvals of the call stand: those that it picks up, or those it asks for."""
        if earlier := call.holding.approvals:
            try:
                return await approvals.pick_up(earlier, action, rules=[rule.name for rule, _ in asking])
            except ApprovalMismatch as mismatch:
                call.decide("deny", "approval-mismatch", ", ".join(mismatch.differs))
                raise
        requests = [_request(call, rule, check, action) for rule, check in asking]
        hold_for = max(rule.hold_for for rule, _ in asking) if call.holding.waits else timedelta(0)
        async with _telling(call, hold_for):
            return await approvals.ask(requests, hold_for=hold_for)

    async def _recheck(self, call: ServedCall, args: Mapping[str, Any]) -> None:
        """Ask everything again that may have changed while people were asked."""
        if call.turn is not None and self.controls.turns is not None and self.looks_back:
            await self.controls.turns.remind(call.turn.remembers)
        await self._look_at_caller(call)
        revision = self.controls.revision
        if revision is not None and revision() != call.revision:
            call.decide("deny", "approval-mismatch", "another revision was published")
            raise ApprovalVoid()
        self.authorise(call)
        call.memory.releases(call.fingerprint)  # the call itself is none that was made before it
        try:
            self._refuse_denied(call, self._judged(call, args))
        finally:
            call.memory.reserves(call.fingerprint)

    # --- limits ---

    async def _counted(self, call: ServedCall, outcome: Outcome, args: Mapping[str, Any]) -> Counted | None:
        wanted, limits = outcome.limits, self.controls.limits
        if not wanted:
            return None
        if limits is None:
            raise StoreUnavailable("calls cannot be counted here", help="serve with a store that counts")
        return await CallLimits(limits, self.rules, self.identity, self.catalogue).count(call, wanted, args)


def code_of(error: Exception) -> str:
    """Of errors that are not ours only what they are: anything else in them may be content."""
    return error.code if isinstance(error, GatewayError) else type(error).__name__


def _withholdable(asked: Requested) -> str | None:
    """What is compared with what somebody looked at: definitions of upstreams, not what they yielded."""
    if isinstance(asked, Query) or asked.upstream is None:
        return None
    if isinstance(asked, DeclaredTool):
        return asked.remote_name or ""
    return name_of(asked) if asked.kind == "prompt" else None


def _refuse_spared(refuse: Callable[[], None], call: ServedCall) -> None:
    try:
        refuse()
    except BackendFailed as spared:
        call.decide("deny", "backend-spared", spared.code)
        raise


def pending_of(refusal: ApprovalPending) -> dict[str, Any]:
    """What a program is told of a call that waits for people."""
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


def _request(call: ServedCall, rule: GateRule, check: Approval, action: Action) -> ApprovalRequest:
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


def _blame(call: ServedCall, verdict: Verdict, decision: Any, reason: str) -> None:
    rule = verdict.rule
    call.rules = (rule.name,)
    call.position = str(rule.position)
    call.decide(decision, _REASONS.get(type(rule.check), reason), verdict.because)


@asynccontextmanager
async def _telling(call: ServedCall, hold_for: timedelta) -> AsyncIterator[None]:
    """Tell a client that asked for progress, as long as its call waits."""
    client = call.client
    if client is None or not hold_for:
        yield
        return
    total = hold_for.total_seconds()

    began = monotonic()

    async def tell() -> None:
        while True:
            client.progress(monotonic() - began, total, "the call waits for approval")
            await asyncio.sleep(_TELL_EVERY)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
