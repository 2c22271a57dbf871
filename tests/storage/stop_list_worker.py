"""A process for the tests that queries the kill switch again and again.

For every input line it queries once and prints "asking". Then it queries until the answer has changed, and as many
times after that as the line states. It prints when it began the last query that still had the old answer.
"""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns

from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.stop_list import SqlStopList


async def main(database: Path) -> None:
    store = await open_sqlite_store(database)
    notices = FileChangeSignal(database)
    quarantines = SqlStopList(store.writer, notices, clock=lambda: datetime.now(UTC))

    def is_stopped() -> bool:
        return quarantines.find_stop(tool="search", subject="user:ada", is_consequential=True) is not None

    before = is_stopped()
    print("ready", flush=True)
    for line in sys.stdin:
        # The old answer comes once before the test may change it, however busy the machine is.
        last, changed, left = monotonic_ns(), 0, int(line)
        assert is_stopped() == before
        print("asking", flush=True)
        while left:
            began = monotonic_ns()
            if is_stopped() == before:
                last = began
            else:
                changed += 1
            left -= bool(changed)
        before = not before
        print(last, changed, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
