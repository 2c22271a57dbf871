"""A gateway on its own project, which tests rewrite and reload."""

import asyncio
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from shutil import copytree
from typing import Any

import aiohttp

from tests.support.gateways.commands import run_gateway
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.servers.orders_service import (
    PROJECT,
    OrdersClient,
    OrdersService,
    connect_orders_client,
    orders_service,
)
from tests.support.stored_calls import read_all_calls


def project_in(folder: Path) -> Path:
    return copytree(PROJECT, folder / "project", dirs_exist_ok=True)


def write_version(project: Path, version: int) -> None:
    """Write a revision whose calls return its number."""
    tools = project / "configs" / "tools.yaml"
    text = (PROJECT / "configs" / "tools.yaml").read_text(encoding="utf-8")
    changed = text.replace('"${ORDERS_URL}/orders/{order}"}', f'"${{ORDERS_URL}}/orders/v{version}-{{order}}"}}', 1)
    assert changed != text
    written = tools.with_suffix(".new")
    written.write_text(changed, encoding="utf-8")
    os.replace(written, tools)


def write_broken_version(project: Path) -> None:
    (project / "configs" / "tools.yaml").write_text("kind: Tool\nsurprise: {\n", encoding="utf-8")


async def status_of(gateway: GatewayFork) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/status") as answer:
        return await answer.json()


async def reload(gateway: GatewayFork, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    url = f"{gateway.admin_url}/admin/reload"
    async with aiohttp.ClientSession() as session, session.post(url, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


@asynccontextmanager
async def start_reload_gateway(
    forks: ForkServer, data: Path, *, env: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> AsyncIterator[tuple[GatewayFork, Path, OrdersClient, OrdersService]]:
    project = project_in(data)
    write_version(project, 0)
    async with orders_service() as orders:
        given = {"ORDERS_URL": orders.url, **(env or {})}
        gateway = await asyncio.to_thread(forks.start, project, data, env=given, options=options)
        async with connect_orders_client(gateway.url) as shop:
            yield gateway, project, shop, orders
        await asyncio.to_thread(gateway.stop)


def revisions_of_calls(data: Path) -> dict[str, str]:
    with closing(sqlite3.connect(f"file:{data}/data/gateway.db?mode=ro", uri=True)) as database:
        rows = database.execute(read_all_calls("id, revision")).fetchall()
    return dict(rows)


def revisions_in_the_log(data: Path) -> dict[str, set[str]]:
    """Return the revision of each call from the decision log."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    with closing(sqlite3.connect(f"file:{data}/data/gateway.db?mode=ro", uri=True)) as database:
        for (body,) in database.execute("SELECT body FROM audit"):
            entry = json.loads(body)
            if "call" in entry:
                found[entry["call"]["id"]].add(entry["place"]["configRevision"])
    return dict(found)


async def revision_everywhere(gateway: GatewayFork, *, besides: set[str]) -> str:
    """Wait for a revision not in `besides` on all workers. Which worker answers is random, so ask often."""
    async with asyncio.timeout(60):
        while True:
            found = {(each["process"], each["revision"]) for each in [await status_of(gateway) for _ in range(16)]}
            revisions = {str(revision) for _, revision in found}
            if len(revisions) == 1 and not revisions & besides:
                return revisions.pop()
            await asyncio.sleep(0.05)


def swap_folder(project: Path, version: int) -> None:
    """Replace the folder as a cluster does: every file is a link into a folder behind a link, which is replaced as a
    whole.
    """
    configs = project / "configs"
    hidden = configs / f"..{version}"
    hidden.mkdir()
    write_version(project, version)
    for file in [each for each in configs.iterdir() if each.is_file()]:
        os.replace(file, hidden / file.name)
        file.symlink_to(Path("..data") / file.name)
    (configs / "..new").symlink_to(hidden.name)
    os.replace(configs / "..new", configs / "..data")


async def command(*words: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code of a command, and everything that it wrote."""
    done = await asyncio.to_thread(run_gateway, *words, env={**os.environ, **(env or {})})
    return done.returncode, done.stdout + done.stderr
