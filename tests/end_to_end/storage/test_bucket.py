"""A running gateway stores large results in a real object store; what callers notice of its faults.

`LARGE_BYTES` is the size of a large result.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from gateway.storage.blobs.bucket_store import BucketSpool
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.end_to_end.server.test_large_results import forget_peak, history, memory, query_result
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.servers.faulty_proxy import start_faulty_proxy
from tests.support.servers.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore
from tests.support.servers.orders_service import (
    CHUNK,
    PROJECT,
    OrdersClient,
    OrdersReply,
    OrdersService,
    connect_orders_client,
    orders_service,
)

pytestmark = pytest.mark.anyio

BYTES = int(os.environ.get("LARGE_BYTES", 128 << 20))
EXTRA_MEMORY = 64 << 20
IN_FILES = "retain: {calls: 2d}}"
IN_A_BUCKET = """retain: {calls: 2d}, blobs: {
  type: s3, bucket: %s, endpoint: "${S3_URL}", region: us-east-1, prefix: "${S3_PREFIX}",
  accessKey: {fromEnv: S3_ACCESS_KEY}, secretKey: {fromEnv: S3_SECRET_KEY}}}"""


@dataclass
class ServedGateway:
    gateway: GatewayFork
    shop: OrdersClient
    orders: OrdersService
    prefix: str

    async def ready(self) -> Any:
        return (await self.shop.get("/readyz"))[1]

    async def unavailable(self) -> str:
        """Return the metric `gateway_spool_unavailable`."""
        async with aiohttp.request("GET", f"{self.gateway.admin_url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        [found] = [line for line in lines if line.startswith("gateway_spool_unavailable")]
        return found.rpartition(" ")[2]

    async def problem_is_gone(self) -> None:
        while "problems" in await self.ready():
            await asyncio.sleep(0.05)

    async def download(self, answered: OrdersReply, **headers: str) -> tuple[int, bytes]:
        url = f"{self.gateway.url}/v1/artifacts/{answered.call_id}/content?turn={answered.turn}"
        async with aiohttp.request("GET", url, headers=headers) as answer:
            return answer.status, await answer.read()


def project(folder: Path) -> Path:
    copied = shutil.copytree(PROJECT, folder / "project")
    storage = copied / "configs" / "gateway.yaml"
    text = storage.read_text(encoding="utf-8")
    assert IN_FILES in text
    storage.write_text(text.replace(IN_FILES, IN_A_BUCKET % BUCKET), encoding="utf-8")
    return copied


@asynccontextmanager
async def start_shop(
    forks: ForkServer, folder: Path, url: str, *, prefix: str | None = None
) -> AsyncIterator[ServedGateway]:
    prefix = prefix or f"served-{uuid4().hex}"
    configs = folder / "project"
    configs = configs if configs.exists() else project(folder)
    async with orders_service() as orders:
        env = {"ORDERS_URL": orders.url, "S3_URL": url, "S3_PREFIX": prefix}
        env |= {"S3_ACCESS_KEY": ACCESS_KEY, "S3_SECRET_KEY": SECRET_KEY}
        gateway = await asyncio.to_thread(forks.start, configs, folder / "data", env=env)
        async with connect_orders_client(gateway.url) as shop:
            yield ServedGateway(gateway, shop, orders, prefix)
        await asyncio.to_thread(gateway.kill)


async def test_large_result_is_kept_in_the_bucket_and_takes_no_memory(
    tmp_path: Path, forks: ForkServer, s3: ObjectStore
) -> None:
    async with start_shop(forks, tmp_path, s3.endpoint) as served:
        await served.shop.rest("history_fetch", {"bytes": 20 << 20})  # imports and opens everything that is loaded once
        forget_peak(served.gateway)
        before = memory(served.gateway)

        large = await served.shop.rest("history_fetch", {"bytes": BYTES})

        assert large.body["isError"] is False, large.body["rendered"]
        assert large.body["inline"] is False
        assert large.body["result"]["artifact"]["byteLength"] == BYTES
        found = await query_result(served.shop, large)("artifact_grep", {"pattern": "^a new page", "limit": 40})
        assert "a new page of the history" in found
        status, part = await served.download(large, range=f"bytes={BYTES - 1000}-")
        start = (BYTES - 1000) // len(CHUNK) * len(CHUNK)
        assert (status, part) == (206, (CHUNK * 2)[BYTES - 1000 - start : BYTES - start])
        assert memory(served.gateway) - before < EXTRA_MEMORY
        assert [path for path in (tmp_path / "data").rglob("*") if path.suffix == ".bytes"] == []


async def test_results_are_found_again_after_a_crash(tmp_path: Path, forks: ForkServer, s3: ObjectStore) -> None:
    async with start_shop(forks, tmp_path, s3.endpoint) as served:
        large = await served.shop.rest("history_fetch", {"bytes": 5 << 20})
        small = await served.shop.rest("order_place", {"order": "small"})
        prefix = served.prefix

    async with start_shop(forks, tmp_path, s3.endpoint, prefix=prefix) as again:
        whole = await again.download(large)
        ranged = [await again.download(large, range=f"bytes={start}-{start + 99}") for start in (0, 1 << 22, 5_000_000)]
        lines = await query_result(again.shop, large)("artifact_cat", {"start": 1, "end": 2})

        assert whole == (200, history(5 << 20))
        assert ranged == [(206, whole[1][start : start + 100]) for start in (0, 1 << 22, 5_000_000)]
        assert "order placed, paid, packed" in lines
        assert (await again.download(small))[1] == b"placed small"
    kept = await asyncio.to_thread(s3.paths, prefix)
    assert [path.rpartition("/")[2] for path in kept if not path.endswith(".index")] == ["00000", "00001"]


async def test_store_that_is_down_costs_only_what_needs_it(tmp_path: Path, forks: ForkServer, s3: ObjectStore) -> None:
    async with start_faulty_proxy(s3.endpoint) as way, start_shop(forks, tmp_path, way.endpoint) as served:
        before = await served.shop.rest("history_fetch", {"bytes": 2 << 20})
        assert await served.ready() == {"ready": True, "revision": (await served.ready())["revision"]}
        await way.cut()

        large = await asyncio.wait_for(served.shop.rest("history_fetch", {"bytes": 2 << 20}), 20)
        small = await served.shop.rest("order_place", {"order": "meanwhile"})
        status, body = await served.download(before)
        ready, metric = await served.ready(), await served.unavailable()

        assert large.body["isError"] is True
        assert "the object store cannot be used: it does not answer" in large.body["rendered"]
        assert (small.status, small.body["isError"]) == (200, False)
        assert status == 503
        assert b"the object store cannot be used" in body
        assert ready["ready"] is True
        assert ready["problems"] == ["large results are refused: the object store cannot be used: it does not answer"]
        assert metric == "1"
        await way.open()
        await asyncio.wait_for(served.problem_is_gone(), 20)
        assert await served.unavailable() == "0"
        assert (await served.shop.rest("history_fetch", {"bytes": 2 << 20})).body["isError"] is False
        assert await served.download(before) == (200, history(2 << 20))


async def test_store_that_never_answers_is_not_waited_for(tmp_path: Path, forks: ForkServer, s3: ObjectStore) -> None:
    async with start_faulty_proxy(s3.endpoint) as way, start_shop(forks, tmp_path, way.endpoint) as served:
        before = await served.shop.rest("history_fetch", {"bytes": 2 << 20})
        way.hold()

        calls = [served.shop.rest("history_fetch", {"bytes": 2 << 20}) for _ in range(10)]
        large = await asyncio.wait_for(asyncio.gather(*calls), 20)
        small = [await served.shop.rest("order_place", {"order": f"order-{number}"}) for number in range(5)]

        assert {each.body["isError"] for each in large} == {True}
        assert all("it does not answer" in each.body["rendered"] for each in large)
        assert {each.body["isError"] for each in small} == {False}
        assert (await served.download(before))[0] == 503
        way.go_on()
        await asyncio.wait_for(served.problem_is_gone(), 20)
        assert await served.download(before) == (200, history(2 << 20))


async def test_store_that_is_slow_holds_up_only_what_it_keeps(
    tmp_path: Path, forks: ForkServer, s3: ObjectStore
) -> None:
    async with start_faulty_proxy(s3.endpoint) as way, start_shop(forks, tmp_path, way.endpoint) as served:
        way.parts_go_on = asyncio.Event()
        large = asyncio.create_task(served.shop.rest("history_fetch", {"bytes": 9 << 20}))
        while not any(asked.startswith("PUT ") for asked in way.asked):
            await asyncio.sleep(0.01)
        small = [await served.shop.rest("order_place", {"order": f"order-{number}"}) for number in range(5)]
        was_first = not large.done()
        ready = await served.ready()
        way.parts_go_on.set()
        kept = await large

        assert was_first
        assert {each.body["isError"] for each in small} == {False}
        assert (ready["ready"], "problems" in ready) == (True, False)
        assert kept.body["isError"] is False, kept.body["rendered"]
        assert await served.download(kept) == (200, history(9 << 20))


async def test_store_that_returns_wrong_data_is_reported(tmp_path: Path, forks: ForkServer, s3: ObjectStore) -> None:
    async with start_faulty_proxy(s3.endpoint) as way, start_shop(forks, tmp_path, way.endpoint) as served:
        large = await served.shop.rest("history_fetch", {"bytes": 2 << 20})
        way.lie = _one_bit

        status, body = await served.download(large)
        asked = await query_result(served.shop, large)("artifact_head", {})

        assert (status, b"E_ARTIFACT_DAMAGED" in body) == (502, True)
        assert "the object store does not return what was stored" in asked
        way.lie = None
        assert await served.download(large) == (200, history(2 << 20))


async def test_store_that_denies_access_is_refused_at_the_start(
    tmp_path: Path, forks: ForkServer, s3: ObjectStore
) -> None:
    env = {"ORDERS_URL": "http://127.0.0.1:1", "S3_URL": s3.endpoint, "S3_PREFIX": "x"}
    env |= {"S3_ACCESS_KEY": ACCESS_KEY, "S3_SECRET_KEY": "not this one"}

    with pytest.raises(AssertionError, match="denies access with these credentials") as raised:
        await asyncio.to_thread(forks.start, project(tmp_path), tmp_path / "data", env=env)

    assert "not this one" not in str(raised.value)
    assert "Traceback" not in str(raised.value)


def _one_bit(path: str, content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:] if path[-6:].startswith("/0") else content


async def test_upload_of_a_gateway_that_was_killed_is_never_found_and_swept_away(
    tmp_path: Path, forks: ForkServer, s3: ObjectStore
) -> None:
    async with start_faulty_proxy(s3.endpoint) as way, start_shop(forks, tmp_path, way.endpoint) as served:
        kept = await served.shop.rest("history_fetch", {"bytes": 1 << 20})
        way.hold_after(parts=2)
        calling = asyncio.create_task(served.shop.rest("history_fetch", {"bytes": 64 << 20}))
        await asyncio.wait_for(way.waiting.wait(), 20)
        await asyncio.to_thread(served.gateway.kill)
        await asyncio.gather(calling, return_exceptions=True)
        await way.cut()  # requests that were sent and not answered no longer arrive
        left = await asyncio.to_thread(s3.paths, served.prefix)
        assert len([path for path in left if path.endswith(".index")]) == 1
        assert len([path for path in left if not path.endswith(".index")]) >= 2

    async with start_shop(forks, tmp_path, s3.endpoint, prefix=served.prefix) as again:
        assert await again.download(kept) == (200, history(1 << 20))
        await asyncio.to_thread(again.gateway.stop)
    store = await open_sqlite_store(tmp_path / "data" / "data" / "gateway.db")
    spool = await BucketSpool.open(s3.place(served.prefix), small=store)
    assert await spool.delete_orphans(store.filter_known_results, before=datetime.now(UTC) + timedelta(days=1)) == 1
    await spool.close()
    await store.close()
    swept = await asyncio.to_thread(s3.paths, served.prefix)
    assert sorted(path.endswith(".index") for path in swept) == [False, True]
