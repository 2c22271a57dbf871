"""What a lock means for the documents: which definitions are imported, which of them are pinned, what is idle in it.

A definition is pinned if the Upstream document still names the place that it came from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.config.linking.mentions import is_let_in
from gateway.config.loader import Checked, Loaded
from gateway.config.lock_file import LOCK_FILE
from gateway.config.nodes import Document
from gateway.config.specs.backends import McpBackend, UpstreamBackend
from gateway.config.specs.tools import ToolDocument
from gateway.config.specs.upstreams import OpenApiTransport, StdioTransport, StreamableHttpTransport, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic, Position, did_you_mean
from gateway.governance.globs import glob_matches
from gateway.governance.imports import DefinitionKind, ImportedDefinition
from gateway.governance.locks import Lock, Source

_TRANSPORT = ("spec", "transport")


def locked_imports(
    loaded: Loaded, lock: Lock, *, environment: str | None, is_whole: bool = True
) -> tuple[list[ImportedDefinition], list[Diagnostic]]:
    """The definitions of the lock that documents ask for, and what does not fit between the two.

    Of a lock that is not whole nobody can say what is missing.
    """
    upstreams = upstreams_of(loaded)
    problems = list(_idle_upstreams(lock, upstreams)) if not loaded.has_errors else []
    imports: list[ImportedDefinition] = []
    for name, locked in lock.upstreams.items():
        found = upstreams.get(name)
        if found is None:
            continue
        is_same = locked.is_from(source_of(found), environment=environment)
        if not is_same:
            problems.append(_other_source(found, locked.position))
        for definition in lock.of(name):
            if is_wanted(definition, found, loaded):
                imports.append(replace(definition, is_pinned=is_same))
            elif not loaded.has_errors:
                problems.append(_idle(definition))
    if is_whole and not loaded.has_errors:
        problems += _not_locked(loaded, lock, upstreams)
    return imports, problems


def _not_locked(loaded: Loaded, lock: Lock, upstreams: Mapping[str, Checked]) -> Iterator[Diagnostic]:
    """What documents ask for and is not served, because nobody has looked at it."""
    for name, upstream in upstreams.items():
        if not _is_locked_only(upstream):
            continue
        if name not in lock.upstreams:
            message = f"nothing of upstream {name!r} is locked, so that nothing of it is served"
            position = upstream.source.key_position(("spec", "import"))
            yield Diagnostic("not-locked", message, position, "warning", help=_look(name))
            continue
        yield from _missing_names(upstream, lock)
    for each in loaded.documents:
        backend = each.spec.spec.backend if isinstance(each.spec, ToolDocument) else None
        if not isinstance(backend, McpBackend) or backend.upstream not in lock.upstreams:
            continue  # operations that are not there are errors
        if backend.upstream not in upstreams or not _is_locked_only(upstreams[backend.upstream]):
            continue
        names = [found.name for found in lock.of(backend.upstream) if found.kind == "tool"]
        if backend.tool not in names:
            message = f"{backend.upstream}.{backend.tool} is not locked, so that it is not served"
            help = did_you_mean(backend.tool, names) or _look(backend.upstream)
            position = each.source.position(("spec", "backend", "tool"))
            yield Diagnostic("not-locked", message, position, "warning", help=help)


def _missing_names(upstream: Checked, lock: Lock) -> Iterator[Diagnostic]:
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "asked about upstreams only"  # noqa: S101 - narrows a union
    name, terms = spec.metadata.name, spec.spec.import_
    wanted: tuple[tuple[str, DefinitionKind, Sequence[str]], ...]
    wanted = (("include", "tool", terms.include), ("prompts", "prompt", terms.prompts))
    for field, kind, patterns in wanted:
        names = [each.name for each in lock.of(name) if each.kind == kind]
        for index, pattern in enumerate(patterns):
            if pattern == "*" or any(glob_matches(each, pattern) for each in names):
                continue
            message = f"no {kind} of upstream {name!r} that is locked is called {pattern!r}"
            position = upstream.source.position(("spec", "import", field, index))
            help = did_you_mean(pattern, names) or _look(name)
            yield Diagnostic("not-locked", message, position, "warning", help=help)


def _is_locked_only(upstream: Checked) -> bool:
    """Whether an upstream is served as it is locked, or not at all."""
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "asked about upstreams only"  # noqa: S101 - narrows a union
    transport = spec.spec.transport
    if isinstance(transport, OpenApiTransport) and not is_address(transport.document):
        return False  # a file is part of what is reviewed
    return spec.spec.import_.on_change == "quarantine"


def _look(upstream: str) -> str:
    return f"look at what it brings, and run: gateway lock --upstream {upstream}"


def is_address(document: str) -> bool:
    """Whether the document of an OpenAPI transport is fetched, and not a file."""
    return document.lower().startswith(("https://", "http://"))


def upstreams_of(loaded: Loaded) -> dict[str, Checked]:
    """The Upstream documents by name, the first of each."""
    found: dict[str, Checked] = {}
    for each in loaded.documents:
        if isinstance(each.spec, UpstreamDocument):
            found.setdefault(each.spec.metadata.name, each)
    return found


def is_wanted(definition: ImportedDefinition, upstream: Checked, loaded: Loaded) -> bool:
    """Whether the upstream's terms let a definition in, or a Tool document publishes it."""
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "asked about upstreams only"  # noqa: S101 - narrows a union
    if is_let_in(definition, spec.spec.import_):
        return True
    published = published_tools(loaded).get(definition.upstream, frozenset())
    return definition.kind == "tool" and definition.name in published


def source_of(upstream: Checked) -> Source:
    """Where the document says the server is, as it is written there: what the environment fills in may differ."""
    spec, source = upstream.spec, upstream.source
    assert isinstance(spec, UpstreamDocument), "asked about upstreams only"  # noqa: S101 - narrows a union
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


def _as_written(source: Document, field: str, value: str, *index: int) -> str:
    return source.written.get((*_TRANSPORT, field, *index), str(value))


def published_tools(loaded: Loaded) -> Mapping[str, frozenset[str]]:
    """Tools that documents publish, by upstream."""
    found: dict[str, set[str]] = {}
    for each in loaded.documents:
        backend = each.spec.spec.backend if isinstance(each.spec, ToolDocument) else None
        if isinstance(backend, UpstreamBackend):
            found.setdefault(backend.upstream, set()).add(backend.tool)
    return {name: frozenset(tools) for name, tools in found.items()}


def _idle_upstreams(lock: Lock, upstreams: Mapping[str, Checked]) -> Iterator[Diagnostic]:
    for name, locked in lock.upstreams.items():
        if name not in upstreams:
            message = f"upstream {name!r} is locked, and no document declares it"
            position = locked.position or Position(LOCK_FILE, 1)
            yield Diagnostic("idle-lock", message, position, "warning", help="run: gateway lock")


def _idle(definition: ImportedDefinition) -> Diagnostic:
    message = f"{definition.identity} is locked, and no document lets it in"
    position = definition.position or Position(LOCK_FILE, 1)
    return Diagnostic("idle-lock", message, position, "warning", help="run: gateway lock")


def _other_source(upstream: Checked, locked: Position | None) -> Diagnostic:
    name = upstream.source.data["metadata"]["name"]
    return Diagnostic(
        "lock-source",
        f"upstream {name!r} is another server, or another program, than the one that was locked",
        upstream.source.key_position(_TRANSPORT),
        "warning",
        help=f"look at what it brings, and run: gateway lock --upstream {name}",
        related=[("locked here", locked)] if locked else (),
    )
