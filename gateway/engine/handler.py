"""The handler of every published tool, whatever its backend: authorise, gates, start record, stages, backend.

Authorisation is the first thing a handler does, and no document can remove it. A refusal is an error that the model
reads as a result; the record names what refused.
"""

import asyncio
from asyncio import to_thread
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gateway.artifacts import IndexedReader, SpooledArtifact, encode_utf8
from gateway.engine.artifact_classes import ArtifactTypes
from gateway.engine.call import Call, get_current_call
from gateway.engine.gates.call_limits import LimitClaim
from gateway.engine.gates.guard import CallGuard, GuardDependencies, code_of
from gateway.engine.records.call_mapper import TurnByteStore
from gateway.errors import ResultNotStored, StoreUnavailable
from gateway.model import DispatchContext, DottedDict, Invocation, SpoolReader, is_spool_reader
from gateway.policy import Access
from gateway.registries import EFFECT_FLAGS, DeclaredTool

Handler = Callable[[dict[str, Any], Any, DottedDict], Awaitable[Any]]
Run = Callable[[Invocation], Awaitable[Any]]
Chunks = AsyncIterable[bytes] | Iterable[bytes] | bytes
StoreResult = Callable[[Chunks], Awaitable[SpoolReader]]
Refuse = Callable[[], None]
Journal = Callable[[Call, DeclaredTool], Awaitable[None]]
"""Makes it durable that a call is about to run."""

CONSEQUENTIAL_FLAGS: Final = EFFECT_FLAGS
"""Flags of tools whose start is on record before they run: their outcome may be unknown, but never unrecorded."""


_NO_CONTROLS: Final = GuardDependencies()


@dataclass(frozen=True, slots=True)
class HandlerDependencies:
    """What the handlers of one catalogue share."""

    access: Access
    catalogue: str
    types: ArtifactTypes
    journal: Journal
    controls: GuardDependencies = _NO_CONTROLS


def build_handler(
    tool: DeclaredTool,
    handling: HandlerDependencies,
    *,
    run: Run,
    refuse: Refuse | None = None,
    max_output: int | None = None,
    definition: str = "",
) -> Handler:
    """Return the handler. `run` is the chain of stages around the backend; `max_output` limits a call's result.

    `refuse` raises while the chain would not call the backend: such a call is refused before it is counted, sent to
    approvers or recorded as started.
    """
    is_consequential = not tool.trust.flags.isdisjoint(CONSEQUENTIAL_FLAGS)
    access = handling.access
    gate = CallGuard.of(
        tool, handling.catalogue, access, handling.controls, definition, is_consequential=is_consequential
    )
    taint = access.taint_of_tool(tool)
    types = handling.types
    is_masked = types.is_masked(tool.artifact)

    async def handle(args: dict[str, Any], ctx: DispatchContext, meta: DottedDict) -> Any:
        call = get_current_call()
        turn = call.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        memory = turn.state
        try:
            counted = await gate.decide(call, args, refuse=refuse)
        except Exception:
            memory.record_call(taint, "hold" if call.decision == "hold" else "deny")
            raise
        if is_consequential:
            await _record_start(handling.journal, call, tool, counted)
        memory.record_call(taint, "allow")
        spool = turn.spool
        keep = partial(_keep, spool, call.id, max_output)
        key, hops = call.idempotency_key, call.seen
        invocation = Invocation(tool.name, args, call.principal, ctx, meta, call.id, keep, key, hops, call=call)
        call.course.has_begun = True
        deactivate = None if hops is None else hops.activate()
        try:
            value = await run(invocation)
        except Exception as error:
            call.error = code_of(error)
            if hops is not None:
                hops.record_failure(error)
            raise
        finally:
            if deactivate is not None:
                deactivate()
        if type(value) is str and not is_masked:
            held = spool.write_inline(call.id, encode_utf8(value), limit=max_output)
            if held is not None:
                return types.wrap_unmasked(tool.artifact, held)
        if isinstance(value, list) and all(isinstance(each, SpooledArtifact) for each in value):
            keeps = [partial(_keep, spool, f"{call.id}#{part}", max_output) for part in range(len(value))]
            return [await _to_artifact(each, tool, types, keeps[part]) for part, each in enumerate(value)]
        return await _to_artifact(value, tool, types, keep)

    return handle


async def _record_start(journal: Journal, call: Call, tool: DeclaredTool, counted: LimitClaim | None) -> None:
    """Record the start of a consequential call. If that fails, give back what was counted, and do not run it."""
    try:
        await journal(call, tool)
    except BaseException as error:
        if isinstance(error, Exception):
            call.error = code_of(error)
            call.set_decision("deny", "audit-unavailable", call.error)
        if counted is not None:
            await asyncio.shield(counted.give_back())
        call.turn_state.release_call(call.fingerprint)
        raise


async def _keep(spool: TurnByteStore, id: str, limit: int | None, chunks: Chunks) -> SpoolReader:
    """Store the bytes of a result."""
    try:
        return await spool.write(id, chunks, limit=limit)
    except StoreUnavailable as error:
        message = f"{ResultNotStored.default_message}: {error.message}; do not repeat the call"
        raise ResultNotStored(message, help=error.help) from error


async def _to_artifact(value: Any, tool: DeclaredTool, types: ArtifactTypes, keep: StoreResult) -> Any:
    """Return text, bytes and readers of stored bytes as an artifact of the tool's class; other values unchanged.

    An artifact that the tool created is stored again: its bytes would be lost with the call, and are not masked.
    """
    if isinstance(value, str):
        value = await keep(encode_utf8(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        value = await keep(bytes(value))
    elif isinstance(value, SpooledArtifact):
        value = await keep([await _bytes_of(value)])
    return await types.wrap(tool.artifact, value) if is_spool_reader(value) else value


async def _bytes_of(artifact: SpooledArtifact) -> bytes:
    reader = artifact.reader
    if isinstance(reader, IndexedReader):
        return await to_thread(reader.read_range, 0, reader.byte_length())
    return encode_utf8(await artifact.as_string())
