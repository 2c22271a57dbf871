"""A gateway serves a bundle, and falls back to the last good one."""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.reload_project import (
    project_in,
    reload,
    start_reload_gateway,
    status_of,
    write_broken_version,
    write_version,
)
from tests.support.servers.orders_service import connect_orders_client

pytestmark = pytest.mark.anyio

ENV = {"ORDERS_URL": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def _orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_URL", ENV["ORDERS_URL"])


def gateway(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def key(tmp_path: Path) -> Path:
    gateway("bundle", "keygen", str(tmp_path / "key"))
    return tmp_path / "key"


def bundle(project: Path, file: Path, *, number: int, key: Path | None) -> Path:
    gateway("bundle", "build", str(file), "--project", str(project), "--number", str(number))
    if key is not None:
        gateway("bundle", "sign", str(file), "--key", str(key))
    return file


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Run a file server."""
    (tmp_path / "web").mkdir()
    handler = partial(_Quiet, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_bundle_verify_describes_the_bundle(tmp_path: Path, key: Path) -> None:
    file = bundle(project_in(tmp_path), tmp_path / "shop.bundle", number=3, key=key)
    report = json.loads(gateway("bundle", "verify", str(file), "--key", f"{key}.pub", "--output", "json"))
    older = CliRunner().invoke(app, ["bundle", "verify", str(file), "--at-least", "4"])

    assert (report["number"], report["verified"], report["files"]) == (3, True, 6)
    assert len(report["revision"]) == 64
    assert older.exit_code == 1


def test_broken_project_becomes_no_bundle(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    write_broken_version(project)
    result = CliRunner().invoke(app, ["bundle", "build", str(tmp_path / "x"), "--project", str(project)])

    assert result.exit_code == 1
    assert not (tmp_path / "x").exists()


async def test_signed_bundle_is_served_from_an_address_and_replaced_by_later_ones_only(
    tmp_path: Path, forks: ForkServer, key: Path, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_in(tmp_path)
    served = tmp_path / "web" / "shop.bundle"
    write_version(project, 1)
    first = bundle(project, served, number=10, key=key).read_bytes()
    data = tmp_path / "data"
    env = {**ENV, "GATEWAY_BUNDLE": f"{web}/shop.bundle", "GATEWAY_BUNDLE_KEYS": f"{key}.pub"}
    started = await asyncio.to_thread(forks.start, None, data, env=env, options=("--require-signature",))
    try:
        one = await status_of(started)
        write_version(project, 2)
        bundle(project, served, number=11, key=key)
        later = await reload(started)
        served.write_bytes(first)
        earlier = await reload(started)
        bundle(project, served, number=12, key=None)
        unsigned = await reload(started)
        two = await status_of(started)
        async with connect_orders_client(started.url) as shop:
            listed = await shop.get("/v1/catalogues/shop/tools")
    finally:
        await asyncio.to_thread(started.stop)
    served.write_bytes(first)
    monkeypatch.chdir(data)
    again = CliRunner().invoke(app, ["serve", "--bundle", str(served), "--key", f"{key}.pub", "--port", "0"])

    assert one["source"]["number"] == 10
    assert one["source"]["signedBy"] is not None
    assert (later[0], later[1]["outcome"]) == (200, "published")
    assert (earlier[0], unsigned[0]) == (422, 422)
    assert "number 10, but 11 was already in use" in earlier[1]["problems"][0]
    assert "not signed" in unsigned[1]["problems"][0]
    assert (two["revision"], two["source"]["number"]) == (later[1]["revision"], 11)
    assert listed[0] == 200
    assert again.exit_code == 1
    assert "11 was already in use" in again.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(("--bundle", "shop.bundle", "--require-signature"), "no key is named", id="no key"),
        pytest.param(("--bundle", "gone.bundle"), "cannot be read", id="no bundle"),
        pytest.param(("--bundle", "http://192.0.2.1/x"), "only fetched over https", id="in clear"),
        pytest.param(
            ("--bundle", "shop.bundle", "--configs", "project"), "a bundle and a folder cannot both", id="both"
        ),
        pytest.param(("--configs", "project", "--require-signature"), "a folder cannot be signed", id="signed folder"),
        pytest.param(("--bundle", "shop.bundle", "--key", "key.pub"), "not signed", id="unsigned"),
    ],
)
def test_start_with_what_cannot_be_trusted_is_refused(
    options: tuple[str, ...], words: str, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle(project_in(tmp_path), tmp_path / "shop.bundle", number=1, key=None)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--admin-port", "0", *options])

    assert result.exit_code in (1, 2)
    assert words in result.output
    assert os.listdir(tmp_path).count("data") == 0


async def test_broken_folder_starts_from_the_last_good_revision_only_if_asked(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with start_reload_gateway(forks, tmp_path) as (first, project, _, orders):
        good = await status_of(first)
        write_version(project, 1)
        await reload(first)
        good = await status_of(first)
        url = orders.url
    write_broken_version(project)
    refused = CliRunner().invoke(app, ["serve", "--configs", str(project), "--port", "0", "--admin-port", "0"])
    second = await asyncio.to_thread(
        forks.start, project, tmp_path, env={"ORDERS_URL": url}, options=("--last-good", "--watch", "1")
    )
    try:
        status = await status_of(second)
        write_version(project, 2)
        async with asyncio.timeout(30), aiohttp.ClientSession() as session:
            while status["revision"] == good["revision"]:
                async with session.get(f"{second.admin_url}/status") as answer:
                    status = await answer.json()
                await asyncio.sleep(0.05)
        mended = status
    finally:
        await asyncio.to_thread(second.stop)
    output = second.output.read_text(encoding="utf-8")

    assert refused.exit_code == 1
    assert "the last good revision is served" in output
    assert f"revision {good['revision'][:12]}" in output
    assert mended["source"]["folder"].endswith("configs")
    assert not any("last good" in warning for warning in mended["warnings"])
