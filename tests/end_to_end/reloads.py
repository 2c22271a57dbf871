"""A gateway on a project of its own, which tests rewrite and have reloaded."""

import asyncio
import json
import os
import sqlite3
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from shutil import copytree
from typing import Any

import aiohttp
from every_call import every_call
from forked import Forked, Forking
from orders import PROJECT, Orders, Shop, orders_service, shop_at


def project_in(folder: Path) -> Path:
    return copytree(PROJECT, folder / "project", dirs_exist_ok=True)


def write_version(project: Path, version: int) -> None:
    """A revision whose calls tell which one it is."""
    tools = project / "configs" / "tools.yaml"
    text = (PROJECT / "configs" / "tools.yaml").read_text(encoding="utf-8")
    told = text.replace('"${ORDERS_URL}/orders/{order}"}', f'"${{ORDERS_URL}}/orders/v{version}-{{order}}"}}', 1)
    assert told != text
    written = tools.with_suffix(".new")
    written.write_text(told, encoding="utf-8")
    os.replace(written, tools)


def break_it(project: Path) -> None:
    (project / "configs" / "tools.yaml").write_text("kind: Tool\nsurprise: {\n", encoding="utf-8")


async def status_of(gateway: Forked) -> Any:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/status") as answer:
        return await answer.json()


async def reload(gateway: Forked, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    url = f"{gateway.admin_url}/admin/reload"
    async with aiohttp.ClientSession() as session, session.post(url, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


@asynccontextmanager
async def serving(
    forks: Forking, data: Path, *, env: Mapping[str, str] | None = None, options: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Forked, Path, Shop, Orders]]:
    project = project_in(data)
    write_version(project, 0)
    async with orders_service() as orders:
        given = {"ORDERS_URL": orders.url, **(env or {})}
        gateway = await asyncio.to_thread(forks.start, project, data, env=given, options=options)
        async with shop_at(gateway.url) as shop:
            yield gateway, project, shop, orders
        await asyncio.to_thread(gateway.stop)


def revisions_of_calls(data: Path) -> dict[str, str]:
    with closing(sqlite3.connect(f"file:{data}/data/gateway.db?mode=ro", uri=True)) as database:
        rows = database.execute(every_call("id, revision")).fetchall()
    return dict(rows)


def revisions_in_the_log(data: Path) -> dict[str, set[str]]:
    """What the decision log says of each call."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    with closing(sqlite3.connect(f"file:{data}/data/gateway.db?mode=ro", uri=True)) as database:
        for (body,) in database.execute("SELECT body FROM audit"):
            entry = json.loads(body)
            if "call" in entry:
                found[entry["call"]["id"]].add(entry["place"]["configRevision"])
    return dict(found)


async def revision_everywhere(gateway: Forked, *, besides: set[str]) -> str:
    """What all workers serve, as soon as it is none of these: each answers by chance, so it is asked often."""
    async with asyncio.timeout(60):
        while True:
            found = {(each["process"], each["revision"]) for each in [await status_of(gateway) for _ in range(16)]}
            revisions = {str(revision) for _, revision in found}
            if len(revisions) == 1 and not revisions & besides:
                return revisions.pop()
            await asyncio.sleep(0.05)


def swap_folder(project: Path, version: int) -> None:
    """As a cluster does it: every file is a link into a folder behind a link, which is replaced as a whole."""
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
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(env or {})},
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()
