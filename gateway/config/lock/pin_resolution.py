"""Resolve a lock file against the documents: which definitions are imported and pinned, and which are unused.

A definition is pinned if the Upstream document still has the source from which it was locked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.config.kinds.tools import McpBackendSpec, ToolDocument, UpstreamBackendSpec
from gateway.config.kinds.upstreams import OpenApiTransport, StdioTransport, StreamableHttpTransport, UpstreamDocument
from gateway.config.linking.upstream_imports import matches_import_filter
from gateway.config.loader import CheckedDocument, ConfigDocuments
from gateway.config.lock.lock_file import LOCK_FILE, Lock, LockSource
from gateway.config.yaml.document import YamlDocument
from gateway.model import glob_matches
from gateway.registries import DefinitionKind, Diagnostic, Position, UpstreamDefinition, suggest_name

_TRANSPORT = ("spec", "transport")


def resolve_pins(
    loaded: ConfigDocuments, lock: Lock, *, environment: str | None, is_whole: bool = True
) -> tuple[list[UpstreamDefinition], list[Diagnostic]]:
    """Return the locked definitions that documents import, and the differences between lock file and documents.

    If the lock is not whole, missing definitions are not reported.
    """
    upstreams = list_upstreams(loaded)
    problems = list(_find_idle_upstreams(lock, upstreams)) if not loaded.has_errors else []
    imports: list[UpstreamDefinition] = []
    for name, locked in lock.upstreams.items():
        found = upstreams.get(name)
        if found is None:
            continue
        is_same = locked.has_source(lock_source(found), environment=environment)
        if not is_same:
            problems.append(_source_problem(found, locked.position))
        for definition in lock.of(name):
            if is_selected(definition, found, loaded):
                imports.append(replace(definition, is_pinned=is_same))
            elif not loaded.has_errors:
                problems.append(_idle_definition(definition))
    if is_whole and not loaded.has_errors:
        problems += _check_locks(loaded, lock, upstreams)
    return imports, problems


def _check_locks(loaded: ConfigDocuments, lock: Lock, upstreams: Mapping[str, CheckedDocument]) -> Iterator[Diagnostic]:
    """Warn about definitions that documents use and that are not served, because they are not locked."""
    for name, upstream in upstreams.items():
        if not _is_locked_only(upstream):
            continue
        if name not in lock.upstreams:
            message = f"upstream {name!r} is not locked, so none of its definitions is served"
            position = upstream.source.key_position(("spec", "import"))
            yield Diagnostic("not-locked", message, position, "warning", help=_lock_help(name))
            continue
        yield from _find_missing_names(upstream, lock)
    for each in loaded.documents:
        backend = each.spec.spec.backend if isinstance(each.spec, ToolDocument) else None
        if not isinstance(backend, McpBackendSpec) or backend.upstream not in lock.upstreams:
            continue  # unknown operations are errors elsewhere
        if backend.upstream not in upstreams or not _is_locked_only(upstreams[backend.upstream]):
            continue
        names = [found.name for found in lock.of(backend.upstream) if found.kind == "tool"]
        if backend.tool not in names:
            message = f"{backend.upstream}.{backend.tool} is not locked, so it is not served"
            help = suggest_name(backend.tool, names) or _lock_help(backend.upstream)
            position = each.source.position(("spec", "backend", "tool"))
            yield Diagnostic("not-locked", message, position, "warning", help=help)


def _find_missing_names(upstream: CheckedDocument, lock: Lock) -> Iterator[Diagnostic]:
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "only upstreams are passed"  # noqa: S101 - narrows a union
    name, terms = spec.metadata.name, spec.spec.import_
    wanted: tuple[tuple[str, DefinitionKind, Sequence[str]], ...]
    wanted = (("include", "tool", terms.include), ("prompts", "prompt", terms.prompts))
    for field, kind, patterns in wanted:
        names = [each.name for each in lock.of(name) if each.kind == kind]
        for index, pattern in enumerate(patterns):
            if pattern == "*" or any(glob_matches(each, pattern) for each in names):
                continue
            message = f"no locked {kind} of upstream {name!r} matches {pattern!r}"
            position = upstream.source.position(("spec", "import", field, index))
            help = suggest_name(pattern, names) or _lock_help(name)
            yield Diagnostic("not-locked", message, position, "warning", help=help)


def _is_locked_only(upstream: CheckedDocument) -> bool:
    """Whether only locked definitions of the upstream are served."""
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "only upstreams are passed"  # noqa: S101 - narrows a union
    transport = spec.spec.transport
    if isinstance(transport, OpenApiTransport) and not is_url(transport.document):
        return False  # a file is reviewed with the configuration
    return spec.spec.import_.on_change == "quarantine"


def _lock_help(upstream: str) -> str:
    return f"review its definitions, and run: gateway lock --upstream {upstream}"


def is_url(document: str) -> bool:
    """Whether the document of an OpenAPI transport is a URL and not a file."""
    return document.lower().startswith(("https://", "http://"))


def list_upstreams(loaded: ConfigDocuments) -> dict[str, CheckedDocument]:
    """Return the Upstream documents by name; the first of a duplicate name."""
    found: dict[str, CheckedDocument] = {}
    for each in loaded.documents:
        if isinstance(each.spec, UpstreamDocument):
            found.setdefault(each.spec.metadata.name, each)
    return found


def is_selected(definition: UpstreamDefinition, upstream: CheckedDocument, loaded: ConfigDocuments) -> bool:
    """Whether the upstream's import includes a definition, or a Tool document publishes it."""
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "only upstreams are passed"  # noqa: S101 - narrows a union
    if matches_import_filter(definition, spec.spec.import_):
        return True
    published = tools_by_upstream(loaded).get(definition.upstream, frozenset())
    return definition.kind == "tool" and definition.name in published


def lock_source(upstream: CheckedDocument) -> LockSource:
    """Return the source of an upstream as written, because the values of variables may differ."""
    spec, source = upstream.spec, upstream.source
    assert isinstance(spec, UpstreamDocument), "only upstreams are passed"  # noqa: S101 - narrows a union
    transport = spec.spec.transport
    match transport:
        case StreamableHttpTransport():
            return (transport.type, _as_written(source, "url", transport.url))
        case StdioTransport():
            argv = (_as_written(source, "argv", each, index) for index, each in enumerate(transport.argv))
            return (transport.type, *argv)
        case OpenApiTransport():
            document = _as_written(source, "document", transport.document)
            return (transport.type, document, _as_written(source, "server", transport.server))


def _as_written(source: YamlDocument, field: str, value: str, *index: int) -> str:
    return source.written.get((*_TRANSPORT, field, *index), str(value))


def tools_by_upstream(loaded: ConfigDocuments) -> Mapping[str, frozenset[str]]:
    """Return the names of published tools by upstream."""
    found: dict[str, set[str]] = {}
    for each in loaded.documents:
        backend = each.spec.spec.backend if isinstance(each.spec, ToolDocument) else None
        if isinstance(backend, UpstreamBackendSpec):
            found.setdefault(backend.upstream, set()).add(backend.tool)
    return {name: frozenset(tools) for name, tools in found.items()}


def _find_idle_upstreams(lock: Lock, upstreams: Mapping[str, CheckedDocument]) -> Iterator[Diagnostic]:
    for name, locked in lock.upstreams.items():
        if name not in upstreams:
            message = f"upstream {name!r} is locked, but no document declares it"
            position = locked.position or Position(LOCK_FILE, 1)
            yield Diagnostic("idle-lock", message, position, "warning", help="run: gateway lock")


def _idle_definition(definition: UpstreamDefinition) -> Diagnostic:
    message = f"{definition.identity} is locked, but no document imports it"
    position = definition.position or Position(LOCK_FILE, 1)
    return Diagnostic("idle-lock", message, position, "warning", help="run: gateway lock")


def _source_problem(upstream: CheckedDocument, locked: Position | None) -> Diagnostic:
    name = upstream.source.data["metadata"]["name"]
    return Diagnostic(
        "lock-source",
        f"upstream {name!r} has another server or program than the one that was locked",
        upstream.source.key_position(_TRANSPORT),
        "warning",
        help=f"review its definitions, and run: gateway lock --upstream {name}",
        related=[("locked here", locked)] if locked else (),
    )
