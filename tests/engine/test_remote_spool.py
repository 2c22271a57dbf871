"""Results stored on another machine are read in threads, and failures to store them are reported."""

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.model.media import InMemoryMediaReader, Media
from gateway.storage.blobs.bucket_store import BucketSpool
from gateway.storage.sql.sqlite.engine import SqliteStore
from tests.engine.service_gateway import ANA, Plan, running
from tests.support.servers.faulty_proxy import FaultyProxy, start_faulty_proxy
from tests.support.servers.object_store import ObjectStore

pytestmark = pytest.mark.anyio

PIXELS = bytes(range(256)) * 5000

Opening = Callable[[SqliteStore], Coroutine[Any, Any, BucketSpool]]


@pytest.fixture
async def way(s3: ObjectStore) -> AsyncIterator[FaultyProxy]:
    async with start_faulty_proxy(s3.endpoint) as way:
        yield way


@pytest.fixture
def opening(s3: ObjectStore, way: FaultyProxy) -> Opening:
    place = s3.place(f"calls-{uuid4().hex}", endpoint=way.endpoint)
    return lambda store: BucketSpool.open(place, small=store)


def photo() -> Plan:
    media = Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(PIXELS))
    return Plan().tool("photo", media)


async def test_large_media_come_back_after_a_restart(tmp_path: Path, opening: Opening) -> None:
    async with running(tmp_path, photo(), open_spool=opening) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "photo", {})

    async with running(tmp_path, photo(), open_spool=opening) as gateway:
        _, record = await gateway.service.find_call(ANA, settled.record.id)
        found: Any = record.results

        assert isinstance(found, Media)
        assert b"".join([chunk async for chunk in found.stream()]) == PIXELS


async def test_media_that_cannot_be_kept_are_reported(tmp_path: Path, opening: Opening, way: FaultyProxy) -> None:
    async with running(tmp_path, photo(), open_spool=opening) as gateway:
        await way.cut()

        settled = await gateway.service.call_tool(ANA, "desk", "photo", {})

        assert settled.record.is_error is True
        message = "the tool ran, but its result could not be kept: the object store cannot be used"
        assert message in str(settled.record.results)
        stored = await gateway.service.get_stored_call(ANA, settled.record.id)
        assert (stored.status, stored.is_error) == ("settled", True)
