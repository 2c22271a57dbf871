"""One call as one dispatch of its turn: the stages around it, the call itself, and the record if a stage says no."""

import asyncio
from collections.abc import Coroutine
from time import time_ns
from typing import Any, Final

from gateway.core.calls import ToolCall
from gateway.core.canonical import call_id
from gateway.core.context import DispatchContext
from gateway.core.dispatch import dispatch, executor_error
from gateway.core.events import (
    DispatchEnd,
    DispatchStart,
    ErrorEvent,
    IterationEnd,
    IterationStart,
    ToolCallEvent,
    now,
)
from gateway.core.exact_json import fingerprint_of
from gateway.core.ids import new_id
from gateway.core.moments import clock
from gateway.core.pipeline import Next, is_abort, is_being_cancelled
from gateway.core.registry import copy_containers
from gateway.core.reporting import Reporter
from gateway.core.settling import Inlining, ProposedCall, run_tool, settle_call
from gateway.core.tokens import Tokenizable
from gateway.core.tools import ArtifactTool, Tool
from gateway.errors import GatewayError, UnknownCall, message_of
from gateway.serving.current import ServedCall, serve, serve_no_longer, serving
from gateway.serving.turns import Turn
from gateway.snapshot import DeclaredTool

_EVENTS: Final = (DispatchStart, IterationStart, IterationEnd, DispatchEnd, ErrorEvent, ToolCallEvent)
_OF_A_DISPATCH: Final = frozenset({"*", *(kind.name for kind in _EVENTS)})

PROPOSED_CALLS: Final = "gateway.proposedCalls"
"""Where middleware finds, in the stash of a dispatch, the exact digests of calls that are about to be made."""

EARLIER_CALLS: Final = "gateway.earlierCalls"
"""And how often each was made in the implicit turn, by its digest."""


def settled_call(turn: Turn, call: ServedCall, *, inline: Inlining) -> Coroutine[Any, Any, ToolCall]:
    """The record of a call, which is durable."""
    catalogue = turn.catalogue
    tool = catalogue.registry.get(call.tool)
    is_alone = turn.is_untouched and not turn.is_stored and isinstance(call.given, dict)
    is_plain = is_alone and not (catalogue.dispatch_input or catalogue.dispatch_output)
    if tool is None or not is_plain or turn.hears_any(_OF_A_DISPATCH):
        return dispatched(turn, call, inline=inline)
    return _alone(turn, call, tool, inline=inline)


async def dispatched(turn: Turn, call: ServedCall, *, inline: Inlining) -> ToolCall:
    """One dispatch with one iteration: the call."""
    catalogue = turn.catalogue
    proposed = ProposedCall(call.id, call.tool, call.given)
    record: ToolCall | None = None
    began = time_ns() if call.seen is not None else 0
    dispatch_id: str | None = None

    async def announce(ctx: DispatchContext, next: Next) -> None:
        fingerprint = call.fingerprint or fingerprint_of(call.tool, call.args)
        ctx.stash.set(PROPOSED_CALLS, [fingerprint])
        if turn.implicit is not None:
            ctx.stash.set(EARLIER_CALLS, {fingerprint: turn.memory.times(fingerprint)})
        await next()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        nonlocal record, dispatch_id
        dispatch_id = ctx.dispatch_id
        _offer_query(turn, ctx, call)
        with serving(call):
            record = await settle_call(ctx, reporter, proposed, spool=turn.spool, inline=inline, failed=call.fail)

    async def acknowledge(ctx: DispatchContext, next: Next) -> None:
        """Last of all: an iteration that the executor acks has no output stages."""
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
            return await refused(turn, call, error)
    finally:
        if began and call.seen is not None:
            call.seen.dispatched(dispatch_id, since=began, is_acked=record is not None)
    if record is None:
        return await refused(turn, call, GatewayError("the call was given up"))
    return record


class Unaccompanied:
    """The dispatch of a call that is alone in its turn, around which no stage stands and which nobody watches.

    It knows the little that every call needs; whoever wants more of it is given the real one, made at that moment.
    """

    __slots__ = ("_id", "_made", "_turn", "emit", "hears", "turn_id")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._made: DispatchContext | None = None
        self._id: str | None = None
        self.turn_id = turn.id
        self.emit = turn.emit
        self.hears = turn.hears

    @property
    def dispatch_id(self) -> str:
        if self._id is None:
            self._id = new_id()
        return self._id

    @property
    def dispatch(self) -> DispatchContext:
        if self._made is None:
            self._made = DispatchContext(self._turn.ctx, buses=self._turn.buses)
            self._made.dispatch_id = self.dispatch_id
        return self._made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dispatch, name)

    def end(self, *, is_acked: bool) -> None:
        if self._made is not None:
            if is_acked:
                self._made.ack()
            self._made.release()


async def _alone(turn: Turn, call: ServedCall, tool: Tool, *, inline: Inlining) -> ToolCall:
    """What `dispatched` does, with nothing made that such a call does not need."""
    created = clock()
    ctx = Unaccompanied(turn)
    checksum = call.checksum or call_id(call.tool, call.args)
    is_acked = False
    token = serve(call)
    try:
        results, is_error = await run_tool(
            tool, call.args, ctx, spool=turn.spool, id=call.id, checksum=checksum, failed=call.fail
        )
        record = ToolCall.of_settled(
            id=call.id,
            tool=call.tool,
            args=call.args,
            checksum=checksum,
            is_error=is_error,
            results=copy_containers(results),
            from_artifact_tool=False,
            inline=inline if inline is True or inline is False else await inline(results),
            trusted=tool.trusted,
            created=created,
            completed=clock(),
        )
        await turn.store(record)
        turn.adopt(record)
        is_acked = True
        return record
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        why = GatewayError("the call was given up")
    except Exception as error:
        given_up = is_abort(error, aborted=False)
        why = GatewayError("the call was given up") if given_up else executor_error(error)
    finally:
        serve_no_longer(token)
        ctx.end(is_acked=is_acked)
    return await refused(turn, call, why)


def _offer_query(turn: Turn, ctx: DispatchContext, call: ServedCall) -> None:
    """Query tools can always be called by name; without an artifact to ask about, every id is an invalid argument.

    An artifact that the caller may not read is none of the turn's. The handler refuses it, as it decides.
    """
    query = turn.catalogue.queries.get(call.tool)
    target = call.target
    is_missing = target is not None and not turn.ctx.has_tool_call(target.id)
    if query is not None and (is_missing or not ctx.tools.has(query.name)):
        ids = [target.id] if target is not None and is_missing else []
        ctx.tools.register(_about_nothing(query, ids), overwrite=True)


async def refused(turn: Turn, call: ServedCall, error: GatewayError) -> ToolCall:
    """The record of a call that a pipeline did not let through."""
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
    with serving(call):
        await turn.ctx.store_tool_call(record)
    return record


def inlining(turn: Turn, tool: DeclaredTool | None) -> Inlining:
    """Query tools answer in place; a tool's result as its catalogue or its document says."""
    if tool is None:
        return True
    decide = turn.catalogue.inlining
    return tool.inline if decide is None else lambda results: decide(tool, results)


def _about_nothing(query: ArtifactTool, ids: list[str]) -> ArtifactTool:
    """A query tool for artifacts that the turn does not have."""

    async def refuse(args: dict[str, Any], ctx: DispatchContext, meta: object) -> str:
        assert ctx.query_guard is not None, "a turn has a guard"  # noqa: S101 - set where contexts are made
        await ctx.query_guard(query.name, args)
        raise UnknownCall()

    return ArtifactTool(
        name=query.name,
        description=query.description,
        input_schema=query.input_schema.narrowed("callId", ids),
        handler=refuse,
        ephemeral=True,
    )
