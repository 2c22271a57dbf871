"""One published revision: the tools of each catalogue as the model sees them, and everything that belongs to it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.engine.artifact_classes import ArtifactTypes
from gateway.engine.gates.definition_guard import DefinitionGuard
from gateway.engine.gates.guard import GuardDependencies
from gateway.engine.gates.read_guard import ReadGuard
from gateway.engine.stages.turn_stages import LoopGuard, TurnSummaryStage
from gateway.engine.upstream_resources import ResourceCatalogue
from gateway.model import ArtifactTool, Backend, Middleware, ToolRegistry
from gateway.policy import Access
from gateway.registries import Catalogue, DeclaredTool, Snapshot

InlinePolicy = Callable[[DeclaredTool, Any], Awaitable[bool]]

_NONE: Final[Mapping[str, DeclaredTool]] = {}


@dataclass(frozen=True, slots=True)
class LiveCatalogue:
    """A catalogue with its baseline registry; turns work on copies of it."""

    catalogue: Catalogue
    registry: ToolRegistry
    queries: Mapping[str, ArtifactTool] = field(default_factory=dict)
    """Query tools for every class its tools can yield, for callers whose lists must not depend on earlier calls."""
    turn_input: Sequence[Middleware] = ()
    dispatch_input: Sequence[Middleware] = ()
    dispatch_output: Sequence[Middleware] = ()
    turn_output: Sequence[Middleware] = ()
    loop_guard: LoopGuard | None = None
    """Refuses calls that are repeated too often, if no other stage runs before them."""
    implicit: int | None = None
    """How long an implicit turn lasts without a call, in microseconds; `None` if no rule reads earlier calls."""
    inlining: InlinePolicy | None = None
    """Decides by size whether a result is shown whole; without it, the tool's document decides."""
    only_summarizes: bool = field(init=False)
    """Whether the only output stages of a turn are summaries, which are left out if no listener receives them."""
    names: Sequence[str] = field(init=False)
    """The advertised names of its tools, sorted: there may be thousands, and lists are sent in this order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(sorted(self.catalogue.tools)))
        is_summary = (isinstance(each, TurnSummaryStage) for each in self.turn_output)
        object.__setattr__(self, "only_summarizes", all(is_summary))

    @property
    def has_no_stages(self) -> bool:
        """Whether no stage runs around the dispatch of a call."""
        return self.loop_guard is None and not self.dispatch_input and not self.dispatch_output


@dataclass(frozen=True, slots=True)
class LiveRevision:
    """Everything of one revision. A call keeps the revision it began with."""

    access: Access
    catalogues: Mapping[str, LiveCatalogue]
    types: ArtifactTypes
    backends: Sequence[Backend] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    definition_guard: DefinitionGuard | None = None
    """Which definitions of upstreams are blocked."""
    offers: ResourceCatalogue | None = None
    """Prompts and resources of upstreams, if there are any."""
    controls: GuardDependencies = field(default_factory=GuardDependencies)
    """What the gates for reads need from the process."""
    guard: ReadGuard = field(init=False, repr=False)
    snapshot: Snapshot = field(init=False)
    _paths: Mapping[str, str] = field(init=False, repr=False)
    _tools: Mapping[str, Mapping[str, DeclaredTool]] = field(init=False, repr=False)
    """By catalogue and advertised name: looked up several times in every call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "snapshot", self.access.snapshot)  # read a dozen times in every call
        object.__setattr__(self, "guard", ReadGuard(self.access, self.controls))
        object.__setattr__(self, "_paths", {each.path: each.name for each in self.snapshot.catalogues.values()})
        object.__setattr__(self, "_tools", {name: _tools_in(self.snapshot, name) for name in self.snapshot.catalogues})

    def tool(self, catalogue: str, name: str) -> DeclaredTool | None:
        return self._tools.get(catalogue, _NONE).get(name)

    def is_blocked(self, tool: DeclaredTool) -> bool:
        """Whether a tool's definition differs from the approved one; such a tool is not listed."""
        if self.definition_guard is None or tool.upstream is None:
            return False
        return self.definition_guard.find_blocked(tool.upstream, tool.remote_name or "") is not None

    def has_tool(self, catalogue: str, name: str) -> bool:
        """Whether a catalogue has a tool or a query tool of that name, for any caller."""
        found = self.catalogues.get(catalogue)
        return found is not None and (name in found.queries or self.tool(catalogue, name) is not None)

    def catalogue_at(self, path: str) -> str | None:
        """Return the catalogue that is published under a path."""
        return self._paths.get(path)

    async def close(self) -> None:
        for backend in self.backends:
            await backend.close()


def _tools_in(snapshot: Snapshot, catalogue: str) -> dict[str, DeclaredTool]:
    named = {name: snapshot.tool_in(catalogue, name) for name in snapshot.catalogues[catalogue].tools}
    return {name: tool for name, tool in named.items() if tool is not None}
