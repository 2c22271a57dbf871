"""Large results in a real object store: in parts, verified block by block, refused in time when the store fails."""

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest

from gateway.app.secrets import SecretMissing
from gateway.errors import ArtifactDamaged, ArtifactGone, RecordConflict, StoreUnavailable
from gateway.storage.blobs.blob_store import hash_id
from gateway.storage.blobs.bucket_store import BLOCK, PART, UNDER_WAY, BucketBlobStore, BucketSpool
from gateway.storage.blobs.result_spool import ResultSpool
from gateway.storage.blobs.s3_client import BucketAddress, InvalidObjectStore
from gateway.storage.blobs.s3_client import ObjectStoreClient as OpenBucket
from tests.storage.blobs.spools import Bucket
from tests.storage.blobs.test_hostile_keys import HOSTILE
from tests.support.servers.faulty_proxy import FaultyProxy, start_faulty_proxy
from tests.support.servers.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore

pytestmark = pytest.mark.anyio

CONTENT = b"".join(b"line %d\n" % n for n in range(1_200_000))
"""Slightly more than three parts."""

SOME = CONTENT[: 3 * BLOCK]
"""One part and several blocks."""

FAR = datetime(2200, 1, 1, tzinfo=UTC)


@pytest.fixture
def bucket(s3: ObjectStore) -> Bucket:
    return Bucket(s3)


@pytest.fixture
async def spool(bucket: Bucket) -> AsyncIterator[ResultSpool]:
    spool = await bucket.open()
    yield spool
    await spool.close()


@pytest.fixture
async def way(s3: ObjectStore) -> AsyncIterator[FaultyProxy]:
    async with start_faulty_proxy(s3.endpoint) as way:
        yield way


@pytest.fixture
async def behind(s3: ObjectStore, way: FaultyProxy, bucket: Bucket) -> AsyncIterator[BucketSpool]:
    """A spool that reaches its store through the faulty proxy."""
    spool = await BucketSpool.open(s3.place(bucket.prefix, endpoint=way.endpoint))
    yield spool
    way.go_on()
    way.lie = None
    await spool.close()


async def in_time(refused: Any) -> StoreUnavailable:
    """Return the refusal; without a timeout of its own, the client would wait for a minute."""
    with pytest.raises(StoreUnavailable) as caught:
        await asyncio.wait_for(refused, 20)
    return caught.value


async def wait_for_recovery(spool: ResultSpool) -> None:
    while spool.problem is not None:
        await asyncio.sleep(0.05)


async def none_known(keys: object) -> set[str]:
    return set()


# Parts


async def test_content_of_several_parts_is_read_from_any_offset(spool: ResultSpool, bucket: Bucket) -> None:
    written = await spool.for_turn("turn").write("id", CONTENT)
    found = await spool.find(written.key, tenant=None)

    assert await bucket.kept() == ["bytes"] * 4 + ["index"]
    assert found is not None
    numbers = random.Random(1)
    spans = [(numbers.randrange(len(CONTENT)), numbers.randrange(3 * BLOCK)) for _ in range(20)]
    for offset, length in [(0, 1), (PART - 1, 2), (BLOCK, BLOCK), (len(CONTENT) - 1, 9), (len(CONTENT), 1), *spans]:
        assert await asyncio.to_thread(found.read_range, offset, length) == CONTENT[offset : offset + length]
    assert await asyncio.to_thread(found.read_all) == CONTENT.decode()
    assert await asyncio.to_thread(found.line, 1_199_999) == "line 1199999"


async def test_reading_on_asks_for_less_than_one_range_per_block(behind: BucketSpool, way: FaultyProxy) -> None:
    reader = await behind.for_turn("turn").write("id", CONTENT)
    way.asked.clear()

    lines = await asyncio.to_thread(lambda: sum(1 for _ in reader.lines(0, 1_300_000)))

    assert lines == 1_200_001
    assert len([each for each in way.asked if each.startswith("GET")]) < len(CONTENT) / BLOCK / 2


async def test_no_reader_finds_a_result_before_it_is_complete(spool: ResultSpool, bucket: Bucket) -> None:
    go_on, half = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield CONTENT
        half.set()
        await go_on.wait()
        yield CONTENT

    writing = asyncio.ensure_future(spool.for_turn("turn").write("id", slow()))
    await half.wait()
    other = await bucket.open()
    assert await other.for_turn("turn").read("id") is None
    go_on.set()
    key = (await writing).key

    assert (found := await other.find(key, tenant=None)) is not None
    assert found.byte_length() == 2 * len(CONTENT)
    await other.close()


async def test_many_large_results_at_once_send_a_few_parts_at_a_time(behind: BucketSpool, way: FaultyProxy) -> None:
    turn_spool, content = behind.for_turn("turn"), CONTENT[: PART + 1]

    readers = await asyncio.gather(*(turn_spool.write(f"id{number}", content) for number in range(12)))

    assert 1 < way.most_parts_at_once <= UNDER_WAY
    assert {each.byte_length() for each in readers} == {PART + 1}


async def test_parts_of_a_process_that_died_are_swept_away(spool: ResultSpool, bucket: Bucket) -> None:
    kept = await spool.for_turn("turn").write("kept", CONTENT)
    name = f"{hash_id('tenant')}/{hash_id('turn')}/{hash_id('id')}.{'0' * 32}"
    store = bucket.store.client()
    for number in range(3):
        obstore.put(store, f"{bucket.prefix}/{name}/{number:05}", b"half")
    obstore.put(store, f"{bucket.prefix}/not/ours", b"somebody else's")

    async def known(keys: Any) -> set[str]:
        return {kept.key} & set(keys)

    assert await spool.delete_orphans(known, before=datetime.now(UTC) - timedelta(days=1)) == 0
    assert await spool.delete_orphans(known, before=FAR) == 1
    left = await asyncio.to_thread(bucket.store.paths, bucket.prefix)
    assert "not/ours" in left
    assert not [path for path in left if path.startswith(name)]
    assert await spool.find(kept.key, tenant=None) is not None


async def test_object_is_only_created_where_none_is(s3: ObjectStore, bucket: Bucket) -> None:
    opened = await OpenBucket.open(s3.place(bucket.prefix))

    await opened.create("name", b"first")
    await opened.create("name", b"first")  # as after a lost answer
    with pytest.raises(RecordConflict):
        await opened.create("name", b"second")

    assert await opened.read_object("name", limit=100) == b"first"
    assert await opened.read_object("name", limit=4) is None
    assert await opened.read_object("other", limit=4) is None
    await opened.close()


async def test_hostile_ids_turns_and_tenants_are_no_part_of_any_name(spool: ResultSpool, bucket: Bucket) -> None:
    for number, text in enumerate(HOSTILE):
        content = b"%d" % number
        for scope in (spool.for_turn("turn", tenant=text), spool.for_turn(text, tenant="acme")):
            reader = await scope.write(text, content)
            assert await asyncio.to_thread(reader.read_range, 0, 9) == content
        assert await spool.find(text, tenant=None) is None
        assert await spool.delete(f"{reader.key}{text}/") is False

    names = await asyncio.to_thread(bucket.store.paths, bucket.prefix)
    assert len(names) == 4 * len(HOSTILE)
    assert all(re.fullmatch(r"([0-9a-f]{32}/){2}[0-9a-f]{32}\.[0-9a-f]{32}(\.index|/00000)", name) for name in names)


# Credentials


async def test_credentials_are_read_when_they_are_needed(s3: ObjectStore, bucket: Bucket) -> None:
    reads = 0

    def credentials() -> tuple[str, str]:
        nonlocal reads
        reads += 1
        return access

    place = s3.place(bucket.prefix)
    assert place.credentials is not None
    access = place.credentials()

    spool = await BucketSpool.open(BucketAddress(place.bucket, place.endpoint, place.region, place.prefix, credentials))
    await spool.for_turn("turn").write("id", CONTENT)

    assert reads > 0
    await spool.close()


async def test_without_keys_those_of_the_environment_count(
    s3: ObjectStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)

    spool = await BucketSpool.open(BucketAddress(BUCKET, s3.endpoint, None, bucket.prefix))
    reader = await spool.for_turn("turn").write("id", b"content")

    assert await asyncio.to_thread(reader.read_range, 0, 9) == b"content"
    await spool.close()


@pytest.mark.parametrize(
    ("bucket_name", "secret", "expected"),
    [
        pytest.param(BUCKET, "a wrong secret", "denies access with these credentials", id="wrong-secret"),
        pytest.param(
            "no-such-bucket",
            None,
            "there is no such bucket in the object store: bucket 'no-such-bucket' at 127.0.0.1",
            id="no-bucket",
        ),
    ],
)
async def test_store_that_will_never_work_is_refused_at_the_start(
    s3: ObjectStore, bucket_name: str, secret: str | None, expected: str
) -> None:
    place = s3.place("x")
    assert place.credentials is not None
    access = place.credentials()
    given = (access[0], secret or access[1])

    with pytest.raises(InvalidObjectStore, match=expected) as caught:
        await BucketSpool.open(BucketAddress(bucket_name, place.endpoint, place.region, "x", lambda: given))

    assert caught.value.help
    assert access[1] not in str(caught.value)
    assert "a wrong secret" not in f"{caught.value}{caught.value.help}"


async def test_credentials_that_cannot_be_read_any_more_are_reported(s3: ObjectStore, bucket: Bucket) -> None:
    def gone() -> tuple[str, str]:
        raise SecretMissing("the secret file /run/key cannot be read")

    place = s3.place(bucket.prefix)
    with pytest.raises(InvalidObjectStore, match="the credentials of the object store cannot be read"):
        await BucketSpool.open(BucketAddress(place.bucket, place.endpoint, place.region, place.prefix, gone))


ENDING = """
import asyncio, sys
from gateway.storage.blobs.s3_client import ObjectStoreClient
from gateway.storage.blobs.s3_client import InvalidObjectStore
from gateway.storage.blobs.s3_client import BucketAddress

async def main():
    for bucket in (sys.argv[2], "no-such-bucket"):
        try:
            opened = await ObjectStoreClient.open(BucketAddress(bucket, sys.argv[1], "us-east-1", sys.argv[3]))
            await opened.put("object", b"content")
            await opened.close()
        except InvalidObjectStore:
            pass

asyncio.run(main())
"""


async def test_process_that_ends_right_after_its_last_request_ends_well(s3: ObjectStore, bucket: Bucket) -> None:
    env = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    command = [sys.executable, "-c", ENDING, s3.endpoint, BUCKET, bucket.prefix]

    ended = [await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True) for _ in range(5)]

    assert [(each.returncode, each.stderr) for each in ended] == [(0, b"")] * 5


# A failing store


async def test_store_that_is_down_is_refused_and_comes_back_by_itself(behind: BucketSpool, way: FaultyProxy) -> None:
    reader = await behind.for_turn("turn").write("id", SOME)
    await way.cut()

    refused = await in_time(behind.for_turn("turn").write("other", SOME))
    unread = await in_time(asyncio.to_thread(reader.read_range, 0, 10))
    unfound = await in_time(behind.find(reader.key, tenant=None))

    assert {each.message for each in (refused, unread, unfound)} == {behind.problem}
    assert "object store cannot be used" in refused.message
    await way.open()
    await asyncio.wait_for(wait_for_recovery(behind), 20)
    assert await asyncio.to_thread(reader.read_range, 0, 6) == b"line 0"
    await behind.for_turn("turn").write("other", SOME)


async def test_store_that_takes_requests_and_never_answers_is_refused(behind: BucketSpool, way: FaultyProxy) -> None:
    reader = await behind.for_turn("turn").write("id", SOME)
    way.hold()

    refused = await in_time(behind.for_turn("turn").write("other", SOME))
    again = await in_time(asyncio.to_thread(reader.read_range, BLOCK, 10))

    assert "it does not answer" in refused.message == again.message
    way.go_on()
    await asyncio.wait_for(wait_for_recovery(behind), 20)
    assert await asyncio.to_thread(reader.read_range, 0, 6) == b"line 0"


async def test_read_that_stalls_is_given_up(behind: BucketSpool, way: FaultyProxy) -> None:
    reader = await behind.for_turn("turn").write("id", SOME)
    way.hold()

    refused = await in_time(asyncio.to_thread(reader.read_range, 0, 10))

    assert "it does not answer" in refused.message


async def test_store_that_refuses_writes_reports_it_and_continues_reading(
    behind: BucketSpool, way: FaultyProxy
) -> None:
    reader = await behind.for_turn("turn").write("id", SOME)
    way.refuse_puts_with = 507

    refused = await in_time(behind.for_turn("turn").write("other", SOME))

    assert "the object store is full" in refused.message
    assert behind.problem is None
    assert await asyncio.to_thread(reader.read_range, 0, 6) == b"line 0"


async def test_store_that_is_down_at_the_start_may_come_back(s3: ObjectStore, bucket: Bucket, way: FaultyProxy) -> None:
    await way.cut()
    spool = await BucketSpool.open(s3.place(bucket.prefix, endpoint=way.endpoint))
    assert spool.problem is not None

    await way.open()
    await asyncio.wait_for(wait_for_recovery(spool), 20)

    await spool.for_turn("turn").write("id", SOME)
    await spool.close()


async def test_write_that_fails_half_way_leaves_nothing_once_the_store_is_back(
    behind: BucketSpool, way: FaultyProxy, bucket: Bucket
) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield CONTENT
        way.refuse_puts_with = 500
        yield CONTENT

    await in_time(behind.for_turn("turn").write("id", content()))

    way.refuse_puts_with = None
    assert isinstance(behind.large, BucketBlobStore)
    await behind.large.wait_until_clean()
    assert "index" not in await bucket.kept()
    await asyncio.wait_for(wait_for_recovery(behind), 20)
    await behind.delete_orphans(none_known, before=FAR)
    assert await bucket.kept() == []


# A store that lies


def flipped(path: str, content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1]) if content else content


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        pytest.param(flipped, "other bytes", id="wrong-bytes"),
        pytest.param(lambda path, content: content[:-1], "bytes instead of", id="too-short"),
        pytest.param(lambda path, content: content + b"x", "bytes instead of", id="too-long"),
        pytest.param(lambda path, content: b"", "bytes instead of", id="nothing"),
    ],
)
async def test_bytes_that_were_not_kept_are_never_given(
    behind: BucketSpool, way: FaultyProxy, lie: Any, expected: str
) -> None:
    reader = await behind.for_turn("turn").write("id", SOME)
    way.lie = lambda path, content: lie(path, content) if path[-6:].startswith("/0") else content

    with pytest.raises(ArtifactDamaged, match=expected):
        await asyncio.to_thread(reader.read_range, 10, 100)

    way.lie = None
    assert await asyncio.to_thread(reader.read_range, 10, 100) == SOME[10:110]


async def test_index_that_was_not_kept_is_not_believed(behind: BucketSpool, way: FaultyProxy, s3: ObjectStore) -> None:
    key = (await behind.for_turn("turn").write("id", SOME)).key
    other = (await behind.for_turn("turn").write("other", SOME[:BLOCK])).key
    place, store = behind.large.bucket.place, s3.client()  # type: ignore[attr-defined]
    paths = [f"{place.prefix}/{each[2:].replace('.', '/', 2)}.index" for each in (key, other)]

    way.lie = flipped
    with pytest.raises(ArtifactDamaged, match="its index is damaged"):
        await behind.find(key, tenant=None)
    way.lie = None
    obstore.put(store, paths[0], bytes(obstore.get(store, paths[1]).bytes()))
    with pytest.raises(ArtifactDamaged, match="that of another result"):
        await behind.find(key, tenant=None)
    for damage in (b"", b"x" * 10, bytes(100)):
        obstore.put(store, paths[0], damage)
        with pytest.raises(ArtifactDamaged):
            await behind.find(key, tenant=None)


async def test_part_that_was_deleted_behind_our_back_is_gone(spool: ResultSpool, bucket: Bucket) -> None:
    reader = await spool.for_turn("turn").write("id", CONTENT)
    store = bucket.store.client()
    for path in bucket.store.paths(bucket.prefix):
        if path.endswith("/00001"):
            obstore.delete(store, f"{bucket.prefix}/{path}")

    assert await asyncio.to_thread(reader.read_range, 0, 10) == CONTENT[:10]
    with pytest.raises(ArtifactGone):
        await asyncio.to_thread(reader.read_range, PART, 10)
    assert await spool.delete(reader.key) is True


def test_place_is_named_without_what_lets_us_in(tmp_path: Path) -> None:
    assert BucketAddress("b", "http://user:password@host:1").name == "bucket 'b' at host:1"
    assert BucketAddress("b").name == "bucket 'b' at its public address"
