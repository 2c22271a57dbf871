"""Pipelines, and whether the tools of a catalogue may run through the one it uses."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.linking.entries import Entries, Entry
from gateway.config.specs.catalogues import CatalogueDocument
from gateway.config.specs.pipelines import PipelineDocument, Stage
from gateway.config.specs.stages import stage_options
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.effects import CHANGES, WRITES
from gateway.governance.stages import PHASES
from gateway.snapshot import DeclaredTool, Pipeline, StageUse

RETRY: Final = "retry"
CACHE: Final = "cache"


def link_pipelines(entries: Entries) -> dict[str, Pipeline]:
    return {name: _pipeline(entry) for name, entry in entries.of(PipelineDocument).items()}


def pipeline_problems(
    catalogue: Entry[CatalogueDocument], pipeline: Pipeline, tools: Iterable[DeclaredTool]
) -> Iterator[Diagnostic]:
    """Tools that the pipeline refuses, writing tools that it would try twice, and those that its cache leaves out."""
    tools = list(tools)
    retry = pipeline.stage(RETRY)
    if retry is not None and retry.options.get("attempts") == 1:  # the first attempt is the only one
        retry = None
    spared = frozenset(retry.options.get("unlessFlags", ())) if retry else frozenset()
    skipped = [tool for tool in tools if tool.trust.flags & CHANGES and not tool.trust.flags & pipeline.refuses]
    cache = pipeline.stage(CACHE)
    if cache is not None and skipped:
        yield _skipped(catalogue, cache, skipped)
    for tool in tools:
        if refused := sorted(tool.trust.flags & pipeline.refuses):
            yield _refusal(catalogue, pipeline, tool, flag=refused[0])
        # a tool of unknown effects is never tried again, and is told of by itself
        if retry and WRITES in tool.trust.known_flags and not tool.idempotent and not tool.trust.flags & spared:
            yield _retry(catalogue, retry, tool)


def _pipeline(entry: Entry[PipelineDocument]) -> Pipeline:
    spec = entry.document.spec
    lists = (spec.turn_input, spec.dispatch_input, spec.call, spec.dispatch_output, spec.turn_output)
    phases = {
        phase: tuple(
            StageUse(stage.use, _options(stage), entry.at("spec", phase, index, "use"))
            for index, stage in enumerate(stages)
        )
        for phase, stages in zip(PHASES, lists, strict=True)
    }
    refuses = frozenset(spec.refuses.flags) if spec.refuses else frozenset()
    return Pipeline(entry.name, phases, entry.position, refuses=refuses)


def _options(stage: Stage) -> Mapping[str, Any]:
    """What the stage is given: as its model reads it, with defaults; as written where the stage is from elsewhere."""
    try:
        return stage_options(stage.use, stage.with_).model_dump(by_alias=True)
    except (KeyError, ValidationError):  # the latter has been told already
        return stage.with_


def _refusal(catalogue: Entry[CatalogueDocument], pipeline: Pipeline, tool: DeclaredTool, *, flag: str) -> Diagnostic:
    why = "counts as such: its effects are unknown" if flag in tool.trust.assumed else "has it"
    message = f"pipeline {pipeline.name!r} refuses tools with the flag {flag!r}, and {tool.name} {why}"
    place = ("spec", "pipeline") if catalogue.has("spec", "pipeline") else ("metadata", "name")
    related = [("the tool", tool.position), ("the pipeline", pipeline.position)]
    help = f"exclude {tool.name}, or use another pipeline"
    return catalogue.problem("pipeline-refuses", message, place, help=help, related=related)


def _retry(catalogue: Entry[CatalogueDocument], retry: StageUse, tool: DeclaredTool) -> Diagnostic:
    message = f"calls of {tool.name} write and would be tried again"
    help = "add unlessFlags: [writes] to the stage, or declare the tool idempotent if calling it twice is harmless"
    related = [("the tool", tool.position), ("the catalogue", catalogue.position)]
    return Diagnostic("retry-writes", message, retry.position, help=help, related=related)


def _skipped(catalogue: Entry[CatalogueDocument], cache: StageUse, tools: list[DeclaredTool]) -> Diagnostic:
    more = f" and {len(tools) - 1} more" if len(tools) > 1 else ""
    does = "have unknown effects" if tools[0].trust.is_unknown else "write"
    message = f"calls of {tools[0].name}{more} {does}, so their answers are never kept"
    related = [("the tool", tools[0].position), ("the catalogue", catalogue.position)]
    help = "use a pipeline without the stage, or exclude what writes"
    return Diagnostic("cache-skips", message, cache.position, "warning", help, related)
