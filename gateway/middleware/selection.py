"""The tools of a turn: those of its catalogue and no others."""

from gateway.core.context import Context
from gateway.core.pipeline import Next
from gateway.core.tool_registry import ToolRegistry


class SelectTools:
    """Gives a turn a copy of a registry, hidden tools still hidden, in place of what it had."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def __call__(self, ctx: Context, next: Next) -> None:
        ctx.tools = self._registry.copy()
        await next()
