"""Ids and keys that try to leave the spool, and things planted in its folder."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.errors import ArtifactGone, StoreUnavailable
from gateway.storage.blobs.blob_store import parse_key
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.blobs.result_spool import INLINE_LIMIT
from gateway.storage.process_liveness import ProcessLock
from gateway.storage.sql.sqlite.engine import open_sqlite_store

pytestmark = pytest.mark.anyio

CONTENT = b"x" * (INLINE_LIMIT + 1)
HOSTILE = [
    "../../../etc/passwd",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..%2f..%2fetc",
    "\x00",
    "a\x00.bytes",
    "\ud800",
    "\udcff",
    "․․/․․",
    "．．/",
    "x" * 100_000,
    "CON",
    "incoming",
    "processes",
    "-rf",
    "$(id)",
    "file:///etc/passwd",
]
IDS = [f"{n}" for n in range(len(HOSTILE))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
async def spool(tmp_path: Path, root: Path) -> AsyncIterator[DiskSpool]:
    store = await open_sqlite_store(tmp_path / "gateway.db")
    spool = await DiskSpool.open(root, small=store)
    yield spool
    await spool.close()
    await store.close()


def list_files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


@pytest.mark.parametrize("text", HOSTILE, ids=IDS)
async def test_hostile_ids_turns_and_tenants_stay_inside_and_apart(spool: DiskSpool, tmp_path: Path, text: str) -> None:
    outside = set(tmp_path.iterdir())
    others = [spool.for_turn("turn", tenant="acme"), spool.for_turn(text), spool.for_turn("turn", tenant=text)]

    for number, scope in enumerate(others):
        await scope.write(text, CONTENT + b"%d" % number)

    for number, scope in enumerate(others):
        found = await scope.read(text)
        assert found is not None
        assert found.read_range(INLINE_LIMIT + 1, 9) == b"%d" % number
        assert parse_key(found.key) is not None
    assert set(tmp_path.iterdir()) == outside
    for scope in others:
        assert await scope.delete(text) is True


@pytest.mark.parametrize("key", HOSTILE, ids=IDS)
async def test_text_that_is_no_key_is_not_found(spool: DiskSpool, key: str) -> None:
    written = (await spool.for_turn("turn").write("id", CONTENT)).key

    for hostile in (key, f"{written}{key}/", f"{key}.{written}", written.replace(".", f".{key}.", 1), f"{written}\n"):
        assert await spool.find(hostile, tenant=None) is None
        assert await spool.delete(hostile) is False
    assert await spool.find(written, tenant=None) is not None


async def test_file_replaced_by_a_link_is_gone(spool: DiskSpool, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret" * INLINE_LIMIT)
    reader = await spool.for_turn("turn").write("id", CONTENT)
    [file] = root.rglob("*.bytes")

    for plant in (os.symlink, os.link):
        file.unlink()
        plant(secret, file)
        with pytest.raises(ArtifactGone):
            reader.read_range(0, 10)
        assert await spool.find(reader.key, tenant=None) is None
    assert await spool.delete(reader.key) is True
    assert secret.exists()


async def test_planted_pipe_does_not_hang_a_reader(spool: DiskSpool, root: Path) -> None:
    reader = await spool.for_turn("turn").write("id", CONTENT)
    [file] = root.rglob("*.bytes")
    file.unlink()
    os.mkfifo(file)

    assert await spool.find(reader.key, tenant=None) is None


@pytest.mark.parametrize("level", [0, 1], ids=["turn", "tenant"])
async def test_folder_replaced_by_a_link_is_not_entered(
    spool: DiskSpool, root: Path, tmp_path: Path, level: int
) -> None:
    reader = await spool.for_turn("turn").write("id", CONTENT)
    [file] = root.rglob("*.bytes")
    folder = file.parents[level]
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = list_files(elsewhere)

    assert await spool.find(reader.key, tenant=None) is None
    assert await spool.for_turn("turn").read("id") is None
    assert await spool.delete(reader.key) is False
    with pytest.raises(StoreUnavailable):
        await spool.for_turn("turn").write("other", CONTENT)
    assert list_files(elsewhere) == before


async def test_link_in_incoming_is_removed_and_not_followed(root: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"precious")
    (root / "incoming" / ("cd" * 16)).mkdir(parents=True)
    (root / "incoming" / ("ab" * 16)).symlink_to(kept)
    (root / "incoming" / ("cd" * 16) / "link").symlink_to(kept / "file")

    spool = await DiskSpool.open(root)

    assert (kept / "file").read_bytes() == b"precious"
    await spool.close()
    assert list_files(root) == {"incoming", "processes"}


def test_process_named_like_a_path_touches_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    processes = ProcessLock(tmp_path / "a" / "processes")

    assert all(processes.has_ended(name) for name in ("../../outside", str(outside), "", "\x00", "zz" * 16))

    assert outside.exists()
    processes.release()
