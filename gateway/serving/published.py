"""What one revision publishes: the tools of each catalogue as the model knows them, and all that belongs to it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.access import Access
from gateway.core.pipeline import Middleware
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import ArtifactTool
from gateway.governance.ports import Backend
from gateway.serving.artifact_types import ArtifactTypes
from gateway.serving.gating import Controls
from gateway.serving.offers import Offers
from gateway.serving.read_guard import ReadGuard
from gateway.serving.withholding import Vigil
from gateway.snapshot import Catalogue, DeclaredTool, Snapshot

Inlining = Callable[[DeclaredTool, Any], Awaitable[bool]]

_NONE: Final[Mapping[str, DeclaredTool]] = {}


@dataclass(frozen=True, slots=True)
class PublishedCatalogue:
    """A catalogue with its baseline registry; turns work on copies of it."""

    catalogue: Catalogue
    registry: ToolRegistry
    queries: Mapping[str, ArtifactTool] = field(default_factory=dict)
    """Query tools for every class that its tools can yield, for callers whose lists must not vary by earlier calls."""
    turn_input: Sequence[Middleware] = ()
    dispatch_input: Sequence[Middleware] = ()
    dispatch_output: Sequence[Middleware] = ()
    turn_output: Sequence[Middleware] = ()
    implicit: int | None = None
    """How long an implicit turn goes on without a call, in microseconds. None where nothing looks back."""
    inlining: Inlining | None = None
    """Decides by its size whether a result is shown whole; without it the tool's document does."""


@dataclass(frozen=True, slots=True)
class Published:
    """Everything of one revision. A call keeps the revision it began with."""

    access: Access
    catalogues: Mapping[str, PublishedCatalogue]
    types: ArtifactTypes
    backends: Sequence[Backend] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    vigil: Vigil | None = None
    """Which tools of upstreams are withheld."""
    offers: Offers | None = None
    """Prompts and resources of upstreams, if there are any."""
    controls: Controls = field(default_factory=Controls)
    """What gates in front of what is read need of the process."""
    guard: ReadGuard = field(init=False, repr=False)
    snapshot: Snapshot = field(init=False)
    _paths: Mapping[str, str] = field(init=False, repr=False)
    _tools: Mapping[str, Mapping[str, DeclaredTool]] = field(init=False, repr=False)
    """By catalogue and advertised name: looked up several times in every call."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "snapshot", self.access.snapshot)  # asked for a dozen times in every call
        object.__setattr__(self, "guard", ReadGuard(self.access, self.controls))
        object.__setattr__(self, "_paths", {each.path: each.name for each in self.snapshot.catalogues.values()})
        object.__setattr__(self, "_tools", {name: _tools_in(self.snapshot, name) for name in self.snapshot.catalogues})

    def tool(self, catalogue: str, name: str) -> DeclaredTool | None:
        return self._tools.get(catalogue, _NONE).get(name)

    def is_withheld(self, tool: DeclaredTool) -> bool:
        """Whether a tool is not what somebody looked at; such a tool is not listed."""
        if self.vigil is None or tool.upstream is None:
            return False
        return self.vigil.withheld(tool.upstream, tool.remote_name or "") is not None

    def has_tool(self, catalogue: str, name: str) -> bool:
        """Whether a catalogue has a tool or a query tool of that name, whoever may know of it."""
        found = self.catalogues.get(catalogue)
        return found is not None and (name in found.queries or self.tool(catalogue, name) is not None)

    def catalogue_at(self, path: str) -> str | None:
        """The catalogue that is published under a path."""
        return self._paths.get(path)

    async def close(self) -> None:
        for backend in self.backends:
            await backend.close()


def _tools_in(snapshot: Snapshot, catalogue: str) -> dict[str, DeclaredTool]:
    named = {name: snapshot.tool_in(catalogue, name) for name in snapshot.catalogues[catalogue].tools}
    return {name: tool for name, tool in named.items() if tool is not None}
