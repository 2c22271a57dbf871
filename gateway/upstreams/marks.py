"""`Mcp-Param-*` headers of our own requests: read from the server's definitions, made anew from the arguments."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.governance.ports import BackendFailed
from gateway.upstreams.messages import Json, header_value
from gateway.web.mcp.param_headers import MarkedArgument, is_marked, marked_arguments, rendered, value_at


class Marks:
    """Which arguments of which tools have a header. Learnt from a list of tools, whenever one is read."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[MarkedArgument, ...]] | None = None
        self._learning = asyncio.Lock()

    def learnt(self, tools: list[Json], *, complain: Callable[[str, str], None]) -> list[Json]:
        """The tools that a client may use: those whose marks are not valid are left alone."""
        usable: list[Json] = []
        known: dict[str, tuple[MarkedArgument, ...]] = {}
        for tool in tools:
            schema, name = tool.get("inputSchema"), str(tool.get("name"))
            marked = marked_arguments(schema)
            if not marked and is_marked(schema):
                complain("a tool has an x-mcp-header that is not valid, and is left out", name)
                continue
            usable.append(tool)
            if marked:
                known[name] = marked
        self._known = known
        return usable

    def forget(self) -> None:
        self._known = None

    @property
    def are_known(self) -> bool:
        return self._known is not None

    async def learn(self, relist: Callable[[], Awaitable[Any]]) -> None:
        """`relist` reads the server's tools, which has `learnt` called."""
        async with self._learning:
            if self._known is None:
                try:
                    await relist()
                except BackendFailed:  # a server without a list has told nobody of headers
                    self._known = {}

    def headers(self, params: Mapping[str, Any]) -> dict[str, str]:
        """The headers of one call."""
        marked = (self._known or {}).get(str(params.get("name")), ())
        if not marked:
            return {}
        texts = {each.header: rendered(value_at(params.get("arguments"), each.path)) for each in marked}
        return {name: header_value(text) for name, text in texts.items() if text is not None}
