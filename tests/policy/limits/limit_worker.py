"""A process that counts calls for the tests: many clients at once, with one limit, on a store that others use too.

It prints `ready`, waits for a line, and starts: `race` prints how many calls it was allowed and when; `spend` prints a
dot for each allowed call until it is killed or the budget is gone.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic_ns

from gateway.policy.limits import Limit, Limiter, QuotaLimit, RateLimit
from gateway.storage.rate_table import RateTable
from gateway.storage.sql.quotas import SqlQuotas
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.policy.limits.samples import ADA

CLIENTS = 25
LIMITS: dict[str, Limit] = {
    "rate": RateLimit("rule", 2000, timedelta(seconds=1)),
    "quota": QuotaLimit("rule", 777, timedelta(days=366)),
    "budget": QuotaLimit("budget", 2500, timedelta(days=366)),
}


async def main(database: Path, task: str, kind: str, attempts: int) -> None:
    store = await open_sqlite_store(database)
    limiter = Limiter(RateTable(database), SqlQuotas(store.writer, clock=lambda: datetime.now(UTC)))

    async def is_allowed() -> bool:
        return (await limiter.acquire([LIMITS[kind]], ADA)).is_allowed

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
