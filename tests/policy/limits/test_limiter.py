"""The contract of every limiter, whatever its storage."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.caller import Principal
from gateway.policy.limits import ExceededLimit, Limit, Limiter, LimitExceeded, LimitKey, LimitReservation, LimitStore
from gateway.storage.rate_table import RateTable
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.postgres.limits import PostgresLimitStore
from gateway.storage.sql.quotas import SqlQuotas
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from tests.policy.limits.samples import ADA, BOB, FakeClocks, quota, rate
from tests.support.ready_databases import put_ready_database

pytestmark = pytest.mark.anyio


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture(params=["sqlite", "postgres"])
async def limits(request: pytest.FixtureRequest, tmp_path: Path, clocks: FakeClocks) -> AsyncIterator[LimitStore]:
    if request.param == "postgres":
        shared = await open_postgres_store(request.getfixturevalue("new_database")())
        yield PostgresLimitStore(shared.writer, clock=clocks.wall, counter=clocks.counter)
        await shared.close()
        return
    store = await open_sqlite_store(put_ready_database(tmp_path / "gateway.db"))
    rates = RateTable(tmp_path / "gateway.db", clock=clocks.counter)
    limiter = Limiter(rates, SqlQuotas(store.writer, clock=clocks.wall))
    yield limiter
    limiter.close()
    await store.close()


async def allowed(limits: LimitStore, wanted: list[Limit], calls: int = 10, call: LimitKey = ADA) -> int:
    return sum([(await limits.acquire(wanted, call)).is_allowed for _ in range(calls)])


@pytest.mark.parametrize("limit", [rate(3), quota(3)], ids=["rate", "quota"])
async def test_no_more_than_the_limit_is_let_through(limits: LimitStore, limit: Limit) -> None:
    assert await allowed(limits, [limit]) == 3


async def test_call_without_limits_is_let_through(limits: LimitStore) -> None:
    assert await limits.acquire([], ADA) == LimitReservation()


@pytest.mark.parametrize("limit", [rate(3), quota(3)], ids=["rate", "quota"])
async def test_callers_have_counts_of_their_own(limits: LimitStore, limit: Limit) -> None:
    assert await allowed(limits, [limit]) == 3
    assert await allowed(limits, [limit], call=BOB) == 3


async def test_rate_fills_evenly(limits: LimitStore, clocks: FakeClocks) -> None:
    await allowed(limits, [rate(4)])

    clocks.advance(timedelta(milliseconds=500))

    assert await allowed(limits, [rate(4)]) == 2


async def test_quota_is_whole_again_when_its_window_ends(limits: LimitStore, clocks: FakeClocks) -> None:
    await allowed(limits, [quota(3)])

    clocks.advance(timedelta(hours=12, microseconds=-1))
    assert await allowed(limits, [quota(3)]) == 0
    clocks.advance(timedelta(microseconds=1))
    assert await allowed(limits, [quota(3)]) == 3


@pytest.mark.parametrize(
    ("limit", "wait"),
    [(rate(4), timedelta(milliseconds=250)), (quota(4), timedelta(hours=12))],
    ids=["rate", "quota"],
)
async def test_refusal_names_exactly_when_to_retry(
    limits: LimitStore, clocks: FakeClocks, limit: Limit, wait: timedelta
) -> None:
    await allowed(limits, [limit], 4)

    refused = await limits.acquire([limit], ADA)

    assert refused == LimitReservation((ExceededLimit(limit, wait),))
    assert refused.retry_after == wait
    clocks.advance(wait - timedelta(microseconds=1))
    assert not (await limits.acquire([limit], ADA)).is_allowed
    clocks.advance(timedelta(microseconds=1))
    assert (await limits.acquire([limit], ADA)).is_allowed


async def test_of_several_refusals_the_longest_wait_counts(limits: LimitStore) -> None:
    narrow, narrower = rate(2, "narrow"), rate(1, "narrower", per=timedelta(minutes=1))
    await limits.acquire([rate(1, "narrow"), narrower], ADA)
    await allowed(limits, [narrow], 2)

    refused = await limits.acquire([narrow, narrower, rate(9, "wide")], ADA)

    assert [each.limit.rule for each in refused.exceeded] == ["narrow", "narrower"]
    assert refused.retry_after == timedelta(minutes=1)


@pytest.mark.parametrize(
    ("first", "second"),
    [(rate(9, "a"), rate(1, "b")), (rate(9, "a"), quota(1, "b")), (quota(9, "a"), quota(1, "b"))],
    ids=["two-rates", "rate-and-quota", "two-quotas"],
)
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
async def test_what_one_limit_refuses_no_other_counts(
    limits: LimitStore, first: Limit, second: Limit, turned: bool
) -> None:
    both = [second, first] if turned else [first, second]

    assert await allowed(limits, both, 20) == 1
    assert await allowed(limits, [first], 20) == 8


def test_every_call_is_counted_by_all_or_none(tmp_path: Path) -> None:
    database, clocks, examples = tmp_path / "gateway.db", FakeClocks(), count()

    @given(
        calls=st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=30), sizes=st.tuples(*[st.integers(1, 6)] * 6)
    )
    def check(calls: list[set[int]], sizes: tuple[int, ...]) -> None:
        example, left = next(examples), dict(enumerate(sizes))
        names = [f"{example}-{each}" for each in left]
        known = [rate(left[each], names[each]) if each % 2 else quota(left[each], names[each]) for each in left]
        for chosen in calls:
            expected = all(left[each] for each in chosen)
            assert runner.run(limiter.acquire([known[each] for each in chosen], ADA)).is_allowed == expected
            left = {each: size - (expected and each in chosen) for each, size in left.items()}

    with asyncio.Runner() as runner:
        store = runner.run(open_sqlite_store(database))
        quotas = SqlQuotas(store.writer, clock=clocks.wall)
        limiter = Limiter(RateTable(database, clock=clocks.counter), quotas)
        check()
        limiter.close()
        runner.run(store.close())


@pytest.mark.parametrize("limit", [rate(3), quota(3)], ids=["rate", "quota"])
async def test_observed_limit_counts_and_stops_no_call(limits: LimitStore, limit: Limit) -> None:
    observed = replace(limit, enforced=False)
    for _ in range(3):
        assert (await limits.acquire([observed], ADA)).taken == (observed,)

    beyond = await limits.acquire([observed], ADA)

    assert beyond.is_allowed
    assert [each.limit for each in beyond.observed] == [observed]
    assert beyond.taken == ()


async def test_observed_limit_does_not_count_what_others_refuse(limits: LimitStore) -> None:
    observed, strict = rate(5, "observed", enforced=False), rate(1, "strict")

    assert await allowed(limits, [observed, strict]) == 1

    assert len([1 for _ in range(10) if not (await limits.acquire([observed], ADA)).observed]) == 4


@pytest.mark.parametrize("limit", [rate(3), quota(3)], ids=["rate", "quota"])
async def test_call_that_did_not_run_is_given_back(limits: LimitStore, limit: Limit) -> None:
    await allowed(limits, [limit], 2)
    taken = await limits.acquire([limit], ADA)

    await limits.release(taken, ADA)

    assert await allowed(limits, [limit]) == 1


async def test_giving_back_nothing_changes_nothing(limits: LimitStore) -> None:
    await allowed(limits, [rate(3), quota(3)])
    refused = await limits.acquire([rate(3), quota(3)], ADA)

    await limits.release(refused, ADA)

    assert await allowed(limits, [rate(3)]) == 0
    assert await allowed(limits, [quota(3)]) == 0


async def test_quota_is_given_back_to_the_window_it_was_taken_from(limits: LimitStore, clocks: FakeClocks) -> None:
    taken = await limits.acquire([quota(3)], ADA)
    clocks.advance(timedelta(days=1))
    await allowed(limits, [quota(3)], 3)

    await limits.release(taken, ADA)

    assert await allowed(limits, [quota(3)]) == 0


async def test_wall_clock_that_is_set_back_grants_nothing_twice(limits: LimitStore, clocks: FakeClocks) -> None:
    today = clocks.moment
    await allowed(limits, [quota(3)], 3)
    clocks.moment = today + timedelta(days=1)
    await allowed(limits, [quota(3)], 1)

    clocks.moment = today
    assert await allowed(limits, [quota(3)]) == 0
    clocks.moment = today + timedelta(days=1)
    assert await allowed(limits, [quota(3)]) == 2


async def test_wall_clock_that_was_far_ahead_blocks_no_call(limits: LimitStore, clocks: FakeClocks) -> None:
    today = clocks.moment
    clocks.moment = today + timedelta(days=3650)
    await allowed(limits, [quota(3)])

    clocks.moment = today

    assert await allowed(limits, [quota(3)]) == 3


async def test_racing_calls_never_exceed_a_quota(limits: LimitStore) -> None:
    found = await asyncio.gather(*(limits.acquire([quota(30), rate(1000)], ADA) for _ in range(100)))

    assert sum(each.is_allowed for each in found) == 30
    assert await allowed(limits, [rate(1000)], 1000) == 970


async def test_cancelled_call_is_not_counted(limits: LimitStore) -> None:
    taking = asyncio.create_task(limits.acquire([quota(3), rate(3)], ADA))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking

    assert await allowed(limits, [quota(3), rate(3)]) == 3


@pytest.mark.parametrize("limit", [rate(1), quota(1)], ids=["rate", "quota"])
@pytest.mark.parametrize(
    "subject",
    ["user:" + "x" * 1_000_000, "user:\0", "user:\ud800", "", "user:ada\n", "'; DROP TABLE quotas; --"],
    ids=["huge", "nul", "surrogate", "empty", "newline", "sql"],
)
async def test_hostile_names_are_counted_like_others(limits: LimitStore, limit: Limit, subject: str) -> None:
    hostile = LimitKey(Principal(subject, tenant=subject), subject, subject)
    every = replace(limit, by=("subject", "tenant", "tool", "catalogue"))

    assert await allowed(limits, [every], call=hostile) == 1
    assert await allowed(limits, [every], call=hostile._replace(tool="another")) == 1


@pytest.mark.parametrize(
    ("limit", "wait", "message"),
    [
        (
            rate(60, per=timedelta(minutes=1)),
            timedelta(milliseconds=1),
            "the rate 'fair-use' lets 60 calls through per 1m",
        ),
        (
            rate(5, per=timedelta(seconds=90)),
            timedelta(milliseconds=1),
            "the rate 'fair-use' lets 5 calls through per 90s",
        ),
        (quota(5000), timedelta(milliseconds=1), "the quota 'budget' lets 5000 calls through per 1d"),
    ],
    ids=["rate", "odd-time", "quota"],
)
def test_refusal_has_a_message(limit: Limit, wait: timedelta, message: str) -> None:
    error = LimitExceeded(ExceededLimit(limit, wait))

    assert error.message == f"{message}; try again in 1 s"
    assert (error.code, error.status, error.retry_after) == ("E_QUOTA_EXCEEDED", 429, wait)
