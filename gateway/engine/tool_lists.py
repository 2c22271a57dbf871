"""Which tools a caller sees, decided in slices: a catalogue may have thousands of tools, and other requests go on.

Every tool is decided about for this caller, with the decision that a call of it would get.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gateway.engine.live_revision import LiveRevision
from gateway.engine.turns.turn import Turn
from gateway.model import Principal, Tool
from gateway.registries import DeclaredTool

SLICE: Final = 10
"""Tools that are decided about, or described, before other tasks of the event loop have their turn."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as one caller sees it. Query tools are forged, not declared."""

    name: str
    tool: Tool
    declared: DeclaredTool | None = None


@dataclass(frozen=True, slots=True)
class ToolListing:
    """The tools that a caller sees: with the query tools of the turn, or without a turn with all query tools."""

    published: LiveRevision
    principal: Principal
    catalogue: str
    turn: Turn | None = None

    async def all(self) -> list[ListedTool]:
        """Return the tools in the order of the catalogue, with the query tools at the end."""
        found: list[ListedTool] = []
        async for some in self._in_slices(list(self.published.catalogues[self.catalogue].catalogue.tools)):
            found += some
        return [*found, *self._queries()]

    async def by_name(self, after: str | None = None) -> AsyncIterator[list[ListedTool]]:
        """Yield slices of the tools, query tools among them, sorted by name, from the first name after `after`."""
        queries = {each.name: each for each in self._queries()}
        declared = self.published.catalogues[self.catalogue]
        names = sorted([*declared.names, *(queries.keys() - declared.catalogue.tools.keys())])
        async for some in self._in_slices(names[0 if after is None else bisect_right(names, after) :], queries):
            yield some

    async def _in_slices(
        self, names: Sequence[str], queries: dict[str, ListedTool] | None = None
    ) -> AsyncIterator[list[ListedTool]]:
        for start in range(0, len(names), SLICE):
            if start:
                await asyncio.sleep(0)
            some = names[start : start + SLICE]
            declared = {each.name: each for each in self._declared(some)}
            yield [
                each for name in some for each in (declared.get(name), (queries or {}).get(name)) if each is not None
            ]

    def _declared(self, names: Sequence[str]) -> Iterator[ListedTool]:
        published, turn = self.published, self.turn
        registry = turn.tools if turn else published.catalogues[self.catalogue].registry
        is_acked = turn is not None and turn.stored.ending == "ack"
        now = datetime.now(UTC)
        for name, declared in published.access.list_tools(self.principal, self.catalogue, at=now, names=names):
            tool = registry.get_visible(name)
            if tool is not None and not (declared.ephemeral and is_acked) and not published.is_blocked(declared):
                yield ListedTool(name, tool, declared)

    def _queries(self) -> list[ListedTool]:
        turn = self.turn
        of_catalogue = self.published.catalogues[self.catalogue].queries
        queries: Sequence[Tool] = list(of_catalogue.values()) if turn is None else turn.query_tools()
        return [ListedTool(tool.name, tool) for tool in queries]
