"""A bundle that comes to its end while it is served, and one that takes its place."""

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from forked import Forked, Forking
from orders import Shop, orders_service, shop_at
from reloads import project_in, reload, status_of

from gateway.audit.keys import SigningKey
from gateway.bundles.contents import contents_of
from gateway.bundles.manifest import Manifest, digests_of
from gateway.bundles.packing import packed
from gateway.bundles.signing import signature_of

pytestmark = pytest.mark.anyio


@dataclass
class Release:
    """Signs the same documents again and again, each time with a higher number."""

    folder: Path
    numbers: "count[int]"
    key: SigningKey

    @property
    def file(self) -> Path:
        return self.folder / "shop.bundle"

    def write(self, *, lives: timedelta) -> None:
        project = self.folder / "project"
        contents = contents_of({"configs": project / "configs", "policies": project / "policies"})
        now = datetime.now(UTC)
        manifest = Manifest(next(self.numbers), now, now + lives, digests_of(contents)).encode()
        written = self.file.with_suffix(".new")
        written.write_bytes(packed(contents, manifest, signature=signature_of(manifest, self.key)))
        os.replace(written, self.file)


@asynccontextmanager
async def bundled(
    forks: Forking, folder: Path, *, env: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Forked, Release, Shop]]:
    project_in(folder)
    release = Release(folder, count(1), SigningKey.generate())
    release.write(lives=timedelta(days=90))
    key = folder / "key.pub"
    key.write_bytes(release.key.public.pem())
    data = folder / "data"
    async with orders_service() as orders:
        given = {"ORDERS_URL": orders.url, "GATEWAY_BUNDLE": str(release.file), "GATEWAY_BUNDLE_KEYS": str(key)}
        gateway = await asyncio.to_thread(forks.start, None, data, env={**given, **(env or {})}, options=options)
        try:
            async with shop_at(gateway.url) as shop:
                yield gateway, release, shop
        finally:
            await asyncio.to_thread(gateway.stop)


async def renewed(gateway: Forked, release: Release, *, lives: timedelta) -> Any:
    release.write(lives=lives)
    return await reload(gateway)


async def ended(gateway: Forked, release: Release) -> Mapping[str, Any]:
    """What `/readyz` says once a bundle is at its end, which was loaded just before, however slow this machine is."""
    lives = timedelta(seconds=2)
    while (await renewed(gateway, release, lives=lives))[0] != 200:
        lives *= 2
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{gateway.admin_url}/readyz") as answer:
                told = {"status": answer.status, **await answer.json()}
            if "counted until" in str(told.get("problems")):
                return told
            await asyncio.sleep(0.05)


async def said(gateway: Forked, words: str) -> None:
    async with asyncio.timeout(60):
        while words not in gateway.output.read_text(encoding="utf-8"):
            await asyncio.sleep(0.05)


async def metric(gateway: Forked, name: str) -> list[float]:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(name)]


async def test_bundle_at_its_end_lets_nothing_be_changed_until_a_newer_one_is_there(
    tmp_path: Path, forks: Forking
) -> None:
    async with bundled(forks, tmp_path) as (gateway, release, shop):
        before = await shop.rest("order_place", {"order": "a"})
        ready = await ended(gateway, release)
        refused = await shop.rest("order_place", {"order": "b"})
        over_mcp = await shop.mcp("order_place", {"order": "b"})
        read = await shop.rest("order_read", {"order": "a"})
        told = await status_of(gateway)
        await said(gateway, "calls that may change something are refused")
        [expires] = await metric(gateway, "gateway_config_expires_seconds")
        healed = await renewed(gateway, release, lives=timedelta(days=90))
        after = await shop.rest("order_place", {"order": "c"})
        now = await status_of(gateway)
    with closing(sqlite3.connect(f"file:{tmp_path}/data/data/gateway.db?mode=ro", uri=True)) as database:
        entries = [json.loads(body) for (body,) in database.execute("SELECT body FROM audit")]
    reasons = [each["decision"]["reason"] for each in entries if each["event"] == "call-decided"]

    assert before.body["isError"] is False
    assert (ready["status"], ready["ready"]) == (200, True)
    assert "does not count any more" in json.dumps(refused.body)
    assert "does not count any more" in json.dumps(over_mcp.body)
    assert read.body["isError"] is False
    assert any("calls that may change something are refused" in each for each in told["warnings"])
    assert expires < datetime.now(UTC).timestamp()
    assert (healed[0], healed[1]["outcome"]) == (200, "unchanged")
    assert after.body["isError"] is False
    assert not any("counted until" in each for each in now["warnings"])
    assert now["expires"] > told["expires"]
    assert reasons == ["config-expired"] * 2


async def test_past_the_grace_no_call_runs_and_nobody_is_sent_there(tmp_path: Path, forks: Forking) -> None:
    async with bundled(forks, tmp_path, env={"GATEWAY_BUNDLE_GRACE": "0"}) as (gateway, release, shop):
        ready = await ended(gateway, release)
        read = await shop.rest("order_read", {"order": "a"})
        await renewed(gateway, release, lives=timedelta(days=90))
        again = await shop.rest("order_read", {"order": "a"})

    assert (ready["status"], ready["ready"]) == (503, False)
    assert ready["reasons"] == ["the bundle that is served does not count any more"]
    assert "does not count any more" in json.dumps(read.body)
    assert again.body["isError"] is False


async def test_replaced_worker_knows_the_end_of_what_it_goes_on_with(tmp_path: Path, forks: Forking) -> None:
    async with bundled(forks, tmp_path, options=("--workers", "2")) as (gateway, release, _):
        first = await status_of(gateway)
        await renewed(gateway, release, lives=timedelta(days=200))
        expected = (await status_of(gateway))["expires"]
        os.kill(first["process"], 9)
        seen: dict[int, Any] = {}
        async with asyncio.timeout(60):
            while len(seen.keys() - {first["process"]}) < 2:
                try:
                    told = await status_of(gateway)
                except (aiohttp.ClientError, OSError):
                    continue
                seen[told["process"]] = told["expires"]

    assert expected > first["expires"]
    assert {expires for process, expires in seen.items() if process != first["process"]} == {expected}
