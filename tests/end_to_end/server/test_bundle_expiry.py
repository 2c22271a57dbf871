"""A bundle expires while it is served, and a new one replaces it."""

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

from gateway.app.bundle import BundleManifest, hash_files, pack_bundle, sign_manifest
from gateway.app.project_files import read_project_files
from gateway.audit.signing_keys import SigningKey
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.reload_project import project_in, reload, status_of
from tests.support.servers.orders_service import OrdersClient, connect_orders_client, orders_service

pytestmark = pytest.mark.anyio


@dataclass
class Release:
    """Signs the same documents repeatedly, each time with a higher number."""

    folder: Path
    numbers: "count[int]"
    key: SigningKey

    @property
    def file(self) -> Path:
        return self.folder / "shop.bundle"

    def write(self, *, lives: timedelta) -> None:
        project = self.folder / "project"
        contents = read_project_files({"configs": project / "configs", "policies": project / "policies"})
        now = datetime.now(UTC)
        manifest = BundleManifest(next(self.numbers), now, now + lives, hash_files(contents)).encode()
        written = self.file.with_suffix(".new")
        written.write_bytes(pack_bundle(contents, manifest, signature=sign_manifest(manifest, self.key)))
        os.replace(written, self.file)


@asynccontextmanager
async def start_bundled(
    forks: ForkServer, folder: Path, *, env: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> AsyncIterator[tuple[GatewayFork, Release, OrdersClient]]:
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
            async with connect_orders_client(gateway.url) as shop:
                yield gateway, release, shop
        finally:
            await asyncio.to_thread(gateway.stop)


async def renew(gateway: GatewayFork, release: Release, *, lives: timedelta) -> Any:
    release.write(lives=lives)
    return await reload(gateway)


async def wait_for_expiry(gateway: GatewayFork, release: Release) -> Mapping[str, Any]:
    """Load a short-lived bundle and return the body of `/readyz` after it expires; slow machines get more time."""
    lives = timedelta(seconds=2)
    while (await renew(gateway, release, lives=lives))[0] != 200:
        lives *= 2
    async with asyncio.timeout(60), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{gateway.admin_url}/readyz") as answer:
                body = {"status": answer.status, **await answer.json()}
            if "was valid until" in str(body.get("problems")):
                return body
            await asyncio.sleep(0.05)


async def wait_for_output(gateway: GatewayFork, words: str) -> None:
    async with asyncio.timeout(60):
        while words not in gateway.output.read_text(encoding="utf-8"):
            await asyncio.sleep(0.05)


async def metric(gateway: GatewayFork, name: str) -> list[float]:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(name)]


async def test_bundle_at_its_end_lets_nothing_be_changed_until_a_newer_one_is_there(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with start_bundled(forks, tmp_path) as (gateway, release, shop):
        before = await shop.rest("order_place", {"order": "a"})
        ready = await wait_for_expiry(gateway, release)
        refused = await shop.rest("order_place", {"order": "b"})
        over_mcp = await shop.mcp("order_place", {"order": "b"})
        read = await shop.rest("order_read", {"order": "a"})
        status = await status_of(gateway)
        await wait_for_output(gateway, "calls that may change something are refused")
        [expires] = await metric(gateway, "gateway_config_expires_seconds")
        healed = await renew(gateway, release, lives=timedelta(days=90))
        after = await shop.rest("order_place", {"order": "c"})
        now = await status_of(gateway)
    with closing(sqlite3.connect(f"file:{tmp_path}/data/data/gateway.db?mode=ro", uri=True)) as database:
        entries = [json.loads(body) for (body,) in database.execute("SELECT body FROM audit")]
    reasons = [each["decision"]["reason"] for each in entries if each["event"] == "call-decided"]

    assert before.body["isError"] is False
    assert (ready["status"], ready["ready"]) == (200, True)
    assert "configuration has expired" in json.dumps(refused.body)
    assert "configuration has expired" in json.dumps(over_mcp.body)
    assert read.body["isError"] is False
    assert any("calls that may change something are refused" in each for each in status["warnings"])
    assert expires < datetime.now(UTC).timestamp()
    assert (healed[0], healed[1]["outcome"]) == (200, "unchanged")
    assert after.body["isError"] is False
    assert not any("was valid until" in each for each in now["warnings"])
    assert now["expires"] > status["expires"]
    assert reasons == ["config-expired"] * 2


async def test_past_the_grace_no_call_runs_and_the_gateway_is_not_ready(tmp_path: Path, forks: ForkServer) -> None:
    async with start_bundled(forks, tmp_path, env={"GATEWAY_BUNDLE_GRACE": "0"}) as (gateway, release, shop):
        ready = await wait_for_expiry(gateway, release)
        read = await shop.rest("order_read", {"order": "a"})
        await renew(gateway, release, lives=timedelta(days=90))
        again = await shop.rest("order_read", {"order": "a"})

    assert (ready["status"], ready["ready"]) == (503, False)
    assert ready["reasons"] == ["the served bundle has expired"]
    assert "configuration has expired" in json.dumps(read.body)
    assert again.body["isError"] is False


async def test_replaced_worker_knows_the_end_of_what_it_goes_on_with(tmp_path: Path, forks: ForkServer) -> None:
    async with start_bundled(forks, tmp_path, options=("--workers", "2")) as (gateway, release, _):
        first = await status_of(gateway)
        await renew(gateway, release, lives=timedelta(days=200))
        expected = (await status_of(gateway))["expires"]
        os.kill(first["process"], 9)
        seen: dict[int, Any] = {}
        async with asyncio.timeout(60):
            while len(seen.keys() - {first["process"]}) < 2:
                try:
                    status = await status_of(gateway)
                except (aiohttp.ClientError, OSError):
                    continue
                seen[status["process"]] = status["expires"]

    assert expected > first["expires"]
    assert {expires for process, expires in seen.items() if process != first["process"]} == {expected}
