"""Anchors of the decision log that lie where the log does: they would be changed together with it."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath

from gateway.config.linking.entries import Entries
from gateway.config.specs.gateway import GatewayDocument, SqliteStorageSpec, StorageDocument
from gateway.governance.diagnostics import Diagnostic


def anchors_within_reach(entries: Entries) -> Iterator[Diagnostic]:
    """Paths are compared as they are written: where links and mounts lead is not known here."""
    gateway = entries.only(GatewayDocument)
    anchors = gateway.document.spec.audit.anchors if gateway and gateway.document.spec.audit else None
    if gateway is None or anchors is None:
        return
    storage = entries.of(StorageDocument).get(gateway.document.spec.storage)
    if storage is None or not isinstance(storage.document.spec, SqliteStorageSpec):
        return
    if _is_below(anchors.path, f"{storage.document.spec.path}/.."):
        yield gateway.problem(
            "anchors-beside-log",
            "the anchors are kept in the folder of the log that they confirm",
            ("spec", "audit", "anchors", "path"),
            help="name a file on another mount, best one that can only be appended to",
            severity="warning",
            related=[("the log", storage.at("spec", "path"))],
        )


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(normpath(path)).is_relative_to(normpath(folder))
