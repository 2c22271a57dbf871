"""A process that asks the kill switch, again and again, for the tests.

For every line it is sent it asks until the answer has changed and then as often again as the line says; then it tells
when it began the last question that was still answered as before.
"""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns

from gateway.storage.notices import Notices
from gateway.storage.quarantines import SqliteQuarantines
from gateway.storage.sqlite import SqliteStore


async def main(database: Path) -> None:
    store = await SqliteStore.open(database)
    notices = Notices(database)
    quarantines = SqliteQuarantines(store.writer, notices, clock=lambda: datetime.now(UTC))

    def is_stopped() -> bool:
        return quarantines.stopped_by(tool="search", subject="user:ada", is_consequential=True) is not None

    before = is_stopped()
    print("ready", flush=True)
    for line in sys.stdin:
        last, changed, left = 0, 0, int(line)
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
