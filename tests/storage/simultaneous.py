"""Two processes that take one step at the same moment, and the steps of starts, recoveries and sweeps."""

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

from gateway.app.bundle import Bundle, BundleManifest, InvalidBundle
from gateway.app.jobs.audit_retention import AuditRetention
from gateway.app.jobs.record_sweeper import RecordSweeper
from gateway.app.project_source import BundleSequence, write_atomic
from gateway.artifacts.spool_stores import FileStore
from gateway.audit.anchors import AnchorFile
from gateway.audit.content_hash import ContentKey
from gateway.audit.entries import AuditEntry, AuditOrigin
from gateway.cli.operations.audit import write_all
from gateway.engine.records.auditor import Auditor
from gateway.model.caller import Principal
from gateway.model.primitives.deadline import to_microseconds
from gateway.policy.limits import LimitKey, RateLimit
from gateway.storage.blobs.disk_store import BlobFolder, DiskSpool
from gateway.storage.call_store import AuditBody, StoredCall
from gateway.storage.process_liveness import ProcessLock
from gateway.storage.rate_table import RateTable
from gateway.storage.refusal_store import Refusal, RefusalCount
from gateway.storage.sql.approvals import SqlApprovalStore
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.postgres.database_setup import migrate_postgres
from gateway.storage.sql.postgres.dialect import PostgresAuditLog
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.storage.sample_records import settled, turn

PLACE = AuditOrigin("gw")
LATER = datetime(2030, 1, 1, tzinfo=UTC)
ADA = Principal("user:ada", tenant="acme")

Step = Callable[..., Any]


class Pair:
    """Two processes. `both` runs a step in both at once and returns the result of each."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._barrier = spawn.Barrier(2)  # as long as it is referenced, its semaphores have names
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
        """Run the step in both; fails with the traceback of a process whose step raised."""
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
        except Exception:  # any exception is shown by the test
            pipe.send((None, traceback.format_exc()))


# --- slots ---


def open_spool(which: int, root: Path) -> None:
    BlobFolder(root).close()


def open_database(which: int, path: Path) -> None:
    async def opened() -> None:
        await (await open_sqlite_store(path)).close()

    asyncio.run(opened())


def take_a_place(which: int, folder: Path) -> bool:
    """Whether the process still has its slot after both have swept."""
    lock = ProcessLock(folder)
    lock.sweep()
    lock.sweep()
    is_there = (folder / lock.id).exists()
    lock.release()
    return is_there


def take_one(which: int, database: Path) -> bool:
    """Whether this process got the only allowed call."""
    table = RateTable(database, sets=1 << 10)
    rate = RateLimit("rule", 1, timedelta(days=1))
    taken = table.take([rate], LimitKey(ADA, "tool", "catalogue"))
    table.close()
    return taken.is_allowed


def migrate_database(which: int, address: str) -> str:
    return migrate_postgres(address)[1]


# --- recovery and sweeps ---


async def opened(where: str, *, now: int = 1) -> Any:
    """A store with a decision log and a shard of its own, as each process has."""
    is_postgres = where.startswith("postgresql:")
    store: Any = await (open_postgres_store(where) if is_postgres else open_sqlite_store(Path(where)))
    names = (f"{uuid4().hex}-{number}" for number in count(1))
    kind = PostgresAuditLog if is_postgres else AuditLog
    store.use_audit_log(kind(lambda: next(names), PLACE, clock=lambda: now), abandoned=_abandoned, summed=summed)
    return store


def summed(count: RefusalCount) -> AuditBody:
    auditor = Auditor(lambda: PLACE, ContentKey(bytes(range(32)).hex()), clock=lambda: 7)
    return auditor.refusal_count_entry(count)


def _abandoned(call: StoredCall) -> AuditBody:
    return 7, AuditEntry("call-unknown", 7, AuditOrigin(call.id)).encode()


def recover(which: int, where: str) -> int:
    async def recovered() -> int:
        store = await opened(where)
        found: int = await store.close_interrupted_calls(LATER)
        await store.close()
        return found

    return asyncio.run(recovered())


def sweep(which: int, where: str, blobs: Path) -> int:
    """Delete everything expired, then everything without a record; return the number of the latter."""

    async def swept() -> int:
        store = await opened(where)
        spool = await DiskSpool.open(blobs, small=store)
        sweeper = RecordSweeper(store, spool, clock=lambda: LATER)
        while not await sweeper.expire():
            pass
        strays = await spool.delete_orphans(store.filter_known_results, before=LATER)
        await spool.close()
        await store.close()
        return strays

    return asyncio.run(swept())


def shorten(which: int, where: str, now: int) -> None:
    async def shortened() -> None:
        store = await opened(where, now=now)
        auditor = Auditor(lambda: PLACE, ContentKey(bytes(range(32)).hex()), clock=lambda: now)
        await AuditRetention(store, auditor, None, retain=timedelta(hours=1), now=lambda: now).delete_expired()
        await store.close()

    asyncio.run(shortened())


def expire_approvals(which: int, where: str) -> list[str]:
    async def expired() -> list[str]:
        store = await opened(where)
        approvals = SqlApprovalStore(store.writer, store.reader)
        found = await approvals.transact(
            lambda table: [
                table.update(replace(each, state="expired"), "expired").id
                for each in table.find_overdue(LATER, limit=100)
            ]
        )
        await store.close()
        return found

    return asyncio.run(expired())


def write_and_delete(which: int, blobs: Path, times: int) -> None:
    """Write and delete results of one turn, so that the folder of the turn is created and removed again and again."""

    async def written() -> None:
        spool = await DiskSpool.open(blobs)
        for number in range(times):
            reader = await spool.for_turn("turn").write(f"{which}-{number}", b"content")
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
    """Refuse many calls of one caller at once; return how many refusals are stored individually."""

    async def refused() -> int:
        store = await opened(where)
        kept = await asyncio.gather(*(store.refuse(_refusal(f"{which}-{number}", most)) for number in range(times)))
        await store.close()
        return sum(kept)

    return asyncio.run(refused())


def _refusal(id: str, most: int) -> Refusal:
    record = settled(id, f"turn-{id}", args={}, decision="deny", is_error=True)
    return Refusal(record.principal, "not-permitted", most, [(7, b"{}")], record, turn=turn(f"turn-{id}"))


def audit_refusal_counts(which: int, where: str) -> int:
    async def logged() -> int:
        store = await opened(where)
        found: int = await store.audit_refusal_counts(to_microseconds(LATER))
        await store.close()
        return found

    return asyncio.run(logged())


# --- state files ---


def append_anchors(which: int, path: Path, lines: Sequence[bytes]) -> None:
    for line in lines:
        AnchorFile(path).write(line)


def use_bundle(which: int, folder: Path, number: int) -> None:
    """The second process uses the later bundle. The earlier one is refused if it comes later."""
    moment = datetime(2026, 5, 1, tzinfo=UTC)
    manifest = BundleManifest(number + which, moment, moment + timedelta(days=1), {})
    with suppress(InvalidBundle):
        BundleSequence(folder).use(Bundle(manifest, manifest.encode(), None, {}))


def write_content(which: int, path: Path, content: bytes) -> None:
    write_atomic(path, content * (which + 1))


def write_keys(which: int, folder: Path) -> bool:
    """Whether this process wrote both files."""
    try:
        write_all([(folder / "key", b"%d" % which, 0o600), (folder / "key.pub", b"%d" % which, 0o644)])
    except typer.Exit:
        return False
    return True
