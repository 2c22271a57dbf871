"""Warn about installations that expose their own files: anchors beside the log, plain connections, readable files."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath

from gateway.config.environment_variables import find_secret_uses
from gateway.config.kinds.common_specs import DocumentModel
from gateway.config.kinds.installation import (
    GatewayDocument,
)
from gateway.config.kinds.storage import FileBlobsSpec, S3BlobsSpec, SqliteStorageSpec, StorageDocument
from gateway.config.kinds.tools import CommandBackendSpec, SandboxSpec, ToolDocument
from gateway.config.kinds.upstreams import PLAIN_HTTP, StdioTransport, UpstreamDocument
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.config.yaml.document import DocumentPath
from gateway.registries import Diagnostic, Position

_HELP = "list only the folders that the program needs, or move the gateway's files elsewhere"

Program = tuple[DocumentEntry[DocumentModel], DocumentPath, SandboxSpec | None, str | None]
"""The document and path that declare a program, its sandbox, and its working folder."""


def find_exposing_programs(entries: DocumentIndex) -> Iterator[Diagnostic]:
    """Warn about programs that may read gateway files. Links, mounts and relative paths are not resolved."""
    all_gateway_files = [*_records(entries), *_secret_files(entries)]
    for entry, place, sandbox, workdir in _programs(entries):
        folders: list[tuple[DocumentPath, str]]
        folders = [(("sandbox", "readable", at), each) for at, each in enumerate(sandbox.readable if sandbox else ())]
        folders += [(("sandbox", "writable", at), each) for at, each in enumerate(sandbox.writable if sandbox else ())]
        folders += [(("workdir",), workdir)] if workdir else []
        for field, folder in folders:
            if normpath(folder) == "/":
                found = ["every file, including those of the gateway"] if "readable" in field else []
                related: list[tuple[str, Position]] = []
            else:
                gateway_files = [
                    each for each in all_gateway_files if each[1].startswith("/") and _is_below(each[1], folder)
                ]
                found = list(dict.fromkeys(what for what, _, _ in gateway_files))
                related = [(what, position) for what, _, position in gateway_files[:1]]
            if found:
                message = f"the program may read {' and '.join(found)}"
                yield entry.problem(
                    "reads-gateway", message, (*place, *field), help=_HELP, severity="warning", related=related
                )


def _programs(entries: DocumentIndex) -> Iterator[Program]:
    for tool in entries.of(ToolDocument).values():
        backend = tool.document.spec.backend
        if isinstance(backend, CommandBackendSpec):
            yield _generalise(tool), ("spec", "backend"), backend.sandbox, backend.workdir
    for upstream in entries.of(UpstreamDocument).values():
        transport = upstream.document.spec.transport
        if isinstance(transport, StdioTransport):
            yield _generalise(upstream), ("spec", "transport"), transport.sandbox, transport.workdir


def _generalise(entry: DocumentEntry[ToolDocument] | DocumentEntry[UpstreamDocument]) -> DocumentEntry[DocumentModel]:
    return DocumentEntry(entry.name, entry.document, entry.source)


def _records(entries: DocumentIndex) -> Iterator[tuple[str, str, Position]]:
    for storage in entries.of(StorageDocument).values():
        spec = storage.document.spec
        if isinstance(spec, SqliteStorageSpec):
            yield "the gateway's records", spec.path, storage.position_at("spec", "path")
        if isinstance(spec.blobs, FileBlobsSpec):
            yield "the gateway's results", spec.blobs.path, storage.position_at("spec", "blobs", "path")


def _secret_files(entries: DocumentIndex) -> Iterator[tuple[str, str, Position]]:
    for use in find_secret_uses(entry.source for entry in entries.documents):
        if use.is_file:
            yield "a secret of the gateway", use.name, use.position


def check_anchors(entries: DocumentIndex) -> Iterator[Diagnostic]:
    """Warn if the anchors are in the folder of the decision log. Links and mounts are not resolved."""
    gateway = entries.get_single(GatewayDocument)
    anchors = gateway.document.spec.audit.anchors if gateway and gateway.document.spec.audit else None
    if gateway is None or anchors is None:
        return
    storage = entries.of(StorageDocument).get(gateway.document.spec.storage)
    if storage is None or not isinstance(storage.document.spec, SqliteStorageSpec):
        return
    if _is_below(anchors.path, f"{storage.document.spec.path}/.."):
        yield gateway.problem(
            "anchors-beside-log",
            "the anchors are stored in the folder of the log that they confirm",
            ("spec", "audit", "anchors", "path"),
            help="name a file on another mount, preferably one that is append-only",
            severity="warning",
            related=[("the log", storage.position_at("spec", "path"))],
        )


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(normpath(path)).is_relative_to(normpath(folder))


def check_store_encryption(entries: DocumentIndex) -> Iterator[Diagnostic]:
    for storage in entries.of(StorageDocument).values():
        blobs = storage.document.spec.blobs
        if isinstance(blobs, S3BlobsSpec) and blobs.endpoint and PLAIN_HTTP.match(blobs.endpoint):
            yield storage.problem(
                "store-in-clear",
                "results are sent to the object store unencrypted",
                ("spec", "blobs", "endpoint"),
                help="write https://, unless the connection is encrypted by other means",
                severity="warning",
            )
