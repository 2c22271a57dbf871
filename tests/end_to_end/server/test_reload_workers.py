"""Reloading with several processes, and from the command line."""

import asyncio
import json
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.reload_project import (
    command,
    reload,
    revision_everywhere,
    revisions_in_the_log,
    revisions_of_calls,
    start_reload_gateway,
    status_of,
    swap_folder,
    write_broken_version,
    write_version,
)
from tests.support.servers.orders_service import OrdersClient

pytestmark = pytest.mark.anyio


async def test_signal_and_watch_reload_in_every_worker(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path, options=("--workers", "2", "--watch", "1")) as (
        gateway,
        project,
        _,
        _,
    ):
        first = (await status_of(gateway))["revision"]
        swap_folder(project, 1)
        watched = await revision_everywhere(gateway, besides={first})
        write_version(project, 2)
        gateway.signal(signal.SIGHUP)
        signalled = await revision_everywhere(gateway, besides={first, watched})
        write_version(project, 3)
        status, body = await reload(gateway, {"if-match": signalled})

    assert status == 200
    assert body["outcome"] in ("published", "unchanged")  # the file watcher may have been faster
    assert set(body["workers"]) == {"0", "1"}
    assert len(set(body["workers"].values())) == 1
    assert body["revision"] not in (first, watched, signalled)


async def test_commands_show_what_is_served_and_reload_it(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path) as (gateway, project, _, orders):
        env = {"ORDERS_URL": orders.url}
        url = gateway.admin_url
        same = await command("drift", "--project", str(project), "--served", url, env=env)
        write_version(project, 1)
        other = await command("drift", "--project", str(project), "--served", url, env=env)
        done = await command("reload", "--url", url)
        now = (await status_of(gateway))["revision"]
        write_broken_version(project)
        refused = await command("reload", "--url", url)
        shown = await command("status", "--url", url)
        elsewhere = await command("status", "--url", gateway.url)

    assert (same[0], other[0]) == (0, 2)
    assert done == (0, f"published: revision {now[:12]}\n")
    assert refused[0] == 1
    assert "tools.yaml" in refused[1]
    assert shown[0] == 0
    assert now[:12] in shown[1]
    assert "refused at" in shown[1]
    assert elsewhere[0] == 1


async def test_replaced_worker_serves_what_the_others_serve(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path, options=("--workers", "2")) as (started, project, _, _):
        before = await worker_revisions(started)
        write_broken_version(project)
        os.kill(next(iter(before)), 9)
        async with asyncio.timeout(30):
            while len(now := await worker_revisions(started)) != 2 or set(now) == set(before):
                await asyncio.sleep(0.05)

    assert set(now.values()) == set(before.values())


async def test_reloads_under_load_change_all_workers_or_none(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path, options=("--workers", "3")) as (gateway, project, _, _):
        over = asyncio.Event()
        answered_by: dict[str, str] = {}
        failed: list[Any] = []

        async def call(caller: int) -> None:
            connector = aiohttp.TCPConnector(force_close=True)  # spreads connections over the workers
            async with aiohttp.ClientSession(connector=connector) as session:
                shop = OrdersClient(gateway.url, session)
                for number in count():
                    if over.is_set():
                        return
                    answer = await shop.rest("order_place", {"order": f"{caller}-{number}"})
                    text = json.dumps(answer.body)
                    if not answer.is_settled or answer.call_id is None or "placed v" not in text:
                        failed.append(answer)
                    else:
                        answered_by[answer.call_id] = text.split("placed v")[1].split("-")[0]

        callers = [asyncio.create_task(call(each)) for each in range(8)]
        outcomes: list[Any] = []
        after: list[set[str]] = []
        for number in range(1, 10):
            if number % 3 == 0:
                write_broken_version(project)
            else:
                write_version(project, number)
            outcomes.append(await reload(gateway))
            after.append({each["revision"] for each in [await status_of(gateway) for _ in range(8)]})
        over.set()
        await asyncio.gather(*callers)
        last = [await status_of(gateway) for _ in range(8)]

    assert failed == []
    assert [(status, body["outcome"]) for status, body in outcomes] == [
        *((200, "published"), (200, "published"), (422, "refused"))
    ] * 3
    for (_, body), served in zip(outcomes, after, strict=True):
        assert body["workers"] == dict.fromkeys(["0", "1", "2"], body["revision"])
        assert served == {body["revision"]}
    assert all(each["lastReload"]["outcome"] == "refused" for each in last)
    assert all(each["revisions"] == outcomes[-1][1]["workers"] for each in last)
    kept, logged = revisions_of_calls(tmp_path), revisions_in_the_log(tmp_path)
    versions: dict[str, set[str]] = {}
    for call_id, version in answered_by.items():
        versions.setdefault(kept[call_id], set()).add(version)
    assert all(len(each) == 1 for each in versions.values()), versions
    assert all(logged[call_id] == {kept[call_id]} for call_id in answered_by)


async def test_workers_agree_though_the_files_change_while_they_read(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path, options=("--workers", "3")) as (gateway, project, _, _):
        over = asyncio.Event()

        async def write() -> None:
            for number in count(1):
                write_version(project, number)
                if over.is_set():
                    return
                await asyncio.sleep(0.05)

        writing = asyncio.create_task(write())
        outcomes = [await reload(gateway) for _ in range(6)]
        over.set()
        await writing
        last = await reload(gateway)

    for _, body in outcomes:
        assert len(body["workers"]) == 3
        assert len(set(body["workers"].values())) == 1, body
    assert (last[0], len(set(last[1]["workers"].values()))) == (200, 1)


async def test_worker_that_dies_in_a_reload_comes_back_with_what_the_others_serve(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with start_reload_gateway(forks, tmp_path, options=("--workers", "3")) as (gateway, project, _, _):
        victims = await worker_revisions(gateway)
        outcomes = []
        for number, victim in enumerate(list(victims)[:2], 1):
            write_version(project, number)
            reloading = asyncio.create_task(reload_again(gateway))
            os.kill(victim, 9)
            outcomes.append(await reloading)
        found = await revision_everywhere(gateway, besides=set(victims.values()))

    assert outcomes[-1]["revision"] == found


async def reload_again(gateway: GatewayFork) -> Any:
    """Reload, and retry if the worker that got the request has died."""
    while True:
        try:
            return (await reload(gateway))[1]
        except (aiohttp.ClientError, OSError):
            await asyncio.sleep(0.05)


async def worker_revisions(started: GatewayFork) -> dict[int, str]:
    """Return the revision of each worker that answers, by process id."""
    found = {}
    for _ in range(12):
        try:
            status = await status_of(started)
        except (aiohttp.ClientError, OSError):
            continue
        found[status["process"]] = status["revision"]
    return found
