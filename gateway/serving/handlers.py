"""The handler of every published tool, whatever its backend: authorise, gates, start record, stages, backend.

Authorisation is the first thing a handler does, and no document can take it out. A refusal is an error that the model
reads as a result; the record names who refused.
"""

import asyncio
from asyncio import to_thread
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from gateway.access import Access
from gateway.core.artifacts import SpooledArtifact
from gateway.core.context import DispatchContext
from gateway.core.lines import IndexedReader, encode
from gateway.core.registry import Registry
from gateway.core.spool import SpoolReader, is_spool_reader
from gateway.errors import ResultNotKept, StoreUnavailable
from gateway.governance.effects import EFFECT_FLAGS
from gateway.governance.ports import Invocation
from gateway.serving.artifact_types import ArtifactTypes
from gateway.serving.call_limits import Counted
from gateway.serving.current import ServedCall, current_call
from gateway.serving.gating import Controls, Gate, code_of
from gateway.serving.keeping import TurnStore
from gateway.snapshot import DeclaredTool

Handler = Callable[[dict[str, Any], Any, Registry], Awaitable[Any]]
Run = Callable[[Invocation], Awaitable[Any]]
Chunks = AsyncIterable[bytes] | Iterable[bytes] | bytes
Keep = Callable[[Chunks], Awaitable[SpoolReader]]
Refuse = Callable[[], None]
Journal = Callable[[ServedCall, DeclaredTool], Awaitable[None]]
"""Makes it durable that a call is about to run."""

CONSEQUENTIAL: Final = EFFECT_FLAGS
"""Flags of tools whose start is on record before they run: their outcome may be unknown, never unseen."""


_NO_CONTROLS: Final = Controls()


@dataclass(frozen=True, slots=True)
class Handling:
    """What handlers of one catalogue share."""

    access: Access
    catalogue: str
    types: ArtifactTypes
    journal: Journal
    controls: Controls = _NO_CONTROLS


def handler_for(
    tool: DeclaredTool,
    handling: Handling,
    *,
    run: Run,
    refuse: Refuse | None = None,
    max_output: int | None = None,
    definition: str = "",
) -> Handler:
    """`run` is the chain of stages around the backend; `max_output` bounds what a call may yield.

    `refuse` raises while the chain would spare the backend: such a call is refused before anything is counted, asked
    of people or written down as started.
    """
    is_consequential = not tool.trust.flags.isdisjoint(CONSEQUENTIAL)
    access = handling.access
    gate = Gate.of(tool, handling.catalogue, access, handling.controls, definition, is_consequential=is_consequential)
    brought = access.brings(tool)
    types = handling.types
    is_masked = types.is_masked(tool.artifact)

    async def handle(args: dict[str, Any], ctx: DispatchContext, meta: Registry) -> Any:
        call = current_call()
        turn = call.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        memory = turn.memory
        try:
            counted = await gate.decide(call, args, refuse=refuse)
        except Exception:
            memory.notes(brought, "hold" if call.decision == "hold" else "deny")
            raise
        if is_consequential:
            await _journaled(handling.journal, call, tool, counted)
        memory.notes(brought, "allow")
        spool = turn.spool
        keep = _keeping(spool, call.id, max_output)
        key, hops = call.idempotency_key, call.seen
        invocation = Invocation(tool.name, args, call.principal, ctx, meta, call.id, keep, key, hops)
        call.course.has_begun = True
        try:
            value = await run(invocation)
        except Exception as error:
            call.error = code_of(error)
            raise
        if type(value) is str and not is_masked:
            held = spool.hold(call.id, encode(value), limit=max_output)
            if held is not None:
                return types.bare(tool.artifact, held)
        if isinstance(value, list) and all(isinstance(each, SpooledArtifact) for each in value):
            keeps = [_keeping(spool, f"{call.id}#{part}", max_output) for part in range(len(value))]
            return [await _yielded(each, tool, types, keeps[part]) for part, each in enumerate(value)]
        return await _yielded(value, tool, types, keep)

    return handle


async def _journaled(journal: Journal, call: ServedCall, tool: DeclaredTool, counted: Counted | None) -> None:
    """Nothing consequential runs without its start on record; what was counted for it then is given back."""
    try:
        await journal(call, tool)
    except BaseException as error:
        if isinstance(error, Exception):
            call.error = code_of(error)
            call.decide("deny", "audit-unavailable", call.error)
        if counted is not None:
            await asyncio.shield(counted.give_back())
        call.memory.releases(call.fingerprint)
        raise


def _keeping(spool: TurnStore, id: str, limit: int | None) -> Keep:
    async def keep(chunks: Chunks) -> SpoolReader:
        try:
            return await spool.write(id, chunks, limit=limit)
        except StoreUnavailable as error:
            told = f"{ResultNotKept.default_message}: {error.message}; do not repeat the call"
            raise ResultNotKept(told, help=error.help) from error

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
