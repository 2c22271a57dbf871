"""The handler of every published tool, whatever its backend: authorise, gates, start record, stages, backend.

Authorisation is the first thing a handler does, and no document can take it out. A refusal is an error that the model
reads as a result; the record names who refused.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.access import Access, Call
from gateway.core.artifacts import SpooledArtifact
from gateway.core.context import DispatchContext
from gateway.core.registry import Registry
from gateway.core.spool import is_spool_reader
from gateway.errors import NotPermitted, RuleDenied, RuleHeld
from gateway.governance.ports import Invocation
from gateway.governance.rules import GateRule
from gateway.serving.current import ServedCall, current_call
from gateway.snapshot import DeclaredTool

Handler = Callable[[dict[str, Any], Any, Registry], Awaitable[Any]]
Run = Callable[[Invocation], Awaitable[Any]]
Keep = Callable[[DispatchContext, str], Callable[[Any], Awaitable[Any]]]
Journal = Callable[[ServedCall, DeclaredTool, Mapping[str, Any], DispatchContext], Awaitable[None]]

CONSEQUENTIAL: Final = frozenset({"writes", "destructive", "egress"})
"""Flags of tools whose start is on record before they run: their outcome may be unknown, never unseen."""


@dataclass(frozen=True, slots=True)
class Handling:
    """What handlers of one catalogue share."""

    access: Access
    catalogue: str
    journal: Journal
    keep: Keep


def handler_for(tool: DeclaredTool, handling: Handling, *, run: Run, artifact: type | None) -> Handler:
    """`run` is the chain of stages around the backend; `artifact` the class of what the tool yields."""
    is_consequential = not tool.trust.flags.isdisjoint(CONSEQUENTIAL)
    rules = tuple(handling.access.rules_about(tool, handling.catalogue))

    async def handle(args: dict[str, Any], ctx: DispatchContext, meta: Registry) -> Any:
        call = current_call()
        _authorise(call, tool, handling)
        if rules:
            _pass_gates(call, tool, handling, rules, args)
        if is_consequential:
            await handling.journal(call, tool, args, ctx)
        keep = handling.keep(ctx, call.id)
        invocation = Invocation(tool.name, args, call.principal, ctx, meta, call.id, keep, call.idempotency_key)
        return _shaped(await run(invocation), artifact)

    return handle


def _authorise(call: ServedCall, tool: DeclaredTool, handling: Handling) -> None:
    call.identity = tool.name
    trust = tool.trust
    if not trust.callable or not tool.is_in_use(datetime.now(UTC).date()):
        call.decision, call.because = "deny", f"tier {trust.tier.name}" if not trust.callable else tool.lifecycle
        raise NotPermitted(f"{tool.name} cannot be called at present")
    decision = handling.access.asks(call.principal, "invoke", catalogue=handling.catalogue, tool=tool)
    call.decision, call.because = ("allow" if decision.allowed else "deny"), decision.reason
    if not decision.allowed:
        raise NotPermitted()


def _pass_gates(call: ServedCall, tool: DeclaredTool, handling: Handling, rules: Sequence[GateRule], args: Any) -> None:
    asked = Call(call.principal, handling.catalogue, tool.name, datetime.now(UTC), args)
    outcome = handling.access.judged(asked, tool, rules)
    verdict = outcome.decided_by
    if verdict is None or outcome.decision == "allow":
        return
    call.decision, call.because = outcome.decision, f"{verdict.rule.name} at {verdict.rule.position}"
    if outcome.decision == "deny":
        raise RuleDenied(verdict.judgement.reason)
    raise RuleHeld(f"{verdict.judgement.reason}; nobody can be asked here yet")


def _shaped(value: Any, artifact: type | None) -> Any:
    """What a reader of kept bytes, or a JSON value, becomes; everything else is the settling's to judge."""
    if is_spool_reader(value) and not isinstance(value, str | bytes):
        return (artifact or SpooledArtifact)(value)
    return value
