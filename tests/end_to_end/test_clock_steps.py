"""A clock that is set an hour ahead and back while calls run: they end as they should, and the log stays whole."""

import asyncio
import json
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
from orders import PROJECT, orders_service, shop_at
from served import Served, served

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
    """A library that adds to the clock on the wall whatever a file says, and leaves every other clock alone."""
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


async def now_of(gateway: Served) -> str:
    """When the gateway thinks it is: a turn says when it was opened."""
    opening = {"catalogue": "shop"}
    async with aiohttp.ClientSession() as session, session.post(f"{gateway.url}/v1/turns", json=opening) as answer:
        return str((await answer.json())["createdAt"])


async def test_calls_end_as_they_should_while_the_clock_is_set(tmp_path: Path, shim: Path) -> None:
    step = tmp_path / "step"
    step.write_bytes(struct.pack("q", 0))
    env = {"LD_PRELOAD": str(shim), "CLOCK_STEP": str(step)}

    def set_clock(seconds: int) -> None:
        with step.open("r+b") as file:
            file.write(struct.pack("q", seconds))

    async with orders_service() as orders:
        env["ORDERS_URL"] = orders.url
        with served(PROJECT, tmp_path / "data", env=env) as gateway:
            answers = []
            moments = []
            async with shop_at(gateway.url) as shop, asyncio.timeout(120):
                for number, seconds in enumerate((HOUR, -HOUR, 0, HOUR, 0)):
                    held = asyncio.create_task(shop.rest("order_ship", {"order": f"held-{number}"}))
                    await orders.arrived(f"held-{number}")
                    set_clock(seconds)
                    moments.append(await now_of(gateway))
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
    database = tmp_path / "data" / "data" / "gateway.db"
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as stored:
        rows = stored.execute(
            "SELECT status, is_error FROM calls UNION ALL SELECT status, is_error FROM fresh"
        ).fetchall()
    assert rows == [("settled", 0)] * 15
    verify = [sys.executable, "-m", "gateway", "audit", "verify", "--database", str(database), "--output", "json"]
    verified = await asyncio.to_thread(subprocess.run, verify, capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    assert json.loads(verified.stdout)
