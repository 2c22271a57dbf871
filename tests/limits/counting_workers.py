"""A process that counts calls for the tests: many clients at once, by one limit, on a store that others use too.

It says `ready`, waits for a line, and then works: `race` tells what it was allowed and when, `spend` writes a dot for
each call it was allowed until it is killed or the budget is gone.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic_ns

from counted import ADA

from gateway.governance.limits import Limit, Quota, Rate
from gateway.limits.limiter import Limiter
from gateway.storage.limits import SqliteQuotas
from gateway.storage.rates import RateTable
from gateway.storage.sqlite import SqliteStore

CLIENTS = 25
LIMITS: dict[str, Limit] = {
    "rate": Rate("rule", 2000, timedelta(seconds=1)),
    "quota": Quota("rule", 777, timedelta(days=366)),
    "budget": Quota("budget", 2500, timedelta(days=366)),
}


async def main(database: Path, task: str, kind: str, attempts: int) -> None:
    store = await SqliteStore.open(database)
    limiter = Limiter(RateTable(database), SqliteQuotas(store.writer, clock=lambda: datetime.now(UTC)))

    async def is_allowed() -> bool:
        return (await limiter.take([LIMITS[kind]], ADA)).allowed

    print("ready", flush=True)
    sys.stdin.readline()
    await (race(is_allowed, attempts) if task == "race" else spend(is_allowed))
    limiter.close()
    await store.close()


async def race(is_allowed: Callable[[], Awaitable[bool]], attempts: int) -> None:
    async def client() -> int:
        allowed = 0
        for _ in range(attempts):
            allowed += await is_allowed()
            await asyncio.sleep(0)
        return allowed

    began = monotonic_ns()
    allowed = sum(await asyncio.gather(*(client() for _ in range(CLIENTS))))
    print(allowed, began, monotonic_ns())


async def spend(is_allowed: Callable[[], Awaitable[bool]]) -> None:
    async def client() -> None:
        while await is_allowed():
            os.write(1, b".")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
