"""The spool of a project: where its Storage document places large results, and how it is opened and copied."""

from contextlib import AsyncExitStack
from pathlib import Path

from gateway.app.secrets import Secrets
from gateway.config import FileBlobsSpec, S3BlobsSpec
from gateway.storage import (
    BucketAddress,
    BucketSpool,
    CopyProgress,
    DiskSpool,
    InlineBlobStore,
    ResultSpool,
    copy_blobs,
    import_obstore,
)

SpoolLocation = Path | S3BlobsSpec


def locate_spool(blobs: FileBlobsSpec | S3BlobsSpec | None, *, beside: Path) -> SpoolLocation:
    """Return where results are stored; by default, in files beside the database."""
    if isinstance(blobs, S3BlobsSpec):
        return blobs
    return beside.parent / "spool" if blobs is None else Path(blobs.path)


def check_spool(place: SpoolLocation, secrets: Secrets) -> None:
    """Raise `ObjectStoreUnusable` or `SecretMissing` if the spool cannot work; nothing is connected."""
    if isinstance(place, S3BlobsSpec):
        import_obstore()
        for secret in (place.access_key, place.secret_key):
            if secret is not None:
                secrets.read(secret)


async def open_spool(place: SpoolLocation, secrets: Secrets, *, small: InlineBlobStore | None) -> ResultSpool:
    """Open the spool. Raises `ObjectStoreUnusable` if access is denied."""
    if isinstance(place, S3BlobsSpec):
        return await BucketSpool.open(locate_bucket(place, secrets), small=small)
    return await DiskSpool.open(place, small=small)


async def copy_all_results(source: SpoolLocation, target: SpoolLocation, secrets: Secrets) -> CopyProgress:
    """Copy the large results of one spool into another. Raises the errors of either."""
    async with AsyncExitStack() as closing:
        spools = []
        for place in (source, target):
            check_spool(place, secrets)
            spools.append(await open_spool(place, secrets, small=None))
            closing.push_async_callback(spools[-1].close)
        return await copy_blobs(spools[0].large, spools[1].large)


def locate_bucket(blobs: S3BlobsSpec, secrets: Secrets) -> BucketAddress:
    credentials = None
    if blobs.access_key is not None and blobs.secret_key is not None:
        access_key, secret_key = secrets.reader(blobs.access_key), secrets.reader(blobs.secret_key)

        def credentials() -> tuple[str, str]:
            return access_key(), secret_key()

    return BucketAddress(blobs.bucket, blobs.endpoint, blobs.region, blobs.prefix or "", credentials)
