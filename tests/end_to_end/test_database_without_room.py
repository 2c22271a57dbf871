"""A gateway whose PostgreSQL server has a full disk: nothing is changed that cannot be recorded, readiness tells why,
and it goes on by itself when there is room.

Run with `-s` it tells how long each refusal and each recovery took.
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
from gated import ANA, pay
from postgres_clusters import Cluster, running_cluster
from replicated import replicas
from secured import Caller, Counting, Reply
from small_disks import SmallDisk, small_disk
from test_database_faults import CODES, until_ready

from gateway.storage.postgres.migrating import migrate

pytestmark = pytest.mark.anyio

FULL = "the disk of the database is full"
GONE = (FULL, "cannot be reached", "being stopped")


@dataclass
class Place:
    """A server on two disks: one for its tables, the other for its write-ahead log."""

    cluster: Cluster
    tables: SmallDisk
    log: SmallDisk

    @property
    def address(self) -> str:
        return self.cluster.address("records")


@pytest.fixture
def place() -> Iterator[Place]:
    with small_disk(128) as tables, small_disk(64) as log, running_cluster(tables.folder, log.folder) as cluster:
        made = Place(cluster, tables, log)
        with psycopg.connect(cluster.address("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE records")
        migrate(made.address)
        yield made


async def used_up(caller: Caller, backend: Counting) -> None:
    """Pages of tables that were begun take some more calls, until there is one that cannot even begin."""
    with anyio.fail_after(30):
        for number in count():
            reply = await pay(caller, f"during-{number}-")
            if reply.status != 200 and not ran(backend, f"during-{number}-"):
                return


def ran(backend: Counting, words: str) -> bool:
    return any(words.encode() in body for _, _, body in backend.requests)


async def renewed(place: Place) -> None:
    """Wait until the gateway has renewed its lease, twice: a row that is changed finds room in its page."""
    with anyio.fail_after(20), psycopg.connect(place.address, autocommit=True) as connection:
        seen = set[object]()
        while len(seen) < 3:
            seen.update(connection.execute("SELECT until FROM leases").fetchall())
            await anyio.sleep(0.02)


async def works(caller: Caller) -> Reply:
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
        await used_up(ana, backend)
        began = monotonic()
        again = await pay(ana, "again")
        took = monotonic() - began
        unready = await until_ready(ana, False)
        for_models = await ana.modern_call("desk", "pay", {"text": "again"})
        result = before.json["result"]["artifact"]["contentHref"]
        paths = ("/v1/catalogues/desk/tools", "/v1/calls", result, "/livez")
        read = [await ana.rest("GET", path) for path in paths]
        listed = await ana.modern("desk", "tools/list")
        await renewed(place)
        still = await ana.rest("GET", "/readyz")
        place.tables.make_room()
        began = monotonic()
        after = await works(ana)
        recovered = monotonic() - began
        downloaded = await ana.rest("GET", result)
        has_run = ran(backend, "again")
    print(f"\ntables: refused after {took:.2f} s, again {recovered:.2f} s after there was room")

    assert (again.status, again.json["code"], again.json["detail"]) == (503, "E_STORE_UNAVAILABLE", FULL), again.body
    assert (again.header("retry-after"), "make room" in again.json["help"]) == ("1", True)
    assert for_models.json["error"]["message"] == FULL
    told = {"code": "E_STORE_UNAVAILABLE", "help": again.json["help"], "retryAfter": 1}
    assert for_models.json["error"]["data"] == told
    assert unready.json["reasons"] == still.json["reasons"] == [FULL]
    assert [reply.status for reply in read] == [200, 200, 503, 200], read  # a download leaves an entry in the log
    assert b"before" in downloaded.body
    assert "result" in listed.json
    assert after.json["isError"] is False
    assert not has_run


def out_of_log(cluster: Cluster) -> None:
    """Until the server needs another file for it, gets none, and ends itself."""
    with suppress(psycopg.OperationalError):
        while True:
            with psycopg.connect(cluster.address("postgres"), autocommit=True) as connection:
                connection.execute("SELECT pg_logical_emit_message(false, 'test', 'x'), pg_switch_wal()")


async def test_server_that_ended_for_want_of_room_is_waited_for(tmp_path: Path, place: Place) -> None:
    async with replicas(tmp_path, place.address, count=1) as ([gateway], backend):
        ana = gateway.caller(ANA)
        before = await pay(ana, "before")
        place.log.fill()
        out_of_log(place.cluster)
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
        after = await works(ana)
        recovered = monotonic() - began
        found = await ana.rest("GET", before.json["result"]["artifact"]["contentHref"])
        has_run = ran(backend, "again")
    print(f"\nlog: refused after {took:.2f} s, again {recovered:.2f} s after the server was there")

    assert (again.status, again.json["code"] in CODES, again.header("retry-after")) == (503, True, "1"), again.body
    assert again.json["help"]
    assert any(words in " ".join(unready.json["reasons"]) for words in GONE), unready.body
    assert alive.status == 200
    assert after.json["isError"] is False
    assert b"before" in found.body
    assert not has_run
