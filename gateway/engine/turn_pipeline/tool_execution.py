"""Execute a proposed tool call: run the tool, wrap and report its result, store its record.

Any defect of a call (arguments that are not JSON, an unknown tool, a failing handler, a result of the wrong shape)
becomes an error record that the model can read and learn from.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import uuid4

from gateway.artifacts import SpooledArtifact
from gateway.errors import InvalidToolArgs, Refused, ResultNotStored, ToolDownstreamError, UnknownTool, message_of
from gateway.model import (
    UNNAMED_TOOL,
    ArtifactTool,
    ByteStore,
    DispatchContext,
    Media,
    Reporter,
    Results,
    Tokenizable,
    Tool,
    ToolCall,
    ToolContext,
    ToolRegistry,
    call_id,
    candidate_call_ids,
    decode_arguments,
    deep_copy_containers,
    is_artifact,
    now_microseconds,
)

_QUOTED: Final = 200
_LONGEST_TEXT: Final = 16_384
"""Maximum characters of an error text: a model pays for every one of them, and upstreams can be long-winded."""


@dataclass(slots=True)
class ProposedCall:
    """A call as a model or a client requests it; `args` may still be JSON text."""

    id: str
    tool: str
    args: dict[str, Any] | str | None = None


ToolOutcome = tuple[Results, bool]
"""The results of a call, and whether they are an error."""


class ToolRunContext(ToolContext, Protocol):
    """What running a tool needs from its context."""

    def emit_warning(self, kind: str, message: str, error: BaseException | None = None) -> None: ...


OnFailure = Callable[[Exception], str | None]
"""Receives the error of a failed call before its record is stored; may return a message that replaces the error's."""

InlinePolicy = bool | Callable[[Results], Awaitable[bool]]
"""Whether a result is shown whole: decided in advance, or from the result."""


async def settle_calls(
    ctx: DispatchContext,
    reporter: Reporter,
    calls: Iterable[ProposedCall],
    *,
    spool: ByteStore,
    inline: InlinePolicy = True,
) -> list[ToolCall]:
    """Settle calls one after the other, in the given order; after an abort the rest is skipped."""
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
    inline: InlinePolicy = True,
    on_failure: OnFailure | None = None,
) -> ToolCall:
    """Run one call and store its record. An id already used in this turn gets a suffix."""
    created = now_microseconds()
    id = _make_unique_id(ctx, reporter, proposed.id)
    name = proposed.tool or UNNAMED_TOOL
    tool = ctx.tools.get(name) if proposed.tool else None
    try:
        args, checksum = decode_call(name, proposed.args)
        defect = None
    except (TypeError, ValueError) as error:
        args, checksum, defect = {}, None, error
    reporter.report_tool_call(id, tool=name, args=args)
    if defect is not None:
        results, is_error = refuse_arguments(defect, proposed.args, on_failure)
    elif tool is None:
        results, is_error = refuse_unknown_tool(name, ctx.tools, on_failure)
    else:
        results, is_error = await execute_tool(
            tool, args, ctx, spool=spool, id=id, checksum=checksum, on_failure=on_failure
        )
    completed = now_microseconds()
    record = ToolCall.from_result(
        id=id,
        tool=name,
        args=args,
        checksum=checksum or call_id(name, args),
        is_error=is_error,
        results=deep_copy_containers(results),
        from_artifact_tool=isinstance(tool, ArtifactTool),
        inline=inline if isinstance(inline, bool) else await inline(results),
        trusted=tool is not None and tool.trusted,
        created=created,
        completed=completed,
    )
    reporter.report_tool_call(id, results=record.results, is_error=record.is_error, is_complete=True)
    await ctx.store_tool_call(record)
    return record


async def execute_tool(
    tool: Tool,
    args: dict[str, Any],
    ctx: ToolRunContext,
    *,
    spool: ByteStore,
    id: str,
    checksum: str | None,
    on_failure: OnFailure | None = None,
) -> ToolOutcome:
    """Run a tool and return its outcome; failures become error results."""
    try:
        value = await tool.run(args, ctx, checksum)
    except Exception as error:
        is_ours = isinstance(error, InvalidToolArgs | ToolDownstreamError)
        message = _report(on_failure, error if is_ours else InvalidToolArgs(cause=error))
        return _to_failure(tool, error, ctx) if message is None else _failure(message)
    if isinstance(value, SpooledArtifact) and not isinstance(tool, ArtifactTool):  # its handler has stored it
        return value, False
    return await _store_result(tool, value, ctx, spool, id)


def refuse_arguments(defect: Exception, given: Any, on_failure: OnFailure | None) -> ToolOutcome:
    """Return the outcome of a call whose arguments cannot be read."""
    _report(on_failure, InvalidToolArgs(cause=defect))
    return _failure(f"{defect}; received: {_quote(given)}")


def refuse_unknown_tool(name: str, tools: ToolRegistry, on_failure: OnFailure | None) -> ToolOutcome:
    _report(on_failure, UnknownTool())
    return _failure(_unknown_tool(name, tools))


def _to_failure(tool: Tool, error: Exception, ctx: ToolRunContext) -> ToolOutcome:
    """Return the outcome of a call whose tool raised this error."""
    if not isinstance(error, InvalidToolArgs | ToolDownstreamError):  # a custom validator failed; its tool did not run
        ctx.emit_warning("arguments-not-checked", f"the arguments of {tool.name!r} could not be checked", error)
        return _failure(f"the arguments could not be checked: {message_of(error)}")
    if isinstance(error.cause, Refused | ResultNotStored):  # the tool did not run, or ran to its end
        return _failure(error.cause.message)
    return _failure(f"{error.message}: {message_of(error if error.cause is None else error.cause)}")


async def _store_result(tool: Tool, value: Any, ctx: ToolRunContext, spool: ByteStore, id: str) -> ToolOutcome:
    """Return the outcome of a call whose tool returned this value."""
    try:
        return await _wrap_value(tool, value, spool, id)
    except Exception as error:  # the handler has run: its outcome must not be lost
        ctx.emit_warning("result-not-kept", f"the result of {tool.name!r} could not be kept", error)
        return _failure(f"the tool ran, but its result could not be kept: {message_of(error)}")


async def _wrap_value(tool: Tool, value: Any, spool: ByteStore, id: str) -> ToolOutcome:
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


def _report(on_failure: OnFailure | None, error: Exception) -> str | None:
    return None if on_failure is None else on_failure(error)


def _failure(text: str) -> ToolOutcome:
    return Tokenizable(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"), True


def _make_unique_id(ctx: DispatchContext, reporter: Reporter, id: str) -> str:
    """Return the id, or a new one if a call or part of a result has it: providers reuse ids, even of running calls."""
    used = reporter.has_reported(id) or any(map(ctx.has_tool_call, candidate_call_ids(id)))
    return f"{id or 'call'}-{uuid4()}" if used or not id else id


def decode_call(name: str, args: dict[str, Any] | str | None) -> tuple[dict[str, Any], str]:
    """Return the arguments and the call's id: arguments that cannot be hashed cannot become a record."""
    is_blank = args is None or (isinstance(args, str) and not args.strip())
    decoded = decode_arguments({} if is_blank else args)
    return decoded, call_id(name, decoded)


def _quote(args: Any) -> str:
    text = args if isinstance(args, str) else type(args).__name__
    return repr(text[:_QUOTED]) + ("…" if len(text) > _QUOTED else "")


def _unknown_tool(name: str, tools: ToolRegistry) -> str:
    names = sorted(tool.name for tool in tools.visible())
    available = f"available tools: {', '.join(names)}" if names else "no tools are available"
    return f"there is no tool named {_quote(name)}; {available}"
