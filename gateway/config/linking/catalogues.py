"""Catalogues: which tools each one gets, under which names, and which combinations of abilities meet in it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.config.linking.entries import Entries, Entry
from gateway.config.linking.gates import selector_of
from gateway.config.linking.naming import NamedTools, name_prompts, name_tools, shared_uris
from gateway.config.linking.pipelines import pipeline_problems
from gateway.config.linking.prospects import could_choose
from gateway.config.nodes import Path
from gateway.config.specs.catalogues import IMPLICIT, CatalogueDocument, CatalogueSelector
from gateway.governance.catalogues import (
    Combination,
    GovernedTool,
    Selector,
    Shelf,
    Waiver,
    forbidden_combinations,
    select,
)
from gateway.governance.diagnostics import Diagnostic, Position, did_you_mean
from gateway.governance.globs import glob_matches
from gateway.governance.trust import Tier
from gateway.snapshot import ArtifactClass, Catalogue, CollisionPolicy, DeclaredTool, Offer, Pipeline


@dataclass(frozen=True, slots=True)
class Parts:
    """What catalogues are made of."""

    tools: Mapping[str, DeclaredTool]
    tiers: Mapping[str, Tier]
    pipelines: Mapping[str, Pipeline]
    policies: Mapping[str, CollisionPolicy]
    default_pipeline: str
    default_policy: str
    prospects: Sequence[GovernedTool] = ()
    offers: Mapping[str, Offer] = field(default_factory=dict)
    artifacts: Mapping[str, ArtifactClass] = field(default_factory=dict)


def link_catalogues(entries: Entries, parts: Parts) -> tuple[dict[str, Catalogue], list[Diagnostic]]:
    linked: dict[str, Catalogue] = {}
    problems: list[Diagnostic] = []
    offered = (each.governed for each in parts.offers.values())
    shelf = Shelf([*(tool.governed for tool in parts.tools.values()), *offered])
    for name, entry in entries.of(CatalogueDocument).items():
        catalogue, found = _catalogue(entry, entries, parts, shelf)
        problems += found
        if catalogue is not None:
            linked[name] = catalogue
    if entries.is_complete:
        told = {each.position for each in problems}  # a tool whose name is refused is not also called unpublished
        problems += [each for each in _unpublished(parts.tools, linked) if each.position not in told]
    problems += _shared_paths(entries)
    return linked, problems


def _catalogue(
    entry: Entry[CatalogueDocument], entries: Entries, parts: Parts, shelf: Shelf
) -> tuple[Catalogue | None, list[Diagnostic]]:
    spec = entry.document.spec
    pipeline = parts.pipelines.get(spec.pipeline or parts.default_pipeline)
    policy = parts.policies.get(spec.collision_policy or parts.default_policy)
    if pipeline is None or policy is None:
        return None, []
    includes, excludes = _selectors(spec.include, parts), _selectors(spec.exclude, parts)
    selection = select(shelf, includes, excludes)
    chosen = [parts.tools[tool.name] for tool in selection.tools if tool.kind == "tool"]
    offers = [parts.offers[f"{each.kind}:{each.name}"] for each in selection.tools if each.kind != "tool"]
    named, problems = name_tools(entry, chosen, policy)
    prompts, of_prompts = name_prompts(entry, [each for each in offers if each.kind == "prompt"], policy)
    problems += of_prompts
    tools = list(named.tools.values())
    problems += pipeline_problems(entry, pipeline, tools)
    problems += _unmarked(entry, [tool for tool in tools if _is_foreign(tool) and _has_json(tool, parts)])
    combinations, found = _combinations(entry, entries, [*tools, *offers])
    problems += found
    if entries.is_complete:
        for field, selectors, idle in (
            ("include", includes, selection.idle_includes),
            ("exclude", excludes, selection.idle_excludes),
        ):
            problems += [_idle(entry, field, at) for at in idle if not could_choose(selectors[at], parts.prospects)]
        problems += _idle_hidden(entry, named, parts.prospects)
    catalogue = _linked(entry, named, pipeline=pipeline, combinations=combinations)
    groups = sorted((each for each in offers if each.kind == "resource"), key=lambda each: each.trust.tier.rank)
    catalogue = replace(
        catalogue,
        collisions=(*named.collisions, *prompts.collisions, *shared_uris(groups)),
        prompts={name: each.object for name, each in prompts.prompts.items()},
        resources=tuple(each.object for each in groups),
    )
    return catalogue, problems


def _linked(
    entry: Entry[CatalogueDocument], named: NamedTools, *, pipeline: Pipeline, combinations: Sequence[Combination]
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


def _unmarked(entry: Entry[CatalogueDocument], untrusted: Sequence[DeclaredTool]) -> Iterator[Diagnostic]:
    """JSON that a model may read without the envelope that the catalogue's texts have."""
    publish = entry.document.spec.publish
    if not untrusted or (publish.render, publish.structured) != ("envelope", "raw") or "mcp" not in publish.as_:
        return
    names = [tool.name for tool in untrusted]
    more = f" and of {len(names) - 1} more" if names[1:] else ""
    message = f"the JSON of {names[0]!r}{more} is sent without an envelope, and a third party writes it"
    help = "set publish.structured: off, unless only programs read structuredContent"
    place = ("spec", "publish", "structured" if "structured" in publish.model_fields_set else "path")
    related = [(f"{tool.trust.tier.name!r} is a tier of third parties", tool.position) for tool in untrusted[:1]]
    yield entry.problem("unmarked-json", message, place, help=help, related=related, severity="warning")


def _is_foreign(tool: DeclaredTool) -> bool:
    return not tool.trust.trusted and tool.trust.tier.origin != "first-party"


def _has_json(tool: DeclaredTool, parts: Parts) -> bool:
    if tool.output_schema is not None or tool.brought_output is not None or tool.upstream is not None:
        return True
    declared = parts.artifacts.get(tool.artifact)
    return tool.artifact == "json" if declared is None else hasattr(declared.constructor, "json_type")


def _selectors(specs: Sequence[CatalogueSelector], parts: Parts) -> list[Selector]:
    selectors = []
    for spec in specs:
        tier = parts.tiers.get(spec.max_tier) if spec.max_tier else None
        selector = selector_of(spec, max_rank=tier.rank if tier else None)
        selectors.append(replace(selector, prompts=spec.prompts, resources=spec.resources))
    return selectors


def _combinations(
    entry: Entry[CatalogueDocument], entries: Entries, tools: Sequence[DeclaredTool | Offer]
) -> tuple[list[Combination], list[Diagnostic]]:
    spec = entry.document.spec
    waivers = [Waiver(frozenset(each.forbid_together), each.until, each.by, each.because) for each in spec.waivers]
    forbidden = [frozenset(flags) for flags in spec.forbid_together]
    governed = [tool.governed for tool in tools]
    found = forbidden_combinations(governed, forbidden, waivers, today=entries.today)
    problems: list[Diagnostic] = []
    for combination in found:
        if combination.waiver is None:
            problems.append(_met(entry, combination, tools, place=_place(forbidden, waivers, combination.flags)))
    if entries.is_complete:
        problems += _idle_waivers(entry, waivers, found)
    return found, problems


def _place(forbidden: Sequence[frozenset[str]], waivers: Sequence[Waiver], flags: frozenset[str]) -> Path:
    """The day on which a waiver ended, or, if nobody waived it, the combination."""
    for index, waiver in enumerate(waivers):
        if waiver.flags == flags:
            return ("spec", "waivers", index, "until")
    return ("spec", "forbidTogether", forbidden.index(flags))


def _met(
    entry: Entry[CatalogueDocument], combination: Combination, tools: Sequence[DeclaredTool | Offer], *, place: Path
) -> Diagnostic:
    together = " and ".join(sorted(combination.flags))
    by_name = {tool.name: tool for tool in tools}
    related: list[tuple[str, Position]] = []
    for flag, names in sorted(combination.brought_by.items()):
        first = by_name[names[0]]
        unknown = ", whose effects are unknown" if flag in first.trust.assumed else ""
        more = f" and {len(names) - 1} more" if names[1:] else ""
        related.append((f"{flag} comes with {first.name}{unknown}{more}", first.position))
    if "waivers" in place:
        message = f"the waiver has ended, and {together} still meet in the catalogue"
        help = "exclude a tool that completes the combination, or have the waiver renewed"
        return entry.problem("waiver-expired", message, place, help=help, related=related)
    message = f"{together} meet in the catalogue"
    help = "exclude a tool that completes the combination, or add a waiver with a last day"
    return entry.problem("forbidden-combination", message, place, help=help, related=related)


def _idle_waivers(
    entry: Entry[CatalogueDocument], waivers: Sequence[Waiver], found: Sequence[Combination]
) -> Iterator[Diagnostic]:
    completed = {combination.flags for combination in found}
    for index, waiver in enumerate(waivers):
        if waiver.flags not in completed:
            message = "the waiver is not needed: the combination does not meet in the catalogue"
            place = ("spec", "waivers", index, "forbidTogether")
            yield entry.problem("idle-waiver", message, place, help="remove it", severity="warning")


def _idle(entry: Entry[CatalogueDocument], field: str, index: int) -> Diagnostic:
    """An entry that has one criterion is told there; of several, which one is wrong is anybody's guess."""
    selector = entry.source.data["spec"][field][index]
    place: Path = ("spec", field, index)
    message = "the entry chooses nothing" if field == "include" else "the entry leaves out nothing that is included"
    if len(selector) == 1:
        place = (*place, *selector)
    help = "correct or remove it"
    return entry.problem("idle-selector", message, place, help=help, severity="warning")


def _idle_hidden(
    entry: Entry[CatalogueDocument], named: NamedTools, prospects: Sequence[GovernedTool]
) -> Iterator[Diagnostic]:
    for index, pattern in enumerate(entry.document.spec.hidden):
        if not prospects and not any(glob_matches(name, pattern) for name in named.tools):
            message = f"no tool of the catalogue is called {pattern!r}"
            help = did_you_mean(pattern, named.tools)
            yield entry.problem("idle-selector", message, ("spec", "hidden", index), help=help, severity="warning")


def _shared_paths(entries: Entries) -> Iterator[Diagnostic]:
    first: dict[str, Entry[CatalogueDocument]] = {}
    for entry in entries.of(CatalogueDocument).values():
        path = entry.document.spec.publish.path
        before = first.setdefault(path, entry)
        if before is not entry:
            related = [("the other one", before.at("spec", "publish", "path"))]
            message = f"another catalogue is published there: {path!r}"
            help = "give each catalogue its own path"
            yield entry.problem("path-taken", message, ("spec", "publish", "path"), help=help, related=related)


def _unpublished(tools: Mapping[str, DeclaredTool], catalogues: Mapping[str, Catalogue]) -> Iterator[Diagnostic]:
    published = {tool for catalogue in catalogues.values() for tool in catalogue.tools.values()}
    for name, tool in tools.items():
        if name not in published and tool.lifecycle == "active" and not tool.is_imported:
            message = f"no catalogue publishes {name!r}"
            help = "include it in a catalogue, or set lifecycle: draft"
            yield Diagnostic("unpublished-tool", message, tool.position, "warning", help)
