"""From an assembled project to what it publishes: a handler for every tool, in every catalogue that has it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from json import dumps
from typing import Any

from gateway.access import Access
from gateway.advertising import described
from gateway.assembly import Assembled
from gateway.backends.shaped import ShapedBackend
from gateway.config.linking.artifacts import built_in
from gateway.config.linking.shaping import shaping_of
from gateway.config.specs.backends import UpstreamBackend
from gateway.config.specs.common import Limits as LimitsSpec
from gateway.config.specs.tools import ToolDocument, ToolSpec
from gateway.config.specs.upstreams import UpstreamDocument, UpstreamSpec
from gateway.core.moments import microseconds_in
from gateway.core.pipeline import Middleware
from gateway.core.schemas import Schema
from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import ArtifactTool, Tool
from gateway.errors import GatewayError
from gateway.governance.ports import Backend
from gateway.governance.stages import Phase
from gateway.middleware.build import Limits, SharedState, call_stages, phase_stages, refusal_before
from gateway.middleware.chain import chained
from gateway.middleware.redaction import redacted
from gateway.middleware.results import InlineSmallResults
from gateway.runtime.backends import Backends
from gateway.serving.artifact_types import ArtifactTypes
from gateway.serving.gating import Controls
from gateway.serving.handlers import Handling, Journal, handler_for
from gateway.serving.offers import Offers
from gateway.serving.published import Inlining, Published, PublishedCatalogue
from gateway.snapshot import ArtifactClass, Catalogue, DeclaredTool, Pipeline, Snapshot


@dataclass(frozen=True, slots=True)
class Unworkable:
    """A tool whose backend cannot work here; it is left out, and a start with one says so."""

    tool: DeclaredTool
    reason: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class _Parts:
    access: Access
    types: ArtifactTypes
    limits: Mapping[str, LimitsSpec | None]
    backends: Mapping[str, Backend]
    journal: Journal
    shared: SharedState
    controls: Controls


def publish(
    assembled: Assembled,
    access: Access,
    *,
    backends: Backends,
    journal: Journal,
    shared: SharedState,
    controls: Controls,
) -> tuple[Published, list[Unworkable]]:
    """Everything the snapshot declares, ready to be called. `shared` is what chains of this process have in common."""
    snapshot = access.snapshot
    types = ArtifactTypes(snapshot.artifacts, built_in=lambda name: built_in(name, {}), mask=redacted)
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
        name: specs[name].limits if name in specs else _terms(tool, upstreams) for name, tool in snapshot.tools.items()
    }
    made, unworkable = _backends(snapshot, specs, types, backends, upstreams=upstreams, limits=limits)
    parts = _Parts(access, types, limits, made, journal, shared, controls)
    catalogues = {name: _catalogue(each, parts) for name, each in snapshot.catalogues.items()}
    offers = None
    if snapshot.offers:
        offers = Offers(
            access, backends.sources, switch=controls.switch, vigil=controls.vigil, validity=controls.validity
        )
    published = Published(
        access, catalogues, types, list(made.values()), vigil=controls.vigil, offers=offers, controls=controls
    )
    return published, unworkable


def _backends(
    snapshot: Snapshot,
    specs: Mapping[str, ToolSpec],
    types: ArtifactTypes,
    backends: Backends,
    *,
    upstreams: Mapping[str, UpstreamSpec],
    limits: Mapping[str, LimitsSpec | None],
) -> tuple[dict[str, Backend], list[Unworkable]]:
    made: dict[str, Backend] = {}
    unworkable: list[Unworkable] = []
    for name, tool in snapshot.tools.items():
        artifact, spec = types.named(tool.artifact), specs.get(name)
        try:
            if tool.request is not None:
                made[name] = _shaped(backends.operation(tool, upstreams[tool.upstream or ""], spec), spec)
            elif spec is not None:
                made[name] = _shaped(backends.of(tool, spec, artifact=artifact), spec)
            elif tool.backend == "mcp":
                made[name] = backends.of_import(tool, artifact=artifact, limits=limits[name])
        except GatewayError as error:
            unworkable.append(Unworkable(tool, error.message, error.help))
    return made, unworkable


def _shaped(backend: Backend, spec: ToolSpec | None) -> Backend:
    """The backend with its arguments as its document shapes them; most documents do not."""
    declared = spec.backend if spec is not None else None
    shaping = shaping_of(declared) if isinstance(declared, UpstreamBackend) else None
    return ShapedBackend(backend, shaping) if shaping else backend


def _terms(tool: DeclaredTool, upstreams: Mapping[str, UpstreamSpec]) -> LimitsSpec | None:
    """What a call of a tool that no document declares may cost."""
    upstream = upstreams.get(tool.upstream or "")
    return upstream.limits if upstream is not None else None


def _catalogue(catalogue: Catalogue, parts: _Parts) -> PublishedCatalogue:
    pipeline = parts.access.snapshot.pipelines[catalogue.pipeline]
    handling = Handling(parts.access, catalogue.name, parts.types, parts.journal, parts.controls)
    registry = ToolRegistry()
    names: dict[str, str] = {}
    for advertised, identity in catalogue.tools.items():
        if identity in parts.backends:
            tool = _tool(advertised, parts.access.snapshot.tools[identity], catalogue, pipeline, handling, parts)
            if tool is not None:
                registry.register(tool)
                names[advertised] = parts.access.snapshot.tools[identity].artifact
    registry.hide(*catalogue.hidden)
    class_of = _class_of(names, parts.types)

    def stages(phase: Phase) -> list[Middleware]:
        return phase_stages(_without_views(pipeline), phase, registry=registry, class_of=class_of)

    return PublishedCatalogue(
        catalogue,
        registry,
        _queries(set(names.values()), parts.types),
        turn_input=stages("turnInput"),
        dispatch_input=stages("dispatchInput"),
        dispatch_output=stages("dispatchOutput"),
        turn_output=stages("turnOutput"),
        implicit=_implicit(catalogue, pipeline, parts.access),
        inlining=_inlining(pipeline, parts.types),
    )


def _implicit(catalogue: Catalogue, pipeline: Pipeline, access: Access) -> int | None:
    """Where nothing looks back, calls without a handle have nothing to share."""
    if catalogue.implicit is None:
        return None
    snapshot = access.snapshot
    rules = [each for each in snapshot.gates.values() if each.mode != "disabled" and each.looks_back]
    looks_back = any(not rule.catalogues or catalogue.name in rule.catalogues for rule in rules)
    looks_back |= any(each.max_tier is not None or each.blocked_by for each in snapshot.artifacts.values())
    looks_back |= pipeline.stage("loop-guard") is not None
    return microseconds_in(catalogue.implicit) if looks_back else None


def _tool(
    advertised: str, tool: DeclaredTool, catalogue: Catalogue, pipeline: Pipeline, handling: Handling, parts: _Parts
) -> Tool | None:
    """`None` for a tool whose schema only its upstream server knows."""
    told = described(advertised, tool, catalogue)
    if told is None:
        return None
    limits = parts.limits[tool.name]
    stages = call_stages(
        pipeline,
        tool,
        shared=parts.shared,
        limits=_limits(limits, parts.types.declared(tool.artifact)),
        catalogue=catalogue.name,
    )
    return Tool(
        name=advertised,
        description=told["description"],
        input_schema=Schema(dict(tool.input_schema or {})),
        handler=handler_for(
            tool,
            handling,
            run=chained(stages, parts.backends[tool.name]),
            refuse=refusal_before(stages),
            max_output=limits.max_output if limits else None,
            definition=_definition(told, tool, parts.access.snapshot),
        ),
        trusted=tool.trust.trusted,
        meta=dict(tool.meta),
        artifact_constructor=lambda: parts.types.named(tool.artifact),
    )


def _definition(told: Mapping[str, Any], tool: DeclaredTool, snapshot: Snapshot) -> str:
    """The hash of what a tool is: what callers are told of it, and what its document says it does."""
    document = snapshot.documents.get("Tool", {}).get(tool.name)
    meaning = {
        "told": told,
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


def _limits(limits: LimitsSpec | None, artifact: ArtifactClass | None) -> Limits:
    return Limits(
        timeout=limits.timeout if limits else None,
        concurrent=limits.concurrent if limits else None,
        max_size=artifact.max_size if artifact else None,
    )


def _without_views(pipeline: Pipeline) -> Pipeline:
    """What a result looks like is decided when it is made, in one step with its record, not a second time."""
    phases = {
        phase: tuple(use for use in uses if use.name not in ("inline-small-results", "redact"))
        for phase, uses in pipeline.phases.items()
    }
    return replace(pipeline, phases=phases)


def _queries(artifacts: set[str], types: ArtifactTypes) -> dict[str, ArtifactTool]:
    """Query tools of every class that the catalogue can yield; of equal names the base class's one answers for more."""
    found: dict[str, ArtifactTool] = {}
    for name in sorted(artifacts):
        for tool in types.named(name).query_tools():
            found.setdefault(tool.name, tool)
    return dict(sorted(found.items()))


def _class_of(names: Mapping[str, str], types: ArtifactTypes) -> Callable[[str], Any]:
    return lambda tool: types.declared(names.get(tool, ""))


def _inlining(pipeline: Pipeline, types: ArtifactTypes) -> Inlining | None:
    stage = pipeline.stage("inline-small-results")
    if stage is None:
        return None
    decider = InlineSmallResults(stage.options.get("below"))

    async def decide(tool: DeclaredTool, results: Any) -> bool:
        declared = types.declared(tool.artifact)
        return await decider.decide(results, default=tool.inline, limit=declared.inline_below if declared else None)

    return decide
