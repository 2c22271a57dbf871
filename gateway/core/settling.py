"""From a proposed call to its settled record: run the tool, wrap what it returned, report, store.

Whatever is wrong with a call (arguments that are not JSON, an unknown tool, a failing handler, a
result of the wrong shape) becomes an error record the model can read and learn from.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeGuard
from uuid import uuid4

from gateway.core.artifacts import SpooledArtifact, calls_named_by, is_artifact
from gateway.core.calls import UNNAMED_TOOL, Results, ToolCall, decode_args
from gateway.core.canonical import call_id
from gateway.core.context import DispatchContext
from gateway.core.media import Media
from gateway.core.moments import clock
from gateway.core.registry import copy_containers
from gateway.core.reporting import Reporter
from gateway.core.spool import ByteStore
from gateway.core.tokens import Tokenizable
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import ArtifactTool, Tool, ToolContext
from gateway.errors import InvalidToolArgs, Refused, ResultNotKept, ToolDownstreamError, UnknownTool, message_of

_QUOTED: Final = 200
_LONGEST_TEXT: Final = 16_384
"""Characters of an error text: a model pays for every one of them, and upstreams can be long-winded."""


@dataclass(slots=True)
class ProposedCall:
    """A call as a model or a client asks for it; `args` may still be JSON text."""

    id: str
    tool: str
    args: dict[str, Any] | str | None = None


Outcome = tuple[Results, bool]
"""What a call comes to, and whether that is an error."""


class Surroundings(ToolContext, Protocol):
    """What running a tool needs to know of where it runs."""

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None: ...


Failed = Callable[[Exception], str | None]
"""Hears of the error that made a call fail, before the call's record is stored; what it returns is told instead."""

Inlining = bool | Callable[[Results], Awaitable[bool]]
"""Whether a result is shown whole: decided beforehand, or by looking at it."""


async def settle_calls(
    ctx: DispatchContext,
    reporter: Reporter,
    calls: Iterable[ProposedCall],
    *,
    spool: ByteStore,
    inline: Inlining = True,
) -> list[ToolCall]:
    """Settle calls one after the other, in the given order; an abort leaves the rest alone."""
    settled = []
    for proposed in calls:
        if ctx.aborted:
            break
        settled.append(await settle_call(ctx, reporter, proposed, spool=spool, inline=inline))
    return settled


async def settle_call(
    ctx: DispatchContext,
    reporter: Reporter,
    proposed: ProposedCall,
    *,
    spool: ByteStore,
    inline: Inlining = True,
    failed: Failed | None = None,
) -> ToolCall:
    """Run one call and store its record. An id already used in this turn is given a suffix."""
    created = clock()
    id = _unused_id(ctx, reporter, proposed.id)
    name = proposed.tool or UNNAMED_TOOL
    tool = ctx.tools.get(name) if proposed.tool else None
    try:
        args, checksum = decoded_call(name, proposed.args)
        defect = None
    except (TypeError, ValueError) as error:
        args, checksum, defect = {}, None, error
    reporter.report_tool_call(id, tool=name, args=args)
    if defect is not None:
        _tell(failed, InvalidToolArgs(cause=defect))
        results, is_error = _failure(f"{defect}; received: {_quoted(proposed.args)}")
    elif tool is None:
        _tell(failed, UnknownTool())
        results, is_error = _failure(_unknown_tool(name, ctx.tools))
    else:
        results, is_error = await run_tool(tool, args, ctx, spool=spool, id=id, checksum=checksum, failed=failed)
    completed = clock()
    record = ToolCall.of_settled(
        id=id,
        tool=name,
        args=args,
        checksum=checksum or call_id(name, args),
        is_error=is_error,
        results=copy_containers(results),
        from_artifact_tool=isinstance(tool, ArtifactTool),
        inline=inline if isinstance(inline, bool) else await inline(results),
        trusted=tool is not None and tool.trusted,
        created=created,
        completed=completed,
    )
    reporter.report_tool_call(id, results=record.results, is_error=record.is_error, is_complete=True)
    await ctx.store_tool_call(record)
    return record


async def run_tool(
    tool: Tool,
    args: dict[str, Any],
    ctx: Surroundings,
    *,
    spool: ByteStore,
    id: str,
    checksum: str | None,
    failed: Failed | None = None,
) -> Outcome:
    """What a call comes to, whatever goes wrong in it."""
    try:
        value = await tool.run(args, ctx, checksum)
    except Exception as error:
        is_ours = isinstance(error, InvalidToolArgs | ToolDownstreamError)
        told = _tell(failed, error if is_ours else InvalidToolArgs(cause=error))
        return _failed(tool, error, ctx) if told is None else _failure(told)
    return (value, False) if _is_kept(tool, value) else await _kept(tool, value, ctx, spool, id)


def _failed(tool: Tool, error: Exception, ctx: Surroundings) -> Outcome:
    """What becomes of a call whose tool raised that when it was run."""
    if not isinstance(error, InvalidToolArgs | ToolDownstreamError):  # a custom validator failed; its tool did not run
        ctx.emit_warning("arguments-not-checked", f"the arguments of {tool.name!r} could not be checked", error)
        return _failure(f"the arguments could not be checked: {message_of(error)}")
    if isinstance(error.cause, Refused | ResultNotKept):  # the tool did not run, or ran to its end
        return _failure(error.cause.message)
    return _failure(f"{error.message}: {message_of(error if error.cause is None else error.cause)}")


def _is_kept(tool: Tool, value: Any) -> TypeGuard[SpooledArtifact]:
    """Whether its handler has kept what a tool returned."""
    return isinstance(value, SpooledArtifact) and not isinstance(tool, ArtifactTool)


async def _kept(tool: Tool, value: Any, ctx: Surroundings, spool: ByteStore, id: str) -> Outcome:
    """What becomes of a call whose tool returned that."""
    try:
        return await _wrapped(tool, value, spool, id)
    except Exception as error:  # the handler did its work: its outcome must not be lost
        ctx.emit_warning("result-not-kept", f"the result of {tool.name!r} could not be kept", error)
        return _failure(f"the tool ran, but its result could not be kept: {message_of(error)}")


async def _wrapped(tool: Tool, value: Any, spool: ByteStore, id: str) -> Outcome:
    if isinstance(tool, ArtifactTool):
        if isinstance(value, str):
            value = Tokenizable(value)
        if isinstance(value, Tokenizable):
            return value, False
        return _failure(f"the query tool returned {type(value).__name__}; it must return text")
    if isinstance(value, str | bytes | bytearray | memoryview):
        constructor = tool.artifact_constructor() if tool.artifact_constructor else SpooledArtifact
        return constructor(await spool.write(id, value)), False
    items = value if isinstance(value, list) else [value]
    if items and (all(isinstance(item, Media) for item in items) or all(is_artifact(item) for item in items)):
        return value, False
    return _failure(f"the tool returned {type(value).__name__}; it must return text, bytes, media or an artifact")


def _tell(failed: Failed | None, error: Exception) -> str | None:
    return None if failed is None else failed(error)


def _failure(text: str) -> Outcome:
    return Tokenizable(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"), True


def _unused_id(ctx: DispatchContext, reporter: Reporter, id: str) -> str:
    """Providers do reuse ids, even for calls in flight; the first artifact under an id stays reachable.

    An id that a piece of an earlier result has, or could have, is used, too.
    """
    used = reporter.has_reported(id) or any(map(ctx.has_tool_call, calls_named_by(id)))
    return f"{id or 'call'}-{uuid4()}" if used or not id else id


def decoded_call(name: str, args: dict[str, Any] | str | None) -> tuple[dict[str, Any], str]:
    """The arguments and the call's id: what cannot be hashed cannot become a record."""
    is_blank = args is None or (isinstance(args, str) and not args.strip())
    decoded = decode_args({} if is_blank else args)
    return decoded, call_id(name, decoded)


def _quoted(args: Any) -> str:
    text = args if isinstance(args, str) else type(args).__name__
    return repr(text[:_QUOTED]) + ("…" if len(text) > _QUOTED else "")


def _unknown_tool(name: str, tools: ToolRegistry) -> str:
    names = sorted(tool.name for tool in tools.visible())
    available = f"available tools: {', '.join(names)}" if names else "no tools are available"
    return f"there is no tool named {_quoted(name)}; {available}"
