"""Tools that live on another MCP server, called under our name, description and trust."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any

from gateway.backends.results import MediaTemplate
from gateway.core.deadlines import Deadline, current_deadline
from gateway.governance.ports import BackendFailed, Hop, Invocation
from gateway.serving.current import current_call
from gateway.upstreams.connections import Connection
from gateway.upstreams.messages import RemoteError
from gateway.upstreams.relaying import Relay, conversed
from gateway.upstreams.results import aside_of, failure_of, result_blocks, value_of


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """One tool over there. `arranged` makes its arguments of those that callers gave."""

    name: str
    json_results: bool = False
    media: MediaTemplate | None = None
    timeout: timedelta = timedelta(seconds=60)
    arranged: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


class McpBackend:
    """The connection is the caller's to close: other tools of the same server use it, too."""

    def __init__(self, tool: RemoteTool, connection: Connection) -> None:
        self._tool = tool
        self._connection = connection
        self._seconds = tool.timeout.total_seconds()

    async def run(self, call: Invocation) -> Any:
        tool = self._tool
        arguments = call.args if tool.arranged is None else tool.arranged(call.args)
        params: dict[str, Any] = {"name": tool.name, "arguments": dict(arguments)}
        if call.hops is None:
            return await self._called(call, params, None)
        host, port = self._connection.peer or (None, None)
        hop = call.hops.mcp("tools/call", tool=tool.name, upstream=self._connection.name, host=host, port=port)
        if hop is None:
            return await self._called(call, params, None)
        params["_meta"] = dict(hop.fields)
        try:
            value = await self._called(call, params, hop)
        except RemoteError as error:
            hop.end(code=error.number)
            raise
        except BaseException as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            hop.end(error=error.word if isinstance(error, BackendFailed) else ("failed", "cancelled")[is_cancelled])
            raise
        hop.end()
        return value

    async def _called(self, call: Invocation, params: dict[str, Any], hop: Hop | None) -> Any:
        tool = self._tool
        served = current_call()
        deadline = Deadline(monotonic() + self._seconds, monotonic, current_deadline())
        relay = Relay(served.client, call.principal, deadline)
        if meta := relay.meta:
            params["_meta"] = {**meta, **params.get("_meta", {})}
        try:
            async with asyncio.timeout(self._seconds) as scope:
                deadline.scope = scope
                result = await conversed(self._connection, "tools/call", params, relay)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise BackendFailed("unavailable", f"no result within {self._seconds:g} s") from error
        finally:
            deadline.scope = None
        try:
            blocks = result_blocks(result)
            if result.get("isError") is True:
                if hop is not None:
                    hop.end(error="tool_error")
                raise failure_of(blocks)
            value = value_of(result, blocks, json_results=tool.json_results, media=tool.media)
            served.aside = aside_of(result, json_results=tool.json_results)
        except (TypeError, ValueError, RecursionError) as error:  # what was read cannot always be written again
            raise BackendFailed("failed", "the upstream server's result is nested too deeply") from error
        return value

    async def close(self) -> None:
        """Nothing is held that others do not use."""
