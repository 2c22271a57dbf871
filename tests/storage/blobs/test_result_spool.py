"""The spool of a served gateway: results come back byte for byte, also after a restart; partial ones are never visible.

Every test runs on files and on a real object store.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ArtifactGone, OutputTooLarge, SpoolQuotaExceeded, StoreUnavailable
from gateway.storage.blobs.blob_store import BlobReader, InlineBlobReader, Reader
from gateway.storage.blobs.result_spool import INLINE_LIMIT, ResultSpool
from gateway.storage.call_store import StoredResult
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.storage.blobs.spools import Bucket, Folder, Spools
from tests.storage.sample_records import NOON, settled, turn

pytestmark = pytest.mark.anyio

LARGE = b"".join(b"line %d\n" % n for n in range(20_000))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite_store(tmp_path / "gateway.db", clock=lambda: NOON)
    yield store
    await store.close()


@pytest.fixture(params=["files", "s3"])
def spools(request: pytest.FixtureRequest, tmp_path: Path) -> Spools:
    return Folder(tmp_path / "blobs") if request.param == "files" else Bucket(request.getfixturevalue("s3"))


@pytest.fixture
async def spool(spools: Spools, store: SqliteStore) -> AsyncIterator[ResultSpool]:
    spool = await spools.open(small=store)
    yield spool
    await spool.close()


def result(reader: Reader) -> StoredResult:
    return StoredResult("artifact", key=reader.key, content=reader.content, byte_length=reader.byte_length())


async def stream(*chunks: bytes, failing: Exception | None = None) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
    if failing is not None:
        raise failing


# Storing


@pytest.mark.parametrize("content", [b"", b"a\nb", b"x" * INLINE_LIMIT, b"x" * (INLINE_LIMIT + 1), LARGE], ids=len)
async def test_content_comes_back_byte_for_byte(spool: ResultSpool, content: bytes) -> None:
    reader = await spool.for_turn("turn").write("id", content)

    assert reader.read_range(0, len(content) + 1) == content
    assert reader.byte_length() == len(content)
    assert isinstance(reader, InlineBlobReader if len(content) <= INLINE_LIMIT else BlobReader)


async def test_small_content_makes_no_file(spool: ResultSpool, spools: Spools) -> None:
    await spool.for_turn("turn").write("id", b"small")

    assert list(await spools.kept()) == []


async def test_without_a_store_small_content_is_put_with_the_large(spools: Spools) -> None:
    spool = await spools.open()

    reader = await spool.for_turn("turn").write("id", b"small")
    empty = await spool.for_turn("turn").write("empty", b"")

    assert reader.read_range(0, 9) == b"small"
    assert empty.byte_length() == 0
    assert list(await spools.kept()).count("index") == 2
    await spool.close()


async def test_lines_of_a_large_result_are_read_by_the_index(spool: ResultSpool) -> None:
    reader = await spool.for_turn("turn").write("id", LARGE)

    assert reader.line_count() == 20_001
    assert list(reader.lines(19_998, 20_000)) == ["line 19998", "line 19999"]
    assert reader.line(12_345) == "line 12345"


@pytest.mark.parametrize("content", [b"first", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("again", [b"second", LARGE + b"2"], ids=["small", "large"])
async def test_rewriting_leaves_earlier_readers_alone(spool: ResultSpool, content: bytes, again: bytes) -> None:
    turn_spool = spool.for_turn("turn")
    first = await turn_spool.write("id", content)

    second = await turn_spool.write("id", again)

    assert first.read_range(0, len(content)) == content
    current = await turn_spool.read("id")
    assert current is not None
    assert current.key == second.key
    assert current.read_range(0, len(again)) == again


async def test_unknown_id_is_not_found(spool: ResultSpool) -> None:
    await spool.for_turn("turn").write("id", LARGE)

    assert await spool.for_turn("turn").read("other") is None
    assert await spool.for_turn("other").read("id") is None
    assert await spool.for_turn("turn", tenant="acme").read("id") is None
    assert await spool.for_turn("other").delete("id") is False


# After a restart


@pytest.mark.parametrize("content", [b"a\nb\n", LARGE], ids=["small", "large"])
async def test_reader_is_found_again_from_the_record(spools: Spools, tmp_path: Path, content: bytes) -> None:
    store = await open_sqlite_store(tmp_path / "gateway.db", clock=lambda: NOON)
    spool = await spools.open(small=store)
    reader = await spool.for_turn("turn", tenant="acme").write("id", content)
    await store.record_call(settled(results=(result(reader),)), turn=turn())
    await spool.close()
    await store.close()

    store = await open_sqlite_store(tmp_path / "gateway.db", clock=lambda: NOON)
    spool = await spools.open(small=store)
    [stored] = (await store.list_turn_calls("turn"))[0].results
    assert stored.key is not None
    assert stored.content is None
    found = await spool.find(stored.key, tenant="acme")
    by_id = await spool.for_turn("turn", tenant="acme").read("id")

    for again in (found, by_id):
        assert again is not None
        assert again.describe() == {"tag": "spool", "locator": stored.key}
        assert again.read_range(0, len(content)) == content
        assert again.line(1) == content.split(b"\n")[1].decode()
    assert await spool.find(stored.key, tenant="umbrella") is None
    assert await spool.find(stored.key, tenant=None) is None
    await spool.close()
    await store.close()


async def test_small_piece_without_its_bytes_is_not_recorded(spool: ResultSpool, store: SqliteStore) -> None:
    reader = await spool.for_turn("turn").write("id", b"small")

    with pytest.raises(ValueError, match="without content"):
        await store.record_call(settled(results=(StoredResult("artifact", key=reader.key),)), turn=turn())

    assert await store.list_turn_calls("turn") == []


async def test_small_piece_that_never_settled_is_gone_with_its_reader(spool: ResultSpool) -> None:
    key = (await spool.for_turn("turn").write("id", b"small")).key

    assert await spool.find(key, tenant=None) is None


# Deleting


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
async def test_deleted_content_is_gone(spool: ResultSpool, store: SqliteStore, spools: Spools, content: bytes) -> None:
    turn_spool = spool.for_turn("turn")
    reader = await turn_spool.write("id", content)
    await store.record_call(settled(results=(result(reader),)), turn=turn())
    await turn_spool.write("id", content)

    assert await turn_spool.delete("id") is True

    assert await turn_spool.delete("id") is False
    assert await turn_spool.read("id") is None
    assert await spool.find(reader.key, tenant=None) is None
    assert list(await spools.kept()) == []
    if isinstance(reader, BlobReader):
        with pytest.raises(ArtifactGone):
            reader.read_all()


async def test_expired_results_leave_no_file_and_no_row(spool: ResultSpool, store: SqliteStore, spools: Spools) -> None:
    readers = [await spool.for_turn("turn").write(id, content) for id, content in (("a", b"small"), ("b", LARGE))]
    await store.record_call(settled(results=[result(reader) for reader in readers]), turn=turn())
    end = turn().expires_at

    keys = [piece.key or "" for piece in await store.list_expired_results(end, limit=10)]
    assert keys == [readers[1].key]
    assert [await spool.delete(key) for key in keys] == [True]
    assert await spool.delete(keys[0]) is False
    await store.delete_results(keys)

    assert await store.prune(end) == 2
    assert list(await spools.kept()) == []
    assert await store.find_blob(readers[0].key) is None


async def test_files_that_no_record_names_are_removed_once_they_are_old(
    spool: ResultSpool, store: SqliteStore, spools: Spools
) -> None:
    named, stray = [await spool.for_turn("turn", tenant=tenant).write("id", LARGE) for tenant in ("acme", None)]
    await store.record_call(settled(results=(result(named),)), turn=turn())

    assert await spool.delete_orphans(store.filter_known_results, before=datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert await spool.delete_orphans(store.filter_known_results, before=datetime(2200, 1, 1, tzinfo=UTC)) == 1

    assert await spool.find(named.key, tenant="acme") is not None
    assert await spool.find(stray.key, tenant=None) is None


# Limits


@pytest.mark.parametrize("limit", [10, INLINE_LIMIT + 10, 3 * INLINE_LIMIT], ids=["small", "border", "large"])
async def test_output_past_its_limit_is_refused_and_leaves_nothing(
    spool: ResultSpool, spools: Spools, limit: int
) -> None:
    turn_spool = spool.for_turn("turn")

    exact = await turn_spool.write("exact", b"x" * limit, limit=limit)
    assert exact.byte_length() == limit
    await turn_spool.delete("exact")
    for content in (b"x" * (limit + 1), stream(b"x" * limit, b"y"), stream(*[b"z" * 5] * limit)):
        with pytest.raises(OutputTooLarge, match=f"larger than {limit} bytes"):
            await turn_spool.write("id", content, limit=limit)

    assert await turn_spool.read("id") is None
    assert list(await spools.kept()) == []


async def test_endless_output_is_stopped_at_the_limit(spools: Spools) -> None:
    spool = await spools.open(max_output=1 << 20)
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 65_536

    with pytest.raises(OutputTooLarge):
        await spool.for_turn("turn").write("id", endless(), limit=1 << 30)

    assert taken == 17
    assert list(await spools.kept()) == []
    await spool.close()


async def test_tenant_is_held_to_its_quota_and_others_are_not(spools: Spools) -> None:
    spool = await spools.open(quota=1000)
    mine, theirs = spool.for_turn("turn", tenant="acme"), spool.for_turn("turn", tenant="umbrella")
    await mine.write("a", b"x" * 600)

    with pytest.raises(SpoolQuotaExceeded):
        await mine.write("b", stream(b"x" * 300, b"x" * 101))
    await mine.write("c", b"x" * 400)
    await theirs.write("a", b"x" * 1000)
    await spool.close()

    again = await spools.open(quota=1000)
    mine = again.for_turn("other turn", tenant="acme")
    with pytest.raises(SpoolQuotaExceeded):
        await mine.write("d", b"x")
    assert await again.for_turn("turn", tenant="acme").delete("a")
    await mine.write("d", b"x" * 600)
    await again.close()


async def test_quota_is_held_at_the_border_between_small_and_large(spools: Spools, store: SqliteStore) -> None:
    spool = await spools.open(small=store, quota=10)

    for content in (LARGE, stream(b"x" * 100, LARGE)):
        with pytest.raises(SpoolQuotaExceeded):
            await spool.for_turn("turn").write("id", content)
    await spool.for_turn("turn").write("id", b"x" * 100)  # deleted with its record

    assert list(await spools.kept()) == []
    await spool.close()


# Failures while writing


async def test_stream_that_fails_leaves_nothing_and_keeps_its_error(spool: ResultSpool, spools: Spools) -> None:
    for chunks in ([b"small"], [LARGE, LARGE]):
        with pytest.raises(ConnectionResetError, match="upstream"):
            await spool.for_turn("turn").write("id", stream(*chunks, failing=ConnectionResetError("upstream")))

    assert list(await spools.kept()) == []


async def test_cancelled_write_leaves_nothing(spool: ResultSpool, spools: Spools) -> None:
    waiting = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield LARGE * 10
        waiting.set()
        await asyncio.Event().wait()

    writing = asyncio.ensure_future(spool.for_turn("turn").write("id", stuck()))
    await waiting.wait()
    writing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await writing
    assert list(await spools.kept()) == []


async def test_write_cancelled_while_it_is_published_leaves_all_or_nothing(spool: ResultSpool, spools: Spools) -> None:
    written = 0
    for steps in range(12):
        writing = asyncio.ensure_future(spool.for_turn("turn").write(f"id{steps}", LARGE))
        for _ in range(steps):
            await asyncio.sleep(0)
        written += not writing.cancel()  # if the disk was faster
        await asyncio.gather(writing, return_exceptions=True)

    assert list(await spools.kept()) == sorted(["bytes", "index"] * written)


async def test_content_of_the_wrong_type_is_refused(spool: ResultSpool, spools: Spools) -> None:
    wrong: Any = {"not": "content"}

    with pytest.raises(TypeError):
        await spool.for_turn("turn").write("id", wrong)
    assert list(await spools.kept()) == []


async def test_many_turns_write_at_once(spool: ResultSpool) -> None:
    async def one(n: int) -> bool:
        turn_spool = spool.for_turn(f"turn{n % 5}")
        content = b"%d\n" % n * (1 if n % 2 else 30_000)
        reader = await turn_spool.write(f"id{n}", content)
        found = await turn_spool.read(f"id{n}")
        return found is not None and found.read_range(0, 1 << 20) == content and found.key == reader.key

    assert all(await asyncio.gather(*(one(n) for n in range(60))))


async def test_writes_and_deletes_of_one_turn_do_not_disturb_each_other(spool: ResultSpool) -> None:
    turn_spool = spool.for_turn("turn")

    async def one(n: int) -> None:
        for _ in range(5):
            await turn_spool.write(f"id{n}", LARGE)
            assert await turn_spool.delete(f"id{n}")

    await asyncio.gather(*(one(n) for n in range(8)))


async def test_closed_spool_reports_it(spools: Spools) -> None:
    spool = await spools.open()
    reader = await spool.for_turn("turn").write("id", LARGE)
    await spool.close()

    with pytest.raises(StoreUnavailable):
        reader.read_range(0, 1)
    with pytest.raises(StoreUnavailable):
        await spool.for_turn("turn").write("id", LARGE)
