"""A gateway whose PostgreSQL server has a fault: no change happens without a record, reads go on where possible,
readiness gives the reason, and the gateway recovers by itself.

Run with `-s` to see how long each refusal and each recovery took.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

import anyio
import psycopg
import pytest

from gateway.storage.sql.postgres.database_setup import migrate_postgres
from tests.support.gateways.gate_projects import ANA, pay
from tests.support.gateways.projects import Caller, Reply
from tests.support.gateways.replicas import replicas
from tests.support.servers.postgres_server import PostgresServer, start_postgres
from tests.support.servers.slow_proxy import SlowProxy, start_slow_proxy

pytestmark = pytest.mark.anyio

CONNECTIONS = 24
CODES = ("E_STORE_UNAVAILABLE", "E_CREDENTIAL_UNKNOWN")
"""Calls cannot be recorded; after a second without the database, revoked tokens cannot be checked either."""

OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agent-gateway'"
Fault = Callable[[PostgresServer, SlowProxy], AbstractAsyncContextManager[None]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    with start_postgres(max_connections=str(CONNECTIONS)) as found:
        yield found


def execute(cluster: PostgresServer, *statements: str) -> None:
    with psycopg.connect(cluster.address("postgres"), autocommit=True) as connection:
        for each in statements:
            connection.execute(each)


@asynccontextmanager
async def stopped(cluster: PostgresServer, way: SlowProxy) -> AsyncIterator[None]:
    cluster.stop()
    yield
    cluster.start(max_connections=str(CONNECTIONS))


@asynccontextmanager
async def silent(cluster: PostgresServer, way: SlowProxy) -> AsyncIterator[None]:
    frozen = cluster.pids()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def slow(cluster: PostgresServer, way: SlowProxy) -> AsyncIterator[None]:
    way.slowness = 0.6
    try:
        yield
    finally:
        way.slowness = 0.0


@asynccontextmanager
async def read_only(cluster: PostgresServer, way: SlowProxy) -> AsyncIterator[None]:
    """As after a failover: existing connections end, too."""
    execute(cluster, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    with anyio.fail_after(20):
        while not _is_read_only(cluster):
            await anyio.sleep(0.01)
    way.cut()
    try:
        yield
    finally:
        execute(cluster, "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")


def _is_read_only(cluster: PostgresServer) -> bool:
    with psycopg.connect(cluster.address("postgres")) as connection:
        return connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",)


@asynccontextmanager
async def without_connections(cluster: PostgresServer, way: SlowProxy) -> AsyncIterator[None]:
    """Other clients hold all connections of the server after a reconnect."""
    with ExitStack() as taken:
        way.is_shut = True
        way.cut()
        await wait_until_disconnected(cluster)
        with suppress(psycopg.OperationalError):
            while True:
                taken.enter_context(psycopg.connect(cluster.address("postgres")))
        way.is_shut = False
        yield


async def wait_until_disconnected(cluster: PostgresServer) -> None:
    """Wait until the server has noticed that the gateway's connections were cut."""
    with anyio.fail_after(20), psycopg.connect(cluster.address("postgres"), autocommit=True) as connection:
        while connection.execute(OURS).fetchone() != (0,):
            await anyio.sleep(0.01)


async def until_ready(caller: Caller, is_ready: bool) -> Reply:
    with anyio.fail_after(20):
        while True:
            reply = await caller.rest("GET", "/readyz")
            if (reply.status == 200) is is_ready:
                return reply
            await anyio.sleep(0.02)


async def until_listed(caller: Caller, status: int) -> Reply:
    """Return the answer to a list of tools. The stop list is trusted for a second, so 503 may take as long."""
    with anyio.move_on_after(3):
        while (reply := await caller.rest("GET", "/v1/catalogues/desk/tools")).status != status:
            await anyio.sleep(0.02)
    return reply


@pytest.mark.parametrize(
    ("fault", "words", "can_read"),
    [
        pytest.param(stopped, ("cannot be reached", "being stopped"), False, id="stopped"),
        pytest.param(silent, ("too slow", "does not answer"), False, id="silent"),
        pytest.param(slow, ("too slow", "does not answer"), False, id="slow"),
        pytest.param(read_only, ("read-only",), True, id="read-only"),
        pytest.param(without_connections, ("no connection free",), False, id="without-connections"),
    ],
)
async def test_nothing_is_changed_that_cannot_be_recorded(
    tmp_path: Path, cluster: PostgresServer, fault: Fault, words: tuple[str, ...], can_read: bool
) -> None:
    database = cluster.database()
    migrate_postgres(database)
    with start_slow_proxy(cluster.port) as way:
        address = database.replace(str(cluster.port), str(way.port))
        async with replicas(tmp_path, address, count=1) as ([gateway], backend):
            ana = gateway.caller(ANA)
            assert (await pay(ana, "before")).json["isError"] is False
            async with fault(cluster, way):
                began = monotonic()
                during = await pay(ana, "during")
                took = monotonic() - began
                unready = await until_ready(ana, False)
                with anyio.fail_after(20):  # lost connections are noticed before the reason
                    while not any(each in str(unready.json) for each in words):
                        await anyio.sleep(0.02)
                        unready = await until_ready(ana, False)
                again = await pay(ana, "again")
                listed = await until_listed(ana, 200 if can_read else 503)
                calls = await ana.rest("GET", "/v1/calls")
                alive = await ana.rest("GET", "/livez")
            began = monotonic()
            await until_ready(ana, True)
            with anyio.fail_after(20):
                while (after := await pay(ana, "after")).status != 200:
                    await anyio.sleep(0.02)
            recovered = monotonic() - began
            ran = [body for _, _, body in backend.requests if b"during" in body or b"again" in body]
    print(f"\n{fault.__name__}: refused after {took:.2f} s, again {recovered:.2f} s after the cure")

    for reply in (during, again):
        assert (reply.status, reply.json["code"] in CODES, reply.header("retry-after")) == (503, True, "1"), reply.body
    assert any(each in reply.json["detail"] for each in words for reply in (during, again)), (during, again)
    assert any(each in " ".join(unready.json["reasons"]) for each in words), unready.body
    assert listed.status == (200 if can_read else 503), listed.body
    assert calls.status == (200 if can_read else 503), calls.body
    assert alive.status == 200
    assert after.json["isError"] is False
    assert ran == []
