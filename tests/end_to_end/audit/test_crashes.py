"""The decision log of a gateway killed under load has no gap and records one outcome for each call."""

import asyncio
import os
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.end_to_end.durability.test_kills import LONGEST_ROUND, WORKER_ROUNDS, Trial, children, wait_until_recovered
from tests.support.audit_log import assert_good, entries
from tests.support.gateways.forkserver import start_forkserver
from tests.support.servers.orders_service import OrdersService, orders_service
from tests.support.stored_calls import read_all_calls

pytestmark = pytest.mark.anyio


def check(database: Path, orders: OrdersService) -> None:
    """The log verifies and agrees with the call records and with the calls that really ran."""
    assert_good(database)
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        query = read_all_calls("turn_id, id, status, tool, json_extract(args, '$.order')")
        rows = opened.execute(query).fetchall()
    logged = entries(database)
    of = {
        event: Counter((each["call"]["turn"], each["call"]["id"]) for each in logged if each["event"] == event)
        for event in ("call-started", "call-settled", "call-decided", "call-unknown")
    }
    ended = of["call-settled"] + of["call-decided"]
    by_status = {status: [(row[0], row[1]) for row in rows if row[2] == status] for status in ("settled", "unknown")}
    assert len(rows) == sum(map(len, by_status.values()))

    assert ended == Counter(by_status["settled"])
    assert of["call-unknown"] == Counter(by_status["unknown"])
    assert max(of["call-started"].values(), default=0) <= 1
    placed = [(turn, id) for turn, id, status, tool, _ in rows if tool == "order_place" and status == "settled"]
    assert set(placed) - set(of["call-decided"]) <= set(of["call-started"])
    ran = {order for order, times in orders.executions.items() if times}
    assert ran <= {order for turn, id, _, _, order in rows if (turn, id) in of["call-started"]}


async def test_killed_gateway_leaves_a_log_that_verifies(tmp_path: Path) -> None:
    database = tmp_path / "gateway" / "data" / "gateway.db"
    async with orders_service(slowness=0.03) as orders:
        with start_forkserver(tmp_path / "forks") as forks:
            trial = Trial(forks, orders, tmp_path / "gateway")
            for _ in range(WORKER_ROUNDS):
                gateway = await trial.start()
                over = asyncio.Event()
                loading = asyncio.create_task(trial.load(gateway.url, until=over))
                await asyncio.sleep(trial.chance.uniform(0.02, LONGEST_ROUND))
                await asyncio.to_thread(gateway.kill)
                over.set()
                await loading
                assert_good(database)
            gateway = await trial.start()
            await asyncio.to_thread(gateway.stop)

    check(database, orders)
    assert any(each.answered is None for each in trial.attempts), "no round was killed while a call ran"


async def test_worker_that_is_killed_leaves_a_log_that_verifies(tmp_path: Path) -> None:
    database = tmp_path / "gateway" / "data" / "gateway.db"
    async with orders_service(slowness=0.03) as orders:
        with start_forkserver(tmp_path / "forks") as forks:
            trial = Trial(forks, orders, tmp_path / "gateway", options=("--workers", "2"))
            gateway = await trial.start()
            for _ in range(WORKER_ROUNDS):
                over = asyncio.Event()
                loading = asyncio.create_task(trial.load(gateway.url, until=over))
                await asyncio.sleep(trial.chance.uniform(0.1, LONGEST_ROUND))
                os.kill(trial.chance.choice(children(gateway.pid)), signal.SIGKILL)
                over.set()
                await loading
                await wait_until_recovered(trial)
                assert_good(database)
            await asyncio.to_thread(gateway.stop)

    check(database, orders)
