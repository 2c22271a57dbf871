"""Forging for a dispatch: once per iteration the query tools are renewed for the artifacts of the turn."""

from collections.abc import Iterator
from typing import Any

from gateway.core.artifacts import SpooledArtifact
from gateway.core.context import Context
from gateway.core.tool_registry import ToolRegistry


def forge_into(ctx: Context) -> None:
    """Drop every ephemeral tool, then register fresh query tools: the old `callId` enums are stale."""
    ctx.tools.prune_ephemeral()
    if not ctx.has_records:
        return
    for tool in forged_tools(ctx).all():
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
