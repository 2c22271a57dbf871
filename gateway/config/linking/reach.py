"""What programs may read of the gateway's own: its records, and the secrets that documents name."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath

from gateway.config.linking.entries import Entries, Entry
from gateway.config.nodes import Path
from gateway.config.secret_uses import secret_uses
from gateway.config.specs.backends import CommandBackend, Sandbox
from gateway.config.specs.common import Document
from gateway.config.specs.gateway import FileBlobs, SqliteStorageSpec, StorageDocument
from gateway.config.specs.tools import ToolDocument
from gateway.config.specs.upstreams import StdioTransport, UpstreamDocument
from gateway.governance.diagnostics import Diagnostic, Position

_HELP = "name the folders that the program needs, or move what is the gateway's elsewhere"

Program = tuple[Entry[Document], Path, Sandbox | None, str | None]
"""Where a program is declared, what it may use, and the folder it starts in."""


def programs_in_reach(entries: Entries) -> Iterator[Diagnostic]:
    """Paths are compared as they are written: where links, mounts and relative paths lead is not known here."""
    own = [*_records(entries), *_secret_files(entries)]
    for entry, place, sandbox, workdir in _programs(entries):
        folders: list[tuple[Path, str]]
        folders = [(("sandbox", "readable", at), each) for at, each in enumerate(sandbox.readable if sandbox else ())]
        folders += [(("sandbox", "writable", at), each) for at, each in enumerate(sandbox.writable if sandbox else ())]
        folders += [(("workdir",), workdir)] if workdir else []
        for field, folder in folders:
            if normpath(folder) == "/":
                found = ["every file, the gateway's own among them"] if "readable" in field else []
                related: list[tuple[str, Position]] = []
            else:
                held = [each for each in own if _is_below(each[1], folder)]
                found = list(dict.fromkeys(what for what, _, _ in held))
                related = [(what, position) for what, _, position in held[:1]]
            if found:
                message = f"the program may read {' and '.join(found)}"
                yield entry.problem(
                    "reads-gateway", message, (*place, *field), help=_HELP, severity="warning", related=related
                )


def _programs(entries: Entries) -> Iterator[Program]:
    for tool in entries.of(ToolDocument).values():
        backend = tool.document.spec.backend
        if isinstance(backend, CommandBackend):
            yield _any(tool), ("spec", "backend"), backend.sandbox, backend.workdir
    for upstream in entries.of(UpstreamDocument).values():
        transport = upstream.document.spec.transport
        if isinstance(transport, StdioTransport):
            yield _any(upstream), ("spec", "transport"), transport.sandbox, transport.workdir


def _any(entry: Entry[ToolDocument] | Entry[UpstreamDocument]) -> Entry[Document]:
    return Entry(entry.name, entry.document, entry.source)


def _records(entries: Entries) -> Iterator[tuple[str, str, Position]]:
    for storage in entries.of(StorageDocument).values():
        spec = storage.document.spec
        if isinstance(spec, SqliteStorageSpec):
            yield "the gateway's records", spec.path, storage.at("spec", "path")
        if isinstance(spec.blobs, FileBlobs):
            yield "the gateway's results", spec.blobs.path, storage.at("spec", "blobs", "path")


def _secret_files(entries: Entries) -> Iterator[tuple[str, str, Position]]:
    for use in secret_uses(entry.source for entry in entries.documents):
        if use.is_file:
            yield "a secret of the gateway", use.name, use.position


def _is_below(path: str, folder: str) -> bool:
    return path.startswith("/") and PurePosixPath(normpath(path)).is_relative_to(normpath(folder))
