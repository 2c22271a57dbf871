"""Execution of one call as one dispatch of its turn: the stages around it, the call itself, or the record of a refusal.

Arguments are read here, and identify the call. Arguments that cannot be read or hashed are refused when the call runs,
not here; large ones are read in a thread. `RunningCalls` tracks the calls that run in this process.
"""

import asyncio
from collections.abc import Coroutine
from time import time_ns
from typing import Any, Final

from gateway.engine.agent.dispatch import dispatch, to_executor_error
from gateway.engine.agent.proposed_calls import InlinePolicy, ProposedCall, execute_tool, settle_call
from gateway.engine.call import Call, call_context, reset_current_call, set_current_call
from gateway.engine.turns.turn import Turn
from gateway.errors import GatewayError, UnknownCall, message_of
from gateway.model import (
    LARGE,
    ArtifactTool,
    CallIdentity,
    DispatchContext,
    DispatchEnd,
    DispatchStart,
    ErrorEvent,
    IterationEnd,
    IterationStart,
    Next,
    Reporter,
    Tokenizable,
    Tool,
    ToolCall,
    ToolCallEvent,
    call_id,
    call_identity,
    decode_arguments,
    deep_copy_containers,
    fast_call_identity,
    fingerprint_of,
    is_abort,
    is_short,
    is_task_cancelled,
    new_id,
    now,
    now_microseconds,
    run_in_json_thread,
)
from gateway.registries import DeclaredTool

RawArguments = dict[str, Any] | str | None

_SHORT: Final = 4 << 10
"""Bytes of arguments that are hashed on the event loop even if each number must be checked."""


async def read_arguments(name: str, given: RawArguments) -> tuple[dict[str, Any], CallIdentity | None]:
    """Return a copy of the arguments, empty if they are not an object, and the identity of the call by its contents.

    Arguments that cannot be hashed have no identity.
    """
    if given is not None and not is_short(given, LARGE):
        return await run_in_json_thread(_read, name, given)
    args = _decode(given)
    try:
        plain = fast_call_identity(name, args)
    except (TypeError, ValueError):
        return args, None
    if plain is not None:
        return args, plain
    return args, _identity(name, args) if is_short(args, _SHORT) else await run_in_json_thread(_identity, name, args)


def _read(name: str, given: RawArguments) -> tuple[dict[str, Any], CallIdentity | None]:
    args = _decode(given)
    return args, _identity(name, args)


def _decode(given: RawArguments) -> dict[str, Any]:
    try:
        return decode_arguments({} if given is None else given)
    except (TypeError, ValueError):
        return {}


def _identity(name: str, args: dict[str, Any]) -> CallIdentity | None:
    """Return the identity of a call; each number is checked, which is slow, only if the plain way fails."""
    try:
        return fast_call_identity(name, args) or call_identity(name, args)
    except (TypeError, ValueError):
        return None


_EVENTS: Final = (DispatchStart, IterationStart, IterationEnd, DispatchEnd, ErrorEvent, ToolCallEvent)
_OF_A_DISPATCH: Final = frozenset({"*", *(kind.name for kind in _EVENTS)})

PROPOSED_CALLS: Final = "gateway.proposedCalls"
"""Key in a dispatch's stash: exact digests of the calls that are about to be made, for middleware."""

EARLIER_CALLS: Final = "gateway.earlierCalls"
"""Key in a dispatch's stash: how often each call was made in the implicit turn, by its digest."""


def execute(turn: Turn, call: Call, *, inline: InlinePolicy) -> Coroutine[Any, Any, ToolCall]:
    """Execute a call and return its durable record."""
    catalogue = turn.catalogue
    tool = catalogue.registry.get(call.tool)
    is_alone = turn.is_unused and not turn.is_stored and isinstance(call.given, dict)
    is_plain = is_alone and not (catalogue.dispatch_input or catalogue.dispatch_output)
    if tool is None or not is_plain or turn.has_any_listener(_OF_A_DISPATCH):
        return _dispatch_call(turn, call, inline=inline)
    return _run_single_call(turn, call, tool, inline=inline)


async def _dispatch_call(turn: Turn, call: Call, *, inline: InlinePolicy) -> ToolCall:
    """Execute the call as one dispatch with one iteration."""
    catalogue = turn.catalogue
    proposed = ProposedCall(call.id, call.tool, call.given)
    record: ToolCall | None = None
    began = time_ns() if call.seen is not None else 0
    dispatch_id: str | None = None

    async def announce(ctx: DispatchContext, next: Next) -> None:
        fingerprint = call.fingerprint or fingerprint_of(call.tool, call.args)
        ctx.stash.set(PROPOSED_CALLS, [fingerprint])
        if turn.implicit is not None:
            ctx.stash.set(EARLIER_CALLS, {fingerprint: turn.state.count_calls(fingerprint)})
        await next()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        nonlocal record, dispatch_id
        dispatch_id = ctx.dispatch_id
        _offer_query(turn, ctx, call)
        with call_context(call):
            record = await settle_call(ctx, reporter, proposed, spool=turn.spool, inline=inline, on_failure=call.fail)

    async def acknowledge(ctx: DispatchContext, next: Next) -> None:
        """Run last: an iteration that the executor acks would skip the output stages."""
        await next()
        ctx.ack()

    try:
        await dispatch(
            source=turn.ctx,
            executor=execute,
            input_pipeline=[announce, *stages] if (stages := catalogue.dispatch_input) else (),
            output_pipeline=[acknowledge, *catalogue.dispatch_output],
            buses=turn.buses,
        )
    except GatewayError as error:
        if record is None:
            return await record_refusal(turn, call, error)
    finally:
        if began and call.seen is not None:
            call.seen.record_dispatch(dispatch_id, since=began, is_acked=record is not None)
    if record is None:
        return await record_refusal(turn, call, GatewayError("the call was given up"))
    return record


class LazyDispatch:
    """The dispatch of a single call in its turn, without stages and listeners.

    It has the few attributes that every call needs; any other attribute creates the real dispatch context.
    """

    __slots__ = ("_context", "_id", "_turn", "emit", "has_listener", "turn_id")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._context: DispatchContext | None = None
        self._id: str | None = None
        self.turn_id = turn.id
        self.emit = turn.emit
        self.has_listener = turn.has_listener

    @property
    def dispatch_id(self) -> str:
        if self._id is None:
            self._id = new_id()
        return self._id

    @property
    def dispatch(self) -> DispatchContext:
        if self._context is None:
            self._context = DispatchContext(self._turn.ctx, buses=self._turn.buses)
            self._context.dispatch_id = self.dispatch_id
        return self._context

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatch, name)

    def end(self, *, is_acked: bool) -> None:
        if self._context is not None:
            if is_acked:
                self._context.ack()
            self._context.release()


async def _run_single_call(turn: Turn, call: Call, tool: Tool, *, inline: InlinePolicy) -> ToolCall:
    """Do what `_dispatch_call` does, without objects that such a call does not need."""
    created = now_microseconds()
    ctx = LazyDispatch(turn)
    checksum = call.checksum or call_id(call.tool, call.args)
    is_acked = False
    token = set_current_call(call)
    try:
        results, is_error = await execute_tool(
            tool, call.args, ctx, spool=turn.spool, id=call.id, checksum=checksum, on_failure=call.fail
        )
        record = ToolCall.from_result(
            id=call.id,
            tool=call.tool,
            args=call.args,
            checksum=checksum,
            is_error=is_error,
            results=deep_copy_containers(results),
            from_artifact_tool=False,
            inline=inline if inline is True or inline is False else await inline(results),
            trusted=tool.trusted,
            created=created,
            completed=now_microseconds(),
        )
        await turn.store(record)
        turn.add_record(record)
        is_acked = True
        return record
    except asyncio.CancelledError:
        if is_task_cancelled():
            raise
        why = GatewayError("the call was given up")
    except Exception as error:
        given_up = is_abort(error, aborted=False)
        why = GatewayError("the call was given up") if given_up else to_executor_error(error)
    finally:
        reset_current_call(token)
        ctx.end(is_acked=is_acked)
    return await record_refusal(turn, call, why)


def _offer_query(turn: Turn, ctx: DispatchContext, call: Call) -> None:
    """Make the query tool callable by name; without an artifact to read, every id is an invalid argument.

    The turn does not have an artifact that the caller may not read. The handler refuses it, as it decides.
    """
    query = turn.catalogue.queries.get(call.tool)
    target = call.target
    is_missing = target is not None and not turn.ctx.has_tool_call(target.id)
    if query is not None and (is_missing or not ctx.tools.has(query.name)):
        ids = [target.id] if target is not None and is_missing else []
        ctx.tools.register(_without_artifact(query, ids), overwrite=True)


async def record_refusal(turn: Turn, call: Call, error: GatewayError) -> ToolCall:
    """Store and return the record of a call that a pipeline refused."""
    moment = now()
    cause = error.cause if isinstance(error.cause, GatewayError) else error
    call.fail(cause)
    args = call.given if isinstance(call.given, dict) else {}
    record = ToolCall(
        id=call.id,
        tool=call.tool,
        args=args,
        is_complete=True,
        is_error=True,
        results=Tokenizable(message_of(cause)),
        created_at=moment,
        updated_at=moment,
        completed_at=moment,
    )
    call.decision = call.decision or "deny"
    with call_context(call):
        await turn.ctx.store_tool_call(record)
    return record


def get_inline_policy(turn: Turn, tool: DeclaredTool | None) -> InlinePolicy:
    """Return whether a result is inline: always for query tools, otherwise by the catalogue or the tool's document."""
    if tool is None:
        return True
    decide = turn.catalogue.inlining
    return tool.inline if decide is None else lambda results: decide(tool, results)


def _without_artifact(query: ArtifactTool, ids: list[str]) -> ArtifactTool:
    """Return a query tool for artifacts that the turn does not have."""

    async def refuse(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        assert ctx.query_guard is not None, "a turn has a guard"  # noqa: S101 - set where contexts are made
        await ctx.query_guard(query.name, args)
        raise UnknownCall()

    return ArtifactTool(
        name=query.name,
        description=query.description,
        input_schema=query.input_schema.with_enum("callId", ids),
        handler=refuse,
        ephemeral=True,
    )


class RunningCalls:
    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], object] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def has_calls_on(self, of: object) -> bool:
        """Whether a running call uses this object."""
        return any(each is of for each in self._tasks.values())

    def begin(self, on: object) -> "asyncio.Task[Any]":
        """Register the current task as running a call, until `end`."""
        task = asyncio.current_task()
        assert task is not None, "calls are made in tasks"  # noqa: S101 - true of every coroutine that asyncio runs
        self._tasks[task] = on
        return task

    def end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)

    def cancel(self) -> None:
        """Cancel all running calls; the record of each call shows it."""
        for task in tuple(self._tasks):
            task.cancel()
