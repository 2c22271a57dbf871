"""One policy deciding recorded calls in their order, with a simulated clock.

Access, rules and limits decide with the functions that decide calls in progress. What only a running gateway knows
(states of turns, counts of limits, what callers have seen) is rebuilt from the calls that run under this policy. People
answer as they did: a call that they approved runs, a call that they were not asked about does not.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, TypeVar

from gateway.model import Principal, from_microseconds
from gateway.policy import (
    Access,
    AccessQuestion,
    BudgetCheck,
    GateOutcome,
    GateRule,
    LimitKey,
    LimitOutcome,
    LimitReservation,
    QuotaLimit,
    Taint,
    acquire_limits,
    find_refusal,
    read_amounts,
)
from gateway.registries import DeclaredTool, Query
from gateway.review.replay.caller_memory import CallerMemory
from gateway.review.replay.differences import Decider, Obstacle
from gateway.review.replay.limit_counters import LimitCounters
from gateway.review.replay.past_access import PastAccess
from gateway.review.replay.policy_view import ALLOW, Admission, PolicyView, ReplayedDecision, RuleSet, blocked
from gateway.review.replay.recorded_calls import RecordedCall, RecordedHistory
from gateway.review.replay.turn_states import TurnRecord, TurnStates

T = TypeVar("T")

_SIGHTINGS_TOLERANCE: Final = 1_100_000
"""A sighting is not written again within a second."""

_MOST_CACHED: Final = 100_000
_MOST_MAKERS: Final = 200_000
_MOST_CALLERS: Final = 100_000


class _Verdict(NamedTuple):
    """What rules and limits decide, before people do."""

    decider: Decider
    outcome: GateOutcome | None = None
    taken: LimitReservation | None = None
    obstacle: Obstacle | None = None


class _Pending(NamedTuple):
    """What a call changes when it ends."""

    ended: int
    number: int
    call: RecordedCall
    record: TurnRecord | None
    rules: RuleSet
    counted: tuple[LimitReservation, LimitKey] | None
    tool: DeclaredTool | Query | None
    held: bool
    runs: bool


class Simulation:
    """One policy over one history. Decide every call, in the order of the history."""

    def __init__(self, access: Access, history: RecordedHistory, *, naming: Callable[[str], str] = str) -> None:
        """`naming` maps the files of the policy to the names that results have."""
        self._access = access
        self._past = PastAccess(access, history.grants)
        self._view = PolicyView(access, self._past, naming)
        self._complete_since = history.complete_since
        self._tolerance = history.tolerance
        self._counters = LimitCounters(history.complete_since)
        self._turns = TurnStates(history.complete_since, are_whole=history.are_turns_whole)
        self._memory = CallerMemory()
        self._pending: list[_Pending] = []
        self._numbers = 0

    def decide(self, call: RecordedCall) -> ReplayedDecision:
        """Decide a call, and change the state of this policy as the call does."""
        self._end_calls(call.at)
        if call.reads is not None:
            self._record_read(call)
            return ReplayedDecision(Decider("allow"))
        principal = call.principal
        if principal is None:
            self._lose_state(call)
            return blocked("caller")
        if call.decision is None and call.reason is None:
            self._lose_state(call)
            return blocked("decision")
        if not self._past.known_grants.issuperset(call.grants):
            self._lose_state(call)
            return blocked("grant")
        maker = self._find_maker(call, principal)
        if maker is None:
            self._lose_state(call)
            return blocked("source")
        made_by, artifact = maker
        admission = self._view.admit(call, principal, made_by)
        if admission.refusal is not None:
            self._record_refusal(call, admission)
            return admission.refusal
        tool = admission.tool
        assert tool is not None, "an admitted call has its tool"  # noqa: S101 - set beside `refusal`
        if isinstance(tool, Query) and artifact is not None and artifact != tool.artifact:
            tool = self._access.snapshot.query(tool.name, tool.maker, artifact)
        rules = self._view.rules_of(tool, call.catalogue)
        record = (
            self._turns.find(call, self._view.idle_of(call.catalogue))
            if self._view.needs_state(call.catalogue)
            else None
        )
        arguments, refusal = self._view.check_arguments(call, tool, rules)
        if refusal is not None:
            return refusal
        if call.was_refused_outside:
            if record is not None:
                record.state.record_call(rules.taint, "deny", at=from_microseconds(call.at))
            return ReplayedDecision(Decider("deny", call.reason or "outside"))
        verdict = self._judge(call, principal, tool, rules, record, arguments)
        if verdict.obstacle is not None:
            self._follow_record(call, record, rules)
            return blocked(verdict.obstacle)
        self._apply(call, principal, tool, rules, record, verdict)
        return ReplayedDecision(verdict.decider)

    def _find_maker(self, call: RecordedCall, principal: Principal) -> tuple[str, str | None] | None:
        """Return the tool and class of the result that a query reads; empty for a tool, `None` if that is unknown."""
        snapshot = self._access.snapshot
        if snapshot.tool_in(call.catalogue, call.tool) is not None or call.tool not in snapshot.query_names:
            return "", None
        if call.arguments is None:
            return None
        id = call.arguments.get("callId")
        if not isinstance(id, str) or call.reason == "arguments-invalid":
            return next(iter(snapshot.queries_in(call.catalogue, call.tool)), ""), None
        return self._memory.find_result(principal, id)

    # --- rules and limits ---

    def _judge(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: RuleSet,
        record: TurnRecord | None,
        arguments: Mapping[str, Any],
    ) -> _Verdict:
        """Decide by rules and limits. Within the inaccuracy of the recorded time, agree with the record."""
        if not rules.rules:
            return _Verdict(ALLOW)
        evaluable, obstacle = self._select_rules(call, rules, record)
        verdict = self._judge_at(call, principal, tool, rules, evaluable, record, arguments, call.at)
        if obstacle is not None:  # a denial is certain, whatever the other rules say
            if verdict.decider.decision == "deny" and verdict.outcome is not None:
                return verdict
            self._give_back(verdict, principal, tool, rules, call, arguments)
            return _Verdict(ALLOW, obstacle=obstacle)
        recorded = "hold" if call.was_held else call.decision
        if verdict.decider.decision == recorded or recorded is None:
            return verdict
        span = max(self._tolerance, _SIGHTINGS_TOLERANCE if rules.reads_sightings else 0)
        for offset in (span, -span):
            self._give_back(verdict, principal, tool, rules, call, arguments)
            other = self._judge_at(call, principal, tool, rules, evaluable, record, arguments, call.at + offset)
            if other.decider.decision == recorded:
                return other
            verdict = other
        self._give_back(verdict, principal, tool, rules, call, arguments)
        return self._judge_at(call, principal, tool, rules, evaluable, record, arguments, call.at)

    def _select_rules(
        self, call: RecordedCall, rules: RuleSet, record: TurnRecord | None
    ) -> tuple[tuple[GateRule, ...], Obstacle | None]:
        """Return the rules whose facts are on record, and why the others cannot be evaluated."""
        if self._has_every_fact(call, record):
            return rules.rules, None
        obstacle: Obstacle | None = None
        known = []
        for rule in rules.rules:
            found = self._find_obstacle(call, rule, record)
            if found is None:
                known.append(rule)
            elif rule.mode == "enforce":
                obstacle = obstacle or found
        return (rules.rules if len(known) == len(rules.rules) else tuple(known)), obstacle

    def _has_every_fact(self, call: RecordedCall, record: TurnRecord | None) -> bool:
        """Whether no rule can lack a fact: true of nearly every call."""
        if call.arguments is None or call.masked or call.fingerprint is None:
            return False
        if self._complete_since is not None or self._memory.has_forgotten:
            return False
        return record is None or (record.is_known and not record.is_unsized)

    def _find_obstacle(self, call: RecordedCall, rule: GateRule, record: TurnRecord | None) -> Obstacle | None:
        reads = rule.argument_names
        if call.arguments is None and reads != frozenset():
            return "arguments"
        if call.masked and (reads is None or not reads.isdisjoint(call.masked)):
            return "arguments-masked"
        if rule.reads_turn_state and (record is None or not record.is_known or call.fingerprint is None):
            return "turn"
        check = rule.check
        counts_bytes = isinstance(check, BudgetCheck) and check.within is None and check.bytes is not None
        if counts_bytes and record is not None and record.is_unsized:
            return "result-size"
        if call.fingerprint is None and any("call" in limit.by for limit in rule.limits):
            return "arguments"
        if rule.watched_flags and (self._complete_since is not None or self._memory.has_forgotten):
            return "turn"
        return None

    def _judge_at(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: RuleSet,
        evaluable: Sequence[GateRule],
        record: TurnRecord | None,
        arguments: Mapping[str, Any],
        at: int,
    ) -> _Verdict:
        question = AccessQuestion(
            principal,
            call.catalogue,
            tool.name,
            from_microseconds(at),
            arguments,
            None if record is None else record.state,
            call.fingerprint or "",
            sightings=self._memory.sightings_of(principal),
        )
        outcome = self._past.at(at).evaluate_rules(question, tool, evaluable)
        if outcome.decision == "deny":
            assert outcome.decided_by is not None, "a rule denied"  # noqa: S101 - only rules deny
            return _Verdict(self._view.decider_of("deny", outcome.decided_by.rule), outcome)
        if not outcome.limits:
            return _Verdict(self._view.hold_decider(outcome, ()), outcome)
        self._counters.set_time(at)
        key = self._limit_key(call, principal, tool, rules, arguments)
        counted: LimitOutcome = _run(acquire_limits(self._counters, outcome.limits, key, evaluable))
        if counted.is_refused:
            refusal = find_refusal(counted.reservation, evaluable)
            return _Verdict(self._view.decider_of(refusal.decision, refusal.rule), None)
        obstacle: Obstacle | None = None
        if self._counters.is_unsized:
            obstacle = "result-size"
        if self._counters.is_incomplete:
            obstacle = "counts"
        return _Verdict(self._view.hold_decider(outcome, counted.over), outcome, counted.reservation, obstacle)

    def _limit_key(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: RuleSet,
        arguments: Mapping[str, Any],
    ) -> LimitKey:
        amounts = read_amounts(arguments, rules.sums)
        return LimitKey(principal, tool.name, call.catalogue, call.fingerprint or "", amounts)

    def _give_back(
        self,
        verdict: _Verdict,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: RuleSet,
        call: RecordedCall,
        arguments: Mapping[str, Any],
    ) -> None:
        if verdict.taken is not None:
            key = self._limit_key(call, principal, tool, rules, arguments)
            _run(self._counters.release(verdict.taken, key))

    # --- what a call changes ---

    def _apply(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: RuleSet,
        record: TurnRecord | None,
        verdict: _Verdict,
    ) -> None:
        decision = verdict.decider.decision
        is_query = isinstance(tool, Query)
        if decision == "deny" or (decision == "hold" and verdict.outcome is None):
            if record is not None and not is_query:
                record.state.record_call(rules.taint, decision, at=from_microseconds(call.at))
            return
        runs = decision == "allow" or call.was_approved
        if record is not None:
            record.state.reserve_call(call.fingerprint or "")
        counted = None
        if verdict.taken is not None:
            counted = (verdict.taken, self._limit_key(call, principal, tool, rules, call.arguments or {}))
        if decision == "allow":
            self._begin_run(call, principal, tool, rules, record, call.at)
        if record is not None or decision == "hold" or _quotas_of_bytes(verdict.taken):
            self._expect_end(call, record, rules, counted, tool, held=decision == "hold", runs=runs)

    def _expect_end(
        self,
        call: RecordedCall,
        record: TurnRecord | None,
        rules: RuleSet,
        counted: tuple[LimitReservation, LimitKey] | None,
        tool: DeclaredTool | Query | None,
        *,
        held: bool,
        runs: bool,
    ) -> None:
        self._numbers += 1
        ended = call.at if call.ended is None else max(call.at, call.ended)
        heappush(self._pending, _Pending(ended, self._numbers, call, record, rules, counted, tool, held, runs))

    def _begin_run(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query | None,
        rules: RuleSet,
        record: TurnRecord | None,
        at: int,
    ) -> None:
        """Record what a call that runs adds to its turn and to what its caller has seen."""
        self._memory.add_sightings(principal, self._watched(rules.taint), at)
        if isinstance(tool, Query):
            if record is not None:
                record.state.record_read(rules.taint)
            return
        if record is not None:
            record.state.record_call(rules.taint, "allow", at=from_microseconds(at))
        if call.artifact is not None:
            self._memory.add_result(principal, call.id, call.tool, call.artifact)

    def _watched(self, taint: Taint) -> frozenset[str]:
        return self._access.watched_flags.intersection(taint.flags)

    def _end_calls(self, until: int) -> None:
        """End the calls that ended before this moment, in the order in which they did."""
        while self._pending and self._pending[0].ended <= until:
            self._end(heappop(self._pending))

    def _end(self, pending: _Pending) -> None:
        call, record, rules = pending.call, pending.record, pending.rules
        principal = call.principal or Principal(call.subject)
        if pending.held and not pending.runs:
            if pending.counted is not None:
                _run(self._counters.release(*pending.counted))
            if record is not None:
                record.state.release_call(call.fingerprint or "")
                record.state.record_call(rules.taint, "hold", at=from_microseconds(pending.ended))
            return
        if pending.held:
            self._begin_run(call, principal, pending.tool, rules, record, pending.ended)
        size = call.size if call.decision == "allow" else None
        if pending.counted is not None and (of_bytes := _quotas_of_bytes(pending.counted[0])):
            self._counters.set_time(pending.ended)
            if size is None:
                self._counters.charge_unknown(of_bytes, pending.counted[1])
            else:
                _run(self._counters.charge(of_bytes, pending.counted[1], size))
        if record is None:
            return
        if size is None:
            record.is_unsized = True
        else:
            record.state.add_bytes(size)
        if call.implicit is not None and call.turn is not None:
            self._turns.continue_turn(call.turn, record, call.fingerprint or "", tool=rules.taint.tool, size=size or 0)

    def _record_refusal(self, call: RecordedCall, admission: Admission) -> None:
        """Add a call that the policy refuses to its turn, if it got as far as the handler of a tool."""
        last = admission.last
        if (
            last is None
            or last.name not in ("tier", "lifecycle", "policy")
            or not self._view.needs_state(call.catalogue)
        ):
            return
        if isinstance(admission.tool, DeclaredTool):
            record = self._turns.find(call, self._view.idle_of(call.catalogue))
            taint = self._access.taint_of_tool(admission.tool)
            record.state.record_call(taint, "deny", at=from_microseconds(call.at))

    def _record_read(self, call: RecordedCall) -> None:
        """Record what a request that is no call read: a prompt, a resource, or a whole result."""
        if not self._view.needs_state(call.catalogue) or call.decision != "allow":
            return
        self._turns.note_read(call)
        record = self._turns.find(call, self._view.idle_of(call.catalogue))
        offer = self._access.snapshot.offers.get(call.reads or "")
        if offer is None:
            record.is_known = False
            return
        taint = self._access.taint_of_definition(offer)
        record.state.record_read(taint)
        if call.principal is not None:
            self._memory.add_sightings(call.principal, self._watched(taint), call.at)

    def _follow_record(self, call: RecordedCall, record: TurnRecord | None, rules: RuleSet) -> None:
        """Let a call whose decision is not known change the state as it did."""
        if call.decision != "allow":
            if record is not None:
                record.state.record_call(rules.taint, call.decision or "deny", at=from_microseconds(call.at))
            return
        if record is not None:
            record.state.reserve_call(call.fingerprint or "")
        if call.principal is not None:
            tool = self._access.snapshot.tools.get(rules.taint.tool)
            self._begin_run(call, call.principal, tool, rules, record, call.at)
        if record is not None:
            self._expect_end(call, record, rules, None, None, held=False, runs=True)

    def _lose_state(self, call: RecordedCall) -> None:
        """Note that a turn has a call of which too little is known."""
        if call.decision == "allow" and self._view.needs_state(call.catalogue):
            self._turns.find(call, self._view.idle_of(call.catalogue)).is_known = False


def _quotas_of_bytes(taken: LimitReservation | None) -> list[QuotaLimit]:
    return [each for each in taken.taken if isinstance(each, QuotaLimit) and each.counts == "bytes"] if taken else []


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits: the counters of a replay are in memory."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a counter waited")
