"""Large results as files: one file each, no partial result is ever visible, and contents on the disk are verified."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import ArtifactGone
from gateway.storage.blobs.blob_store import hash_id, hash_turn_id, is_inline, parse_key
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.blobs.result_spool import INLINE_LIMIT
from gateway.storage.sql.sqlite.engine import open_sqlite_store

pytestmark = pytest.mark.anyio

LARGE = b"".join(b"line %d\n" % n for n in range(20_000))


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[DiskSpool]:
    store = await open_sqlite_store(tmp_path / "gateway.db")
    spool = await DiskSpool.open(tmp_path / "blobs", small=store)
    yield spool
    await spool.close()
    await store.close()


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def files(tmp_path: Path) -> list[str]:
    """Names of all files in the spool that are not locks."""
    root = tmp_path / "blobs"
    found = [path for path in root.rglob("*") if path.is_file() and "processes" not in path.parts]
    return sorted(path.suffix or "part" for path in found)


@settings(max_examples=15)  # each opens a store
@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 40))
def test_chunks_give_the_same_content_on_both_sides_of_the_border(chunks: list[bytes], at: int) -> None:
    async def check(folder: Path) -> None:
        store = await open_sqlite_store(folder / "gateway.db")
        spool = await DiskSpool.open(folder / "blobs", small=store)
        reader = await spool.for_turn("turn").write("id", stream(filler, *chunks))
        whole = InMemoryReader(filler + b"".join(chunks))
        assert reader.read_all() == whole.read_all()
        assert reader.line_count() == whole.line_count()
        await spool.close()
        await store.close()

    filler = b"\n" * (INLINE_LIMIT - at)
    with TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


async def test_large_content_is_one_file_with_its_line_index(spool: DiskSpool, tmp_path: Path) -> None:
    await spool.for_turn("turn").write("id", LARGE)

    assert files(tmp_path) == [".bytes", ".lines"]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "blobs").rglob("*")}
    assert modes == {0o600, 0o700}


async def test_damaged_line_index_is_made_anew(spool: DiskSpool, tmp_path: Path) -> None:
    key = (await spool.for_turn("turn").write("id", LARGE)).key
    [lines] = (tmp_path / "blobs").rglob("*.lines")

    for damage in (b"", b"\x00" * lines.stat().st_size):
        lines.write_bytes(damage)
        found = await spool.find(key, tenant=None)
        assert found is not None
        assert found.line(19_999) == "line 19999"
    lines.unlink()
    assert await spool.find(key, tenant=None) is not None


async def test_file_that_was_cut_short_is_not_read_as_if_whole(spool: DiskSpool, tmp_path: Path) -> None:
    reader = await spool.for_turn("turn").write("id", LARGE)
    [file] = (tmp_path / "blobs").rglob("*.bytes")
    file.write_bytes(LARGE[:1000])

    with pytest.raises(ArtifactGone):
        reader.read_all()


async def test_opening_removes_what_a_process_left_half_written(tmp_path: Path) -> None:
    incoming = tmp_path / "blobs" / "incoming"
    (incoming / ("ab" * 16)).mkdir(parents=True)
    (incoming / ("ab" * 16) / "part").write_bytes(b"half")
    (incoming / "stray").write_bytes(b"half")

    spool = await DiskSpool.open(tmp_path / "blobs")

    assert files(tmp_path) == []
    await spool.close()
    assert list(incoming.iterdir()) == []


async def test_opening_leaves_the_parts_of_living_processes_alone(spool: DiskSpool, tmp_path: Path) -> None:
    half, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LARGE
        half.set()
        await go_on.wait()
        yield LARGE

    writing = asyncio.ensure_future(spool.for_turn("turn").write("id", slow()))
    await half.wait()
    other = await DiskSpool.open(tmp_path / "blobs")
    assert files(tmp_path) == ["part"]
    assert await other.for_turn("turn").read("id") is None
    go_on.set()

    reader = await writing

    assert reader.byte_length() == 2 * len(LARGE)
    assert await other.for_turn("turn").read("id") is not None
    await other.close()


def test_keys_are_opaque_and_state_which_kind_they_are() -> None:
    key = f"s.{hash_id('a')}.{hash_id(None)}.{hash_id('')}.{'0' * 32}"

    assert is_inline(key)
    assert str(parse_key(key)) == key
    assert len({hash_id(None), hash_id(""), hash_id("nothing"), hash_id("\ud800"), hash_id("\ufffd")}) == 5


def test_keys_of_turns_of_one_moment_are_neighbours_and_still_differ() -> None:
    one, other = (hash_turn_id(f"turn_0123456789ab{end}") for end in ("x", "y"))

    assert one[:12] == other[:12] == "0123456789ab"
    assert one[12:] != other[12:]
    assert {len(one), len(hash_turn_id("../turn_"))} == {32}
    assert hash_turn_id("anything else") == hash_id("anything else")
