"""One call as a tree: its turn, its dispatch, what was decided by whom, and the backend, each with its time.

Made of records alone, so that it is there for every call, whether or not its trace was sent anywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from gateway.cli.moments import shown_moment
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.records import StoredCall
from gateway.runtime.looking import Traced
from gateway.snapshot import Snapshot

_STARTED: Final = "call-started"
_ENDS: Final = ("call-settled", "call-decided", "call-unknown")


@dataclass(frozen=True, slots=True)
class Node:
    """`outcome` is one word; `took` and `after` are milliseconds, the latter since the start of the call."""

    kind: str
    name: str
    outcome: str | None = None
    took: float | None = None
    after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    children: Sequence["Node"] = ()

    def as_data(self) -> dict[str, Any]:
        data = {
            "kind": self.kind,
            "name": self.name,
            "outcome": self.outcome,
            "tookMs": None if self.took is None else round(self.took, 3),
            "afterMs": None if self.after is None else round(self.after, 3),
            **self.details,
        }
        told = {key: value for key, value in data.items() if value is not None and value != []}
        return {**told, "children": [each.as_data() for each in self.children]} if self.children else told


def turns_of(traced: Traced, snapshot: Snapshot) -> list[Node]:
    """A tree for each turn; a call that was held may have been taken up again in another one."""
    by_turn = groupby(sorted(traced.calls, key=lambda each: each.turn_id), key=lambda each: each.turn_id)
    turns = [list(calls) for _, calls in by_turn]
    return [_turn(calls, traced, snapshot) for calls in sorted(turns, key=lambda calls: calls[0].created_at)]


def _turn(calls: Sequence[StoredCall], traced: Traced, snapshot: Snapshot) -> Node:
    first = calls[0]
    details = {
        "catalogue": first.catalogue,
        "subject": first.principal.subject,
        "tenant": first.principal.tenant,
        "revision": first.revision[:12],
    }
    return Node("turn", first.turn_id, details=details, children=[_dispatch(each, traced, snapshot) for each in calls])


def _dispatch(call: StoredCall, traced: Traced, snapshot: Snapshot) -> Node:
    """Every call over a wire is a dispatch of its own."""
    return Node("dispatch", "one iteration", took=_took(call), children=[_call(call, traced, snapshot)])


def _call(call: StoredCall, traced: Traced, snapshot: Snapshot) -> Node:
    entries = [each for each in traced.entries if _is_about(each, call)]
    ids = {each["gate"]["approval"] for each in entries if "gate" in each}
    approvals = [each for each in traced.approvals if each.id in ids]
    details = {
        "callId": call.id,
        "at": shown_moment(call.created_at),
        "traceId": call.trace_id,
        "spanId": call.span_id,
    }
    children = [
        *_gates(call, entries),
        *(_approval(each, call) for each in approvals),
        *_backend(call, entries, snapshot),
    ]
    return Node("call", call.tool, _outcome(call), took=_took(call), details=details, children=children)


def _gates(call: StoredCall, entries: Sequence[Mapping[str, Any]]) -> Iterator[Node]:
    """What was decided last; before that, nothing is on record but what was asked of people."""
    decided = next((each for each in reversed(entries) if "decision" in each), None)
    if decided is None:
        if call.decision is not None:
            yield Node("gate", call.decision, call.decision, details={"because": call.because})
        return
    decision = decided["decision"]
    details = {
        "reason": decision.get("reason"),
        "rules": decision.get("rules"),
        "position": decision.get("position"),
        "observed": decision.get("observed"),
        "because": call.because,
    }
    at = next((each for each in entries if each["event"] == _STARTED), decided)
    yield Node(
        "gate", str(decision.get("reason")), decision.get("effect"), after=_after(call, at["at"]), details=details
    )


def _approval(approval: ApprovalRecord, call: StoredCall) -> Node:
    ended = approval.decided_at
    votes = [
        Node(
            "decision",
            each.approver.subject,
            each.decision,
            after=_milliseconds(approval.created_at, each.at),
            details={"note": each.note},
        )
        for each in approval.entries
    ]
    details = {
        "approvalId": approval.id,
        "reason": approval.request.reason,
        "askedBy": approval.request.call_id if approval.request.call_id != call.id else None,
        "askedAt": shown_moment(approval.created_at),
        "expiresAt": shown_moment(approval.expires_at),
        "usedAt": None if approval.used_at is None else shown_moment(approval.used_at),
    }
    took = None if ended is None else _milliseconds(approval.created_at, ended)
    return Node("approval", approval.request.rule, approval.state, took=took, details=details, children=votes)


def _backend(call: StoredCall, entries: Sequence[Mapping[str, Any]], snapshot: Snapshot) -> Iterator[Node]:
    """Only of calls that ran: their time is known from the start that is on record, or from that of the call."""
    if call.decision != "allow" or call.from_artifact_tool:
        return
    tool = snapshot.tools.get(call.identity)
    began = next((each["at"] for each in entries if each["event"] == _STARTED), None)
    ended = next((each for each in reversed(entries) if each["event"] in _ENDS), None)
    outcome = (ended or {}).get("outcome") or {}
    since = _after(call, began) if began is not None else 0.0
    until = None if ended is None or call.completed_at is None else _milliseconds(call.created_at, call.completed_at)
    details = {
        "upstream": None if tool is None else tool.upstream,
        "error": outcome.get("errorType"),
        "bytes": outcome.get("bytes"),
        "artifact": outcome.get("artifact"),
        "startOnRecord": True if began is not None else None,
    }
    kind = "unknown" if tool is None else tool.backend
    state = outcome.get("state") or ("unknown" if call.status == "unknown" else call.status)
    took = None if until is None else max(until - since, 0.0)
    yield Node("backend", kind, state, took=took, after=since if began is not None else None, details=details)


def _is_about(entry: Mapping[str, Any], call: StoredCall) -> bool:
    about = entry.get("call") or {}
    return about.get("id") == call.id and about.get("turn") in (None, call.turn_id)


def _outcome(call: StoredCall) -> str:
    if call.status != "settled":
        return call.status
    if call.decision in ("hold", "deny"):
        return str(call.decision)
    return "error" if call.is_error else "ok"


def _took(call: StoredCall) -> float | None:
    return None if call.completed_at is None else _milliseconds(call.created_at, call.completed_at)


def _after(call: StoredCall, microseconds: int) -> float:
    return max(microseconds / 1000 - call.created_at.timestamp() * 1000, 0.0)


def _milliseconds(since: datetime, until: datetime) -> float:
    return max((until - since).total_seconds() * 1000, 0.0)
