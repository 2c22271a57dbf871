"""Where a project keeps its records and the bytes of results, as its Storage says. Nothing of it is opened here."""

from dataclasses import dataclass
from pathlib import Path

from gateway.assembly import Assembled
from gateway.config.specs.gateway import GatewayDocument, PostgresStorageSpec, SqliteStorageSpec, StorageDocument
from gateway.runtime.engines import PostgresDatabase
from gateway.runtime.spooling import SpoolPlace, spool_place


@dataclass(frozen=True, slots=True)
class Kept:
    database: Path | PostgresDatabase
    spool: SpoolPlace


def kept_by(assembled: Assembled) -> Kept:
    storage = storage_of(assembled)
    if isinstance(storage, PostgresStorageSpec):
        return Kept(PostgresDatabase(storage.connection), spool_place(storage.blobs, beside=Path()))
    database = Path(storage.path)
    return Kept(database, spool_place(storage.blobs, beside=database))


def gateway_of(assembled: Assembled) -> GatewayDocument:
    return next(each.spec for each in assembled.loaded.documents if isinstance(each.spec, GatewayDocument))


def storage_of(assembled: Assembled) -> SqliteStorageSpec | PostgresStorageSpec:
    documents = [each.spec for each in assembled.loaded.documents]
    named = {each.metadata.name: each.spec for each in documents if isinstance(each, StorageDocument)}
    return named[gateway_of(assembled).spec.storage]
