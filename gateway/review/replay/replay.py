"""Decide recorded calls again, and compare with what was recorded or with what another policy decides."""

from collections.abc import Callable
from typing import Final

from gateway.policy import Access, Decision
from gateway.review.replay.differences import Change, Decider, DifferenceCounter, ReplayResult
from gateway.review.replay.policy_view import ReplayedDecision
from gateway.review.replay.recorded_calls import EVERY_CALL, CallSelection, RecordedCall, RecordedHistory
from gateway.review.replay.simulation import Simulation

ReplayProgress = Callable[[int], None]
"""Called with the number of calls that were read."""

_PROGRESS_EVERY: Final = 500


def replay_calls(
    history: RecordedHistory,
    candidate: Access,
    *,
    baseline: Access | None = None,
    baseline_naming: Callable[[str], str] = str,
    selection: CallSelection = EVERY_CALL,
    progress: ReplayProgress | None = None,
) -> ReplayResult:
    """Decide recorded calls under the candidate. With a `baseline`, compare with its decisions, else with the record.

    Calls outside of the selection are decided, too, because limits and turns count them. `baseline_naming` maps the
    names of the baseline's files to those of the candidate.
    """
    after = Simulation(candidate, history)
    before = None if baseline is None else Simulation(baseline, history, naming=baseline_naming)
    found = DifferenceCounter()
    for number, call in enumerate(history, start=1):
        if progress is not None and not number % _PROGRESS_EVERY:
            progress(number)
        decided = after.decide(call)
        earlier = None if before is None else before.decide(call)
        if call.reads is None and selection.has(call):
            _compare(found, call, earlier, decided)
    return found.to_result(
        revision=candidate.snapshot.revision,
        baseline=None if baseline is None else baseline.snapshot.revision,
        unrecorded=history.unrecorded,
    )


def _compare(
    found: DifferenceCounter, call: RecordedCall, earlier: ReplayedDecision | None, decided: ReplayedDecision
) -> None:
    obstacle = decided.obstacle or (None if earlier is None else earlier.obstacle)
    if obstacle is not None:
        found.add_obstacle(call, obstacle)
        return
    before = recorded_decider(call) if earlier is None else earlier.decider
    change = find_change(before, decided.decider, is_gone=decided.is_gone)
    if earlier is None and call.was_refused_outside:
        found.add_outside(call)
    elif earlier is None and change is not None and call.decision == "deny" and call.reason is None:
        found.add_obstacle(call, "decision")  # the stop list may have refused it
    elif change is None:
        found.add_same(call)
    else:
        found.add_difference(call, change, before, decided.decider)


def recorded_decider(call: RecordedCall) -> Decider:
    """Return what decided a call, before people did: a call that they approved was held."""
    if call.decision == "allow" and not call.was_held:
        return Decider("allow", "policy")
    decision: Decision = "hold" if call.was_held else "deny"
    return Decider(decision, ", ".join(call.rules) or _STEPS.get(call.reason or "", "policy"), call.position or "")


_STEPS: Final = {
    "not-in-audience": "audience",
    "unknown-tool": "tool",
    "arguments-invalid": "arguments",
    "tier-refused": "tier",
    "not-in-service": "lifecycle",
    "not-permitted": "policy",
}
_BY_STEP: Final = frozenset(_STEPS.values())
_CHANGES: Final[dict[tuple[str, str], Change]] = {
    ("allow", "deny"): "allow-to-deny",
    ("allow", "hold"): "allow-to-hold",
    ("hold", "deny"): "hold-to-deny",
    ("deny", "hold"): "deny-to-hold",
    ("hold", "allow"): "hold-to-allow",
    ("deny", "allow"): "deny-to-allow",
}


def find_change(before: Decider, after: Decider, *, is_gone: bool) -> Change | None:
    """Return the difference between two decisions; `None` if there is none.

    A change of the place of a rule or row is none, nor is another step of the policy that refuses.
    """
    if before.decision != after.decision:
        return "tool-gone" if is_gone and after.decision == "deny" else _CHANGES[before.decision, after.decision]
    if before.decision == "allow" or before.name == after.name or {before.name, after.name} <= _BY_STEP:
        return None
    return "other-rule"
