"""`gateway trace`: one call as a tree of its turn, dispatch, decisions, approvals and backend, each with its time.

The tree is built from the records in the project's store, so every call has one, whether or not a trace was exported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from gateway.app import CallTrace, load_trace
from gateway.approvals import ApprovalRecord
from gateway.cli.options import (
    DEFAULT_FOLDER,
    CallIdArgument,
    EnvironmentOption,
    OutputOption,
    PoliciesOption,
    ProjectOption,
    TurnOption,
)
from gateway.cli.output import fail, format_time, print_json, stdout
from gateway.cli.project_loader import find_project, load_with_environ, project_secrets, require_valid
from gateway.config import escape_invisible
from gateway.errors import GatewayError
from gateway.registries import Snapshot
from gateway.storage import StoredCall

_STARTED: Final = "call-started"
_DECIDED: Final = (_STARTED, "call-decided")
"""Entries that are written as soon as a call is decided. The others are written at the end of what ran."""
_ENDS: Final = ("call-settled", "call-decided", "call-unknown")


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node of the tree. `took` is its duration and `after` its start since that of the call, in milliseconds."""

    kind: str
    name: str
    outcome: str | None = None
    took: float | None = None
    after: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    children: Sequence["TraceNode"] = ()

    def to_dict(self) -> dict[str, Any]:
        data = {
            "kind": self.kind,
            "name": self.name,
            "outcome": self.outcome,
            "tookMs": None if self.took is None else round(self.took, 3),
            "afterMs": None if self.after is None else round(self.after, 3),
            **self.details,
        }
        present = {key: value for key, value in data.items() if value is not None and value != []}
        return {**present, "children": [each.to_dict() for each in self.children]} if self.children else present


def build_trace(traced: CallTrace, snapshot: Snapshot) -> list[TraceNode]:
    """Return a tree for each turn; a held call may continue in another turn."""
    by_turn = groupby(sorted(traced.calls, key=lambda each: each.turn_id), key=lambda each: each.turn_id)
    turns = [list(calls) for _, calls in by_turn]
    return [_turn(calls, traced, snapshot) for calls in sorted(turns, key=lambda calls: calls[0].created_at)]


def _turn(calls: Sequence[StoredCall], traced: CallTrace, snapshot: Snapshot) -> TraceNode:
    first = calls[0]
    details = {
        "catalogue": first.catalogue,
        "subject": first.principal.subject,
        "tenant": first.principal.tenant,
        "revision": first.revision[:12],
    }
    return TraceNode(
        "turn", first.turn_id, details=details, children=[_dispatch(each, traced, snapshot) for each in calls]
    )


def _dispatch(call: StoredCall, traced: CallTrace, snapshot: Snapshot) -> TraceNode:
    """Return the dispatch of a call; a transport sends each call in its own dispatch."""
    return TraceNode("dispatch", "one iteration", took=_took(call), children=[_call(call, traced, snapshot)])


def _call(call: StoredCall, traced: CallTrace, snapshot: Snapshot) -> TraceNode:
    entries = [each for each in traced.entries if _is_about(each, call)]
    ids = {each["gate"]["approval"] for each in entries if "gate" in each}
    approvals = [each for each in traced.approvals if each.id in ids]
    details = {
        "callId": call.id,
        "at": format_time(call.created_at),
        "traceId": call.trace_id,
        "spanId": call.span_id,
    }
    children = [
        *_gates(call, entries),
        *(_approval(each, call) for each in approvals),
        *_backend(call, entries, snapshot),
    ]
    return TraceNode("call", call.tool, _outcome(call), took=_took(call), details=details, children=children)


def _gates(call: StoredCall, entries: Sequence[Mapping[str, Any]]) -> Iterator[TraceNode]:
    """Yield the last decision; of earlier ones, only approvals are recorded."""
    decided = next((each for each in reversed(entries) if "decision" in each), None)
    if decided is None:
        if call.decision is not None:
            yield TraceNode("gate", call.decision, call.decision, details={"because": call.because})
        return
    decision = decided["decision"]
    details = {
        "reason": decision.get("reason"),
        "rules": decision.get("rules"),
        "position": decision.get("position"),
        "observed": decision.get("observed"),
        "grants": decision.get("grants"),
        "because": call.because,
    }
    at = next((each["at"] for each in entries if each["event"] in _DECIDED), None)
    after = None if at is None else _after(call, at)
    yield TraceNode("gate", str(decision.get("reason")), decision.get("effect"), after=after, details=details)


def _approval(approval: ApprovalRecord, call: StoredCall) -> TraceNode:
    ended = approval.decided_at
    votes = [
        TraceNode(
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
        "askedAt": format_time(approval.created_at),
        "expiresAt": format_time(approval.expires_at),
        "usedAt": None if approval.used_at is None else format_time(approval.used_at),
    }
    took = None if ended is None else _milliseconds(approval.created_at, ended)
    return TraceNode("approval", approval.request.rule, approval.state, took=took, details=details, children=votes)


def _backend(call: StoredCall, entries: Sequence[Mapping[str, Any]], snapshot: Snapshot) -> Iterator[TraceNode]:
    """Yield the backend of a call that ran. It starts at the recorded start, or else at the start of the call."""
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
    yield TraceNode("backend", kind, state, took=took, after=since if began is not None else None, details=details)


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


_COLOURS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ok", "allow", "granted", "grant", "used"), "green"),
    **dict.fromkeys(("hold", "pending", "started"), "cyan"),
    **dict.fromkeys(("deny", "error", "refused", "refuse", "expired", "void", "cancelled"), "yellow"),
    "unknown": "bold red",
}
_WORDS: Final[Mapping[str, str]] = {"startOnRecord": "start on record"}
_SHOWN_AS_NAME: Final = frozenset({"reason"})


def trace_call(
    id: CallIdArgument,
    turn: TurnOption = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    output: OutputOption = "text",
) -> None:
    """Draw one call: its turn, the decision and its rule, the approvals, and the backend.

    A held call is drawn together with the call that continued it. Everything comes from local records, whether or not a
    trace was exported; `traceId` is its id in a tracing backend.
    Exit codes: 0 drawn, 1 there is no such call or its store cannot be read, 2 wrong use.
    """
    project = find_project(folder, policies)
    found = require_valid(load_with_environ(project, environment=environment, today=None), project)
    try:
        traced = load_trace(found, project_secrets(folder, policies), id, turn_id=turn)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    if traced is None:
        where = "" if turn is None else f" in turn {turn!r}"
        fail(f"there is no call {id!r}{where}", "gateway calls list shows the calls", code=1)
    assert found.access is not None, "a valid project has one"  # noqa: S101 - `require_valid` checked it
    turns = build_trace(traced, found.access.snapshot)
    if output == "json":
        print_json([each.to_dict() for each in turns])
        return
    console = stdout()
    for each in turns:
        _print_tree(console, each)


def _print_tree(console: Console, node: TraceNode) -> None:
    console.print(_add_children(Tree(_format_line(node), guide_style="dim"), node))


def _add_children(tree: Tree, node: TraceNode) -> Tree:
    for child in node.children:
        _add_children(tree.add(_format_line(child)), child)
    return tree


def _format_line(node: TraceNode) -> Text:
    """Return one line: kind, name, outcome, duration and details."""
    line = Text.assemble((f"{node.kind} ", "dim"), (escape_invisible(node.name), "bold"))
    if node.outcome is not None and node.outcome != node.name:
        line.append("  ").append(escape_invisible(node.outcome), _COLOURS.get(node.outcome, ""))
    if node.took is not None:
        line.append(f"  {_format_duration(node.took)}", "magenta")
    if node.after is not None:
        line.append(f"  after {_format_duration(node.after)}", "dim")
    for name, value in node.details.items():
        if value not in (None, [], "") and not (name in _SHOWN_AS_NAME and value == node.name):
            line.append("  ").append(f"{_WORDS.get(name, name)} ", "dim").append(escape_invisible(_format_value(value)))
    return line


def _format_duration(milliseconds: float) -> str:
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 10_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def _format_value(value: Any) -> str:
    if value is True:
        return "yes"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
