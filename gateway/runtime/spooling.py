"""The spool that a Storage names: files, or a bucket of an object store. Credentials are read when they are needed."""

from contextlib import AsyncExitStack
from pathlib import Path

from gateway.config.specs.gateway import FileBlobs, S3Blobs
from gateway.runtime.secrets import Secrets
from gateway.storage.buckets import Place, obstore_library
from gateway.storage.spool import PieceSpool, SmallPieces
from gateway.storage.spool_copying import Copied, copy_pieces
from gateway.storage.spool_files import FileSpool
from gateway.storage.spool_s3 import S3Spool

SpoolPlace = Path | S3Blobs


def spool_place(blobs: FileBlobs | S3Blobs | None, *, beside: Path) -> SpoolPlace:
    """Where the bytes of results go; if nobody says so, into files beside a database."""
    if isinstance(blobs, S3Blobs):
        return blobs
    return beside.parent / "spool" if blobs is None else Path(blobs.path)


def refuse_unusable(place: SpoolPlace, secrets: Secrets) -> None:
    """Raises `ObjectStoreUnusable` or `SecretMissing` for what cannot work here; nothing is asked of anybody."""
    if isinstance(place, S3Blobs):
        obstore_library()
        for secret in (place.access_key, place.secret_key):
            if secret is not None:
                secrets.read(secret)


async def open_spool(place: SpoolPlace, secrets: Secrets, *, small: SmallPieces | None) -> PieceSpool:
    """Raises `ObjectStoreUnusable` where nobody is let in."""
    if isinstance(place, S3Blobs):
        return await S3Spool.open(bucket_place(place, secrets), small=small)
    return await FileSpool.open(place, small=small)


async def copied_results(source: SpoolPlace, target: SpoolPlace, secrets: Secrets) -> Copied:
    """Copy the large results of one place into another. Raises what either of them does not do."""
    async with AsyncExitStack() as closing:
        spools = []
        for place in (source, target):
            refuse_unusable(place, secrets)
            spools.append(await open_spool(place, secrets, small=None))
            closing.push_async_callback(spools[-1].close)
        return await copy_pieces(spools[0].large, spools[1].large)


def bucket_place(blobs: S3Blobs, secrets: Secrets) -> Place:
    credentials = None
    if blobs.access_key is not None and blobs.secret_key is not None:
        access_key, secret_key = secrets.reader(blobs.access_key), secrets.reader(blobs.secret_key)

        def credentials() -> tuple[str, str]:
            return access_key(), secret_key()

    return Place(blobs.bucket, blobs.endpoint, blobs.region, blobs.prefix or "", credentials)
