"""A gateway whose PostgreSQL server has a full disk: no change happens without a record, readiness gives the reason,
and the gateway recovers by itself when there is room.

Run with `-s` to see how long each refusal and each recovery took.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import monotonic

import anyio
import psycopg
import pytest

from gateway.storage.sql.postgres.database_setup import migrate_postgres
from tests.end_to_end.storage.test_database_faults import CODES, until_ready
from tests.support.gateways.gate_projects import ANA, pay
from tests.support.gateways.projects import CallCounter, Caller, Reply
from tests.support.gateways.replicas import replicas
from tests.support.servers.postgres_server import PostgresServer, start_postgres
from tests.support.small_disk import SmallDisk, mount_small_disk

pytestmark = pytest.mark.anyio

FULL = "the disk of the database is full"
GONE = (FULL, "cannot be reached", "being stopped")


@dataclass
class Place:
    """A server on two disks: one for its tables, the other for its write-ahead log."""

    cluster: PostgresServer
    tables: SmallDisk
    log: SmallDisk

    @property
    def address(self) -> str:
        return self.cluster.address("records")


@pytest.fixture
def place() -> Iterator[Place]:
    with (
        mount_small_disk(128) as tables,
        mount_small_disk(64) as log,
        start_postgres(tables.folder, log.folder) as cluster,
    ):
        made = Place(cluster, tables, log)
        with psycopg.connect(cluster.address("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE records")
        migrate_postgres(made.address)
        yield made


async def use_up(caller: Caller, backend: CallCounter) -> None:
    """Make calls until one cannot start: partly filled table pages still have room for some."""
    with anyio.fail_after(30):
        for number in count():
            reply = await pay(caller, f"during-{number}-")
            if reply.status != 200 and not has_run_call(backend, f"during-{number}-"):
                return


def has_run_call(backend: CallCounter, words: str) -> bool:
    return any(words.encode() in body for _, _, body in backend.requests)


async def wait_for_renewals(place: Place) -> None:
    """Wait until the gateway has renewed its lease twice: an updated row finds room in its page."""
    with anyio.fail_after(20), psycopg.connect(place.address, autocommit=True) as connection:
        seen = set[object]()
        while len(seen) < 3:
            seen.update(connection.execute("SELECT until FROM leases").fetchall())
            await anyio.sleep(0.02)


async def wait_until_working(caller: Caller) -> Reply:
    await until_ready(caller, True)
    with anyio.fail_after(20):
        while (reply := await pay(caller, "after")).status != 200:
            await anyio.sleep(0.02)
    return reply


async def test_without_room_for_tables_lists_go_on_and_nothing_is_changed(tmp_path: Path, place: Place) -> None:
    async with replicas(tmp_path, place.address, count=1) as ([gateway], backend):
        ana = gateway.caller(ANA)
        before = await pay(ana, "before")
        place.tables.fill()
        await use_up(ana, backend)
        began = monotonic()
        again = await pay(ana, "again")
        took = monotonic() - began
        unready = await until_ready(ana, False)
        for_models = await ana.modern_call("desk", "pay", {"text": "again"})
        result = before.json["result"]["artifact"]["contentHref"]
        paths = ("/v1/catalogues/desk/tools", "/v1/calls", result, "/livez")
        read = [await ana.rest("GET", path) for path in paths]
        listed = await ana.modern("desk", "tools/list")
        await wait_for_renewals(place)
        still = await ana.rest("GET", "/readyz")
        place.tables.make_room()
        began = monotonic()
        after = await wait_until_working(ana)
        recovered = monotonic() - began
        downloaded = await ana.rest("GET", result)
        has_run = has_run_call(backend, "again")
    print(f"\ntables: refused after {took:.2f} s, again {recovered:.2f} s after there was room")

    assert (again.status, again.json["code"], again.json["detail"]) == (503, "E_STORE_UNAVAILABLE", FULL), again.body
    assert (again.header("retry-after"), "make room" in again.json["help"]) == ("1", True)
    assert for_models.json["error"]["message"] == FULL
    expected = {"code": "E_STORE_UNAVAILABLE", "help": again.json["help"], "retryAfter": 1}
    assert for_models.json["error"]["data"] == expected
    assert unready.json["reasons"] == still.json["reasons"] == [FULL]
    assert [reply.status for reply in read] == [200, 200, 503, 200], read  # a download writes a log entry
    assert b"before" in downloaded.body
    assert "result" in listed.json
    assert after.json["isError"] is False
    assert not has_run


def exhaust_log(cluster: PostgresServer) -> None:
    """Write until the server needs another log file, cannot create it, and shuts down."""
    with suppress(psycopg.OperationalError):
        while True:
            with psycopg.connect(cluster.address("postgres"), autocommit=True) as connection:
                connection.execute("SELECT pg_logical_emit_message(false, 'test', 'x'), pg_switch_wal()")


async def test_server_that_ended_for_want_of_room_is_waited_for(tmp_path: Path, place: Place) -> None:
    async with replicas(tmp_path, place.address, count=1) as ([gateway], backend):
        ana = gateway.caller(ANA)
        before = await pay(ana, "before")
        place.log.fill()
        exhaust_log(place.cluster)
        began = monotonic()
        again = await pay(ana, "again")
        took = monotonic() - began
        with anyio.fail_after(20):
            while place.cluster.is_running:  # it cannot write the end of its recovery, either
                await anyio.sleep(0.02)
        unready = await until_ready(ana, False)
        alive = await ana.rest("GET", "/livez")
        place.log.make_room()
        place.cluster.start()
        began = monotonic()
        after = await wait_until_working(ana)
        recovered = monotonic() - began
        found = await ana.rest("GET", before.json["result"]["artifact"]["contentHref"])
        has_run = has_run_call(backend, "again")
    print(f"\nlog: refused after {took:.2f} s, again {recovered:.2f} s after the server was there")

    assert (again.status, again.json["code"] in CODES, again.header("retry-after")) == (503, True, "1"), again.body
    assert again.json["help"]
    assert any(words in " ".join(unready.json["reasons"]) for words in GONE), unready.body
    assert alive.status == 200
    assert after.json["isError"] is False
    assert b"before" in found.body
    assert not has_run
