"""Tools: declared ones and those an upstream brings, each with its effective trust, its schema and its life."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from gateway.config.linking.effects import (
    StatedEffects,
    document_problems,
    effects_of_document,
    effects_of_import,
    effects_of_terms,
    idle_patterns,
    import_problems,
)
from gateway.config.linking.entries import Entries, Entry
from gateway.config.linking.mentions import is_imported
from gateway.config.linking.outputs import brought_output, uncheckable_outputs
from gateway.config.linking.python_objects import Unusable, find_object
from gateway.config.linking.shaping import misfits, shaped_schema, wrong_upstream
from gateway.config.linking.trust import TrustScale, link_trust
from gateway.config.references import BUILT_IN_ARTIFACTS
from gateway.config.specs.backends import PythonBackend, UpstreamBackend
from gateway.config.specs.tools import ToolDocument
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.core.schemas import Schema
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.imports import ImportedDefinition, plain
from gateway.governance.names import NAME
from gateway.governance.trust import EffectiveTrust, hints_of
from gateway.openapi.importing import ANSWER, REQUEST
from gateway.snapshot import DeclaredTool, Deprecation

_USE: Final = ("spec", "deprecation", "use")
_UNDESCRIBED: Final = "Its server says nothing about it."
_NAME: Final = re.compile(NAME)
_DIALECT: Final = re.compile(r"https?://[A-Za-z0-9./_-]{1,200}#?")
_SNAKE_CASE: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")

KnownTools = Mapping[tuple[str, str], ImportedDefinition]
"""Tools that upstreams bring, by upstream and name."""


def link_tools(
    entries: Entries, scale: TrustScale, *, imports: Collection[ImportedDefinition], packages: Collection[str]
) -> tuple[dict[str, DeclaredTool], list[Diagnostic]]:
    """Tools by identity: declared ones in the order of their files, then imported ones by upstream and name."""
    linked: dict[str, DeclaredTool] = {}
    problems: list[Diagnostic] = []
    tools = {(each.upstream, each.name): each for each in imports if each.kind == "tool"}
    upstreams = entries.of(UpstreamDocument)
    transports = {name: each.document.spec.transport.type for name, each in upstreams.items()}
    for name, entry in entries.of(ToolDocument).items():
        problems += _wrong_upstream(entry, transports, tools)
        tool, found = _declared(entry, scale, known=tools, upstreams=upstreams, packages=packages)
        problems += found
        if tool is not None:
            linked[name] = tool
    published = {(tool.upstream, tool.remote_name) for tool in linked.values()}
    undeclared = [each for key, each in tools.items() if key not in published]
    for _, upstream in sorted(upstreams.items()):
        brought, found = imported_tools(upstream, scale, brought=_brought(upstream, undeclared))
        problems += found
        problems += idle_patterns(upstream, {name for source, name in tools if source == upstream.name})
        problems += _taken_identities(upstream, brought, linked)
        linked |= {identity: tool for identity, tool in brought.items() if identity not in linked}
    problems += _replacements(entries, linked)
    return linked, problems


def _brought(upstream: Entry[UpstreamDocument], imports: Collection[ImportedDefinition]) -> list[ImportedDefinition]:
    terms = upstream.document.spec.import_
    return [each for each in imports if each.upstream == upstream.name and is_imported(each.name, terms)]


def _taken_identities(
    upstream: Entry[UpstreamDocument], tools: Collection[str], linked: Mapping[str, DeclaredTool]
) -> Iterator[Diagnostic]:
    for identity in tools:
        if identity in linked:
            message = f"a declared tool has the name {identity!r}, by which policies know the imported one"
            related = [("declared here", linked[identity].position)]
            yield upstream.problem("duplicate-name", message, ("metadata", "name"), related=related)


def _declared(
    entry: Entry[ToolDocument],
    scale: TrustScale,
    *,
    known: KnownTools,
    upstreams: Mapping[str, Entry[UpstreamDocument]],
    packages: Collection[str],
) -> tuple[DeclaredTool | None, list[Diagnostic]]:
    spec = entry.document.spec
    backend = spec.backend
    remote = backend if isinstance(backend, UpstreamBackend) else None
    definition = known.get((remote.upstream, remote.tool)) if remote else None
    stated = effects_of_document(entry, definition)
    trust, problems = link_trust(
        entry,
        spec.trust,
        ("spec", "trust"),
        stated,
        scale=scale,
        backend="http" if backend.type == "openapi" else backend.type,
        imported=remote is not None,
        pinned=definition is not None and definition.is_pinned,
    )
    problems += _style(entry)
    problems += _life(entry, scale)
    problems += _code(entry, packages)
    theirs = None if definition is None else _enforced(definition)
    ours = _schema(entry, definition)
    if remote is not None and theirs is not None:
        problems += misfits(entry, remote, theirs, ours=ours)
    upstream = upstreams.get(remote.upstream) if remote else None
    if trust is None:
        return None, problems
    problems += document_problems(entry, stated, trust, definition)
    return _tool(entry, trust, scale, stated=stated, definition=definition, upstream=upstream, schema=ours), problems


def _tool(
    entry: Entry[ToolDocument],
    trust: EffectiveTrust,
    scale: TrustScale,
    *,
    stated: StatedEffects,
    definition: ImportedDefinition | None,
    upstream: Entry[UpstreamDocument] | None,
    schema: Mapping[str, Any] | None,
) -> DeclaredTool:
    metadata, spec = entry.document.metadata, entry.document.spec
    remote = spec.backend if isinstance(spec.backend, UpstreamBackend) else None
    request, artifact = _operation(definition if spec.backend.type == "openapi" else None)
    ends = spec.deprecation
    idempotent = spec.idempotent and not trust.is_unknown and not stated.denies_repeats
    return DeclaredTool(
        entry.name,
        spec.description,
        trust,
        spec.backend.type,
        entry.position,
        title=metadata.title,
        owner=metadata.owner,
        version=spec.version,
        lifecycle=spec.lifecycle,
        deprecation=Deprecation(ends.since, ends.remove_after, ends.use) if ends else None,
        labels=dict(metadata.labels),
        upstream=remote.upstream if remote else None,
        remote_name=remote.tool if remote else None,
        request=request,
        artifact=(spec.output.artifact if spec.output else None) or artifact,
        inline=spec.output.inline if spec.output else True,
        idempotent=idempotent,
        ephemeral=spec.ephemeral,
        on_collision=spec.on_collision,
        input_schema=schema,
        output_schema=spec.output.schema_ if spec.output else None,
        brought_output=brought_output(definition, upstream, spec.output),
        as_task=definition is not None and definition.needs_task,
        pinned_digest=definition.digest if definition is not None and definition.is_pinned else None,
        hints=hints_of(trust, scale.flags) | ({"idempotent": True} if idempotent else {}),
        meta=spec.meta,
    )


def _schema(entry: Entry[ToolDocument], definition: ImportedDefinition | None) -> Mapping[str, Any] | None:
    """The schema as it is enforced: the document's, else the upstream's.

    `None` for a schema that cannot be compiled: `check_programs` reports it, and nothing else reads it.
    """
    given = entry.document.spec.input
    if given is None:
        theirs = None if definition is None else _enforced(definition)
        backend = entry.document.spec.backend
        return shaped_schema(backend, theirs) if theirs is not None and isinstance(backend, UpstreamBackend) else None
    try:
        return Schema(given.schema_).describe()
    except (ValueError, RecursionError):
        return None


def _enforced(definition: ImportedDefinition) -> Mapping[str, Any] | None:
    """An upstream's schema as it is enforced; `None` for one that cannot be. One that names no argument takes any."""
    given = plain(definition.input_schema)
    if given == {"type": "object"}:
        return {"type": "object", "additionalProperties": True}
    try:
        schema = Schema(given)
    except (ValueError, RecursionError):
        return None
    return schema.describe() if schema.describes_object else None


def _dialect(definition: ImportedDefinition) -> str | None:
    """Passed on where it is the address of one."""
    given = definition.input_schema.get("$schema")
    return given if isinstance(given, str) and _DIALECT.fullmatch(given) else None


def _operation(definition: ImportedDefinition | None) -> tuple[Mapping[str, Any] | None, str]:
    """What a call becomes, and who reads answers. Only definitions that were made from our own documents are asked:
    whatever an MCP server writes there is passed over."""
    meta = {} if definition is None else definition.given.get("_meta") or {}
    request, answer = meta.get(REQUEST), meta.get(ANSWER) or {}
    if request is None:
        return None, "text"
    artifact = str(answer.get("artifact"))
    return {"request": request, "answer": answer}, artifact if artifact in BUILT_IN_ARTIFACTS else "text"


def _wrong_upstream(
    entry: Entry[ToolDocument], transports: Mapping[str, str], known: KnownTools
) -> Iterator[Diagnostic]:
    backend = entry.document.spec.backend
    if isinstance(backend, UpstreamBackend):
        tools = {name: each for (upstream, name), each in known.items() if upstream == backend.upstream}
        yield from wrong_upstream(entry, backend, transport=transports.get(backend.upstream), tools=tools)


def _style(entry: Entry[ToolDocument]) -> Iterator[Diagnostic]:
    if not _SNAKE_CASE.fullmatch(entry.name):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", entry.name)
        better = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
        message = f"{entry.name!r} is not lower-case snake_case, which models spell best"
        help = f"consider {better!r}" if _SNAKE_CASE.fullmatch(better) else None
        yield entry.problem("name-style", message, ("metadata", "name"), help=help, severity="warning")


def _life(entry: Entry[ToolDocument], scale: TrustScale) -> Iterator[Diagnostic]:
    spec = entry.document.spec
    ends = spec.deprecation
    if spec.lifecycle != "deprecated" or ends is None:
        return
    if scale.today > ends.remove_after:
        message = f"the tool's last day was {ends.remove_after}"
        place = ("spec", "deprecation", "removeAfter")
        yield entry.problem("past-removal", message, place, help="remove the document, or set lifecycle: retired")
    if ends.use is None:
        message = "callers are not told what to use instead"
        help = "name the replacement: use: other_tool"
        yield entry.problem("no-replacement", message, ("spec", "deprecation"), help=help, severity="warning")


def _replacements(entries: Entries, tools: Mapping[str, DeclaredTool]) -> Iterator[Diagnostic]:
    for entry in entries.of(ToolDocument).values():
        ends = entry.document.spec.deprecation
        use = tools.get(ends.use) if ends is not None and ends.use is not None else None
        if use is not None and not use.is_in_use(entries.today):
            message = f"the replacement {use.name!r} is {use.lifecycle} and cannot be called"
            help = "name a tool that stays"
            yield entry.problem("no-replacement", message, _USE, help=help, severity="warning")
        elif use is not None and use.name == entry.name:
            message = "the tool is named as its own replacement"
            yield entry.problem("no-replacement", message, _USE, help="name another tool", severity="warning")


def _code(entry: Entry[ToolDocument], packages: Collection[str]) -> Iterator[Diagnostic]:
    backend = entry.document.spec.backend
    if not isinstance(backend, PythonBackend):
        return
    place = ("spec", "backend", "entrypoint")
    found = find_object(backend.entrypoint, packages=packages)
    if isinstance(found, Unusable):
        yield entry.problem(found.code, found.message, place, help=found.help)
    elif not callable(found):
        yield entry.problem("entrypoint-missing", f"{backend.entrypoint} is not a function", place)


def imported_tools(
    entry: Entry[UpstreamDocument], scale: TrustScale, *, brought: Collection[ImportedDefinition]
) -> tuple[dict[str, DeclaredTool], list[Diagnostic]]:
    """Tools that no document declares, by identity, with the trust of their upstream's terms."""
    spec = entry.document.spec
    backend = "http" if spec.transport.type == "openapi" else "mcp"
    path = ("spec", "import", "trust")
    tools: dict[str, DeclaredTool] = {}
    usable, problems = _usable(entry, brought)
    groups: dict[tuple[bool, StatedEffects], list[ImportedDefinition]] = {}
    for each in usable:
        groups.setdefault((each.is_pinned, effects_of_import(spec, each)), []).append(each)
    linked: list[tuple[ImportedDefinition, StatedEffects, EffectiveTrust]] = []
    # before anything is imported nothing can be unpinned, or have unknown effects
    for (pinned, stated), alike in (groups or {(True, effects_of_terms(spec)): []}).items():
        trust, found = link_trust(
            entry,
            spec.import_.trust,
            path,
            stated,
            scale=scale,
            backend=backend,
            imported=True,
            pinned=pinned,
            whose=_whose(alike),
        )
        problems += found
        if trust is not None:
            linked += [(each, stated, trust) for each in alike]
            tools |= {each.identity: _imported_tool(entry, each, trust, scale=scale) for each in alike}
    problems += import_problems(entry, sorted(linked, key=lambda each: each[0].name))
    return dict(sorted(tools.items())), problems


def _whose(tools: Collection[ImportedDefinition]) -> str:
    first = next((each.name for each in tools if each.name), "")
    return f"{first} and {len(tools) - 1} more" if len(tools) > 1 else first


def _usable(
    entry: Entry[UpstreamDocument], brought: Collection[ImportedDefinition]
) -> tuple[list[ImportedDefinition], list[Diagnostic]]:
    """Definitions that can be served. The others are left out: nobody could call them by name, or check arguments."""
    usable: list[ImportedDefinition] = []
    problems: list[Diagnostic] = []
    for each in brought:
        if each.name and not _NAME.fullmatch(each.name):
            reason = "its name has characters that no policy could name"
        elif _enforced(each) is None:
            reason = "its input schema is none that could be enforced"
        else:
            usable.append(each)
            problems += uncheckable_outputs(entry, each)
            continue
        message = f"{each.identity} is left out: {reason}"
        position = each.position or entry.at("spec", "import")
        help = f"exclude it: import: {{exclude: [{each.name}]}}" if _NAME.fullmatch(each.name) else None
        problems.append(Diagnostic("bad-definition", message, position, "warning", help))
    return usable, problems


def _imported_tool(
    entry: Entry[UpstreamDocument], tool: ImportedDefinition, trust: EffectiveTrust, *, scale: TrustScale
) -> DeclaredTool:
    is_openapi = entry.document.spec.transport.type == "openapi"
    request, artifact = _operation(tool if is_openapi else None)
    return DeclaredTool(
        tool.identity,
        tool.description if tool.description.strip() else _UNDESCRIBED,
        trust,
        "openapi" if is_openapi else "mcp",
        entry.at("spec", "import"),
        owner=entry.document.metadata.owner,
        labels=dict(entry.document.metadata.labels),
        title=tool.title,
        upstream=entry.name,
        remote_name=tool.name,
        is_imported=True,
        request=request,
        artifact=artifact,
        input_schema=_enforced(tool),
        brought_output=brought_output(tool, entry),
        as_task=tool.needs_task,
        dialect=_dialect(tool),
        pinned_digest=tool.digest if tool.is_pinned else None,
        hints=hints_of(trust, scale.flags),
    )
