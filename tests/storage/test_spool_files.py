"""The spool of a served gateway: results come back byte for byte, also after a restart; nothing half is ever seen."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_records import NOON, settled, turn

from gateway.core.spool import InMemoryReader
from gateway.errors import ArtifactGone, OutputTooLarge, SpoolQuotaExceeded, StoreUnavailable
from gateway.governance.records import StoredResult
from gateway.storage.keys import hashed, hashed_turn, is_small, parsed
from gateway.storage.spool_files import SMALL, FileSpool, LargeReader, Reader, SmallReader
from gateway.storage.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

LARGE = b"".join(b"line %d\n" % n for n in range(20_000))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "gateway.db", clock=lambda: NOON)
    yield store
    await store.close()


@pytest.fixture
async def spool(tmp_path: Path, store: SqliteStore) -> AsyncIterator[FileSpool]:
    spool = await FileSpool.open(tmp_path / "blobs", small=store)
    yield spool
    await spool.close()


def files(tmp_path: Path) -> list[str]:
    """Names of everything in the spool that is not a lock."""
    root = tmp_path / "blobs"
    found = [path for path in root.rglob("*") if path.is_file() and "processes" not in path.parts]
    return sorted(path.suffix or "part" for path in found)


def result(reader: Reader) -> StoredResult:
    return StoredResult("artifact", key=reader.key, content=reader.content, byte_length=reader.byte_length())


async def stream(*chunks: bytes, failing: Exception | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if failing is not None:
        raise failing


# What is kept


@pytest.mark.parametrize("content", [b"", b"a\nb", b"x" * SMALL, b"x" * (SMALL + 1), LARGE], ids=len)
async def test_content_comes_back_byte_for_byte(spool: FileSpool, content: bytes) -> None:
    reader = await spool.scoped("turn").write("id", content)

    assert reader.read_range(0, len(content) + 1) == content
    assert reader.byte_length() == len(content)
    assert isinstance(reader, SmallReader if len(content) <= SMALL else LargeReader)


async def test_small_content_makes_no_file(spool: FileSpool, tmp_path: Path) -> None:
    await spool.scoped("turn").write("id", b"small")

    assert files(tmp_path) == []


async def test_large_content_is_one_file_with_its_line_index(spool: FileSpool, tmp_path: Path) -> None:
    await spool.scoped("turn").write("id", LARGE)

    assert files(tmp_path) == [".bytes", ".lines"]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "blobs").rglob("*")}
    assert modes == {0o600, 0o700}


async def test_without_a_store_small_content_is_a_file_too(tmp_path: Path) -> None:
    spool = await FileSpool.open(tmp_path / "blobs")

    reader = await spool.scoped("turn").write("id", b"")

    assert reader.byte_length() == 0
    assert files(tmp_path) == [".bytes", ".lines"]
    await spool.close()


@settings(max_examples=15)  # each opens a store
@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(0, 40))
def test_chunks_give_the_same_content_on_both_sides_of_the_border(chunks: list[bytes], at: int) -> None:
    async def check(folder: Path) -> None:
        store = await SqliteStore.open(folder / "gateway.db")
        spool = await FileSpool.open(folder / "blobs", small=store)
        reader = await spool.scoped("turn").write("id", stream(filler, *chunks))
        whole = InMemoryReader(filler + b"".join(chunks))
        assert reader.read_all() == whole.read_all()
        assert reader.line_count() == whole.line_count()
        await spool.close()
        await store.close()

    filler = b"\n" * (SMALL - at)
    with TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


async def test_lines_of_a_large_result_are_read_by_the_index(spool: FileSpool) -> None:
    reader = await spool.scoped("turn").write("id", LARGE)

    assert reader.line_count() == 20_001
    assert list(reader.lines(19_998, 20_000)) == ["line 19998", "line 19999"]
    assert reader.line(12_345) == "line 12345"


@pytest.mark.parametrize("content", [b"first", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("again", [b"second", LARGE + b"2"], ids=["small", "large"])
async def test_rewriting_leaves_earlier_readers_alone(spool: FileSpool, content: bytes, again: bytes) -> None:
    turn_spool = spool.scoped("turn")
    first = await turn_spool.write("id", content)

    second = await turn_spool.write("id", again)

    assert first.read_range(0, len(content)) == content
    current = await turn_spool.read("id")
    assert current is not None
    assert current.key == second.key
    assert current.read_range(0, len(again)) == again


async def test_unknown_id_is_not_found(spool: FileSpool) -> None:
    await spool.scoped("turn").write("id", LARGE)

    assert await spool.scoped("turn").read("other") is None
    assert await spool.scoped("other").read("id") is None
    assert await spool.scoped("turn", tenant="acme").read("id") is None
    assert await spool.scoped("other").delete("id") is False


# After a restart


@pytest.mark.parametrize("content", [b"a\nb\n", LARGE], ids=["small", "large"])
async def test_reader_is_found_again_from_the_record(tmp_path: Path, content: bytes) -> None:
    store = await SqliteStore.open(tmp_path / "gateway.db", clock=lambda: NOON)
    spool = await FileSpool.open(tmp_path / "blobs", small=store)
    reader = await spool.scoped("turn", tenant="acme").write("id", content)
    await store.settle_call(settled(results=(result(reader),)), turn=turn())
    await spool.close()
    await store.close()

    store = await SqliteStore.open(tmp_path / "gateway.db", clock=lambda: NOON)
    spool = await FileSpool.open(tmp_path / "blobs", small=store)
    [stored] = (await store.calls_of("turn"))[0].results
    assert stored.key is not None
    assert stored.content is None
    found = await spool.find(stored.key, tenant="acme")
    by_id = await spool.scoped("turn", tenant="acme").read("id")

    for again in (found, by_id):
        assert again is not None
        assert again.describe() == {"tag": "spool", "locator": stored.key}
        assert again.read_range(0, len(content)) == content
        assert again.line(1) == content.split(b"\n")[1].decode()
    assert await spool.find(stored.key, tenant="umbrella") is None
    assert await spool.find(stored.key, tenant=None) is None
    await spool.close()
    await store.close()


async def test_small_piece_without_its_bytes_is_not_recorded(spool: FileSpool, store: SqliteStore) -> None:
    reader = await spool.scoped("turn").write("id", b"small")

    with pytest.raises(ValueError, match="without its content"):
        await store.settle_call(settled(results=(StoredResult("artifact", key=reader.key),)), turn=turn())

    assert await store.calls_of("turn") == []


async def test_small_piece_that_never_settled_is_gone_with_its_reader(spool: FileSpool) -> None:
    key = (await spool.scoped("turn").write("id", b"small")).key

    assert await spool.find(key, tenant=None) is None


async def test_damaged_line_index_is_made_anew(spool: FileSpool, tmp_path: Path) -> None:
    key = (await spool.scoped("turn").write("id", LARGE)).key
    [lines] = (tmp_path / "blobs").rglob("*.lines")

    for damage in (b"", b"\x00" * lines.stat().st_size):
        lines.write_bytes(damage)
        found = await spool.find(key, tenant=None)
        assert found is not None
        assert found.line(19_999) == "line 19999"
    lines.unlink()
    assert await spool.find(key, tenant=None) is not None


async def test_file_that_was_cut_short_is_not_read_as_if_whole(spool: FileSpool, tmp_path: Path) -> None:
    reader = await spool.scoped("turn").write("id", LARGE)
    [file] = (tmp_path / "blobs").rglob("*.bytes")
    file.write_bytes(LARGE[:1000])

    with pytest.raises(ArtifactGone):
        reader.read_all()


async def test_opening_removes_what_a_process_left_half_written(tmp_path: Path) -> None:
    incoming = tmp_path / "blobs" / "incoming"
    (incoming / ("ab" * 16)).mkdir(parents=True)
    (incoming / ("ab" * 16) / "part").write_bytes(b"half")
    (incoming / "stray").write_bytes(b"half")

    spool = await FileSpool.open(tmp_path / "blobs")

    assert files(tmp_path) == []
    await spool.close()
    assert list(incoming.iterdir()) == []


async def test_opening_leaves_the_parts_of_living_processes_alone(spool: FileSpool, tmp_path: Path) -> None:
    half, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LARGE
        half.set()
        await go_on.wait()
        yield LARGE

    writing = asyncio.ensure_future(spool.scoped("turn").write("id", slow()))
    await half.wait()
    other = await FileSpool.open(tmp_path / "blobs")
    assert files(tmp_path) == ["part"]
    assert await other.scoped("turn").read("id") is None
    go_on.set()

    reader = await writing

    assert reader.byte_length() == 2 * len(LARGE)
    assert await other.scoped("turn").read("id") is not None
    await other.close()


# Deleting


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_deleted_content_is_gone(spool: FileSpool, store: SqliteStore, tmp_path: Path, content: bytes) -> None:
    turn_spool = spool.scoped("turn")
    reader = await turn_spool.write("id", content)
    await store.settle_call(settled(results=(result(reader),)), turn=turn())
    await turn_spool.write("id", content)

    assert await turn_spool.delete("id") is True

    assert await turn_spool.delete("id") is False
    assert await turn_spool.read("id") is None
    assert await spool.find(reader.key, tenant=None) is None
    assert files(tmp_path) == []
    if isinstance(reader, LargeReader):
        with pytest.raises(ArtifactGone):
            reader.read_all()


async def test_expired_results_leave_no_file_and_no_row(spool: FileSpool, store: SqliteStore, tmp_path: Path) -> None:
    readers = [await spool.scoped("turn").write(id, content) for id, content in (("a", b"small"), ("b", LARGE))]
    await store.settle_call(settled(results=[result(reader) for reader in readers]), turn=turn())
    end = turn().expires_at

    keys = [piece.key or "" for piece in await store.expired_results(end, limit=10)]
    assert keys == [readers[1].key]
    assert [await spool.delete(key) for key in keys] == [True]
    assert await spool.delete(keys[0]) is False
    await store.forget_results(keys)

    assert await store.prune(end) == 2
    assert files(tmp_path) == []
    assert await store.find_piece(readers[0].key) is None


async def test_files_that_no_record_names_are_removed_once_they_are_old(
    spool: FileSpool, store: SqliteStore, tmp_path: Path
) -> None:
    named, stray = [await spool.scoped("turn", tenant=tenant).write("id", LARGE) for tenant in ("acme", None)]
    await store.settle_call(settled(results=(result(named),)), turn=turn())

    assert await spool.remove_strays(store.known_results, before=datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert await spool.remove_strays(store.known_results, before=datetime(2200, 1, 1, tzinfo=UTC)) == 1

    assert await spool.find(named.key, tenant="acme") is not None
    assert await spool.find(stray.key, tenant=None) is None


# Limits


@pytest.mark.parametrize("limit", [10, SMALL + 10, 3 * SMALL], ids=["small", "border", "large"])
async def test_output_past_its_limit_is_refused_and_leaves_nothing(
    spool: FileSpool, tmp_path: Path, limit: int
) -> None:
    turn_spool = spool.scoped("turn")

    exact = await turn_spool.write("exact", b"x" * limit, limit=limit)
    assert exact.byte_length() == limit
    await turn_spool.delete("exact")
    for content in (b"x" * (limit + 1), stream(b"x" * limit, b"y"), stream(*[b"z" * 5] * limit)):
        with pytest.raises(OutputTooLarge, match=f"larger than {limit} bytes"):
            await turn_spool.write("id", content, limit=limit)

    assert await turn_spool.read("id") is None
    assert files(tmp_path) == []


async def test_endless_output_is_stopped_at_the_limit(tmp_path: Path) -> None:
    spool = await FileSpool.open(tmp_path / "blobs", max_output=1 << 20)
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 65_536

    with pytest.raises(OutputTooLarge):
        await spool.scoped("turn").write("id", endless(), limit=1 << 30)

    assert taken == 17
    assert files(tmp_path) == []
    await spool.close()


async def test_tenant_is_held_to_its_quota_and_others_are_not(tmp_path: Path) -> None:
    spool = await FileSpool.open(tmp_path / "blobs", quota=1000)
    mine, theirs = spool.scoped("turn", tenant="acme"), spool.scoped("turn", tenant="umbrella")
    await mine.write("a", b"x" * 600)

    with pytest.raises(SpoolQuotaExceeded):
        await mine.write("b", stream(b"x" * 300, b"x" * 101))
    await mine.write("c", b"x" * 400)
    await theirs.write("a", b"x" * 1000)
    await spool.close()

    again = await FileSpool.open(tmp_path / "blobs", quota=1000)
    mine = again.scoped("other turn", tenant="acme")
    with pytest.raises(SpoolQuotaExceeded):
        await mine.write("d", b"x")
    assert await again.scoped("turn", tenant="acme").delete("a")
    await mine.write("d", b"x" * 600)
    await again.close()


async def test_quota_is_held_at_the_border_between_small_and_large(tmp_path: Path, store: SqliteStore) -> None:
    spool = await FileSpool.open(tmp_path / "blobs", small=store, quota=10)

    for content in (LARGE, stream(b"x" * 100, LARGE)):
        with pytest.raises(SpoolQuotaExceeded):
            await spool.scoped("turn").write("id", content)
    await spool.scoped("turn").write("id", b"x" * 100)  # goes with its record

    assert files(tmp_path) == []
    await spool.close()


# Failures on the way


async def test_stream_that_fails_leaves_nothing_and_keeps_its_error(spool: FileSpool, tmp_path: Path) -> None:
    for chunks in ([b"small"], [LARGE, LARGE]):
        with pytest.raises(ConnectionResetError, match="upstream"):
            await spool.scoped("turn").write("id", stream(*chunks, failing=ConnectionResetError("upstream")))

    assert files(tmp_path) == []


async def test_cancelled_write_leaves_nothing(spool: FileSpool, tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield LARGE * 10
        waiting.set()
        await asyncio.Event().wait()

    writing = asyncio.ensure_future(spool.scoped("turn").write("id", stuck()))
    await waiting.wait()
    writing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await writing
    assert files(tmp_path) == []


async def test_write_cancelled_while_it_is_published_leaves_all_or_nothing(spool: FileSpool, tmp_path: Path) -> None:
    written = 0
    for steps in range(12):
        writing = asyncio.ensure_future(spool.scoped("turn").write(f"id{steps}", LARGE))
        for _ in range(steps):
            await asyncio.sleep(0)
        written += not writing.cancel()  # where the disk was faster
        await asyncio.gather(writing, return_exceptions=True)

    assert files(tmp_path) == sorted([".bytes", ".lines"] * written)


async def test_content_of_the_wrong_type_is_refused(spool: FileSpool, tmp_path: Path) -> None:
    wrong: Any = {"not": "content"}

    with pytest.raises(TypeError):
        await spool.scoped("turn").write("id", wrong)
    assert files(tmp_path) == []


async def test_many_turns_write_at_once(spool: FileSpool) -> None:
    async def one(n: int) -> bool:
        turn_spool = spool.scoped(f"turn{n % 5}")
        content = b"%d\n" % n * (1 if n % 2 else 30_000)
        reader = await turn_spool.write(f"id{n}", content)
        found = await turn_spool.read(f"id{n}")
        return found is not None and found.read_range(0, 1 << 20) == content and found.key == reader.key

    assert all(await asyncio.gather(*(one(n) for n in range(60))))


async def test_writes_and_deletes_of_one_turn_do_not_disturb_each_other(spool: FileSpool) -> None:
    turn_spool = spool.scoped("turn")

    async def one(n: int) -> None:
        for _ in range(5):
            await turn_spool.write(f"id{n}", LARGE)
            assert await turn_spool.delete(f"id{n}")

    await asyncio.gather(*(one(n) for n in range(8)))


async def test_closed_spool_says_so(tmp_path: Path) -> None:
    spool = await FileSpool.open(tmp_path / "blobs")
    reader = await spool.scoped("turn").write("id", LARGE)
    await spool.close()

    with pytest.raises(StoreUnavailable):
        reader.read_range(0, 1)
    with pytest.raises(StoreUnavailable):
        await spool.scoped("turn").write("id", LARGE)


def test_keys_are_opaque_and_say_which_kind_they_are() -> None:
    key = f"s.{hashed('a')}.{hashed(None)}.{hashed('')}.{'0' * 32}"

    assert is_small(key)
    assert str(parsed(key)) == key
    assert len({hashed(None), hashed(""), hashed("nothing"), hashed("\ud800"), hashed("\ufffd")}) == 5


def test_keys_of_turns_of_one_moment_are_neighbours_and_still_differ() -> None:
    one, other = (hashed_turn(f"turn_0123456789ab{end}") for end in ("x", "y"))

    assert one[:12] == other[:12] == "0123456789ab"
    assert one[12:] != other[12:]
    assert {len(one), len(hashed_turn("../turn_"))} == {32}
    assert hashed_turn("anything else") == hashed("anything else")
