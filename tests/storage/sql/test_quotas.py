"""Quotas in the store: pruning, refunds, and what a failing store means for a call."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.model.caller import Principal
from gateway.policy.limits import MILLIONTHS, Limiter, LimitKey, QuotaLimit, RateLimit
from gateway.storage.rate_table import RateTable
from gateway.storage.sql.quotas import QUOTA_RETENTION, QuotaReservation, SqlQuotas
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.storage.sample_records import NOON, Clock

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)
BUDGET = QuotaLimit("budget", 2, DAY)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite_store(tmp_path / "gateway.db", clock=clock)
    yield store
    await store.close()


def caller(number: int = 0) -> LimitKey:
    return LimitKey(Principal(f"user:{number}"), "search", "support")


async def counts(store: SqliteStore) -> list[int]:
    def read(connection: sqlite3.Connection) -> list[int]:
        return [used for (used,) in connection.execute("SELECT used FROM quotas ORDER BY used")]

    return await store.reader.run(read)


async def test_counts_go_when_their_window_is_long_over(store: SqliteStore, clock: Clock) -> None:
    quotas, many = SqlQuotas(store.writer, clock=clock), 1200  # more than two batches
    takings = [QuotaReservation([BUDGET], caller(number), at=clock()) for number in range(many)]
    await store.writer.run(lambda connection: [taking.run(connection) for taking in takings])
    clock.now += DAY / 2 + QUOTA_RETENTION - timedelta(microseconds=1)
    await quotas.take([BUDGET], caller())

    assert await quotas.prune() == 0
    clock.advance(microseconds=1)
    assert await quotas.prune() == many
    assert await counts(store) == [1]


async def test_counts_are_kept_for_as_long_as_is_asked_for(store: SqliteStore, clock: Clock) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    await quotas.take([BUDGET], caller())
    clock.now += DAY + 35 * DAY - timedelta(hours=13)

    assert await quotas.prune(kept=35 * DAY) == 0
    clock.now += DAY
    assert await quotas.prune(kept=35 * DAY) == 1


async def test_counts_are_never_kept_for_less_than_a_clock_may_be_wrong(store: SqliteStore, clock: Clock) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    await quotas.take([BUDGET], caller())
    clock.now += DAY / 2 + QUOTA_RETENTION - timedelta(seconds=1)

    assert await quotas.prune(kept=timedelta(seconds=1)) == 0


async def test_limiter_prunes_its_quotas(store: SqliteStore, clock: Clock, tmp_path: Path) -> None:
    limiter = Limiter(RateTable(tmp_path / "gateway.db"), SqlQuotas(store.writer, clock=clock))
    await limiter.acquire([BUDGET], caller())
    clock.now += 3 * DAY

    assert await limiter.prune() == 1
    limiter.close()


async def test_key_is_kept_as_a_digest(store: SqliteStore, clock: Clock, tmp_path: Path) -> None:
    await SqlQuotas(store.writer, clock=clock).take([BUDGET], LimitKey(Principal("user:hidden"), "t", "c"))

    await store.writer.run(lambda connection: None)
    assert b"user:hidden" not in b"".join(path.read_bytes() for path in tmp_path.glob("gateway.db*") if path.is_file())


async def test_taking_that_is_run_again_counts_once(store: SqliteStore) -> None:
    taking = QuotaReservation([BUDGET], caller(), at=NOON)

    def fail_at_first(connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT attempt")
        taking.run(connection)
        connection.execute("ROLLBACK TO attempt")
        taking.run(connection)

    await store.writer.run(fail_at_first)

    assert await counts(store) == [1]


async def test_undone_taking_has_counted_nothing(store: SqliteStore) -> None:
    taking = QuotaReservation([BUDGET], caller(), at=NOON)
    await store.writer.run(taking.run)

    await store.writer.run(taking.undo)

    assert await counts(store) == [0]


async def test_undoing_a_refusal_changes_nothing(store: SqliteStore) -> None:
    for _ in range(2):
        await store.writer.run(QuotaReservation([BUDGET], caller(), at=NOON).run)
    refused = QuotaReservation([BUDGET], caller(), at=NOON)
    assert not (await store.writer.run(refused.run)).is_allowed

    await store.writer.run(refused.undo)

    assert await counts(store) == [2]


async def test_count_is_never_given_back_below_nothing(store: SqliteStore, clock: Clock) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    await quotas.take([BUDGET], caller())

    for _ in range(3):
        await quotas.give_back([BUDGET], caller(), at=NOON)

    assert await counts(store) == [0]


async def test_store_that_fails_refuses_and_gives_the_rate_back(tmp_path: Path, clock: Clock) -> None:
    store = await open_sqlite_store(tmp_path / "gateway.db")
    limiter = Limiter(RateTable(tmp_path / "gateway.db"), SqlQuotas(store.writer, clock=clock))
    slow = RateLimit("slow", 1, timedelta(hours=1))
    await store.close()

    with pytest.raises(StoreUnavailable):
        await limiter.acquire([slow, BUDGET], caller())

    assert (await limiter.acquire([slow], caller())).is_allowed
    limiter.close()


async def test_amounts_are_added_up_and_given_back_exactly(store: SqliteStore, clock: Clock) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    sums = QuotaLimit("sums", 100, DAY, counts="amounts")

    def paying(millionths: int) -> LimitKey:
        return caller()._replace(amounts={"sums": millionths})

    first = await quotas.take([sums], paying(99_999_999))
    beyond = await quotas.take([sums], paying(2))
    last = await quotas.take([sums], paying(1))
    lifted = await quotas.take([replace(sums, is_lifted=True)], paying(5_000_000))
    assert lifted.at is not None
    await quotas.give_back([sums], paying(5_000_000), at=lifted.at)

    assert [each.is_allowed for each in (first, beyond, last, lifted)] == [True, False, True, True]
    assert await counts(store) == [100_000_000]


async def test_bytes_are_charged_when_they_are_known(store: SqliteStore, clock: Clock, tmp_path: Path) -> None:
    limiter = Limiter(RateTable(tmp_path / "gateway.db"), SqlQuotas(store.writer, clock=clock))
    size = QuotaLimit("size", 10, DAY, counts="bytes")
    before = await limiter.acquire([size], caller())
    await limiter.charge([size], caller(), 10)
    after = await limiter.acquire([size], caller())

    assert (before.is_allowed, after.is_allowed) == (True, False)


async def test_calls_of_a_caller_are_distinguished_by_their_arguments(store: SqliteStore, clock: Clock) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    same = QuotaLimit("loop", 1, DAY, ("subject", "call"))
    calls = [caller()._replace(fingerprint=each) for each in ("a", "b", "a")]
    calls.append(caller()._replace(fingerprint="a", tool="other"))

    assert [(await quotas.take([same], each)).is_allowed for each in calls] == [True, True, False, True]


# --- quotas that are used up ---


async def test_caller_who_goes_on_is_refused_in_memory_for_a_moment(store: SqliteStore, clock: Clock) -> None:
    quotas, other = SqlQuotas(store.writer, clock=clock), SqlQuotas(store.writer, clock=clock)
    taken = [await quotas.take([BUDGET], caller()) for _ in range(3)]
    assert [each.is_allowed for each in taken] == [True, True, False]
    await other.give_back([BUDGET], caller(), at=NOON)

    assert await quotas.take([BUDGET], caller()) == taken[2]
    clock.advance(microseconds=20_000)
    assert (await quotas.take([BUDGET], caller())).is_allowed


async def test_call_that_this_process_gives_back_is_free_at_once(store: SqliteStore, clock: Clock) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    for _ in range(3):
        await quotas.take([BUDGET], caller())
    await quotas.give_back([BUDGET], caller(), at=NOON)

    assert (await quotas.take([BUDGET], caller())).is_allowed


async def test_clock_that_is_set_back_ends_the_moment(store: SqliteStore, clock: Clock) -> None:
    quotas, other = SqlQuotas(store.writer, clock=clock), SqlQuotas(store.writer, clock=clock)
    for _ in range(3):
        await quotas.take([BUDGET], caller())
    await other.give_back([BUDGET], caller(), at=NOON)
    clock.advance(microseconds=-1)

    assert (await quotas.take([BUDGET], caller())).is_allowed


@pytest.mark.parametrize(
    "others",
    [[replace(BUDGET, rule="other")], [replace(BUDGET, rule="other", enforced=False)]],
    ids=["enforced", "observed"],
)
async def test_quota_that_is_not_used_up_is_still_checked(
    store: SqliteStore, clock: Clock, others: list[QuotaLimit]
) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    for _ in range(3):
        await quotas.take([BUDGET], caller())

    refused = await quotas.take([BUDGET, *others], caller())

    assert [each.limit for each in refused.exceeded] == [BUDGET]


async def test_lifted_and_observing_quotas_are_not_refused_in_memory(store: SqliteStore, clock: Clock) -> None:
    quotas = SqlQuotas(store.writer, clock=clock)
    for _ in range(3):
        await quotas.take([BUDGET], caller())

    assert (await quotas.take([replace(BUDGET, is_lifted=True)], caller())).is_allowed
    assert (await quotas.take([replace(BUDGET, enforced=False)], caller())).is_allowed


async def test_amount_that_does_not_fit_does_not_use_a_quota_up(store: SqliteStore, clock: Clock) -> None:
    quotas, sums = SqlQuotas(store.writer, clock=clock), QuotaLimit("sum", 10, DAY, counts="amounts")

    def amount(size: int) -> LimitKey:
        return caller()._replace(amounts={"sum": size * MILLIONTHS})

    taken = [(await quotas.take([sums], amount(size))).is_allowed for size in (8, 5, 2, 1, 1)]

    assert taken == [True, False, True, False, False]


async def test_memory_of_used_up_quotas_is_bounded(
    store: SqliteStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.storage.sql.quotas._MOST_USED_UP", 2)
    quotas = SqlQuotas(store.writer, clock=clock)
    for number in range(5):
        for _ in range(3):
            await quotas.take([BUDGET], caller(number))

    assert len(quotas._used_up) <= 3
