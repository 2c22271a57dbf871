"""Copying results from files into a real bucket and back: the same bytes under the same keys, however often."""

from pathlib import Path

import pytest

from gateway.errors import ArtifactDamaged
from gateway.storage.blobs.blob_copy import CopyFailed, CopyProgress, copy_blobs
from gateway.storage.blobs.bucket_store import PART
from tests.storage.blobs.spools import Bucket, Folder
from tests.support.servers.object_store import ObjectStore

pytestmark = pytest.mark.anyio

LINES = b"".join(b"line %d\n" % n for n in range(20_000))


async def test_results_go_into_a_bucket_and_back_under_their_keys(tmp_path: Path, s3: ObjectStore) -> None:
    before, middle, after = Folder(tmp_path / "before"), Bucket(s3), Folder(tmp_path / "after")
    contents = {("a", None): b"", ("b", "acme"): LINES, ("c", "acme"): b"x" * (PART + 1)}
    spool, bucket, again = await before.open(), await middle.open(), await after.open()
    keys = {
        each: (await spool.for_turn("turn", tenant=each[1]).write(each[0], content)).key
        for each, content in contents.items()
    }
    heard: list[int] = []

    there = await copy_blobs(spool.large, bucket.large, told=lambda copied: heard.append(copied.pieces))
    once_more = await copy_blobs(spool.large, bucket.large)
    back = await copy_blobs(bucket.large, again.large)

    size = sum(map(len, contents.values()))
    assert (there, once_more, back) == (CopyProgress(3, size, 0), CopyProgress(0, 0, 3), CopyProgress(3, size, 0))
    assert heard == [1, 2, 3]
    for each, content in contents.items():
        for copy in (bucket, again):
            found = await copy.find(keys[each], tenant=each[1])
            assert found is not None
            assert found.read_range(0, len(content) + 1) == content
            assert found.line_count() == (content.count(b"\n") + 1 if content else 0)
    for opened in (spool, bucket, again):
        await opened.close()


async def test_copy_that_differs_is_reported_and_a_damaged_original_is_not_copied(
    tmp_path: Path, s3: ObjectStore
) -> None:
    files, bucket = Folder(tmp_path / "files"), Bucket(s3)
    spool, copy = await files.open(), await bucket.open()
    await spool.for_turn("turn").write("id", LINES)
    await copy_blobs(spool.large, copy.large)
    [file] = (tmp_path / "files").rglob("*.bytes")
    file.write_bytes(LINES.replace(b"line 7\n", b"line 8\n"))

    with pytest.raises(CopyFailed):
        await copy_blobs(spool.large, copy.large)

    [part] = [path for path in s3.paths(bucket.prefix) if path.endswith("/00000")]
    s3.put(f"{bucket.prefix}/{part}", LINES.upper())
    fresh, other = await bucket.open(), await Folder(tmp_path / "other").open()
    with pytest.raises(ArtifactDamaged):
        await copy_blobs(fresh.large, other.large)
    assert list(await Folder(tmp_path / "other").kept()) == []
    for opened in (spool, copy, fresh, other):
        await opened.close()


async def test_half_written_results_are_not_copied(tmp_path: Path, s3: ObjectStore) -> None:
    bucket, files = Bucket(s3), Folder(tmp_path / "files")
    copy, spool = await bucket.open(), await files.open()
    key = (await copy.for_turn("turn").write("id", LINES)).key
    [index] = [path for path in s3.paths(bucket.prefix) if path.endswith(".index")]
    s3.delete(f"{bucket.prefix}/{index}")

    assert await copy_blobs(copy.large, spool.large) == CopyProgress()

    assert await spool.find(key, tenant=None) is None
    await copy.close()
    await spool.close()
