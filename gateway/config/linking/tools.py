"""Declared and imported tools, each with its effective trust, schema and lifecycle.

The tools of an upstream are known once they are locked. Until then, one placeholder per upstream has the trust that its
tools will have, so that a selector without tools is not reported if it could match one of them.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.backends import ANSWER_META, REQUEST_META
from gateway.config.document_checks import BUILT_IN_ARTIFACTS
from gateway.config.kinds.tools import PythonBackendSpec, ToolDocument, UpstreamBackendSpec
from gateway.config.kinds.upstreams import UpstreamDocument
from gateway.config.linking.artifact_classes import UnusableObject, import_object
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.config.linking.tool_effects import (
    StatedEffects,
    check_document,
    check_imports,
    effects_of_document,
    effects_of_import,
    effects_of_terms,
    find_idle_patterns,
)
from gateway.config.linking.trust import TrustVocabulary, link_trust
from gateway.config.linking.upstream_imports import imports_tool
from gateway.config.linking.upstream_schema_checks import (
    check_argument_mapping,
    check_output_schemas,
    check_upstream_reference,
    map_schema,
    select_output_schema,
)
from gateway.model import NAME_REGEX, Schema
from gateway.registries import (
    DeclaredTool,
    Deprecation,
    Diagnostic,
    EffectiveTrust,
    GovernedTool,
    Selector,
    UpstreamDefinition,
    add_implied_flags,
    build_tool_definition,
    derive_hints,
    to_plain_data,
)

_USE: Final = ("spec", "deprecation", "use")
_UNDESCRIBED: Final = "The server provides no description."
_NAME: Final = re.compile(NAME_REGEX)
_DIALECT: Final = re.compile(r"https?://[A-Za-z0-9./_-]{1,200}#?")
_SNAKE_CASE: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")

ToolTable = Mapping[tuple[str, str], UpstreamDefinition]
"""Definitions of upstream tools by upstream and name."""


def link_tools(
    entries: DocumentIndex,
    scale: TrustVocabulary,
    *,
    imports: Collection[UpstreamDefinition],
    packages: Collection[str],
) -> tuple[dict[str, DeclaredTool], list[Diagnostic]]:
    """Link tools by identity: declared ones in the order of their files, then imported ones by upstream and name."""
    linked: dict[str, DeclaredTool] = {}
    problems: list[Diagnostic] = []
    tools = {(each.upstream, each.name): each for each in imports if each.kind == "tool"}
    upstreams = entries.of(UpstreamDocument)
    transports = {name: each.document.spec.transport.type for name, each in upstreams.items()}
    by_upstream: dict[str, dict[str, UpstreamDefinition]] = {}
    for (source, name), each in tools.items():
        by_upstream.setdefault(source, {})[name] = each
    for name, entry in entries.of(ToolDocument).items():
        problems += _check_upstream(entry, transports, by_upstream)
        tool, found = _link_declared(
            entry,
            scale,
            known=tools,
            upstreams=upstreams,
            packages=packages,
            input_schemas=entries.input_schemas,
        )
        problems += found
        if tool is not None:
            linked[name] = tool
    published = {(tool.upstream, tool.remote_name) for tool in linked.values()}
    undeclared = [each for key, each in tools.items() if key not in published]
    for _, upstream in sorted(upstreams.items()):
        imported_tools, found = link_imported_tools(upstream, scale, candidates=_select_imports(upstream, undeclared))
        problems += found
        problems += find_idle_patterns(upstream, {name for source, name in tools if source == upstream.name})
        problems += _find_taken_identities(upstream, imported_tools, linked)
        linked |= {identity: tool for identity, tool in imported_tools.items() if identity not in linked}
    problems += _check_replacements(entries, linked)
    return linked, problems


def _select_imports(
    upstream: DocumentEntry[UpstreamDocument], imports: Collection[UpstreamDefinition]
) -> list[UpstreamDefinition]:
    terms = upstream.document.spec.import_
    return [each for each in imports if each.upstream == upstream.name and imports_tool(each.name, terms)]


def _find_taken_identities(
    upstream: DocumentEntry[UpstreamDocument], tools: Collection[str], linked: Mapping[str, DeclaredTool]
) -> Iterator[Diagnostic]:
    for identity in tools:
        if identity in linked:
            message = f"a declared tool has the name {identity!r}, which identifies the imported tool in policies"
            related = [("declared here", linked[identity].position)]
            yield upstream.problem("duplicate-name", message, ("metadata", "name"), related=related)


def _link_declared(
    entry: DocumentEntry[ToolDocument],
    scale: TrustVocabulary,
    *,
    known: ToolTable,
    upstreams: Mapping[str, DocumentEntry[UpstreamDocument]],
    packages: Collection[str],
    input_schemas: Mapping[str, dict[str, Any]],
) -> tuple[DeclaredTool | None, list[Diagnostic]]:
    spec = entry.document.spec
    backend = spec.backend
    remote = backend if isinstance(backend, UpstreamBackendSpec) else None
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
    problems += _check_name_style(entry)
    problems += _check_lifecycle(entry, scale)
    problems += _check_entrypoint(entry, packages)
    theirs = None if definition is None else _enforced_schema(definition)
    ours = _find_schema(entry, definition, input_schemas)
    if remote is not None and theirs is not None:
        problems += check_argument_mapping(entry, remote, theirs, ours=ours)
    upstream = upstreams.get(remote.upstream) if remote else None
    if trust is None:
        return None, problems
    problems += check_document(entry, stated, trust, definition)
    return _to_tool(entry, trust, scale, stated=stated, definition=definition, upstream=upstream, schema=ours), problems


def _to_tool(
    entry: DocumentEntry[ToolDocument],
    trust: EffectiveTrust,
    scale: TrustVocabulary,
    *,
    stated: StatedEffects,
    definition: UpstreamDefinition | None,
    upstream: DocumentEntry[UpstreamDocument] | None,
    schema: Mapping[str, Any] | None,
) -> DeclaredTool:
    metadata, spec = entry.document.metadata, entry.document.spec
    remote = spec.backend if isinstance(spec.backend, UpstreamBackendSpec) else None
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
        upstream_output_schema=select_output_schema(definition, upstream, spec.output),
        as_task=definition is not None and definition.requires_task,
        pinned_digest=definition.digest if definition is not None and definition.is_pinned else None,
        hints=derive_hints(trust, scale.flags) | ({"idempotent": True} if idempotent else {}),
        meta=spec.meta,
    )


def _find_schema(
    entry: DocumentEntry[ToolDocument],
    definition: UpstreamDefinition | None,
    input_schemas: Mapping[str, dict[str, Any]],
) -> Mapping[str, Any] | None:
    """Return the enforced schema: the document's, else the upstream's.

    `None` for a schema that does not compile; `check_embedded_code` reports it.
    """
    given = entry.document.spec.input
    if given is None:
        theirs = None if definition is None else _enforced_schema(definition)
        backend = entry.document.spec.backend
        return map_schema(backend, theirs) if theirs is not None and isinstance(backend, UpstreamBackendSpec) else None
    return input_schemas.get(entry.name)


def _enforced_schema(definition: UpstreamDefinition) -> Mapping[str, Any] | None:
    """Return an upstream's schema as enforced, or `None` if it cannot be. Without properties, it accepts anything."""
    given = to_plain_data(definition.input_schema)
    if given == {"type": "object"}:
        return {"type": "object", "additionalProperties": True}
    try:
        schema = Schema(given)
    except (ValueError, RecursionError):
        return None
    return schema.describe() if schema.describes_object else None


def _dialect(definition: UpstreamDefinition) -> str | None:
    """Return the `$schema` of the definition if it is a URL."""
    given = definition.input_schema.get("$schema")
    return given if isinstance(given, str) and _DIALECT.fullmatch(given) else None


def _operation(definition: UpstreamDefinition | None) -> tuple[Mapping[str, Any] | None, str]:
    """Return the HTTP request of an OpenAPI operation and the artifact of its responses.

    `definition` is `None` for other tools: the `_meta` of an MCP server is ignored."""
    meta = {} if definition is None else definition.given.get("_meta") or {}
    request, answer = meta.get(REQUEST_META), meta.get(ANSWER_META) or {}
    if request is None:
        return None, "text"
    artifact = str(answer.get("artifact"))
    return {"request": request, "answer": answer}, artifact if artifact in BUILT_IN_ARTIFACTS else "text"


def _check_upstream(
    entry: DocumentEntry[ToolDocument],
    transports: Mapping[str, str],
    known: Mapping[str, Mapping[str, UpstreamDefinition]],
) -> Iterator[Diagnostic]:
    backend = entry.document.spec.backend
    if isinstance(backend, UpstreamBackendSpec):
        tools = known.get(backend.upstream, {})
        yield from check_upstream_reference(entry, backend, transport=transports.get(backend.upstream), tools=tools)


def _check_name_style(entry: DocumentEntry[ToolDocument]) -> Iterator[Diagnostic]:
    if not _SNAKE_CASE.fullmatch(entry.name):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", entry.name)
        better = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
        message = f"{entry.name!r} is not lower-case snake_case, which models reproduce most reliably"
        help = f"consider {better!r}" if _SNAKE_CASE.fullmatch(better) else None
        yield entry.problem("name-style", message, ("metadata", "name"), help=help, severity="warning")


def _check_lifecycle(entry: DocumentEntry[ToolDocument], scale: TrustVocabulary) -> Iterator[Diagnostic]:
    spec = entry.document.spec
    ends = spec.deprecation
    if spec.lifecycle != "deprecated" or ends is None:
        return
    if scale.today > ends.remove_after:
        message = f"the tool's last day was {ends.remove_after}"
        place = ("spec", "deprecation", "removeAfter")
        yield entry.problem("past-removal", message, place, help="remove the document, or set lifecycle: retired")
    if ends.use is None:
        message = "the deprecated tool names no replacement"
        help = "add deprecation.use: other_tool"
        yield entry.problem("no-replacement", message, ("spec", "deprecation"), help=help, severity="warning")


def _check_replacements(entries: DocumentIndex, tools: Mapping[str, DeclaredTool]) -> Iterator[Diagnostic]:
    for entry in entries.of(ToolDocument).values():
        ends = entry.document.spec.deprecation
        use = tools.get(ends.use) if ends is not None and ends.use is not None else None
        if use is not None and not use.is_callable_on(entries.today):
            message = f"the replacement {use.name!r} is {use.lifecycle} and cannot be called"
            help = "name a tool that remains callable"
            yield entry.problem("no-replacement", message, _USE, help=help, severity="warning")
        elif use is not None and use.name == entry.name:
            message = "the tool names itself as its replacement"
            yield entry.problem("no-replacement", message, _USE, help="name another tool", severity="warning")


def _check_entrypoint(entry: DocumentEntry[ToolDocument], packages: Collection[str]) -> Iterator[Diagnostic]:
    backend = entry.document.spec.backend
    if not isinstance(backend, PythonBackendSpec):
        return
    place = ("spec", "backend", "entrypoint")
    found = import_object(backend.entrypoint, packages=packages)
    if isinstance(found, UnusableObject):
        yield entry.problem(found.code, found.message, place, help=found.help)
    elif not callable(found):
        yield entry.problem("entrypoint-missing", f"{backend.entrypoint} is not a function", place)


def link_imported_tools(
    entry: DocumentEntry[UpstreamDocument], scale: TrustVocabulary, *, candidates: Collection[UpstreamDefinition]
) -> tuple[dict[str, DeclaredTool], list[Diagnostic]]:
    """Link tools without a Tool document, by identity, with the trust that their import declares."""
    spec = entry.document.spec
    backend = "http" if spec.transport.type == "openapi" else "mcp"
    path = ("spec", "import", "trust")
    tools: dict[str, DeclaredTool] = {}
    usable, problems = _find_usable(entry, candidates)
    groups: dict[tuple[bool, StatedEffects], list[UpstreamDefinition]] = {}
    for each in usable:
        groups.setdefault((each.is_pinned, effects_of_import(spec, each)), []).append(each)
    linked: list[tuple[UpstreamDefinition, StatedEffects, EffectiveTrust]] = []
    # without imported tools, check the trust of the import as if pinned and declared
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
            whose=_describe_group(alike),
        )
        problems += found
        if trust is not None:
            linked += [(each, stated, trust) for each in alike]
            tools |= {each.identity: _build_imported_tool(entry, each, trust, scale=scale) for each in alike}
    problems += check_imports(entry, sorted(linked, key=lambda each: each[0].name))
    return dict(sorted(tools.items())), problems


def _describe_group(tools: Collection[UpstreamDefinition]) -> str:
    first = next((each.name for each in tools if each.name), "")
    return f"{first} and {len(tools) - 1} more" if len(tools) > 1 else first


def _find_usable(
    entry: DocumentEntry[UpstreamDocument], candidates: Collection[UpstreamDefinition]
) -> tuple[list[UpstreamDefinition], list[Diagnostic]]:
    """Return the definitions that can be served, and a warning for each that has an unusable name or schema."""
    usable: list[UpstreamDefinition] = []
    problems: list[Diagnostic] = []
    for each in candidates:
        if each.name and not _NAME.fullmatch(each.name):
            reason = "its name has characters that policies do not support"
        elif _enforced_schema(each) is None:
            reason = "its input schema cannot be enforced"
        else:
            usable.append(each)
            problems += check_output_schemas(entry, each)
            continue
        message = f"{each.identity} is left out: {reason}"
        position = each.position or entry.position_at("spec", "import")
        help = f"exclude it: import: {{exclude: [{each.name}]}}" if _NAME.fullmatch(each.name) else None
        problems.append(Diagnostic("bad-definition", message, position, "warning", help))
    return usable, problems


def _build_imported_tool(
    entry: DocumentEntry[UpstreamDocument], tool: UpstreamDefinition, trust: EffectiveTrust, *, scale: TrustVocabulary
) -> DeclaredTool:
    is_openapi = entry.document.spec.transport.type == "openapi"
    request, artifact = _operation(tool if is_openapi else None)
    return DeclaredTool(
        tool.identity,
        tool.description if tool.description.strip() else _UNDESCRIBED,
        trust,
        "openapi" if is_openapi else "mcp",
        entry.position_at("spec", "import"),
        owner=entry.document.metadata.owner,
        labels=dict(entry.document.metadata.labels),
        title=tool.title,
        upstream=entry.name,
        remote_name=tool.name,
        is_imported=True,
        request=request,
        artifact=artifact,
        input_schema=_enforced_schema(tool),
        upstream_output_schema=select_output_schema(tool, entry),
        as_task=tool.requires_task,
        dialect=_dialect(tool),
        pinned_digest=tool.digest if tool.is_pinned else None,
        hints=derive_hints(trust, scale.flags),
    )


def build_placeholder_tools(
    entries: DocumentIndex, scale: TrustVocabulary, *, imports: Collection[UpstreamDefinition]
) -> list[GovernedTool]:
    known = {each.upstream for each in imports}
    found: list[GovernedTool] = []
    for name, upstream in entries.of(UpstreamDocument).items():
        if name not in known:
            placeholders, _ = link_imported_tools(
                upstream, scale, candidates=[build_tool_definition(name, "", is_pinned=True)]
            )
            flags = [flag for each in upstream.document.spec.import_.tools.values() for flag in each.flags]
            more = add_implied_flags(flags, scale.flags)
            governed = [tool.to_governed for tool in placeholders.values()]
            found += [replace(each, flags=each.flags | more) for each in governed]
    return found


def could_match(selector: Selector, prospects: Sequence[GovernedTool]) -> bool:
    return any(_could_match_one(selector, tool) for tool in prospects)


def _could_match_one(selector: Selector, stand_in: GovernedTool) -> bool:
    names = (*selector.tools, *selector.prompts, *selector.resources)
    by_name = not names or any(_overlaps(pattern, stand_in.name) for pattern in names)
    return by_name and replace(selector, tools=(), prompts=(), resources=()).matches(stand_in)


def _overlaps(pattern: str, start: str) -> bool:
    """Whether a name that starts with `start` could match the pattern."""
    head, star, _ = pattern.partition("*")
    return head.startswith(start) or (bool(star) and start.startswith(head))
