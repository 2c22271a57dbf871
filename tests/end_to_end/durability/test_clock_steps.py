"""The clock is set an hour ahead and back during calls: the calls end normally and the log stays intact."""

import asyncio
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import aiohttp
import psycopg
import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.servers.orders_service import PROJECT, connect_orders_client, orders_service
from tests.support.stored_calls import read_all_calls

pytestmark = pytest.mark.anyio

HOUR = 3600
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *step(void) {
    static volatile int64_t *found;
    if (!found) {
        static int64_t none;
        const char *path = getenv("CLOCK_STEP");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        found = mapped == MAP_FAILED ? &none : mapped;
    }
    return found;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec += *step();
    return done;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a library that adds the offset in a file to the wall clock and leaves other clocks alone."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the clock of a process is set through a small C library: needs Linux and cc")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "step.c").write_text(SHIM, encoding="ascii")
    built = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", folder / "step.so", folder / "step.c", "-ldl"], capture_output=True
    )
    if built.returncode:
        pytest.skip(f"the C library cannot be built here: {built.stderr.decode()[-200:]}")
    return folder / "step.so"


async def now_of(gateway: GatewayProcess) -> str:
    """Return the gateway's current time: the creation time of a new turn."""
    opening = {"catalogue": "shop"}
    async with aiohttp.ClientSession() as session, session.post(f"{gateway.url}/v1/turns", json=opening) as answer:
        return str((await answer.json())["createdAt"])


ON_ONE_HOST = "{type: sqlite, path: data/gateway.db, retain: {calls: 2d}}"
SHARED = "{type: postgres, connection: {fromEnv: DATABASE}, blobs: {type: files, path: data/spool}}"
RECORDS = "SELECT status, is_error FROM calls"


@dataclass(frozen=True)
class StoreUnderTest:
    """A project and access to its store."""

    project: Path
    env: dict[str, str]
    records: Callable[[], list[Any]]
    named: tuple[str, ...]
    """Arguments of `gateway audit verify` that name the store."""


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> StoreUnderTest:
    if request.param == "sqlite":
        database = tmp_path / "data" / "data" / "gateway.db"

        def of_file() -> list[Any]:
            with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as found:
                return found.execute(read_all_calls("status, is_error")).fetchall()

        return StoreUnderTest(PROJECT, {}, of_file, ("--database", str(database)))
    address = request.getfixturevalue("new_database")()
    project = copytree(PROJECT, tmp_path / "project")
    documents = project / "configs" / "gateway.yaml"
    text = documents.read_text(encoding="utf-8")
    documents.write_text(text.replace(ON_ONE_HOST, SHARED), encoding="utf-8")
    assert ON_ONE_HOST in text

    def of_server() -> list[Any]:
        with psycopg.connect(address) as found:
            return found.execute(RECORDS).fetchall()

    return StoreUnderTest(project, {"DATABASE": address}, of_server, ("--connection-env", "DATABASE"))


async def test_calls_end_as_they_should_while_the_clock_is_set(
    tmp_path: Path, shim: Path, stored: StoreUnderTest
) -> None:
    step = tmp_path / "step"
    step.write_bytes(struct.pack("q", 0))
    env = {"LD_PRELOAD": str(shim), "CLOCK_STEP": str(step), **stored.env}

    def set_clock(seconds: int) -> None:
        with step.open("r+b") as file:
            file.write(struct.pack("q", seconds))

    async with orders_service() as orders:
        env["ORDERS_URL"] = orders.url
        with start_gateway_process(stored.project, tmp_path / "data", env=env, is_forked=False) as gateway:
            answers = []
            moments = []
            ready = []
            async with connect_orders_client(gateway.url) as shop, asyncio.timeout(120):
                for number, seconds in enumerate((HOUR, -HOUR, 0, HOUR, 0)):
                    held = asyncio.create_task(shop.rest("order_ship", {"order": f"held-{number}"}))
                    await orders.arrived(f"held-{number}")
                    set_clock(seconds)
                    moments.append(await now_of(gateway))
                    ready.append(await shop.get("/readyz"))
                    answers.append(await shop.rest("order_place", {"order": f"placed-{number}"}, key=f"key-{number}"))
                    answers.append(await shop.mcp("order_place", {"order": f"also-{number}"}))
                    orders.release(f"held-{number}")
                    answers.append(await held)
                again = await shop.rest("order_place", {"order": "placed-0"}, key="key-0")
                listed, _ = await shop.get("/v1/calls")
            code = await asyncio.to_thread(gateway.stop)

    hours = [moment[11:13] for moment in moments]
    assert hours[0] != hours[1] != hours[2] != hours[3] != hours[4]
    assert all(answer.is_settled for answer in answers), [each for each in answers if not each.is_settled]
    assert max(orders.executions.values()) == 1
    assert again.is_replay
    assert listed == 200
    assert code == 0
    assert [(status, "problems" in body) for status, body in ready] == [(200, False)] * 5
    assert [(status, bool(is_error)) for status, is_error in stored.records()] == [("settled", False)] * 15
    verify = ("audit", "verify", *stored.named, "--output", "json")
    verified = await asyncio.to_thread(run_gateway, *verify, env={**os.environ, **stored.env})
    assert verified.returncode == 0, verified.stdout
    assert json.loads(verified.stdout)
