"""Sizes of results: which are shown in place, and which are too large for their class."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from gateway.core.artifacts import is_artifact
from gateway.core.context import Context
from gateway.core.lines import encode
from gateway.core.pipeline import Next
from gateway.core.spool import chunks_of
from gateway.core.tokens import Tokenizable
from gateway.errors import ArtifactError
from gateway.governance.ports import BackendFailed, Invocation
from gateway.middleware.chain import Run
from gateway.middleware.redaction import ClassOf
from gateway.middleware.reuse import size_in_bytes


class InlineSmallResults:
    """Shows results below a size in place and leaves larger ones behind a handle.

    A class's own limit wins over `below`; where neither says anything, results stay as they are.
    """

    def __init__(self, below: int | None, class_of: ClassOf = lambda tool: None) -> None:
        self._below = below
        self._class_of = class_of

    async def decide(self, results: Any, *, default: bool, limit: int | None = None) -> bool:
        """Whether results are shown in place. `default` is for what has no handle, or no size that can be known."""
        below = self._below if limit is None else limit
        items = results if isinstance(results, list) else [results]
        if below is None or not all(map(is_artifact, items)):
            return default
        size = await size_of(results)
        return default if size is None else size < below

    async def __call__(self, ctx: Context, next: Next) -> None:
        for call in ctx.turn_tool_calls:
            kind = self._class_of(call.tool)
            limit = None if kind is None else kind.inline_below
            inline = await self.decide(call.results, default=call.inline, limit=limit)
            if inline != call.inline:
                await ctx.mutate_tool_call(call.replace(inline=inline))
        await next()


class SizeLimit:
    """Refuses results that are larger than their class allows. What streams in is cut off, so nothing of it is kept."""

    def __init__(self, max_size: int, *, of: str) -> None:
        self._max_size = max_size
        self._of = of

    async def __call__(self, call: Invocation, run: Run) -> Any:
        result = await run(replace(call, keep=lambda content: call.keep(self._counted(content))))
        if isinstance(result, str | bytes | bytearray | memoryview):
            self._check(size_in_bytes(result if isinstance(result, str) else bytes(result)))
        return result

    async def _counted(self, content: Any) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in chunks_of(content):
            size += len(chunk)
            self._check(size)
            yield chunk

    def _check(self, size: int) -> None:
        if size > self._max_size:
            raise BackendFailed(
                "failed",
                f"the result is larger than the {self._max_size} bytes that {self._of} may have; nothing was kept",
                help="ask for less at once",
            )


async def size_of(results: Any, ctx: Context | None = None) -> int | None:
    """Bytes of a call's results; `None` if one of them does not know its own, or is gone."""
    if isinstance(results, list):
        sizes = [await size_of(each, ctx) for each in results]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None
    if isinstance(results, Tokenizable):
        return len(encode(results.render(ctx)))
    try:
        size: int | None = await results.byte_length()
    except ArtifactError:
        return None
    return size
