"""The decision log is pruned after its retention period, and verification reports what was pruned."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.app.audit_settings import AnchorPolicy
from gateway.app.jobs.audit_anchors import AnchorWriter
from gateway.app.jobs.audit_retention import AuditRetention
from gateway.audit.anchors import read_anchors
from gateway.audit.chain import ChainRow
from gateway.audit.content_hash import ContentKey
from gateway.audit.entries import AuditEntry, AuditKeyRotation, AuditOrigin
from gateway.audit.signing_keys import SigningKey
from gateway.audit.verification import VerificationReport, verify
from gateway.engine.records.auditor import Auditor
from gateway.errors import StoreUnavailable
from gateway.storage.sql.audit_log import AT_ONCE, MAX_PRUNED_ENTRIES, AuditLog, find_expired_prefixes
from gateway.storage.sql.postgres.dialect import PostgresAuditLog
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.sqlite.engine import open_sqlite_store

pytestmark = pytest.mark.anyio

PLACE = AuditOrigin("gw")
HOUR = 3_600_000_000
KEY = SigningKey.generate()


class Kept(list[ChainRow]):
    def statements(self) -> Iterator[ChainRow]:
        return iter(self)


class Keeping:
    """A store with its log and its own clock; log entries are retained for ten hours."""

    def __init__(
        self, store: Any, kind: type[AuditLog], anchors: Path | None = None, most: int = MAX_PRUNED_ENTRIES
    ) -> None:
        self.store = store
        self.now = 1_000 * HOUR
        self.anchors = anchors
        self._most = most
        self._kind = kind
        self._names = (f"shard-{number}" for number in count(1))
        self.begin()

    def begin(self) -> None:
        """Start like a new process: with a shard of its own."""
        self.log = self._kind(lambda: next(self._names), PLACE, clock=lambda: self.now)
        self.store.use_audit_log(self.log)
        terms = None if self.anchors is None else AnchorPolicy(self.anchors, KEY, timedelta(hours=9), 10_000)
        self.anchoring = None if terms is None else AnchorWriter(terms, self.log.durable_head)
        auditor = Auditor(lambda: PLACE, ContentKey(bytes(range(32)).hex()), clock=lambda: self.now)
        self.shortening = AuditRetention(
            self.store,
            auditor,
            self.anchoring,
            retain=timedelta(hours=10),
            now=lambda: self.now,
            most=self._most,
        )

    async def happen(self, entries: int, *, hours: int = 0) -> None:
        """Write that many entries, some hours later."""
        self.now += hours * HOUR
        await self.store.note(
            [(self.now, AuditEntry("gateway-started", self.now, PLACE).encode()) for _ in range(entries)]
        )

    async def rows(self) -> Kept:
        text = "SELECT shard, seq, prev, hash, body, at FROM audit ORDER BY shard, seq"
        return Kept(ChainRow(*row) for row in await self.store.reader.run(lambda it: it.execute(text).fetchall()))

    async def places(self) -> list[tuple[str, int]]:
        return [(row.shard, row.seq) for row in await self.rows()]

    async def verified(self) -> VerificationReport:
        anchors = None if self.anchors is None else [*read_anchors(self.anchors)]
        return verify(await self.rows(), anchors=anchors, keys=[KEY.public])


@pytest.fixture(params=["sqlite", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as closing:

        async def open(anchors: Path | None = None, most: int = MAX_PRUNED_ENTRIES) -> Keeping:
            if request.param == "sqlite":
                store: Any = await open_sqlite_store(tmp_path / "gateway.db")
                kind: type[AuditLog] = AuditLog
            else:
                store = await open_postgres_store(request.getfixturevalue("new_database")())
                kind = PostgresAuditLog
            closing.push_async_callback(store.close)
            return Keeping(store, kind, anchors, most)

        yield open


async def test_what_is_older_goes_and_the_rest_can_be_verified(opened: Callable[..., Any]) -> None:
    keeping = await opened()
    await keeping.happen(5)
    await keeping.happen(3, hours=6)
    assert not await keeping.shortening.delete_expired()
    assert len(await keeping.places()) == 9  # one of them opens the shard

    await keeping.happen(1, hours=6)
    assert not await keeping.shortening.delete_expired()

    assert await keeping.places() == [("shard-1", seq) for seq in (7, 8, 9, 10, 11)]
    report = await keeping.verified()
    assert report.is_good
    assert report.notes == ("entries of shard shard-1 up to 6 were pruned according to shard-1:11",)
    assert not await keeping.shortening.delete_expired()
    assert len(await keeping.places()) == 5


@pytest.mark.parametrize("is_anchored", [True, False])
async def test_pruning_records_of_deleted_shards_are_renewed(
    opened: Callable[..., Any], tmp_path: Path, is_anchored: bool
) -> None:
    keeping = await opened(tmp_path / "anchors.jsonl" if is_anchored else None)
    rotation = AuditEntry(
        "key-rotated", keeping.now, PLACE, key=AuditKeyRotation("a" * 16, "b" * 16, "c" * 64, "d" * 88)
    )
    await keeping.store.note([(keeping.now, rotation.encode())])
    for _ in range(4):  # processes that start and end
        await keeping.happen(3, hours=1)
        if keeping.anchoring is not None:
            await keeping.anchoring.write_if_due()
        keeping.begin()
    for _ in range(5):  # each round is so late that the entries of the round before have expired
        await keeping.happen(1, hours=11)
        await keeping.shortening.delete_expired()
        report = await keeping.verified()
        assert report.is_good, report.findings

    assert {shard for shard, _ in await keeping.places()} == {"shard-5"}
    assert len({each for each in report.notes if "pruned" in each}) == 5
    assert [row.body for row in await keeping.rows() if b"key-rotated" in row.body]
    assert len(await keeping.places()) <= 8


async def test_nothing_goes_while_no_anchor_can_be_written(opened: Callable[..., Any], tmp_path: Path) -> None:
    keeping = await opened(tmp_path / "gone" / "anchors.jsonl")
    await keeping.happen(5)
    await keeping.happen(1, hours=11)

    assert not await keeping.shortening.delete_expired()
    assert ("shard-1", 1) in await keeping.places()
    (tmp_path / "gone").mkdir()
    assert not await keeping.shortening.delete_expired()

    assert ("shard-1", 1) not in await keeping.places()
    assert (await keeping.verified()).is_good


async def test_much_goes_in_steps_and_in_several_passes(opened: Callable[..., Any]) -> None:
    keeping = await opened(most=2 * AT_ONCE + 1)
    await keeping.happen(3 * AT_ONCE)
    await keeping.happen(2, hours=11)

    assert await keeping.shortening.delete_expired()
    assert (await keeping.places())[0] == ("shard-1", 2 * AT_ONCE + 2)
    assert not await keeping.shortening.delete_expired()
    assert (await keeping.places())[0] == ("shard-1", 3 * AT_ONCE + 2)
    assert (await keeping.verified()).is_good


async def test_role_that_may_not_delete_is_reported_and_no_pruning_is_recorded(
    new_database: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    address = new_database()
    async with _limited(address) as limited:
        store = await open_postgres_store(limited)
        keeping = Keeping(store, PostgresAuditLog)
        await keeping.happen(5)
        await keeping.happen(1, hours=11)
        with caplog.at_level(logging.WARNING):
            assert not await keeping.shortening.delete_expired()
            assert not await keeping.shortening.delete_expired()

        assert len(await keeping.places()) == 7
        assert keeping.shortening.problem is not None
        assert [each.message for each in caplog.records] == [keeping.shortening.problem]
        await store.close()


async def test_shard_that_another_process_removed_meanwhile_is_passed_over(tmp_path: Path) -> None:
    store = await open_sqlite_store(tmp_path / "gateway.db")

    assert await store.reader.run(lambda it: find_expired_prefixes(it, ["shard-0"], before=1)) == []
    await store.close()


async def test_every_one_of_many_shards_is_looked_at(opened: Callable[..., Any]) -> None:
    keeping = await opened()
    for _ in range(120):  # process starts
        await keeping.happen(1)
        keeping.begin()
    await keeping.happen(1, hours=11)

    assert not await keeping.shortening.delete_expired()

    assert {shard for shard, _ in await keeping.places()} == {"shard-121"}
    assert (await keeping.verified()).is_good


@asynccontextmanager
async def _limited(address: str) -> AsyncIterator[str]:
    """The same database, opened with a role that has only the grants from docs/storage.md."""
    with psycopg.connect(address, autocommit=True) as owner:
        database = owner.info.dbname
        owner.execute("DROP ROLE IF EXISTS shortened")
        owner.execute("CREATE ROLE shortened LOGIN PASSWORD 'shortened'")
        owner.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO shortened")
        owner.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO shortened")
        owner.execute("REVOKE UPDATE, DELETE, TRUNCATE ON audit FROM shortened")
        host, port = owner.info.host, owner.info.port
        try:
            yield f"postgresql://shortened:shortened@{host}:{port}/{database}"
        finally:
            owner.execute("DROP OWNED BY shortened")
            owner.execute("DROP ROLE shortened")


async def test_pass_that_fails_is_tried_again(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_EVERY", "_AGAIN"):
        monkeypatch.setattr(f"gateway.app.jobs.audit_retention.{name}", 0.01)
    keeping = await opened(most=3)
    await keeping.happen(5)
    await keeping.happen(1, hours=11)
    note, failures = keeping.store.note, [StoreUnavailable("the disk is full"), RuntimeError("no")]

    async def failing(entries: Any) -> None:
        if failures:
            raise failures.pop()
        await note(entries)

    monkeypatch.setattr(keeping.store, "note", failing)
    running = asyncio.create_task(keeping.shortening.run())
    async with asyncio.timeout(10):
        while ("shard-1", 6) in await keeping.places():
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    warnings = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert warnings == ["the decision log was not shortened", "the decision log was not shortened: the disk is full"]
