"""Workers that serve calls until they are killed; `test_store_crashes` kills them.

One process imports everything, then makes two workers per round by forking: a round takes milliseconds. A worker writes
down, in files of its own, when a backend was reached and when a caller was told that its call settled, and prints a dot
for each of the latter.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from stored_records import ADA, call, settled, turn

from gateway.errors import StoreUnavailable
from gateway.governance.records import StoredResult
from gateway.storage.spool_files import FileSpool
from gateway.storage.sqlite import SqliteStore

AT_ONCE = 12


def main(folder: Path) -> None:
    for round in sys.stdin:
        workers = [_forked(folder, f"{round.strip()}{name}") for name in "ab"]
        print(*workers, flush=True)
        for worker in workers:
            _, status = os.waitpid(worker, 0)
            if not os.WIFSIGNALED(status):
                sys.exit("a worker ended by itself")
        print(flush=True)


def _forked(folder: Path, name: str) -> int:
    worker = os.fork()
    if worker == 0:
        asyncio.run(_serve(folder, name))
    return worker


async def _serve(folder: Path, name: str) -> None:
    store = await SqliteStore.open(folder / "gateway.db")
    spool = await FileSpool.open(folder / "blobs", small=store)
    log = os.open(folder / f"log-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with suppress(StoreUnavailable):  # a machine so busy that the other worker held the lock for a second
        await store.recover(datetime.now(UTC))
    numbers = count()
    await asyncio.gather(*(_lane(store, spool, log, name, numbers) for _ in range(AT_ONCE)))


async def _lane(store: SqliteStore, spool: FileSpool, log: int, name: str, numbers: Iterator[int]) -> None:
    """A call that a busy disk does not take in time is refused, and the next one is made, as a gateway does."""
    while True:
        number = next(numbers)
        with suppress(StoreUnavailable):
            await _call(store, spool, log, f"{name}-{number}", number)


async def _call(store: SqliteStore, spool: FileSpool, log: int, id: str, number: int) -> None:
    now = datetime.now(UTC)
    own = turn(f"turn-{id}", created_at=now, expires_at=now + timedelta(days=1))
    started = call(id, own.id, idempotency_key=id)
    if number % 3 == 0:
        await store.claim(id, ADA, digest="d", call=started, until=own.expires_at, turn=own)
    else:
        await store.start_call(started, turn=own)
    os.write(log, f"reached {id}\n".encode())
    reader = await spool.scoped(own.id, tenant=ADA.tenant).write(id, content_of(id, large=number % 4 == 1))
    piece = StoredResult("artifact", key=reader.key, content=reader.content, byte_length=reader.byte_length())
    await store.settle_call(settled(id, own.id, results=(piece,)))
    os.write(log, f"told {id}\n".encode())
    os.write(1, b".")


def content_of(id: str, *, large: bool) -> bytes:
    line = f"{id}\n".encode()
    return line * (100_000 // len(line) if large else 20)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
