"""Calls whose results are kept by another machine: read in threads, and told of when they cannot be kept."""

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from faulty_store import FaultyWay, faulty_way
from seaweed import ObjectStore
from serving_gateway import ANA, Plan, running

from gateway.core.media import InMemoryMediaReader, Media
from gateway.storage.spool_s3 import S3Spool
from gateway.storage.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

PIXELS = bytes(range(256)) * 5000

Opening = Callable[[SqliteStore], Coroutine[Any, Any, S3Spool]]


@pytest.fixture
async def way(s3: ObjectStore) -> AsyncIterator[FaultyWay]:
    async with faulty_way(s3.endpoint) as way:
        yield way


@pytest.fixture
def opening(s3: ObjectStore, way: FaultyWay) -> Opening:
    place = s3.place(f"calls-{uuid4().hex}", endpoint=way.endpoint)
    return lambda store: S3Spool.open(place, small=store)


def photo() -> Plan:
    media = Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(PIXELS))
    return Plan().tool("photo", media)


async def test_large_media_come_back_after_a_restart(tmp_path: Path, opening: Opening) -> None:
    async with running(tmp_path, photo(), open_spool=opening) as gateway:
        settled = await gateway.service.call_alone(ANA, "desk", "photo", {})

    async with running(tmp_path, photo(), open_spool=opening) as gateway:
        _, record = await gateway.service.find_call(ANA, settled.record.id)
        found: Any = record.results

        assert isinstance(found, Media)
        assert b"".join([chunk async for chunk in found.stream()]) == PIXELS


async def test_media_that_cannot_be_kept_are_told_of(tmp_path: Path, opening: Opening, way: FaultyWay) -> None:
    async with running(tmp_path, photo(), open_spool=opening) as gateway:
        await way.cut()

        settled = await gateway.service.call_alone(ANA, "desk", "photo", {})

        assert settled.record.is_error is True
        told = "the tool ran, but its result could not be kept: the object store cannot be used"
        assert told in str(settled.record.results)
        stored = await gateway.service.stored_call(ANA, settled.record.id)
        assert (stored.status, stored.is_error) == ("settled", True)
