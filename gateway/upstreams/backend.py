"""Tools that live on another MCP server, called under our name, description and trust."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any

import orjson

from gateway.backends.promised import OutputMismatch
from gateway.backends.results import MediaTemplate
from gateway.core.bounded_json import LARGE, read_apart
from gateway.core.deadlines import Deadline, current_deadline
from gateway.core.lines import encode
from gateway.core.promises import MAX_PROMISED, NOTHING, Promise
from gateway.governance.ports import BackendFailed, Hop, Invocation
from gateway.serving.current import Client, current_call
from gateway.upstreams.connections import Connection
from gateway.upstreams.messages import Json, RemoteError
from gateway.upstreams.relaying import Relay, conversed
from gateway.upstreams.results import MAX_STRUCTURED, aside_of, failure_of, result_blocks, text_of, value_of
from gateway.upstreams.tasks import legacy_result, takes_tasks


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """One tool over there. `arranged` makes its arguments of those that callers gave."""

    name: str
    json_results: bool = False
    media: MediaTemplate | None = None
    timeout: timedelta = timedelta(seconds=60)
    arranged: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    promise: Promise | None = None
    """What its results have to fit."""
    as_task: bool = False
    """Whether an older server runs it as a task only."""


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
        outer = current_deadline()
        if outer is not None and outer.left <= self._seconds:  # whoever set it ends the call before we would
            result = await self._conversed(params, Relay(served.client, call.principal, outer))
        else:
            result = await self._in_time(call, params, served.client, outer)
        try:
            blocks = result_blocks(result)
            if result.get("isError") is True:
                if hop is not None:
                    hop.end(error="tool_error")
                raise failure_of(blocks)
            if tool.promise is not None:
                result = _kept(result, blocks, tool.promise)
            value = await self._value(result, blocks)
            limit = MAX_STRUCTURED if tool.promise is None else MAX_PROMISED
            served.aside = aside_of(result, json_results=tool.json_results, limit=limit)
        except (TypeError, ValueError, RecursionError) as error:  # what was read cannot always be written again
            raise BackendFailed("failed", "the upstream server's result is nested too deeply") from error
        if tool.promise is None or not isinstance(value, str):
            return value
        if tool.promise.found_in(value) == result["structuredContent"]:
            return value
        return await call.keep([encode(value)])  # whoever gets the text alone could not tell the rest from it

    async def _value(self, result: Json, blocks: Sequence[Json]) -> Any:
        """The value, made elsewhere if that takes long: it may be a JSON text within the JSON that came."""
        made = partial(value_of, result, blocks, json_results=self._tool.json_results, media=self._tool.media)
        is_large = self._tool.json_results and any(len(str(each.get("text", ""))) >= LARGE for each in blocks)
        return await read_apart(made) if is_large else made()

    async def _in_time(
        self, call: Invocation, params: dict[str, Any], client: Client | None, outer: Deadline | None
    ) -> Json:
        deadline = Deadline(monotonic() + self._seconds, monotonic, outer)
        try:
            async with asyncio.timeout(self._seconds) as scope:
                deadline.scope = scope
                return await self._conversed(params, Relay(client, call.principal, deadline))
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise BackendFailed("unavailable", f"no result within {self._seconds:g} s") from error
        finally:
            deadline.scope = None

    def _conversed(self, params: dict[str, Any], relay: Relay) -> Awaitable[Json]:
        if meta := relay.meta:
            params["_meta"] = {**meta, **params.get("_meta", {})}
        if self._tool.as_task and takes_tasks(self._connection):
            return self._waited_for(params, relay)
        return conversed(self._connection, "tools/call", params, relay)

    async def _waited_for(self, params: dict[str, Any], relay: Relay) -> Json:
        """An older server wants to be told that the call is a task."""
        as_task = {**params, "task": {"ttl": int(self._seconds * 1000)}}
        created = await conversed(self._connection, "tools/call", as_task, relay)
        return await legacy_result(self._connection, created, relay) if "task" in created else created

    async def close(self) -> None:
        """Nothing is held that others do not use."""


def _kept(result: Json, blocks: Sequence[Json], promise: Promise) -> Json:
    """The result with structured content that keeps the promise. Raises `OutputMismatch`."""
    value = result.get("structuredContent", NOTHING)
    if value is NOTHING and (value := promise.found_in(text_of(blocks))) is not NOTHING:
        return {**result, "structuredContent": value}
    if value is NOTHING:
        raise OutputMismatch("it has no structured content")
    if not promise.is_kept(value):
        raise OutputMismatch(promise.broken(value))
    if len(orjson.dumps(value)) > MAX_PROMISED:
        raise OutputMismatch(f"it has more than {MAX_PROMISED >> 20} MiB")
    return result
