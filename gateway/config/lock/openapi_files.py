"""The operations that Upstream documents import from OpenAPI files.

A file is reviewed with the configuration, so its operations are pinned. OpenAPI documents at a URL are read only when
the lock file is written. Upstreams in the lock file use the lock file.
"""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.backends import (
    MAX_BYTES,
    DocumentDefinitions,
    OpenApiInvalid,
    OperationEntry,
    escape_text,
    import_document,
    to_definition,
)
from gateway.config.kinds.upstreams import ImportSelectionSpec, OpenApiTransport, UpstreamDocument
from gateway.config.linking.upstream_imports import imports_tool
from gateway.config.loader import CheckedDocument, ConfigDocuments
from gateway.config.lock.pin_resolution import is_url, list_upstreams, tools_by_upstream
from gateway.model import glob_matches
from gateway.registries import Diagnostic, InvalidDefinition, UpstreamDefinition, suggest_name

_DOCUMENT: Final = ("spec", "transport", "document")
_MAX_REPORTED: Final = 10


@dataclass(frozen=True, slots=True)
class OpenApiDefinitions:
    """The definitions of OpenAPI documents and their problems."""

    definitions: tuple[UpstreamDefinition, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def read_openapi_files(loaded: ConfigDocuments, folder: Path, *, locked: Collection[str]) -> OpenApiDefinitions:
    """Return the definitions of all OpenAPI files, except of upstreams in the lock file."""
    definitions: list[UpstreamDefinition] = []
    problems: list[Diagnostic] = []
    for name, upstream in list_upstreams(loaded).items():
        transport = openapi_transport(upstream)
        if transport is None or name in locked or is_url(transport.document):
            continue
        try:
            data = read_bounded(folder / transport.document)
        except OSError as error:
            reason = (error.strerror or "not a regular file").lower()
            problems.append(_problem(upstream, f"the OpenAPI document cannot be read: {reason}", "correct the path"))
            continue
        selected = select_definitions(upstream, data, loaded, is_pinned=True)
        definitions += selected.definitions
        problems += selected.diagnostics
    return OpenApiDefinitions(tuple(definitions), tuple(problems))


def select_definitions(
    upstream: CheckedDocument, data: bytes, loaded: ConfigDocuments, *, is_pinned: bool = False
) -> OpenApiDefinitions:
    """Return the definitions of an OpenAPI document that the import or Tool documents select."""
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "only upstreams are passed"  # noqa: S101 - narrows a union
    name = spec.metadata.name
    published = tools_by_upstream(loaded).get(name, frozenset())
    terms = spec.spec.import_
    seen: list[OperationEntry] = []

    def is_chosen(found: OperationEntry) -> bool:
        seen.append(found)
        if found.name in published:
            return True
        return imports_tool(found.name, terms) and (terms.select is None or _selects(terms.select, found))

    try:
        imported = import_document(data, is_chosen)
    except OpenApiInvalid as error:
        return OpenApiDefinitions((), (_problem(upstream, error.message, error.help),))
    definitions: list[UpstreamDefinition] = []
    problems = [*_skips(upstream, imported), *_check_auth(upstream, spec, imported), *_idle(upstream, spec, seen)]
    for operation in imported.operations:
        try:
            definitions.append(UpstreamDefinition.read(name, to_definition(operation), is_pinned=is_pinned))
        except InvalidDefinition as error:
            problems.append(_skip(upstream, f"{operation.name!r} is left out: {error}"))
    return OpenApiDefinitions(tuple(definitions), tuple(problems))


def openapi_transport(upstream: CheckedDocument) -> OpenApiTransport | None:
    """Return the OpenAPI transport of an upstream, or `None` for any other transport."""
    spec = upstream.spec
    transport = spec.spec.transport if isinstance(spec, UpstreamDocument) else None
    return transport if isinstance(transport, OpenApiTransport) else None


def read_bounded(path: Path) -> bytes:
    """Return at most one byte more than the limit. Raises `OSError` for a pipe or device, which might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError
        return file.read(MAX_BYTES + 1)


def _selects(select: ImportSelectionSpec, found: OperationEntry) -> bool:
    by_tag = not select.tags or not set(select.tags).isdisjoint(found.tags)
    by_path = not select.paths or any(glob_matches(found.path, pattern) for pattern in select.paths)
    by_id = not select.operation_ids or any(
        glob_matches(found.operation_id, pattern) for pattern in select.operation_ids
    )
    return by_tag and by_id and by_path and (not select.methods or found.method in select.methods)


def _skips(upstream: CheckedDocument, imported: DocumentDefinitions) -> Iterator[Diagnostic]:
    for each in imported.skipped[:_MAX_REPORTED]:
        yield _skip(upstream, f"{each.name!r} ({each.method} {escape_text(each.path)}) is left out: {each.reason}")
    if (more := len(imported.skipped) - _MAX_REPORTED) > 0:
        yield _skip(upstream, f"{more} more operations are left out")


def _check_auth(
    upstream: CheckedDocument, spec: UpstreamDocument, imported: DocumentDefinitions
) -> Iterator[Diagnostic]:
    """Warn if operations require credentials and the Upstream has none."""
    wanted = ", ".join(map(escape_text, sorted(imported.wants)))
    auth = spec.spec.auth
    if imported.wants and auth is None:
        message = f"operations require credentials ({wanted}), but the Upstream has none"
        yield _warning("no-credentials", upstream, message, ("spec", "transport"), "add auth: {scheme: …}")


def _idle(upstream: CheckedDocument, spec: UpstreamDocument, seen: Collection[OperationEntry]) -> Iterator[Diagnostic]:
    """Warn about import criteria that match no operation, most often because of a typo."""
    terms = spec.spec.import_
    names = {each.name for each in seen}
    help = "the name of a tool is its operationId, or method and path without one"
    yield from _find_idle(upstream, ("include",), terms.include, names, "no operation has the name", help)
    select = terms.select
    if select is None:
        return
    ids = {each.operation_id for each in seen if each.operation_id is not None}
    paths, tags, methods = (
        {each.path for each in seen},
        {tag for each in seen for tag in each.tags},
        {each.method for each in seen},
    )
    yield from _find_idle(upstream, ("select", "operationIds"), select.operation_ids, ids, "no operationId is")
    yield from _find_idle(upstream, ("select", "paths"), select.paths, paths, "no operation has the path")
    fields: tuple[tuple[str, Sequence[str], Collection[str]], ...]
    fields = (("tags", select.tags, tags), ("methods", select.methods, methods))
    for field, wanted, there in fields:
        for index, each in enumerate(wanted):
            if each not in there:
                message = f"no operation has the {field.removesuffix('s')} {each!r}"
                place = ("spec", "import", "select", field, index)
                yield _warning("idle-import", upstream, message, place, suggest_name(each, there))


def _find_idle(
    upstream: CheckedDocument,
    field: tuple[str, ...],
    patterns: Sequence[str],
    names: Collection[str],
    words: str,
    help: str | None = None,
) -> Iterator[Diagnostic]:
    for index, pattern in enumerate(patterns):
        if not any(glob_matches(name, pattern) for name in names):
            place: tuple[str | int, ...] = ("spec", "import", *field, index)
            near = suggest_name(pattern, names)
            yield _warning("idle-import", upstream, f"{words} {pattern!r}", place, near or help)


def _problem(upstream: CheckedDocument, message: str, help: str | None) -> Diagnostic:
    return Diagnostic("bad-openapi", message, upstream.source.position(_DOCUMENT), help=help)


def _skip(upstream: CheckedDocument, message: str) -> Diagnostic:
    help = "correct the document, or exclude the operation"
    return _warning("skipped-operation", upstream, message, ("spec", "import"), help)


def _warning(
    code: str, upstream: CheckedDocument, message: str, path: tuple[str | int, ...], help: str | None
) -> Diagnostic:
    source = upstream.source
    position = source.position(path) if isinstance(path[-1], int) else source.key_position(path)
    return Diagnostic(code, message, position, "warning", help)
