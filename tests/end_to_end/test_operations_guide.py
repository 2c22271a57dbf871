"""The commands of docs/operations.md for backups, run as they stand there, on a gateway that goes on serving."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked import Forking
from orders import PROJECT, order_text, orders_service, shop_at
from served import ROOT

pytestmark = pytest.mark.anyio

GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


async def run_as_written(name: str, folder: Path) -> None:
    (script,) = re.findall(rf"<!-- run by a test: {name} -->\n```sh\n(.*?)```", GUIDE, re.DOTALL)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["sh", "-euc", script]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_backup_of_a_serving_gateway_is_restored_with_records_and_results(tmp_path: Path, forks: Forking) -> None:
    async with orders_service() as orders:
        env = {"ORDERS_URL": orders.url}
        gateway = forks.start(PROJECT, tmp_path, env=env)
        async with shop_at(gateway.url) as shop:
            read = await shop.rest("order_read", {"order": "a"})
            placed = await shop.rest("order_place", {"order": "b"}, key="once")
            await run_as_written("backup", tmp_path)
            later = await shop.rest("order_read", {"order": "c"})
        gateway.stop()
        assert read.call_id
        assert read.turn
        assert later.call_id

        await run_as_written("restore", tmp_path)
        (tmp_path / "second").mkdir()
        (tmp_path / "restored").rename(tmp_path / "second" / "data")
        restored = forks.start(PROJECT, tmp_path / "second", env=env)
        async with shop_at(restored.url) as shop:
            content = await shop.content(read.call_id, read.turn)
            again = await shop.rest("order_place", {"order": "b"}, key="once")
            gone, _ = await shop.get(f"/v1/artifacts/{later.call_id}", turn=later.turn or "")
        restored.stop()

    assert content.decode() == order_text("a")
    assert (again.is_replay, again.call_id) == (True, placed.call_id)
    assert orders.executions["b"] == 1
    assert gone == 404


async def test_restored_folder_is_for_its_owner_alone(tmp_path: Path, forks: Forking) -> None:
    async with orders_service() as orders:
        gateway = forks.start(PROJECT, tmp_path, env={"ORDERS_URL": orders.url})
        await run_as_written("backup", tmp_path)
        gateway.stop()
    await run_as_written("restore", tmp_path)

    names = ("backup", "backup/gateway.db", "restored", "restored/spool", "restored/gateway.db")
    assert {name: (tmp_path / name).stat().st_mode & 0o077 for name in names} == dict.fromkeys(names, 0)


async def test_backup_of_a_store_that_is_not_there_fails_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unable to open database file"):
        await run_as_written("backup", tmp_path)

    assert not (tmp_path / "data").exists()


def test_guide_links_to_what_is_there() -> None:
    targets = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", GUIDE)}

    assert [link for link in targets if not (ROOT / "docs" / link).exists()] == []
