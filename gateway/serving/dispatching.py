"""One call as one dispatch of its turn: the stages around it, the call itself, and the record if a stage says no."""

from typing import Final

from gateway.core.calls import ToolCall
from gateway.core.canonical import call_id
from gateway.core.context import DispatchContext
from gateway.core.dispatch import dispatch
from gateway.core.events import IterationEnd, now
from gateway.core.pipeline import Next
from gateway.core.reporting import Reporter
from gateway.core.settling import Inlining, ProposedCall, settle_call
from gateway.core.tokens import Tokenizable
from gateway.core.tools import ArtifactTool
from gateway.errors import GatewayError, UnknownCall, message_of
from gateway.serving.current import ServedCall, serving
from gateway.serving.turns import Turn
from gateway.snapshot import DeclaredTool

PROPOSED_CALLS: Final = "gateway.proposedCalls"
"""Where middleware finds, in the stash of a dispatch, the checksums of calls that are about to be made."""


async def dispatched(turn: Turn, proposed: ProposedCall, call: ServedCall, *, inline: Inlining) -> ToolCall:
    """One dispatch with one iteration: the call."""
    record: ToolCall | None = None
    query = turn.catalogue.queries.get(proposed.tool)

    async def announce(ctx: DispatchContext, next: Next) -> None:
        ctx.stash.set(PROPOSED_CALLS, [call_id(call.tool, call.args)])
        await next()

    async def execute(ctx: DispatchContext, reporter: Reporter) -> None:
        nonlocal record
        if query is not None and not ctx.tools.has(query.name):
            ctx.tools.register(_about_nothing(query))
        with serving(call):
            record = await settle_call(ctx, reporter, proposed, spool=turn.spool, inline=inline)
        if not output:
            ctx.ack()

    async def acknowledge(ctx: DispatchContext, next: Next) -> None:
        """Last of all: an iteration that the executor acks has neither output stages nor an end."""
        await next()
        ctx.ack()

    catalogue = turn.catalogue
    is_heard = bool(catalogue.dispatch_output) or turn.ctx.hears(IterationEnd)
    output = [acknowledge, *catalogue.dispatch_output] if is_heard else []
    try:
        await dispatch(
            source=turn.ctx,
            executor=execute,
            input_pipeline=[announce, *stages] if (stages := catalogue.dispatch_input) else (),
            output_pipeline=output,
            buses=turn.buses,
        )
    except GatewayError as error:
        if record is None:
            return await refused(turn, proposed, call, error)
    if record is None:
        return await refused(turn, proposed, call, GatewayError("the call was given up"))
    return record


async def refused(turn: Turn, proposed: ProposedCall, call: ServedCall, error: GatewayError) -> ToolCall:
    """The record of a call that a pipeline did not let through."""
    moment = now()
    cause = error.cause if isinstance(error.cause, GatewayError) else error
    args = proposed.args if isinstance(proposed.args, dict) else {}
    record = ToolCall(
        id=proposed.id,
        tool=proposed.tool,
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


def _about_nothing(query: ArtifactTool) -> ArtifactTool:
    """A query tool for a turn without anything to ask about: every id is an invalid argument."""
    return ArtifactTool(
        name=query.name,
        description=query.description,
        input_schema=query.input_schema.narrowed("callId", []),
        handler=_never,
        ephemeral=True,
    )


def _never(args: object, ctx: object, meta: object) -> str:
    raise UnknownCall()
