"""The handler of every published tool, whatever its backend: authorise, gates, start record, stages, backend.

Authorisation is the first thing a handler does, and no document can take it out. A refusal is an error that the model
reads as a result; the record names who refused.
"""

from asyncio import to_thread
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.access import Access, Call
from gateway.core.artifacts import SpooledArtifact
from gateway.core.context import DispatchContext
from gateway.core.lines import IndexedReader, encode
from gateway.core.registry import Registry
from gateway.core.spool import SpoolReader, is_spool_reader
from gateway.errors import NotPermitted, RuleDenied, RuleHeld
from gateway.governance.ports import Invocation
from gateway.governance.rules import GateRule
from gateway.serving.artifact_types import ArtifactTypes
from gateway.serving.current import ServedCall, current_call
from gateway.snapshot import DeclaredTool

Handler = Callable[[dict[str, Any], Any, Registry], Awaitable[Any]]
Run = Callable[[Invocation], Awaitable[Any]]
Chunks = AsyncIterable[bytes] | Iterable[bytes] | bytes
Keep = Callable[[Chunks], Awaitable[SpoolReader]]
Journal = Callable[[ServedCall, DeclaredTool], Awaitable[None]]
"""Makes it durable that a call is about to run."""

CONSEQUENTIAL: Final = frozenset({"writes", "destructive", "egress"})
"""Flags of tools whose start is on record before they run: their outcome may be unknown, never unseen."""


@dataclass(frozen=True, slots=True)
class Handling:
    """What handlers of one catalogue share."""

    access: Access
    catalogue: str
    types: ArtifactTypes
    journal: Journal


def handler_for(tool: DeclaredTool, handling: Handling, *, run: Run, max_output: int | None = None) -> Handler:
    """`run` is the chain of stages around the backend; `max_output` bounds what a call may yield."""
    is_consequential = not tool.trust.flags.isdisjoint(CONSEQUENTIAL)
    rules = tuple(handling.access.rules_about(tool, handling.catalogue))

    async def handle(args: dict[str, Any], ctx: DispatchContext, meta: Registry) -> Any:
        call = current_call()
        _authorise(call, tool, handling)
        if rules:
            _pass_gates(call, tool, handling, rules, args)
        if is_consequential:
            await handling.journal(call, tool)
        keep = _keeping(call, call.id, max_output)
        invocation = Invocation(tool.name, args, call.principal, ctx, meta, call.id, keep, call.idempotency_key)
        value = await run(invocation)
        if isinstance(value, list) and all(isinstance(each, SpooledArtifact) for each in value):
            keeps = [_keeping(call, f"{call.id}#{part}", max_output) for part in range(len(value))]
            return [await _yielded(each, tool, handling.types, keeps[part]) for part, each in enumerate(value)]
        return await _yielded(value, tool, handling.types, keep)

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


def _keeping(call: ServedCall, id: str, limit: int | None) -> Keep:
    assert call.turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
    spool = call.turn.spool

    async def keep(chunks: Chunks) -> SpoolReader:
        return await spool.write(id, chunks, limit=limit)

    return keep


async def _yielded(value: Any, tool: DeclaredTool, types: ArtifactTypes, keep: Keep) -> Any:
    """Text, bytes and readers of kept bytes as an artifact of the tool's class; the rest is the settling's to judge.

    An artifact of the tool's own making, too: its bytes would be gone with the call, and nothing in them masked.
    """
    if isinstance(value, str):
        value = await keep(encode(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        value = await keep(bytes(value))
    elif isinstance(value, SpooledArtifact):
        value = await keep([await _bytes_of(value)])
    return await types.over(tool.artifact, value) if is_spool_reader(value) else value


async def _bytes_of(artifact: SpooledArtifact) -> bytes:
    reader = artifact.reader
    if isinstance(reader, IndexedReader):
        return await to_thread(reader.read_range, 0, reader.byte_length())
    return encode(await artifact.as_string())
