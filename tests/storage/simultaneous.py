"""Two processes that take one step at the same moment, and the steps that starts, recoveries and sweeps consist of."""

import asyncio
import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import typer
from stored_records import settled, turn

from gateway.audit.anchors import AnchorFile
from gateway.audit.contents import ContentKey
from gateway.audit.entries import Entry, Place
from gateway.bundles.manifest import BundleRefused, Manifest
from gateway.bundles.packing import Bundle
from gateway.cli.audit import write_all
from gateway.core.moments import microseconds
from gateway.core.spool import FileStore
from gateway.governance.limits import CountedCall, Rate
from gateway.governance.principals import Principal
from gateway.governance.records import AuditBody, StoredCall
from gateway.governance.refusals import Refusal, RefusalCount
from gateway.runtime.bundled import Numbers, write_whole
from gateway.runtime.shortening import Shortening
from gateway.runtime.sweeping import Sweeper
from gateway.serving.auditing import Auditor
from gateway.storage.approvals import SqliteApprovals
from gateway.storage.audit_log import AuditLog
from gateway.storage.postgres.audit import PostgresAuditLog
from gateway.storage.postgres.migrating import migrate
from gateway.storage.postgres.store import PostgresStore
from gateway.storage.processes import ProcessLock
from gateway.storage.rates import RateTable
from gateway.storage.spool_files import FileSpool
from gateway.storage.spool_folder import SpoolFolder
from gateway.storage.sqlite import SqliteStore

PLACE = Place("gw")
LATER = datetime(2030, 1, 1, tzinfo=UTC)
ADA = Principal("user:ada", tenant="acme")

Step = Callable[..., Any]


class Pair:
    """Two processes. `both` has them take a step at once and gives what each of them gave."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._barrier = spawn.Barrier(2)  # as long as it is held, its semaphores have names
        self._pipes: list[Connection[Any, Any]] = []
        self._processes = []
        for which in range(2):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(which, theirs, self._barrier), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def both(self, step: Step, *args: Any) -> list[Any]:
        """Fails with the traceback of a process whose step raised."""
        for pipe in self._pipes:
            pipe.send((step, args))
        answers = [pipe.recv() for pipe in self._pipes]
        failures = [trace for _, trace in answers if trace is not None]
        assert not failures, "\n".join(failures)
        return [value for value, _ in answers]


def _serve(which: int, pipe: "Connection[Any, Any]", barrier: Any) -> None:
    while True:
        step, args = pipe.recv()
        barrier.wait()
        try:
            pipe.send((step(which, *args), None))
        except Exception:  # whatever it is, the test shows it
            pipe.send((None, traceback.format_exc()))


# --- places ---


def open_spool(which: int, root: Path) -> None:
    SpoolFolder(root).close()


def open_database(which: int, path: Path) -> None:
    async def opened() -> None:
        await (await SqliteStore.open(path)).close()

    asyncio.run(opened())


def take_a_place(which: int, folder: Path) -> bool:
    """Whether the process is still in its place after both have swept."""
    lock = ProcessLock(folder)
    lock.sweep()
    lock.sweep()
    is_there = (folder / lock.id).exists()
    lock.release()
    return is_there


def take_one(which: int, database: Path) -> bool:
    """Whether the one call that is allowed was this process's."""
    table = RateTable(database, sets=1 << 10)
    rate = Rate("rule", 1, timedelta(days=1))
    taken = table.take([rate], CountedCall(ADA, "tool", "catalogue"))
    table.close()
    return taken.allowed


def migrate_database(which: int, address: str) -> str:
    return migrate(address)[1]


# --- recovery and sweeps ---


async def opened(where: str, *, now: int = 1) -> Any:
    """A store that keeps a decision log, as each process does: with a shard of its own."""
    is_postgres = where.startswith("postgresql:")
    store: Any = await (PostgresStore.open(where) if is_postgres else SqliteStore.open(Path(where)))
    names = (f"{uuid4().hex}-{number}" for number in count(1))
    kind = PostgresAuditLog if is_postgres else AuditLog
    store.keep_audit(kind(lambda: next(names), PLACE, clock=lambda: now), abandoned=_abandoned, summed=summed)
    return store


def summed(count: RefusalCount) -> AuditBody:
    auditor = Auditor(lambda: PLACE, ContentKey(bytes(range(32)).hex()), clock=lambda: 7)
    return auditor.summed(count)


def _abandoned(call: StoredCall) -> AuditBody:
    return 7, Entry("call-unknown", 7, Place(call.id)).encode()


def recover(which: int, where: str) -> int:
    async def recovered() -> int:
        store = await opened(where)
        found: int = await store.recover(LATER)
        await store.close()
        return found

    return asyncio.run(recovered())


def sweep(which: int, where: str, blobs: Path) -> int:
    """Everything past its end of life, then whatever no record names; how much of the latter there was."""

    async def swept() -> int:
        store = await opened(where)
        spool = await FileSpool.open(blobs, small=store)
        sweeper = Sweeper(store, spool, clock=lambda: LATER)
        while not await sweeper.expire():
            pass
        strays = await spool.remove_strays(store.known_results, before=LATER)
        await spool.close()
        await store.close()
        return strays

    return asyncio.run(swept())


def shorten(which: int, where: str, now: int) -> None:
    async def shortened() -> None:
        store = await opened(where, now=now)
        auditor = Auditor(lambda: PLACE, ContentKey(bytes(range(32)).hex()), clock=lambda: now)
        await Shortening(store, auditor, None, retain=timedelta(hours=1), now=lambda: now).shorten()
        await store.close()

    asyncio.run(shortened())


def expire_approvals(which: int, where: str) -> list[str]:
    async def expired() -> list[str]:
        store = await opened(where)
        approvals = SqliteApprovals(store.writer, store.reader)
        found = await approvals.transact(
            lambda table: [
                table.put(replace(each, state="expired"), "expired").id for each in table.overdue(LATER, limit=100)
            ]
        )
        await store.close()
        return found

    return asyncio.run(expired())


def write_and_delete(which: int, blobs: Path, times: int) -> None:
    """Results of one turn, so that the folder of the turn comes and goes."""

    async def written() -> None:
        spool = await FileSpool.open(blobs)
        for number in range(times):
            reader = await spool.scoped("turn").write(f"{which}-{number}", b"content")
            assert await spool.delete(reader.key)
        await spool.close()

    asyncio.run(written())


def write_and_delete_id(which: int, root: Path, times: int) -> None:
    async def written() -> None:
        store = FileStore(root)
        for _ in range(times):
            await store.write("the same id", b"content")
            await store.delete("the same id")

    asyncio.run(written())


def refuse_many(which: int, where: str, times: int, most: int) -> int:
    """Many refusals of one caller at once; how many of them are kept one by one."""

    async def refused() -> int:
        store = await opened(where)
        kept = await asyncio.gather(*(store.refuse(_refusal(f"{which}-{number}", most)) for number in range(times)))
        await store.close()
        return sum(kept)

    return asyncio.run(refused())


def _refusal(id: str, most: int) -> Refusal:
    record = settled(id, f"turn-{id}", args={}, decision="deny", is_error=True)
    return Refusal(record.principal, "not-permitted", most, [(7, b"{}")], record, turn=turn(f"turn-{id}"))


def tell_refusals(which: int, where: str) -> int:
    async def told() -> int:
        store = await opened(where)
        found: int = await store.tell_refusals(microseconds(LATER))
        await store.close()
        return found

    return asyncio.run(told())


# --- files of state ---


def append_anchors(which: int, path: Path, lines: Sequence[bytes]) -> None:
    for line in lines:
        AnchorFile(path).write(line)


def use_bundle(which: int, folder: Path, number: int) -> None:
    """The second process uses the later bundle. The earlier one is refused, if it comes later."""
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    manifest = Manifest(number + which, moment, moment + timedelta(days=1), {})
    with suppress(BundleRefused):
        Numbers(folder).use(Bundle(manifest, manifest.encode(), None, {}))


def write_content(which: int, path: Path, content: bytes) -> None:
    write_whole(path, content * (which + 1))


def write_keys(which: int, folder: Path) -> bool:
    """Whether it was this process that wrote both files."""
    try:
        write_all([(folder / "key", b"%d" % which, 0o600), (folder / "key.pub", b"%d" % which, 0o644)])
    except typer.Exit:
        return False
    return True
