"""Workers that serve calls until they are killed; `sql/test_crashes` kills them.

One process imports everything, then forks two workers per round: a round takes milliseconds. A worker records, in
files of its own, when a backend was reached and when a caller was answered that its call settled, and prints a dot for
each such answer.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from gateway.errors import StoreUnavailable
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.call_store import StoredResult
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.storage.sample_records import ADA, call, settled, turn

AT_ONCE = 12


def main(folder: Path) -> None:
    for round in sys.stdin:
        read_end, write_end = os.pipe()
        workers = [_fork_worker(folder, f"{round.strip()}{name}", read_end, write_end) for name in "ab"]
        print(*workers, flush=True)
        os.close(read_end)
        os.close(write_end)
        for worker in workers:
            _, status = os.waitpid(worker, 0)
            if not os.WIFSIGNALED(status):
                sys.exit("a worker ended by itself")
        print(flush=True)


def _fork_worker(folder: Path, name: str, read_end: int, write_end: int) -> int:
    """Fork a worker, which starts once the line with both process ids is printed."""
    worker = os.fork()
    if worker == 0:
        os.close(write_end)
        os.read(read_end, 1)
        asyncio.run(_serve(folder, name))
    return worker


async def _serve(folder: Path, name: str) -> None:
    store = await open_sqlite_store(folder / "gateway.db")
    spool = await DiskSpool.open(folder / "blobs", small=store)
    log = os.open(folder / f"log-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with suppress(StoreUnavailable):  # a machine so busy that the other worker held the lock for a second
        await store.close_interrupted_calls(datetime.now(UTC))
    numbers = count()
    await asyncio.gather(*(_lane(store, spool, log, name, numbers) for _ in range(AT_ONCE)))


async def _lane(store: SqliteStore, spool: DiskSpool, log: int, name: str, numbers: Iterator[int]) -> None:
    """Refuse a call that a busy disk does not accept in time, and make the next one, as a gateway does."""
    while True:
        number = next(numbers)
        with suppress(StoreUnavailable):
            await _call(store, spool, log, f"{name}-{number}", number)


async def _call(store: SqliteStore, spool: DiskSpool, log: int, id: str, number: int) -> None:
    now = datetime.now(UTC)
    own = turn(f"turn-{id}", created_at=now, expires_at=now + timedelta(days=1))
    started = call(id, own.id, idempotency_key=id)
    if number % 3 == 0:
        await store.claim_idempotency_key(id, ADA, digest="d", call=started, until=own.expires_at, turn=own)
    else:
        await store.start_call(started, turn=own)
    os.write(log, f"reached {id}\n".encode())
    reader = await spool.for_turn(own.id, tenant=ADA.tenant).write(id, content_of(id, large=number % 4 == 1))
    piece = StoredResult("artifact", key=reader.key, content=reader.content, byte_length=reader.byte_length())
    await store.record_call(settled(id, own.id, results=(piece,)))
    os.write(log, f"told {id}\n".encode())
    os.write(1, b".")


def content_of(id: str, *, large: bool) -> bytes:
    line = f"{id}\n".encode()
    return line * (100_000 // len(line) if large else 20)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
