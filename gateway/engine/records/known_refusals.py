"""Refusals that hold for a moment: a caller who goes on after a refusal gets it again, without another decision.

The guard decided about each of them, and only refusals are repeated, so nothing is allowed without a decision. One is
repeated for the same call in the same turn; if neither its rules nor the reason depend on arguments, for any valid
arguments. It has to be one that is only counted, so that a repeated one leaves as much behind as one that was decided.
What has changed since is noticed a moment later.
"""

from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from gateway.engine.call import DEFAULT_HOLD_POLICY, Call
from gateway.engine.turns.turn import Turn
from gateway.errors import ValidationException
from gateway.model import (
    DispatchEnd,
    DispatchStart,
    ErrorEvent,
    IterationEnd,
    IterationStart,
    Tokenizable,
    ToolCall,
    ToolCallEvent,
    ToolExecutionEnd,
    ToolExecutionStart,
    now_microseconds,
)
from gateway.storage import RecordStore

HOLDS_FOR: Final = 20_000_000
"""Nanoseconds; for as long, the refusal of a rate is believed without another look."""

MOST: Final = 4096
_FORGOTTEN_AT_ONCE: Final = 64
_ANY: Final = ""
"""Instead of the fingerprint of a call, for any valid arguments."""

_REPEATED: Final = frozenset(
    {
        *("arguments-invalid", "not-permitted", "not-in-service", "tier-refused", "quarantined", "config-expired"),
        *(
            "rule-denied",
            "window-closed",
            "flow-blocked",
            "loop-stopped",
            "budget-spent",
            "rate-exceeded",
            "quota-exceeded",
        ),
    }
)
"""Reasons that depend on nothing but the caller, the call and its turn: no client, no backend, no store that fails."""

_EVENTS: Final = (
    *(DispatchStart, IterationStart, ToolCallEvent, ToolExecutionStart),
    *(ToolExecutionEnd, ErrorEvent, IterationEnd, DispatchEnd),
)
_OF_A_CALL: Final = frozenset({"*", *(kind.name for kind in _EVENTS)})
_get_decision: Final = attrgetter(
    *("identity", "definition", "decision", "reason", "because", "rules", "position", "row"),
    *("is_decision_cached", "observed", "error", "limited", "fault"),
)


class _KnownRefusal(NamedTuple):
    until: int
    reason: str
    text: str
    inline: bool
    trusted: bool
    decision: tuple[Any, ...]
    """The values of `_get_decision`."""


class KnownRefusals:
    """One per process. `reason` is always a word of the audit vocabulary."""

    def __init__(self, store: RecordStore, *, clock: Callable[[], int] = monotonic_ns) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[tuple[Any, ...], _KnownRefusal] = {}

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, turn: Turn, call: Call, reason: str, record: ToolCall) -> None:
        """Remember a refusal that was only counted."""
        if reason not in _REPEATED or not call.fingerprint or not _may_be_repeated(turn, call):
            return
        now = self._clock()
        self._forget_oldest(now)
        trusted = record.trusted is True
        results: Any = record.results
        known = _KnownRefusal(now + HOLDS_FOR, reason, results.render(), record.inline, trusted, _get_decision(call))
        for arguments in (call.fingerprint,) if call.depends_on_arguments else (call.fingerprint, _ANY):
            key = _key(turn, call, arguments)
            self._known.pop(key, None)  # the newest is the last one
            self._known[key] = known

    def repeat(self, turn: Turn, call: Call) -> ToolCall | None:
        """Refuse a call as the one before; `None` if the guard has to decide about it."""
        if not self._known or not call.fingerprint or not _may_be_repeated(turn, call):
            return None
        known = self._find(_key(turn, call, call.fingerprint))
        if known is None:
            known = self._find(_key(turn, call, _ANY))
            if known is None or not _has_valid_arguments(turn, call):
                return None
        if _is_loop(turn, call) or not self._store.count_refusal(call.principal, known.reason):
            return None
        call.is_refused = True
        (call.identity, call.definition, call.decision, call.reason, call.because, *others) = known.decision
        (call.rules, call.position, call.row, call.is_decision_cached, call.observed, *others) = others
        (call.error, call.limited, call.fault) = others
        moment = now_microseconds()
        record = ToolCall.from_result(
            id=call.id,
            tool=call.tool,
            args=call.args,
            checksum=call.checksum,
            is_error=True,
            results=Tokenizable(known.text),
            from_artifact_tool=False,
            inline=known.inline,
            trusted=known.trusted,
            created=moment,
            completed=moment,
        )
        turn.add_call(record, call.fingerprint)
        return record

    def _find(self, key: tuple[Any, ...]) -> _KnownRefusal | None:
        known = self._known.get(key)
        if known is not None and self._clock() >= known.until:
            del self._known[key]
            return None
        return known

    def _forget_oldest(self, now: int) -> None:
        for key in list(islice(self._known, _FORGOTTEN_AT_ONCE)):
            if self._known[key].until > now and len(self._known) < MOST - 1:  # one refusal may have two keys
                break
            del self._known[key]


def _may_be_repeated(turn: Turn, call: Call) -> bool:
    """Whether nothing but the guard takes part in the call: no stage, no listener, no key, no answer to a question."""
    catalogue = turn.catalogue
    return (
        call.declared is not None
        and call.idempotency_key is None
        and call.holding is DEFAULT_HOLD_POLICY
        and not catalogue.dispatch_input
        and not catalogue.dispatch_output
        and not turn.has_any_listener(_OF_A_CALL)
    )


def _is_loop(turn: Turn, call: Call) -> bool:
    """Whether the loop guard refuses the call, which comes before its tool."""
    loop_guard = turn.catalogue.loop_guard
    return loop_guard is not None and loop_guard.stops(turn.count_calls(call.fingerprint))


def _has_valid_arguments(turn: Turn, call: Call) -> bool:
    """Whether the tool, which comes before the guard, accepts the arguments. Custom checks have to be awaited."""
    tool = turn.tools.get(call.tool)
    if tool is None or tool.input_schema.has_checks:
        return False
    try:
        tool.input_schema.check(call.args)
    except ValidationException:
        return False
    return True


def _key(turn: Turn, call: Call, fingerprint: str) -> tuple[Any, ...]:
    """Return what the decision depends on. Calls without a handle share their implicit turn, or have no earlier one."""
    principal, implicit = call.principal, turn.implicit
    scope = implicit.id if implicit is not None else None if turn.is_single_call else turn.id
    caller = (principal.tenant, principal.subject, principal.roles, principal.credential)
    return (*caller, scope, call.catalogue, call.tool, call.revision, fingerprint)
