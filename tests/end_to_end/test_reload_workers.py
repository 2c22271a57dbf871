"""Reloading where several processes serve, and by those who sit at a terminal."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest
from forked import Forked, Forking
from reloads import break_it, command, reload, revision_everywhere, serving, status_of, swap_folder, write_version

pytestmark = pytest.mark.anyio


async def test_signal_and_watch_reload_in_every_worker(tmp_path: Path, forks: Forking) -> None:
    async with serving(forks, tmp_path, options=("--workers", "2", "--watch", "1")) as (gateway, project, _, _):
        first = (await status_of(gateway))["revision"]
        swap_folder(project, 1)
        watched = await revision_everywhere(gateway, besides={first})
        write_version(project, 2)
        gateway.signal(signal.SIGHUP)
        signalled = await revision_everywhere(gateway, besides={first, watched})
        write_version(project, 3)
        status, body = await reload(gateway, {"if-match": signalled})

    assert status == 200
    assert body["outcome"] in ("published", "unchanged")  # those who watch may have been faster
    assert set(body["workers"]) == {"0", "1"}
    assert len(set(body["workers"].values())) == 1
    assert body["revision"] not in (first, watched, signalled)


async def test_commands_tell_what_is_served_and_have_it_replaced(tmp_path: Path, forks: Forking) -> None:
    async with serving(forks, tmp_path) as (gateway, project, _, orders):
        env = {"ORDERS_URL": orders.url}
        url = gateway.admin_url
        same = await command("drift", "--project", str(project), "--served", url, env=env)
        write_version(project, 1)
        other = await command("drift", "--project", str(project), "--served", url, env=env)
        done = await command("reload", "--url", url)
        now = (await status_of(gateway))["revision"]
        break_it(project)
        refused = await command("reload", "--url", url)
        told = await command("status", "--url", url)
        elsewhere = await command("status", "--url", gateway.url)

    assert (same[0], other[0]) == (0, 2)
    assert done == (0, f"published: revision {now[:12]}\n")
    assert refused[0] == 1
    assert "tools.yaml" in refused[1]
    assert told[0] == 0
    assert now[:12] in told[1]
    assert "refused at" in told[1]
    assert elsewhere[0] == 1


async def test_replaced_worker_serves_what_the_others_serve(tmp_path: Path, forks: Forking) -> None:
    async with serving(forks, tmp_path, options=("--workers", "2")) as (started, project, _, _):
        before = await everybody(started)
        break_it(project)
        os.kill(next(iter(before)), 9)
        async with asyncio.timeout(30):
            while len(now := await everybody(started)) != 2 or set(now) == set(before):
                await asyncio.sleep(0.05)

    assert set(now.values()) == set(before.values())


async def everybody(started: Forked) -> dict[int, str]:
    """The revision of each worker by its process, as far as they answer."""
    found = {}
    for _ in range(12):
        try:
            told = await status_of(started)
        except (aiohttp.ClientError, OSError):
            continue
        found[told["process"]] = told["revision"]
    return found
