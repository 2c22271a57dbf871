"""Catalogues and their pipelines: the tools of each catalogue, their names, and forbidden combinations of flags."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.kinds.catalogues import IMPLICIT, CatalogueDocument, CatalogueSelectorSpec
from gateway.config.kinds.pipelines import PipelineDocument, StageSpec, parse_stage_options
from gateway.config.linking.advertised_names import ToolNames, assign_prompt_names, assign_tool_names, find_shared_uris
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.config.linking.gate_rules import build_selector
from gateway.config.linking.tools import could_match
from gateway.config.yaml.document import DocumentPath
from gateway.model import glob_matches
from gateway.registries import (
    CHANGES,
    PHASES,
    WRITES,
    ArtifactClass,
    Catalogue,
    CollisionPolicy,
    Combination,
    DeclaredDefinition,
    DeclaredTool,
    Diagnostic,
    GovernedTool,
    Pipeline,
    PipelineStage,
    Position,
    Selector,
    Tier,
    ToolIndex,
    Waiver,
    find_forbidden_combinations,
    select_tools,
    suggest_name,
)

RETRY: Final = "retry"
CACHE: Final = "cache"


def link_pipelines(entries: DocumentIndex) -> dict[str, Pipeline]:
    return {name: _link_pipeline(entry) for name, entry in entries.of(PipelineDocument).items()}


def check_pipeline(
    catalogue: DocumentEntry[CatalogueDocument], pipeline: Pipeline, tools: Iterable[DeclaredTool]
) -> Iterator[Diagnostic]:
    """Report tools that the pipeline refuses, writing tools that it would retry, and tools that its cache skips."""
    tools = list(tools)
    retry = pipeline.stage(RETRY)
    if retry is not None and retry.options.get("attempts") == 1:  # the first attempt is the only one
        retry = None
    spared_flags = frozenset(retry.options.get("unlessFlags", ())) if retry else frozenset()
    skipped = [tool for tool in tools if tool.trust.flags & CHANGES and not tool.trust.flags & pipeline.refuses]
    cache = pipeline.stage(CACHE)
    if cache is not None and skipped:
        yield _cache_problem(catalogue, cache, skipped)
    for tool in tools:
        if refused := sorted(tool.trust.flags & pipeline.refuses):
            yield _refusal_problem(catalogue, pipeline, tool, flag=refused[0])
        # a tool of unknown effects is never retried and has its own warning
        if retry and WRITES in tool.trust.known_flags and not tool.idempotent and not tool.trust.flags & spared_flags:
            yield _retry_problem(catalogue, retry, tool)


def _link_pipeline(entry: DocumentEntry[PipelineDocument]) -> Pipeline:
    spec = entry.document.spec
    lists = (spec.turn_input, spec.dispatch_input, spec.call, spec.dispatch_output, spec.turn_output)
    phases = {
        phase: tuple(
            PipelineStage(stage.use, _options(stage), entry.position_at("spec", phase, index, "use"))
            for index, stage in enumerate(stages)
        )
        for phase, stages in zip(PHASES, lists, strict=True)
    }
    refuses = frozenset(spec.refuses.flags) if spec.refuses else frozenset()
    return Pipeline(entry.name, phases, entry.position, refuses=refuses)


def _options(stage: StageSpec) -> Mapping[str, Any]:
    """Return the options of a built-in stage with defaults; options of plug-in stages as written."""
    try:
        return parse_stage_options(stage.use, stage.with_).model_dump(by_alias=True)
    except (KeyError, ValidationError):  # the check of embedded code reports the latter
        return stage.with_


def _refusal_problem(
    catalogue: DocumentEntry[CatalogueDocument], pipeline: Pipeline, tool: DeclaredTool, *, flag: str
) -> Diagnostic:
    why = "has it because its effects are unknown" if flag in tool.trust.assumed else "has it"
    message = f"pipeline {pipeline.name!r} refuses tools with the flag {flag!r}, and {tool.name} {why}"
    place = ("spec", "pipeline") if catalogue.has("spec", "pipeline") else ("metadata", "name")
    related = [("the tool", tool.position), ("the pipeline", pipeline.position)]
    help = f"exclude {tool.name}, or use another pipeline"
    return catalogue.problem("pipeline-refuses", message, place, help=help, related=related)


def _retry_problem(catalogue: DocumentEntry[CatalogueDocument], retry: PipelineStage, tool: DeclaredTool) -> Diagnostic:
    message = f"{tool.name} writes, and the stage would retry its calls"
    help = "add unlessFlags: [writes] to the stage, or declare the tool idempotent if calling it twice is harmless"
    related = [("the tool", tool.position), ("the catalogue", catalogue.position)]
    return Diagnostic("retry-writes", message, retry.position, help=help, related=related)


def _cache_problem(
    catalogue: DocumentEntry[CatalogueDocument], cache: PipelineStage, tools: list[DeclaredTool]
) -> Diagnostic:
    more = f" and {len(tools) - 1} more" if len(tools) > 1 else ""
    does = "have unknown effects" if tools[0].trust.is_unknown else "write"
    message = f"calls of {tools[0].name}{more} {does}, so their results are never cached"
    related = [("the tool", tools[0].position), ("the catalogue", catalogue.position)]
    help = "use a pipeline without the stage, or exclude tools that write"
    return Diagnostic("cache-skips", message, cache.position, "warning", help, related)


@dataclass(frozen=True, slots=True)
class CatalogueInputs:
    """The linked parts that catalogues are built from."""

    tools: Mapping[str, DeclaredTool]
    tiers: Mapping[str, Tier]
    pipelines: Mapping[str, Pipeline]
    policies: Mapping[str, CollisionPolicy]
    default_pipeline: str
    default_policy: str
    prospects: Sequence[GovernedTool] = ()
    offers: Mapping[str, DeclaredDefinition] = field(default_factory=dict)
    artifacts: Mapping[str, ArtifactClass] = field(default_factory=dict)


def link_catalogues(entries: DocumentIndex, parts: CatalogueInputs) -> tuple[dict[str, Catalogue], list[Diagnostic]]:
    linked: dict[str, Catalogue] = {}
    problems: list[Diagnostic] = []
    offered = (each.to_governed for each in parts.offers.values())
    tool_index = ToolIndex([*(tool.to_governed for tool in parts.tools.values()), *offered])
    for name, entry in entries.of(CatalogueDocument).items():
        catalogue, found = _link_catalogue(entry, entries, parts, tool_index)
        problems += found
        if catalogue is not None:
            linked[name] = catalogue
    if entries.is_complete:
        reported = {
            each.position for each in problems
        }  # a tool with a refused name is not also reported as unpublished
        problems += [each for each in _find_unpublished(parts.tools, linked) if each.position not in reported]
    problems += _find_shared_paths(entries)
    return linked, problems


def _link_catalogue(
    entry: DocumentEntry[CatalogueDocument], entries: DocumentIndex, parts: CatalogueInputs, tool_index: ToolIndex
) -> tuple[Catalogue | None, list[Diagnostic]]:
    spec = entry.document.spec
    pipeline = parts.pipelines.get(spec.pipeline or parts.default_pipeline)
    policy = parts.policies.get(spec.collision_policy or parts.default_policy)
    if pipeline is None or policy is None:
        return None, []
    includes, excludes = _selectors(spec.include, parts), _selectors(spec.exclude, parts)
    selection = select_tools(tool_index, includes, excludes)
    chosen = [parts.tools[tool.name] for tool in selection.tools if tool.kind == "tool"]
    offers = [parts.offers[f"{each.kind}:{each.name}"] for each in selection.tools if each.kind != "tool"]
    named, problems = assign_tool_names(entry, chosen, policy)
    prompts, of_prompts = assign_prompt_names(entry, [each for each in offers if each.kind == "prompt"], policy)
    problems += of_prompts
    tools = list(named.tools.values())
    problems += check_pipeline(entry, pipeline, tools)
    problems += _check_json(entry, [tool for tool in tools if _is_foreign(tool) and _has_json(tool, parts)])
    combinations, found = _check_combinations(entry, entries, [*tools, *offers])
    problems += found
    if entries.is_complete:
        for field, selectors, idle in (
            ("include", includes, selection.idle_includes),
            ("exclude", excludes, selection.idle_excludes),
        ):
            problems += [_idle(entry, field, at) for at in idle if not could_match(selectors[at], parts.prospects)]
        problems += _find_idle_hidden(entry, named, parts.prospects)
    catalogue = _build_catalogue(entry, named, pipeline=pipeline, combinations=combinations)
    groups = sorted((each for each in offers if each.kind == "resource"), key=lambda each: each.trust.tier.rank)
    catalogue = replace(
        catalogue,
        collisions=(*named.collisions, *prompts.collisions, *find_shared_uris(groups)),
        prompts={name: each.object for name, each in prompts.prompts.items()},
        resources=tuple(each.object for each in groups),
    )
    return catalogue, problems


def _build_catalogue(
    entry: DocumentEntry[CatalogueDocument],
    named: ToolNames,
    *,
    pipeline: Pipeline,
    combinations: Sequence[Combination],
) -> Catalogue:
    metadata, spec = entry.document.metadata, entry.document.spec
    hidden = {name for name in named.tools if any(glob_matches(name, pattern) for pattern in spec.hidden)}
    return Catalogue(
        entry.name,
        frozenset(spec.audience),
        {name: tool.name for name, tool in named.tools.items()},
        pipeline.name,
        spec.publish.path,
        entry.position,
        title=metadata.title,
        owner=metadata.owner,
        hidden=frozenset(hidden),
        protocols=spec.publish.as_,
        render=spec.publish.render,
        structured=spec.publish.structured,
        implicit=IMPLICIT if spec.turns is None else spec.turns.implicit,
        instructions=spec.instructions,
        combinations=tuple(combinations),
    )


def _check_json(entry: DocumentEntry[CatalogueDocument], untrusted: Sequence[DeclaredTool]) -> Iterator[Diagnostic]:
    """Warn if JSON of untrusted tools is sent without the envelope that marks text results."""
    publish = entry.document.spec.publish
    if not untrusted or (publish.render, publish.structured) != ("envelope", "raw") or "mcp" not in publish.as_:
        return
    names = [tool.name for tool in untrusted]
    more = f" and {len(names) - 1} more" if names[1:] else ""
    message = f"structured JSON of {names[0]!r}{more} comes from a third party and is sent without the trust envelope"
    help = "set publish.structured: off, unless only programs read structuredContent"
    place = ("spec", "publish", "structured" if "structured" in publish.model_fields_set else "path")
    related = [(f"its tier {tool.trust.tier.name!r} is a third-party tier", tool.position) for tool in untrusted[:1]]
    yield entry.problem("unmarked-json", message, place, help=help, related=related, severity="warning")


def _is_foreign(tool: DeclaredTool) -> bool:
    return not tool.trust.trusted and tool.trust.tier.origin != "first-party"


def _has_json(tool: DeclaredTool, parts: CatalogueInputs) -> bool:
    if tool.output_schema is not None or tool.upstream_output_schema is not None or tool.upstream is not None:
        return True
    declared = parts.artifacts.get(tool.artifact)
    return tool.artifact == "json" if declared is None else hasattr(declared.constructor, "json_type")


def _selectors(specs: Sequence[CatalogueSelectorSpec], parts: CatalogueInputs) -> list[Selector]:
    selectors = []
    for spec in specs:
        tier = parts.tiers.get(spec.max_tier) if spec.max_tier else None
        selector = build_selector(spec, max_rank=tier.rank if tier else None)
        selectors.append(replace(selector, prompts=spec.prompts, resources=spec.resources))
    return selectors


def _check_combinations(
    entry: DocumentEntry[CatalogueDocument], entries: DocumentIndex, tools: Sequence[DeclaredTool | DeclaredDefinition]
) -> tuple[list[Combination], list[Diagnostic]]:
    spec = entry.document.spec
    waivers = [Waiver(frozenset(each.forbid_together), each.until, each.by, each.because) for each in spec.waivers]
    forbidden = [frozenset(flags) for flags in spec.forbid_together]
    governed = [tool.to_governed for tool in tools]
    found = find_forbidden_combinations(governed, forbidden, waivers, today=entries.today)
    problems: list[Diagnostic] = []
    for combination in found:
        if combination.waiver is None:
            problems.append(_conflict(entry, combination, tools, place=_place(forbidden, waivers, combination.flags)))
    if entries.is_complete:
        problems += _find_idle_waivers(entry, waivers, found)
    return found, problems


def _place(forbidden: Sequence[frozenset[str]], waivers: Sequence[Waiver], flags: frozenset[str]) -> DocumentPath:
    """Return the path of the expired waiver's last day, or of the combination if no waiver covers it."""
    for index, waiver in enumerate(waivers):
        if waiver.flags == flags:
            return ("spec", "waivers", index, "until")
    return ("spec", "forbidTogether", forbidden.index(flags))


def _conflict(
    entry: DocumentEntry[CatalogueDocument],
    combination: Combination,
    tools: Sequence[DeclaredTool | DeclaredDefinition],
    *,
    place: DocumentPath,
) -> Diagnostic:
    together = " and ".join(sorted(combination.flags))
    by_name = {tool.name: tool for tool in tools}
    related: list[tuple[str, Position]] = []
    for flag, names in sorted(combination.tools_by_flag.items()):
        first = by_name[names[0]]
        unknown = ", whose effects are unknown" if flag in first.trust.assumed else ""
        more = f" and {len(names) - 1} more" if names[1:] else ""
        related.append((f"{flag} is a flag of {first.name}{unknown}{more}", first.position))
    if "waivers" in place:
        message = f"the waiver has expired, and tools of the catalogue still combine {together}"
        help = "exclude the tools of one of the flags, or have the waiver renewed"
        return entry.problem("waiver-expired", message, place, help=help, related=related)
    message = f"tools of the catalogue combine {together}, which is forbidden"
    help = "exclude the tools of one of the flags, or add a waiver with a last day"
    return entry.problem("forbidden-combination", message, place, help=help, related=related)


def _find_idle_waivers(
    entry: DocumentEntry[CatalogueDocument], waivers: Sequence[Waiver], found: Sequence[Combination]
) -> Iterator[Diagnostic]:
    completed = {combination.flags for combination in found}
    for index, waiver in enumerate(waivers):
        if waiver.flags not in completed:
            message = "the waiver is not needed: tools of the catalogue do not combine these flags"
            place = ("spec", "waivers", index, "forbidTogether")
            yield entry.problem("idle-waiver", message, place, help="remove it", severity="warning")


def _idle(entry: DocumentEntry[CatalogueDocument], field: str, index: int) -> Diagnostic:
    """Report a selector that selects nothing, at its criterion if it has only one."""
    selector = entry.source.data["spec"][field][index]
    place: DocumentPath = ("spec", field, index)
    message = "the entry selects nothing" if field == "include" else "the entry excludes nothing that is included"
    if len(selector) == 1:
        place = (*place, *selector)
    help = "correct or remove it"
    return entry.problem("idle-selector", message, place, help=help, severity="warning")


def _find_idle_hidden(
    entry: DocumentEntry[CatalogueDocument], named: ToolNames, prospects: Sequence[GovernedTool]
) -> Iterator[Diagnostic]:
    for index, pattern in enumerate(entry.document.spec.hidden):
        if not prospects and not any(glob_matches(name, pattern) for name in named.tools):
            message = f"no tool of the catalogue matches {pattern!r}"
            help = suggest_name(pattern, named.tools)
            yield entry.problem("idle-selector", message, ("spec", "hidden", index), help=help, severity="warning")


def _find_shared_paths(entries: DocumentIndex) -> Iterator[Diagnostic]:
    first: dict[str, DocumentEntry[CatalogueDocument]] = {}
    for entry in entries.of(CatalogueDocument).values():
        path = entry.document.spec.publish.path
        before = first.setdefault(path, entry)
        if before is not entry:
            related = [("the other one", before.position_at("spec", "publish", "path"))]
            message = f"another catalogue is published at the path {path!r}"
            help = "give each catalogue its own path"
            yield entry.problem("path-taken", message, ("spec", "publish", "path"), help=help, related=related)


def _find_unpublished(tools: Mapping[str, DeclaredTool], catalogues: Mapping[str, Catalogue]) -> Iterator[Diagnostic]:
    published = {tool for catalogue in catalogues.values() for tool in catalogue.tools.values()}
    for name, tool in tools.items():
        if name not in published and tool.lifecycle == "active" and not tool.is_imported:
            message = f"no catalogue publishes {name!r}"
            help = "include it in a catalogue, or set lifecycle: draft"
            yield Diagnostic("unpublished-tool", message, tool.position, "warning", help)
