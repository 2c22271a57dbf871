"""Execute one call as a dispatch of its turn: run the stages and the tool, or record that it was refused.

Arguments are read here, and identify the call. Arguments that cannot be read or hashed are refused when the call runs,
not here; large ones are read in a thread. `RunningCalls` tracks the calls that run in this process.
"""

import asyncio
from time import time_ns
from typing import Any, Final

from gateway.engine.call import Call, call_context, reset_current_call, set_current_call
from gateway.engine.observer import CallObservation
from gateway.engine.stages.turn_stages import EARLIER_CALLS, PROPOSED_CALLS
from gateway.engine.turn_pipeline.dispatch_loop import forge_into, run_dispatch_stages, to_executor_error
from gateway.engine.turn_pipeline.tool_execution import (
    decode_call,
    execute_tool,
    refuse_arguments,
    refuse_unknown_tool,
)
from gateway.engine.turns.turn import Turn
from gateway.errors import GatewayError, UnknownCall, message_of
from gateway.model import (
    LARGE,
    ArtifactTool,
    CallIdentity,
    DispatchContext,
    DispatchEnd,
    DispatchStart,
    DispatchStatus,
    ErrorEvent,
    IterationEnd,
    IterationStart,
    QueryGuard,
    Reporter,
    Tokenizable,
    Tool,
    ToolCall,
    ToolCallEvent,
    ToolRegistry,
    WarningEvent,
    call_id,
    call_identity,
    decode_arguments,
    deep_copy_containers,
    elapsed_milliseconds,
    fast_call_identity,
    is_abort,
    is_short,
    is_task_cancelled,
    new_id,
    now,
    now_microseconds,
    run_in_json_thread,
)

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


class ServedDispatch:
    """The dispatch of one served call.

    It has the few attributes that every call needs; any other attribute creates the real dispatch context, which
    plug-in stages and some handlers use.
    """

    __slots__ = ("_context", "_id", "_turn", "emit", "has_listener", "record_execution", "turn_id")

    iteration: Final = 0

    def __init__(self, turn: Turn, seen: CallObservation | None) -> None:
        self._turn = turn
        self.record_execution = None if seen is None else seen.record_execution
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
            forge_into(self._context)
        return self._context

    @property
    def tools(self) -> ToolRegistry:
        return self._turn.tools if self._context is None else self._context.tools

    @property
    def query_guard(self) -> QueryGuard | None:
        return self._turn.query_guard

    @property
    def turn_tool_calls(self) -> list[ToolCall]:
        return list(self._turn.calls) if self._context is None else self._context.turn_tool_calls

    @property
    def turn_retrievables(self) -> list[Any]:
        return self._turn.retrievables if self._context is None else self._context.turn_retrievables

    @property
    def goes_on(self) -> bool:
        """Whether no stage has aborted the turn or ended the dispatch."""
        return self._context is None or not (self._context.aborted or self._context.is_signalled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatch, name)

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None:
        self.emit(WarningEvent(now(), "context", kind, message, error, dispatch_id=self.dispatch_id, iteration=0))

    def add_record(self, record: ToolCall, fingerprint: str) -> None:
        """Add the call to its turn, by way of the dispatch context if there is one."""
        if self._context is None:
            self._turn.add_call(record, fingerprint)
        else:
            self._context.add_stored_call(record)

    def end(self, *, is_acked: bool) -> None:
        if self._context is not None:
            if is_acked and not self._context.is_signalled:
                self._context.ack()
            self._context.release()


async def execute(turn: Turn, call: Call) -> ToolCall:
    """Execute a call as one dispatch of its turn and return its durable record.

    The steps: the loop guard, the input stages, the tool with its guard inside its handler, the durable record, the
    output stages. A call that a stage refuses has a record, too.
    """
    catalogue, ctx = turn.catalogue, ServedDispatch(turn, call.seen)
    events = DispatchEvents(ctx, call) if turn.has_any_listener(_OF_A_DISPATCH) else None
    is_observed = call.seen is not None and call.seen.has_dispatch
    began = time_ns() if is_observed else 0
    record: ToolCall | None = None
    reached: str | None = None
    why: GatewayError | None = None
    token = set_current_call(call)
    try:
        if catalogue.loop_guard is not None:
            catalogue.loop_guard.check_count(turn.count_calls(call.fingerprint or _identify(call)), ctx)
        if catalogue.dispatch_input:
            _announce(turn, call, ctx.dispatch)
            await run_dispatch_stages(ctx.dispatch, catalogue.dispatch_input, "dispatch-input")
        if ctx.goes_on:
            reached = ctx.dispatch_id if is_observed else None
            record = await _run_tool(turn, call, ctx, events)
            if catalogue.dispatch_output and ctx.goes_on:
                await run_dispatch_stages(ctx.dispatch, catalogue.dispatch_output, "dispatch-output")
    except asyncio.CancelledError:
        if is_task_cancelled():
            raise
    except Exception as error:
        if not is_abort(error, aborted=not ctx.goes_on):
            why = to_executor_error(error)
    finally:
        reset_current_call(token)
        ctx.end(is_acked=record is not None)
        if events is not None:
            events.end(why, is_acked=record is not None)
        if is_observed and call.seen is not None:
            call.seen.record_dispatch(reached, since=began, is_acked=record is not None)
    if record is not None:
        return record
    return await record_refusal(turn, call, why or GatewayError("the call was given up"))


async def _run_tool(turn: Turn, call: Call, ctx: ServedDispatch, events: "DispatchEvents | None") -> ToolCall:
    """Run the tool and make its outcome durable."""
    created = now_microseconds()
    args, checksum, defect = call.args, call.checksum, None
    if not checksum or not isinstance(call.given, dict):
        try:
            args, checksum = decode_call(call.tool, call.given)
        except (TypeError, ValueError) as error:
            args, checksum, defect = {}, call_id(call.tool, {}), error
    if events is not None:
        events.begin_call(args)
    tool = _find_tool(turn, call, ctx)
    if defect is not None:
        results, is_error = refuse_arguments(defect, call.given, call.fail)
    elif tool is None:
        results, is_error = refuse_unknown_tool(call.tool, ctx.tools, call.fail)
    else:
        results, is_error = await execute_tool(
            tool, args, ctx, spool=turn.spool, id=call.id, checksum=checksum, on_failure=call.fail
        )
    inline = True if call.declared is None else call.declared.inline
    if call.declared is not None and turn.catalogue.inlining is not None:
        inline = await turn.catalogue.inlining(call.declared, results)
    record = ToolCall.from_result(
        id=call.id,
        tool=call.tool,
        args=args,
        checksum=checksum,
        is_error=is_error,
        results=deep_copy_containers(results) if isinstance(results, list) else results,  # only lists are mutable
        from_artifact_tool=isinstance(tool, ArtifactTool),
        inline=inline,
        trusted=tool is not None and tool.trusted,
        created=created,
        completed=now_microseconds(),
    )
    if events is not None:
        events.end_call(record)
    since = 0 if call.seen is None else time_ns()
    await turn.store(record)
    if call.seen is not None:
        call.seen.record_step("record", since=since)
    ctx.add_record(record, call.fingerprint)
    return record


def _identify(call: Call) -> str:
    """Return the digest of the call; empty if its arguments cannot be hashed, which the tool refuses."""
    try:
        return call_id(call.tool, call.args)
    except (TypeError, ValueError):
        return ""


def _announce(turn: Turn, call: Call, ctx: DispatchContext) -> None:
    """Give input stages the digest of the call, and how often it was made before the turn had records."""
    fingerprint = call.fingerprint or _identify(call)
    ctx.stash.set(PROPOSED_CALLS, [fingerprint])
    if turn.implicit is not None:
        ctx.stash.set(EARLIER_CALLS, {fingerprint: turn.state.count_calls(fingerprint)})


def _find_tool(turn: Turn, call: Call, ctx: ServedDispatch) -> Tool | None:
    """Return the tool; a query tool is created for the artifact that it reads.

    The turn does not have an artifact that the caller may not read. The handler refuses it, as it decides. Without an
    artifact to read, every id is an invalid argument.
    """
    query = turn.catalogue.queries.get(call.tool)
    if query is None:
        return ctx.tools.get(call.tool)
    target = call.target
    if target is not None and not turn.calls.has(target.id):
        return _without_artifact(query, [target.id])
    return turn.find_query_tool(query.name, call.args.get("callId")) or _without_artifact(query, [])


class DispatchEvents:
    """Emits the events of a dispatch with one iteration and one call to its listeners."""

    def __init__(self, ctx: ServedDispatch, call: Call) -> None:
        self._ctx = ctx
        self._call = call
        self._reporter = Reporter(ctx)
        self._began = now()
        ctx.emit(DispatchStart(ctx.dispatch_id, self._began))
        ctx.emit(IterationStart(ctx.dispatch_id, 0, self._began))

    def begin_call(self, args: dict[str, Any]) -> None:
        self._reporter.report_tool_call(self._call.id, tool=self._call.tool, args=args)

    def end_call(self, record: ToolCall) -> None:
        self._reporter.report_tool_call(record.id, results=record.results, is_error=record.is_error, is_complete=True)

    def end(self, error: GatewayError | None, *, is_acked: bool) -> None:
        """Emit the end events; they follow every start event, also on cancellation."""
        ctx, began, ended = self._ctx, self._began, now()
        took = elapsed_milliseconds(began, ended)
        ctx.emit(IterationEnd(ctx.dispatch_id, 0, began, ended, took))
        if error is not None:
            ctx.emit(ErrorEvent(error))
        status: DispatchStatus = "nack" if error is not None else "ack" if is_acked else "aborted"
        ctx.emit(DispatchEnd(ctx.dispatch_id, status, 1 if is_acked else 0, began, ended, took, error))


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
        await turn.store(record)
    turn.add_call(record, call.fingerprint or None)
    return record


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
