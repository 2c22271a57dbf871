"""Build a live revision from a loaded project: a handler for every tool, in every catalogue that has it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import dropwhile
from json import dumps
from typing import Any

from gateway.app.backend_factory import BackendFactory
from gateway.app.project import LoadedProject
from gateway.config import (
    ToolDocument,
    ToolSpec,
    UpstreamDocument,
    UpstreamSpec,
    find_built_in_class,
)
from gateway.config import ToolLimitsSpec as LimitsSpec
from gateway.engine import (
    ArtifactTypes,
    GuardDependencies,
    HandlerDependencies,
    InlinePolicy,
    InlineSmallResults,
    Journal,
    LiveCatalogue,
    LiveRevision,
    LoopGuard,
    ResourceCatalogue,
    StageState,
    ToolLimits,
    build_handler,
    build_phase_stages,
    call_stages,
    chain_stages,
    redact_artifact,
    refusal_before,
)
from gateway.errors import GatewayError
from gateway.model import (
    ArtifactTool,
    Backend,
    Middleware,
    Schema,
    Tool,
    ToolRegistry,
    duration_microseconds,
)
from gateway.policy import Access
from gateway.registries import (
    ArtifactClass,
    Catalogue,
    DeclaredTool,
    Phase,
    Pipeline,
    Snapshot,
    describe_tool,
)


@dataclass(frozen=True, slots=True)
class UnavailableTool:
    """A tool whose backend cannot work here; it is left out with a warning."""

    tool: DeclaredTool
    reason: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class _RevisionParts:
    access: Access
    types: ArtifactTypes
    limits: Mapping[str, LimitsSpec | None]
    backends: Mapping[str, Backend]
    journal: Journal
    shared: StageState
    controls: GuardDependencies


def build_live_revision(
    assembled: LoadedProject,
    access: Access,
    *,
    backends: BackendFactory,
    journal: Journal,
    shared: StageState,
    controls: GuardDependencies,
) -> tuple[LiveRevision, list[UnavailableTool]]:
    """Build everything that the snapshot declares. `shared` is the state that all stages of this process share."""
    snapshot = access.snapshot
    types = ArtifactTypes(snapshot.artifacts, built_in=lambda name: find_built_in_class(name, {}), mask=redact_artifact)
    specs = {
        each.spec.metadata.name: each.spec.spec
        for each in assembled.loaded.documents
        if isinstance(each.spec, ToolDocument)
    }
    upstreams = {
        each.spec.metadata.name: each.spec.spec
        for each in assembled.loaded.documents
        if isinstance(each.spec, UpstreamDocument)
    }
    limits = {
        name: specs[name].limits if name in specs else _upstream_limits(tool, upstreams)
        for name, tool in snapshot.tools.items()
    }
    built, unavailable_tools = _build_backends(snapshot, specs, types, backends, upstreams=upstreams, limits=limits)
    parts = _RevisionParts(access, types, limits, built, journal, shared, controls)
    catalogues = {name: _build_catalogue(each, parts) for name, each in snapshot.catalogues.items()}
    offers = None
    if snapshot.offers:
        offers = ResourceCatalogue(
            access,
            backends.sources,
            switch=controls.switch,
            definition_guard=controls.definition_guard,
            validity=controls.validity,
        )
    published = LiveRevision(
        access,
        catalogues,
        types,
        list(built.values()),
        definition_guard=controls.definition_guard,
        offers=offers,
        controls=controls,
    )
    return published, unavailable_tools


def _build_backends(
    snapshot: Snapshot,
    specs: Mapping[str, ToolSpec],
    types: ArtifactTypes,
    backends: BackendFactory,
    *,
    upstreams: Mapping[str, UpstreamSpec],
    limits: Mapping[str, LimitsSpec | None],
) -> tuple[dict[str, Backend], list[UnavailableTool]]:
    built: dict[str, Backend] = {}
    unavailable_tools: list[UnavailableTool] = []
    for name, tool in snapshot.tools.items():
        artifact, spec = types.get(tool.artifact), specs.get(name)
        try:
            if tool.request is not None:
                built[name] = backends.build_operation(tool, upstreams[tool.upstream or ""], spec)
            elif spec is not None:
                built[name] = backends.build(tool, spec, artifact=artifact)
            elif tool.backend == "mcp":
                built[name] = backends.build_imported(tool, artifact=artifact, limits=limits[name])
        except GatewayError as error:
            unavailable_tools.append(UnavailableTool(tool, error.message, error.help))
    return built, unavailable_tools


def _upstream_limits(tool: DeclaredTool, upstreams: Mapping[str, UpstreamSpec]) -> LimitsSpec | None:
    """Return the limits of a tool without a Tool document: those of its upstream."""
    upstream = upstreams.get(tool.upstream or "")
    return upstream.limits if upstream is not None else None


def _build_catalogue(catalogue: Catalogue, parts: _RevisionParts) -> LiveCatalogue:
    pipeline = parts.access.snapshot.pipelines[catalogue.pipeline]
    handling = HandlerDependencies(parts.access, catalogue.name, parts.types, parts.journal, parts.controls)
    registry = ToolRegistry()
    names: dict[str, str] = {}
    for advertised, identity in catalogue.tools.items():
        if identity in parts.backends:
            tool = _build_tool(advertised, parts.access.snapshot.tools[identity], catalogue, pipeline, handling, parts)
            if tool is not None:
                registry.register(tool)
                names[advertised] = parts.access.snapshot.tools[identity].artifact
    registry.hide(*catalogue.hidden)
    class_of = _class_of(names, parts.types)

    resolved, loop_guard = _resolve(pipeline)

    def stages(phase: Phase) -> list[Middleware]:
        return build_phase_stages(resolved, phase, registry=registry, class_of=class_of)

    return LiveCatalogue(
        catalogue,
        registry,
        _queries(set(names.values()), parts.types),
        turn_input=stages("turnInput"),
        dispatch_input=stages("dispatchInput"),
        dispatch_output=stages("dispatchOutput"),
        turn_output=stages("turnOutput"),
        loop_guard=loop_guard,
        implicit=_implicit(catalogue, pipeline, parts.access),
        inlining=_inline_policy(pipeline, parts.types),
    )


def _implicit(catalogue: Catalogue, pipeline: Pipeline, access: Access) -> int | None:
    """Return the lifetime of implicit turns, or `None` if no rule, class or stage uses the state of a turn."""
    if catalogue.implicit is None:
        return None
    looks_back = access.looks_back(catalogue.name) or pipeline.stage("loop-guard") is not None
    return duration_microseconds(catalogue.implicit) if looks_back else None


def _build_tool(
    advertised: str,
    tool: DeclaredTool,
    catalogue: Catalogue,
    pipeline: Pipeline,
    handling: HandlerDependencies,
    parts: _RevisionParts,
) -> Tool | None:
    """Build a tool, or return `None` if only its upstream server knows its schema."""
    description = describe_tool(advertised, tool, catalogue)
    if description is None or tool.input_schema is None:
        return None
    limits = parts.limits[tool.name]
    stages = call_stages(
        pipeline,
        tool,
        shared=parts.shared,
        limits=_limits(limits, parts.types.get_declared(tool.artifact)),
        catalogue=catalogue.name,
    )
    return Tool(
        name=advertised,
        description=description["description"],
        input_schema=Schema.of_enforced(tool.input_schema),
        handler=build_handler(
            tool,
            handling,
            run=chain_stages(stages, parts.backends[tool.name]),
            refuse=refusal_before(stages),
            max_output=limits.max_output if limits else None,
            definition=_hash_definition(description, tool, parts.access.snapshot),
        ),
        trusted=tool.trust.trusted,
        meta=dict(tool.meta),
        artifact_constructor=lambda: parts.types.get(tool.artifact),
    )


def _hash_definition(description: Mapping[str, Any], tool: DeclaredTool, snapshot: Snapshot) -> str:
    """Return the hash of a tool: of its description for callers, its document, trust and request."""
    document = snapshot.documents.get("Tool", {}).get(tool.name)
    meaning = {
        "told": description,
        "document": None if document is None else document.data,
        "tier": tool.trust.tier.name,
        "flags": sorted(tool.trust.flags),
        "effects": tool.trust.effects,
        "upstream": tool.pinned_digest,
        "request": tool.request,
    }
    return sha256(dumps(meaning, sort_keys=True, default=_plain).encode()).hexdigest()


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, Collection) else str(value)


def _limits(limits: LimitsSpec | None, artifact: ArtifactClass | None) -> ToolLimits:
    return ToolLimits(
        timeout=limits.timeout if limits else None,
        concurrent=limits.concurrent if limits else None,
        max_size=artifact.max_size if artifact else None,
    )


def _resolve(pipeline: Pipeline) -> tuple[Pipeline, LoopGuard | None]:
    """Return the stages that need a context of turn or dispatch, and the loop guard if it needs none.

    Results are shaped when a call is recorded, so the stages that shape them have nothing left to do. A turn starts
    with the tools of its catalogue, so `select-tools` matters only after a plug-in, which may have changed them. A
    loop guard among plug-ins runs in the declared order.
    """
    phases = {
        phase: tuple(use for use in uses if use.name not in ("inline-small-results", "redact"))
        for phase, uses in pipeline.phases.items()
    }
    begin = phases.get("turnInput", ())
    phases["turnInput"] = tuple(dropwhile(lambda use: use.name == "select-tools", begin))
    guards = phases.get("dispatchInput", ())
    if not guards or any(use.name != "loop-guard" for use in guards):
        return replace(pipeline, phases=phases), None
    phases["dispatchInput"] = ()
    return replace(pipeline, phases=phases), LoopGuard(min(use.options["sameCall"] for use in guards))


def _queries(artifacts: set[str], types: ArtifactTypes) -> dict[str, ArtifactTool]:
    """Return the query tools of every class that the catalogue can yield; of equal names, the first one is used."""
    found: dict[str, ArtifactTool] = {}
    for name in sorted(artifacts):
        for tool in types.get(name).query_tools():
            found.setdefault(tool.name, tool)
    return dict(sorted(found.items()))


def _class_of(names: Mapping[str, str], types: ArtifactTypes) -> Callable[[str], Any]:
    return lambda tool: types.get_declared(names.get(tool, ""))


def _inline_policy(pipeline: Pipeline, types: ArtifactTypes) -> InlinePolicy | None:
    stage = pipeline.stage("inline-small-results")
    if stage is None:
        return None
    decider = InlineSmallResults(stage.options.get("below"))

    async def decide(tool: DeclaredTool, results: Any) -> bool:
        declared = types.get_declared(tool.artifact)
        return await decider.decide(results, default=tool.inline, limit=declared.inline_below if declared else None)

    return decide
