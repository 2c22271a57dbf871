"""The operations that Upstream documents ask for, from OpenAPI documents that stand in files.

A file is part of what is reviewed, so what comes from it is pinned. Documents at an address are read where the lock is
written; here only the lock speaks for them, and for every upstream that it has.
"""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.config.linking.mentions import is_imported
from gateway.config.loader import Checked, Loaded
from gateway.config.pins import is_address, published_tools, upstreams_of
from gateway.config.specs.upstreams import OpenApiTransport, Select, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.globs import glob_matches
from gateway.governance.imports import BadDefinition, ImportedDefinition
from gateway.openapi.importing import Imported, definition, import_document
from gateway.openapi.operations import Found
from gateway.openapi.pointers import shown
from gateway.openapi.reading import MAX_BYTES
from gateway.openapi.refusals import OpenApiInvalid

_DOCUMENT: Final = ("spec", "transport", "document")
_MAX_TOLD: Final = 10


@dataclass(frozen=True, slots=True)
class Brought:
    """What a document brings, and what is wrong with it."""

    definitions: tuple[ImportedDefinition, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def file_imports(loaded: Loaded, folder: Path, *, locked: Collection[str]) -> Brought:
    """Everything that files bring. Upstreams of the lock are the lock's."""
    definitions: list[ImportedDefinition] = []
    problems: list[Diagnostic] = []
    for name, upstream in upstreams_of(loaded).items():
        transport = openapi_transport(upstream)
        if transport is None or name in locked or is_address(transport.document):
            continue
        try:
            data = content_of(folder / transport.document)
        except OSError as error:
            reason = (error.strerror or "it is not a file").lower()
            problems.append(_problem(upstream, f"the OpenAPI document cannot be read: {reason}", "correct the path"))
            continue
        brought = brought_by(upstream, data, loaded, is_pinned=True)
        definitions += brought.definitions
        problems += brought.diagnostics
    return Brought(tuple(definitions), tuple(problems))


def brought_by(upstream: Checked, data: bytes, loaded: Loaded, *, is_pinned: bool = False) -> Brought:
    """The definitions that an upstream's terms, or Tool documents, choose from the bytes of its OpenAPI document."""
    spec = upstream.spec
    assert isinstance(spec, UpstreamDocument), "asked about upstreams only"  # noqa: S101 - narrows a union
    name = spec.metadata.name
    published = published_tools(loaded).get(name, frozenset())
    terms = spec.spec.import_
    seen: list[Found] = []

    def chosen(found: Found) -> bool:
        seen.append(found)
        if found.name in published:
            return True
        return is_imported(found.name, terms) and (terms.select is None or _selects(terms.select, found))

    try:
        imported = import_document(data, chosen)
    except OpenApiInvalid as error:
        return Brought((), (_problem(upstream, error.message, error.help),))
    definitions: list[ImportedDefinition] = []
    problems = [*_skipped(upstream, imported), *_unsatisfied(upstream, spec, imported), *_idle(upstream, spec, seen)]
    for operation in imported.operations:
        try:
            definitions.append(ImportedDefinition.read(name, definition(operation), is_pinned=is_pinned))
        except BadDefinition as error:
            problems.append(_left_out(upstream, f"{operation.name!r} is left out: {error}"))
    return Brought(tuple(definitions), tuple(problems))


def openapi_transport(upstream: Checked) -> OpenApiTransport | None:
    """How an upstream with an OpenAPI document is reached; `None` for any other."""
    spec = upstream.spec
    transport = spec.spec.transport if isinstance(spec, UpstreamDocument) else None
    return transport if isinstance(transport, OpenApiTransport) else None


def content_of(path: Path) -> bytes:
    """A document's bytes, up to one byte past the limit; what is not a regular file might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError
        return file.read(MAX_BYTES + 1)


def _selects(select: Select, found: Found) -> bool:
    by_tag = not select.tags or not set(select.tags).isdisjoint(found.tags)
    by_path = not select.paths or any(glob_matches(found.path, pattern) for pattern in select.paths)
    by_id = not select.operation_ids or any(
        glob_matches(found.operation_id, pattern) for pattern in select.operation_ids
    )
    return by_tag and by_id and by_path and (not select.methods or found.method in select.methods)


def _skipped(upstream: Checked, imported: Imported) -> Iterator[Diagnostic]:
    for each in imported.skipped[:_MAX_TOLD]:
        yield _left_out(upstream, f"{each.name!r} ({each.method} {shown(each.path)}) is left out: {each.reason}")
    if (more := len(imported.skipped) - _MAX_TOLD) > 0:
        yield _left_out(upstream, f"{more} more operations are left out")


def _unsatisfied(upstream: Checked, spec: UpstreamDocument, imported: Imported) -> Iterator[Diagnostic]:
    """Operations that want credentials, where there are none or others."""
    wanted = ", ".join(map(shown, sorted(imported.wants)))
    auth = spec.spec.auth
    if imported.wants and auth is None:
        message = f"operations want credentials ({wanted}), and there are none"
        yield _warning("no-credentials", upstream, message, ("spec", "transport"), "add auth: {scheme: …}")


def _idle(upstream: Checked, spec: UpstreamDocument, seen: Collection[Found]) -> Iterator[Diagnostic]:
    """What is written and chooses nothing, most often because of a typo."""
    terms = spec.spec.import_
    names = {each.name for each in seen}
    help = "names come from operationId, else from method and path"
    yield from _unmatched(upstream, ("include",), terms.include, names, "no operation is called", help)
    select = terms.select
    if select is None:
        return
    ids = {each.operation_id for each in seen if each.operation_id is not None}
    paths, tags, methods = (
        {each.path for each in seen},
        {tag for each in seen for tag in each.tags},
        {each.method for each in seen},
    )
    yield from _unmatched(upstream, ("select", "operationIds"), select.operation_ids, ids, "no operationId is")
    yield from _unmatched(upstream, ("select", "paths"), select.paths, paths, "no operation has the path")
    fields: tuple[tuple[str, Sequence[str], Collection[str]], ...]
    fields = (("tags", select.tags, tags), ("methods", select.methods, methods))
    for field, wanted, there in fields:
        for index, each in enumerate(wanted):
            if each not in there:
                message = f"no operation has the {field.removesuffix('s')} {each!r}"
                place = ("spec", "import", "select", field, index)
                yield _warning("idle-import", upstream, message, place, did_you_mean(each, there))


def _unmatched(
    upstream: Checked,
    field: tuple[str, ...],
    patterns: Sequence[str],
    names: Collection[str],
    words: str,
    help: str | None = None,
) -> Iterator[Diagnostic]:
    for index, pattern in enumerate(patterns):
        if not any(glob_matches(name, pattern) for name in names):
            place: tuple[str | int, ...] = ("spec", "import", *field, index)
            told = did_you_mean(pattern, names) or help
            yield _warning("idle-import", upstream, f"{words} {pattern!r}", place, told)


def _problem(upstream: Checked, message: str, help: str | None) -> Diagnostic:
    return Diagnostic("bad-openapi", message, upstream.source.position(_DOCUMENT), help=help)


def _left_out(upstream: Checked, message: str) -> Diagnostic:
    help = "correct the document, or exclude the operation"
    return _warning("skipped-operation", upstream, message, ("spec", "import"), help)


def _warning(code: str, upstream: Checked, message: str, path: tuple[str | int, ...], help: str | None) -> Diagnostic:
    source = upstream.source
    position = source.position(path) if isinstance(path[-1], int) else source.key_position(path)
    return Diagnostic(code, message, position, "warning", help)
