"""A gateway is killed repeatedly under load: answered calls are retained, started calls are not forgotten, and no call
runs twice.

`KILL_ROUNDS` is the number of kills; the suite does sixteen.
"""

import asyncio
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateways.forkserver import ForkServer, GatewayFork, start_forkserver
from tests.support.servers.orders_service import (
    PROJECT,
    OrdersClient,
    OrdersReply,
    OrdersService,
    connect_orders_client,
    order_text,
    orders_service,
)
from tests.support.stored_calls import read_all_calls

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("KILL_ROUNDS", "16"))
CLIENTS = 8
WORKER_ROUNDS = max(4, ROUNDS // 10)
LONGEST_ROUND = 0.25


@dataclass
class Attempt:
    """One call of a client and its answer, if there was one."""

    tool: str
    wire: str
    order: str
    key: str | None
    answered: OrdersReply | None = None

    async def make(self, shop: OrdersClient) -> OrdersReply:
        call = shop.rest if self.wire == "rest" else shop.mcp
        return await call(self.tool, {"order": self.order}, key=self.key)


@dataclass
class Trial:
    """A gateway with its data, and every call made to it."""

    forking: ForkServer
    orders: OrdersService
    data: Path
    options: tuple[str, ...] = ()
    attempts: list[Attempt] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    chance: random.Random = field(default_factory=random.Random)

    async def start(self) -> GatewayFork:
        env = {"ORDERS_URL": self.orders.url}
        return await asyncio.to_thread(self.forking.start, PROJECT, self.data, env=env, options=self.options)

    async def load(self, url: str, *, until: asyncio.Event) -> list[Attempt]:
        """Make calls of all kinds until the gateway is gone."""
        made: list[Attempt] = []
        async with connect_orders_client(url) as shop:
            await asyncio.gather(*(self._client(shop, made, until) for _ in range(CLIENTS)))
        self.attempts += made
        return made

    async def _client(self, shop: OrdersClient, made: list[Attempt], until: asyncio.Event) -> None:
        while not until.is_set():
            number = next(self.numbers)
            tool = self.chance.choice(["order_place", "order_place", "order_read"])
            key = f"key-{number}" if self.chance.random() < 0.5 else None
            attempt = Attempt(tool, self.chance.choice(["rest", "mcp"]), f"order-{number}", key)
            made.append(attempt)
            try:
                attempt.answered = await attempt.make(shop)
            except (aiohttp.ClientError, OSError, ValueError):
                continue

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Return the stored calls by their order."""
        found: dict[str, list[dict[str, Any]]] = {}
        with closing(sqlite3.connect(f"file:{self.data}/data/gateway.db?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            columns = "id, turn_id, tool, status, is_error, json_extract(args, '$.order') AS about"
            for row in database.execute(read_all_calls(columns)):
                found.setdefault(row["about"], []).append(dict(row))
        return found

    def half_files(self) -> list[Path]:
        try:
            return [path for path in (self.data / "data" / "spool" / "incoming").glob("*/*") if path.is_file()]
        except FileNotFoundError:  # removed by the sweeper just now
            return self.half_files()


async def check_answered(attempt: Attempt, shop: OrdersClient, rows: dict[str, list[dict[str, Any]]]) -> None:
    """An answered call has exactly one record, which agrees with the answer."""
    answered = attempt.answered
    assert answered is not None
    assert answered.call_id is not None
    assert answered.turn is not None
    [row] = rows[attempt.order]
    assert (row["id"], row["turn_id"], row["status"]) == (answered.call_id, answered.turn, "settled"), attempt
    status, record = await shop.get(f"/v1/calls/{answered.call_id}", turn=answered.turn)
    assert status == 200
    assert record["status"] == "settled"
    if attempt.tool == "order_read":
        assert await shop.content(answered.call_id, answered.turn) == order_text(attempt.order).encode()
    else:
        assert record["result"]["text"] == f"placed {attempt.order}"


async def check_retried(
    attempt: Attempt, shop: OrdersClient, trial: Trial, rows: dict[str, list[dict[str, Any]]]
) -> None:
    """A retry with the same key gets the same answer or "not known"; a call that never began starts now."""
    states = [row["status"] for row in rows.get(attempt.order, [])]
    ran = trial.orders.executions[attempt.order]
    again = await attempt.make(shop)
    if states == ["settled"]:
        assert again.is_settled
        if attempt.answered is not None and attempt.answered.is_settled:
            assert again.call_id == attempt.answered.call_id
    elif states == ["unknown"]:
        assert not again.is_settled
        assert "not known" in str(again.body)
    else:
        assert states == []
        assert ran == 0
        assert again.is_settled
    if states:
        assert trial.orders.executions[attempt.order] == ran


def check_begun(attempt: Attempt, trial: Trial, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Every call with an effect is recorded and ran once."""
    ran = trial.orders.executions[attempt.order]
    assert ran <= 1
    if ran:
        [row] = rows[attempt.order]
        assert row["status"] in ("settled", "unknown")


async def check(made: list[Attempt], trial: Trial, shop: OrdersClient) -> None:
    rows = trial.rows()
    assert {row["status"] for found in rows.values() for row in found} <= {"settled", "unknown"}
    assert trial.half_files() == []
    for attempt in made:
        check_begun(attempt, trial, rows)
        if attempt.answered is not None and attempt.answered.is_settled:
            await check_answered(attempt, shop, rows)
    for attempt in made:
        if attempt.key is not None:
            await check_retried(attempt, shop, trial, rows)


async def test_killed_gateway_keeps_what_it_answered_and_runs_nothing_twice(tmp_path: Path) -> None:
    async with orders_service(slowness=0.03) as orders:
        with start_forkserver(tmp_path / "forks") as forks:
            trial = Trial(forks, orders, tmp_path / "gateway")
            made: list[Attempt] = []
            for _ in range(ROUNDS):
                gateway = await trial.start()
                async with connect_orders_client(gateway.url) as shop:
                    await check(made, trial, shop)
                over = asyncio.Event()
                loading = asyncio.create_task(trial.load(gateway.url, until=over))
                await asyncio.sleep(trial.chance.uniform(0.02, LONGEST_ROUND))
                await asyncio.to_thread(gateway.kill)
                over.set()
                made = await loading
            gateway = await trial.start()
            async with connect_orders_client(gateway.url) as shop:
                await check(made, trial, shop)
                rows = trial.rows()
                settled = [each for each in trial.attempts if each.answered is not None and each.answered.is_settled]
                for attempt in settled:
                    await check_answered(attempt, shop, rows)
            await asyncio.to_thread(gateway.stop)

    cut_off = [each for each in trial.attempts if each.answered is None]
    assert settled
    assert cut_off, "no round was killed while a call ran"


async def test_worker_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
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
                made = await loading
                await wait_until_recovered(trial)
                async with connect_orders_client(gateway.url) as shop:
                    await check(made, trial, shop)
            await asyncio.to_thread(gateway.stop)

    assert any(each.answered is None for each in trial.attempts)


async def wait_until_recovered(trial: Trial) -> None:
    """The remaining worker recovers the calls of the dead one; its replacement removes the partial files."""
    async with asyncio.timeout(60):
        while trial.half_files() or any(row["status"] == "started" for row in chain(*trial.rows().values())):
            await asyncio.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
