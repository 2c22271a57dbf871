"""Forging for a dispatch: each iteration renews the query tools for the artifacts of the turn, and no other tool."""

from collections.abc import Iterator
from typing import Any

from gateway.core.artifacts import SpooledArtifact
from gateway.core.context import Context
from gateway.core.tool_registry import ToolRegistry


def forge_into(ctx: Context) -> None:
    """Replace the query tools that an earlier iteration forged: their `callId` enums are stale.

    Every other ephemeral tool stays until the dispatch is acked. The context knows its forged tools by identity, so a
    tool that took over one of their names stays, too.
    """
    for tool in ctx.forged:
        if ctx.tools.get(tool.name) is tool:
            ctx.tools.unregister(tool.name)
    ctx.forged = forged_tools(ctx).all() if ctx.has_records else ()
    for tool in ctx.forged:
        ctx.tools.register(tool, overwrite=True)


def forged_tools(ctx: Any) -> ToolRegistry:
    """The query tools of every artifact class present among the results, in one registry."""
    classes = dict.fromkeys(type(artifact) for artifact in _artifacts(ctx))
    return ToolRegistry.merge([cls.forge_tools(ctx) for cls in classes])


def _artifacts(ctx: Any) -> Iterator[SpooledArtifact]:
    for call in ctx.turn_tool_calls:
        results = call.results if isinstance(call.results, list) else [call.results]
        yield from (result for result in results if isinstance(result, SpooledArtifact))
    for record in ctx.turn_retrievables:
        if isinstance(record.content, SpooledArtifact):
            yield record.content
