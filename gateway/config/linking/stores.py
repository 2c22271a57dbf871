"""Object stores that results go to in clear: whoever is on the way there can read them."""

from collections.abc import Iterator

from gateway.config.linking.entries import Entries
from gateway.config.specs.gateway import S3Blobs, StorageDocument
from gateway.config.specs.upstreams import PLAIN_HTTP
from gateway.governance.diagnostics import Diagnostic


def stores_in_clear(entries: Entries) -> Iterator[Diagnostic]:
    for storage in entries.of(StorageDocument).values():
        blobs = storage.document.spec.blobs
        if isinstance(blobs, S3Blobs) and blobs.endpoint and PLAIN_HTTP.match(blobs.endpoint):
            yield storage.problem(
                "store-in-clear",
                "results go to the object store in clear",
                ("spec", "blobs", "endpoint"),
                help="write https://, unless the way to the store is encrypted by other means",
                severity="warning",
            )
