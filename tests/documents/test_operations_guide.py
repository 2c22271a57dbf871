"""The backup commands in docs/operations.md work as written while a gateway keeps serving."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, grant, pay, pending_id, rule
from tests.support.gateways.projects import Caller, send_http, start_call_counter
from tests.support.gateways.replicas import forked_replicas, write_replica_project
from tests.support.paths import ROOT
from tests.support.servers.orders_service import PROJECT, connect_orders_client, order_text, orders_service
from tests.support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio

GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


async def run_as_written(name: str, folder: Path, **variables: str) -> None:
    (script,) = re.findall(rf"<!-- run by a test: {name} -->\n```sh\n(.*?)```", GUIDE, re.DOTALL)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = ["sh", "-euc", script]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_backup_of_a_serving_gateway_is_restored_with_records_and_results(
    tmp_path: Path, forks: ForkServer
) -> None:
    async with orders_service() as orders:
        env = {"ORDERS_URL": orders.url}
        gateway = forks.start(PROJECT, tmp_path, env=env)
        async with connect_orders_client(gateway.url) as shop:
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
        async with connect_orders_client(restored.url) as shop:
            content = await shop.content(read.call_id, read.turn)
            again = await shop.rest("order_place", {"order": "b"}, key="once")
            gone, _ = await shop.get(f"/v1/artifacts/{later.call_id}", turn=later.turn or "")
        restored.stop()

    assert content.decode() == order_text("a")
    assert (again.is_replay, again.call_id) == (True, placed.call_id)
    assert orders.executions["b"] == 1
    assert gone == 404


async def test_restored_folder_is_for_its_owner_alone(tmp_path: Path, forks: ForkServer) -> None:
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


async def test_backup_of_a_database_that_gateways_serve_from_is_restored(
    tmp_path: Path, forks: ForkServer, new_database: Callable[[], str], postgres: PostgresServer
) -> None:
    if shutil.which("pg_dump") is None or shutil.which("pg_restore") is None:
        pytest.skip("pg_dump and pg_restore are not installed; they come with PostgreSQL")
    address, restored = new_database(), postgres.database()
    held = rule("held", HELD, tools=["plain"])
    async with start_call_counter() as backend, aiohttp.ClientSession() as session:
        project = write_replica_project(tmp_path, backend, held)
        with forked_replicas(forks, project, tmp_path / "data", address, count=1) as [gateway]:
            ana = Caller(send_http(session, gateway.url), ANA.token)
            paid = await pay(ana, "before", idempotency_key="once")
            asked = pending_id(await ana.rest_call("desk", "plain", {"text": "x"}))
            await run_as_written("postgres-backup", tmp_path, GATEWAY_POSTGRES=address)
            later = await pay(ana, "after", idempotency_key="later")
        await run_as_written("postgres-restore", tmp_path, GATEWAY_RESTORED=restored)
        with forked_replicas(forks, project, tmp_path / "data", restored, count=1) as [gateway]:
            ana, liz = (Caller(send_http(session, gateway.url), each.token) for each in (ANA, LIZ))
            again = await pay(ana, "before", idempotency_key="once")
            unknown = await ana.rest("GET", f"/v1/calls/{later.json['callId']}?turn={later.json['turn']}")
            granted = await grant(liz, asked)
            called = await ana.rest_call("desk", "plain", {"text": "x"})

    assert (tmp_path / "backup" / "gateway.dump").stat().st_mode & 0o077 == 0
    assert again.json["callId"] == paid.json["callId"]
    assert [path for path in backend.paths if path == "/pay"] == ["/pay"] * 2
    assert unknown.status == 404
    assert granted.status == 200
    assert called.json["isError"] is False


def test_guide_links_to_what_is_there() -> None:
    targets = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", GUIDE)}

    assert [link for link in targets if not (ROOT / "docs" / link).exists()] == []
