"""One policy deciding recorded calls in their order, with a simulated clock.

Access, rules and limits decide with the functions that decide calls in progress. What only a running gateway knows
(states of turns, counts of limits, what callers have seen) is rebuilt from the calls that run under this policy. People
answer as they did: a call that they approved runs, a call that they were not asked about does not.
"""

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, TypeVar

from gateway.model import Principal, candidate_call_ids, from_microseconds
from gateway.policy import (
    Access,
    AccessQuestion,
    AccessStep,
    ApprovalCheck,
    BudgetCheck,
    ConfirmationCheck,
    Decision,
    GateOutcome,
    GateRule,
    LimitKey,
    LimitOutcome,
    LimitReservation,
    QuotaLimit,
    Taint,
    acquire_limits,
    find_amounts,
    find_refusal,
    read_amounts,
)
from gateway.registries import DeclaredTool, Position, Query
from gateway.review.replay.differences import Decider, Obstacle
from gateway.review.replay.limit_counters import LimitCounters
from gateway.review.replay.recorded_calls import RecordedCall, RecordedHistory
from gateway.review.replay.turn_states import TurnRecord, TurnStates

T = TypeVar("T")

_SIGHTINGS_TOLERANCE: Final = 1_100_000
"""A sighting is not written again within a second."""

_MOST_CACHED: Final = 100_000
_MOST_MAKERS: Final = 200_000
_MOST_CALLERS: Final = 100_000


class ReplayedDecision(NamedTuple):
    """A decision of the replayed policy. With an `obstacle`, it is not known."""

    decider: Decider
    obstacle: Obstacle | None = None
    is_gone: bool = False
    """Whether the catalogue or the tool does not exist any more."""


class _Admission(NamedTuple):
    """The decision before arguments and rules; `tool` is `None` if it is final."""

    refusal: ReplayedDecision | None
    tool: DeclaredTool | Query | None
    last: AccessStep | None = None


@dataclass(frozen=True, slots=True)
class _RuleSet:
    """The rules that apply to calls of a tool in a catalogue, with what they need to know."""

    rules: tuple[GateRule, ...]
    sums: Mapping[str, tuple[str, ...]]
    reads_turn: bool
    reads_sightings: bool
    argument_names: frozenset[str] | None
    taint: Taint


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
    rules: _RuleSet
    counted: tuple[LimitReservation, LimitKey] | None
    tool: DeclaredTool | Query | None
    held: bool
    runs: bool


class Simulation:
    """One policy over one history. Decide every call, in the order of the history."""

    def __init__(self, access: Access, history: RecordedHistory, *, naming: Callable[[str], str] = str) -> None:
        """`naming` maps the files of the policy to the names that results have."""
        self._access = access
        self._naming = naming
        self._complete_since = history.complete_since
        self._tolerance = history.tolerance
        self._counters = LimitCounters(history.complete_since)
        self._turns = TurnStates(history.complete_since, are_whole=history.are_turns_whole)
        self._admissions: dict[tuple[Any, ...], _Admission] = {}
        self._rules: dict[tuple[str, ...], _RuleSet] = {}
        self._looks_back: dict[str, bool] = {}
        self._pending: list[_Pending] = []
        self._numbers = 0
        self._makers: OrderedDict[int, tuple[str, str | None]] = OrderedDict()
        """Which tool made the result of a call, by caller and id, and the class of the result."""
        self._sightings: OrderedDict[tuple[str | None, str], dict[str, int]] = OrderedDict()
        self._forgot_callers = False

    def decide(self, call: RecordedCall) -> ReplayedDecision:
        """Decide a call, and change the state of this policy as the call does."""
        self._end_calls(call.at)
        if call.reads is not None:
            self._record_read(call)
            return ReplayedDecision(Decider("allow"))
        principal = call.principal
        if principal is None:
            self._lose_state(call)
            return _blocked("caller")
        if call.decision is None and call.reason is None:
            self._lose_state(call)
            return _blocked("decision")
        maker = self._find_maker(call)
        if maker is None:
            self._lose_state(call)
            return _blocked("source")
        made_by, artifact = maker
        admission = self._admit(call, principal, made_by)
        if admission.refusal is not None:
            self._record_refusal(call, admission)
            return admission.refusal
        tool = admission.tool
        assert tool is not None, "an admitted call has its tool"  # noqa: S101 - set beside `refusal`
        if isinstance(tool, Query) and artifact is not None and artifact != tool.artifact:
            tool = self._access.snapshot.query(tool.name, tool.maker, artifact)
        rules = self._rules_of(tool, call.catalogue)
        record = self._turns.find(call, self._idle(call.catalogue)) if self._needs_state(call.catalogue) else None
        arguments, refusal = self._check_arguments(call, tool, rules)
        if refusal is not None:
            return refusal
        if call.was_refused_outside:
            if record is not None:
                record.state.record_call(rules.taint, "deny", at=from_microseconds(call.at))
            return ReplayedDecision(Decider("deny", call.reason or "outside"))
        verdict = self._judge(call, principal, tool, rules, record, arguments)
        if verdict.obstacle is not None:
            self._follow_record(call, record, rules)
            return _blocked(verdict.obstacle)
        self._apply(call, principal, tool, rules, record, verdict)
        return ReplayedDecision(verdict.decider)

    # --- before rules ---

    def _admit(self, call: RecordedCall, principal: Principal, made_by: str) -> _Admission:
        """Run the steps that depend on neither arguments nor state. Equal questions are decided once per day."""
        day = call.at // 86_400_000_000
        key = (principal, call.catalogue, call.tool, made_by, day)
        found = self._admissions.get(key)
        if found is None:
            if len(self._admissions) >= _MOST_CACHED:
                self._admissions.clear()
            found = self._admissions[key] = self._decide_admission(call, principal, made_by)
        return found

    def _decide_admission(self, call: RecordedCall, principal: Principal, made_by: str) -> _Admission:
        snapshot = self._access.snapshot
        at = from_microseconds(call.at)
        question = AccessQuestion(principal, call.catalogue, call.tool, at, of=made_by or None)
        steps, tool = self._access.decide_entry(question)
        if tool is not None and steps[-1].decision == "allow":
            steps = self._access.decide_admission(question, tool)
        last = steps[-1]
        if last.decision == "allow" and tool is not None:
            return _Admission(None, tool, last)
        is_gone = call.catalogue not in snapshot.catalogues or (last.name == "tool" and tool is None)
        refusal = ReplayedDecision(Decider("deny", last.name, self._place(last.position)), is_gone=is_gone)
        return _Admission(refusal, tool, last)

    def _check_arguments(
        self, call: RecordedCall, tool: DeclaredTool | Query, rules: _RuleSet
    ) -> tuple[Mapping[str, Any], ReplayedDecision | None]:
        """Return the arguments that rules read. Arguments that were not stored fit the schema if they did then."""
        is_invalid = call.reason == "arguments-invalid"
        if is_invalid and isinstance(tool, Query):  # the id of no result, or a pattern that cannot be run
            return {}, ReplayedDecision(Decider("deny", "arguments"))
        if call.arguments is None or call.masked:
            return call.arguments or {}, _blocked("arguments") if is_invalid else None
        question = AccessQuestion(
            call.principal or Principal(call.subject), call.catalogue, call.tool, _NEVER, call.arguments
        )
        if isinstance(tool, Query):
            return call.arguments, None
        arguments, step = self._access.check_arguments(question, tool)
        return arguments, None if step.decision == "allow" else ReplayedDecision(Decider("deny", "arguments"))

    def _find_maker(self, call: RecordedCall) -> tuple[str, str | None] | None:
        """Return the tool and class of the result that a query reads; empty for a tool, `None` if that is unknown."""
        snapshot = self._access.snapshot
        if snapshot.tool_in(call.catalogue, call.tool) is not None or call.tool not in snapshot.query_names:
            return "", None
        if call.arguments is None:
            return None
        id = call.arguments.get("callId")
        if not isinstance(id, str) or call.reason == "arguments-invalid":
            return next(iter(snapshot.queries_in(call.catalogue, call.tool)), ""), None
        for each in candidate_call_ids(id):
            found = self._makers.get(hash((call.principal and call.principal.tenant, call.subject, each)))
            if found is not None:
                return found
        return None

    def _rules_of(self, tool: DeclaredTool | Query, catalogue: str) -> _RuleSet:
        of = (tool.maker.name, tool.artifact) if isinstance(tool, Query) else ("", "")
        key = (catalogue, tool.name, *of)
        found = self._rules.get(key)
        if found is None:
            rules = tuple(self._access.find_rules(tool, catalogue))
            names: frozenset[str] | None = frozenset()
            for rule in rules:
                names = None if names is None or rule.argument_names is None else names | rule.argument_names
            found = self._rules[key] = _RuleSet(
                rules,
                find_amounts(rules),
                any(rule.reads_turn_state for rule in rules),
                any(rule.watched_flags for rule in rules),
                names,
                self._access.taint_of_tool(tool),
            )
        return found

    def _needs_state(self, catalogue: str) -> bool:
        found = self._looks_back.get(catalogue)
        if found is None:
            found = self._looks_back[catalogue] = self._access.looks_back(catalogue)
        return found

    def _idle(self, catalogue: str) -> Any:
        found = self._access.snapshot.catalogues.get(catalogue)
        return None if found is None else found.implicit

    # --- rules and limits ---

    def _judge(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: _RuleSet,
        record: TurnRecord | None,
        arguments: Mapping[str, Any],
    ) -> _Verdict:
        """Decide by rules and limits. Within the inaccuracy of the recorded time, agree with the record."""
        if not rules.rules:
            return _Verdict(_ALLOW)
        evaluable, obstacle = self._select_rules(call, rules, record)
        verdict = self._judge_at(call, principal, tool, rules, evaluable, record, arguments, call.at)
        if obstacle is not None:  # a denial is certain, whatever the other rules say
            if verdict.decider.decision == "deny" and verdict.outcome is not None:
                return verdict
            self._give_back(verdict, principal, tool, rules, call, arguments)
            return _Verdict(_ALLOW, obstacle=obstacle)
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
        self, call: RecordedCall, rules: _RuleSet, record: TurnRecord | None
    ) -> tuple[tuple[GateRule, ...], Obstacle | None]:
        """Return the rules whose facts are on record, and why the others cannot be evaluated."""
        obstacle: Obstacle | None = None
        known = []
        for rule in rules.rules:
            found = self._find_obstacle(call, rule, record)
            if found is None:
                known.append(rule)
            elif rule.mode == "enforce":
                obstacle = obstacle or found
        return (rules.rules if len(known) == len(rules.rules) else tuple(known)), obstacle

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
        if rule.watched_flags and (self._complete_since is not None or self._forgot_callers):
            return "turn"
        return None

    def _judge_at(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: _RuleSet,
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
            sightings=self._sightings.get((principal.tenant, principal.subject), _NOTHING_SEEN),
        )
        outcome = self._access.evaluate_rules(question, tool, evaluable)
        if outcome.decision == "deny":
            assert outcome.decided_by is not None, "a rule denied"  # noqa: S101 - only rules deny
            return _Verdict(self._decider("deny", outcome.decided_by.rule), outcome)
        if not outcome.limits:
            return _Verdict(self._hold_decider(outcome, ()), outcome)
        self._counters.set_time(at)
        key = self._limit_key(call, principal, tool, rules, arguments)
        counted: LimitOutcome = _run(acquire_limits(self._counters, outcome.limits, key, evaluable))
        if counted.is_refused:
            refusal = find_refusal(counted.reservation, evaluable)
            return _Verdict(self._decider(refusal.decision, refusal.rule), None)
        obstacle: Obstacle | None = None
        if self._counters.is_unsized:
            obstacle = "result-size"
        if self._counters.is_incomplete:
            obstacle = "counts"
        return _Verdict(self._hold_decider(outcome, counted.over), outcome, counted.reservation, obstacle)

    def _decider(self, decision: Decision, rule: GateRule) -> Decider:
        return Decider(decision, rule.name, self._place(rule.position))

    def _hold_decider(self, outcome: GateOutcome, over: Sequence[GateRule]) -> Decider:
        """Return what holds a call: every rule that people decide about, or the first that holds without asking."""
        holding = (*outcome.holds, *over)
        if not holding:
            return _ALLOW
        if all(isinstance(rule.check, ApprovalCheck | ConfirmationCheck) for rule in outcome.holds):
            return self._decider("hold", holding[0])._replace(name=", ".join(rule.name for rule in holding))
        return self._decider("hold", next(each.rule for each in outcome.verdicts if each.rule in holding))

    def _place(self, position: Position | None) -> str:
        return "" if position is None else f"{self._naming(position.file)}:{position.line}"

    def _limit_key(
        self,
        call: RecordedCall,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: _RuleSet,
        arguments: Mapping[str, Any],
    ) -> LimitKey:
        amounts = read_amounts(arguments, rules.sums)
        return LimitKey(principal, tool.name, call.catalogue, call.fingerprint or "", amounts)

    def _give_back(
        self,
        verdict: _Verdict,
        principal: Principal,
        tool: DeclaredTool | Query,
        rules: _RuleSet,
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
        rules: _RuleSet,
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
        rules: _RuleSet,
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
        rules: _RuleSet,
        record: TurnRecord | None,
        at: int,
    ) -> None:
        """Record what a call that runs adds to its turn and to what its caller has seen."""
        self._see(principal, rules.taint, at)
        if isinstance(tool, Query):
            if record is not None:
                record.state.record_read(rules.taint)
            return
        if record is not None:
            record.state.record_call(rules.taint, "allow", at=from_microseconds(at))
        if call.artifact is not None:
            self._makers[hash((principal.tenant, principal.subject, call.id))] = (call.tool, call.artifact)
            if len(self._makers) > _MOST_MAKERS:
                self._makers.popitem(last=False)

    def _see(self, principal: Principal, taint: Taint, at: int) -> None:
        watched = self._access.watched_flags.intersection(taint.flags)
        if not watched:
            return
        key = (principal.tenant, principal.subject)
        seen = self._sightings.setdefault(key, {})
        self._sightings.move_to_end(key)
        seen.update(dict.fromkeys(watched, at))
        if len(self._sightings) > _MOST_CALLERS:
            self._sightings.popitem(last=False)
            self._forgot_callers = True

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

    def _record_refusal(self, call: RecordedCall, admission: _Admission) -> None:
        """Add a call that the policy refuses to its turn, if it got as far as the handler of a tool."""
        last = admission.last
        if last is None or last.name not in ("tier", "lifecycle", "policy") or not self._needs_state(call.catalogue):
            return
        if isinstance(admission.tool, DeclaredTool):
            record = self._turns.find(call, self._idle(call.catalogue))
            taint = self._access.taint_of_tool(admission.tool)
            record.state.record_call(taint, "deny", at=from_microseconds(call.at))

    def _record_read(self, call: RecordedCall) -> None:
        """Record what a request that is no call read: a prompt, a resource, or a whole result."""
        if not self._needs_state(call.catalogue) or call.decision != "allow":
            return
        record = self._turns.find(call, self._idle(call.catalogue))
        offer = self._access.snapshot.offers.get(call.reads or "")
        if offer is None:
            record.is_known = False
            return
        taint = self._access.taint_of_definition(offer)
        record.state.record_read(taint)
        if call.principal is not None:
            self._see(call.principal, taint, call.at)

    def _follow_record(self, call: RecordedCall, record: TurnRecord | None, rules: _RuleSet) -> None:
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
        if call.decision == "allow" and self._needs_state(call.catalogue):
            self._turns.find(call, self._idle(call.catalogue)).is_known = False


_NEVER: Final = datetime.min
_NOTHING_SEEN: Final[Mapping[str, int]] = {}
_ALLOW: Final = Decider("allow", "policy")


def _blocked(obstacle: Obstacle) -> ReplayedDecision:
    return ReplayedDecision(_ALLOW, obstacle)


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
