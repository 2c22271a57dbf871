"""A bucket admits exactly its rate: never more, and never later than announced."""

from datetime import timedelta
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.limits import RateLimit, TokenBucket

GAPS = st.lists(st.integers(0, 400_000_000), max_size=120)
RATES = st.builds(
    RateLimit,
    rule=st.just("rule"),
    limit=st.integers(1, 50),
    per=st.timedeltas(timedelta(milliseconds=1), timedelta(seconds=2)),
    burst=st.none() | st.integers(1, 60),
)


def let_through(rate: RateLimit, moments: list[int]) -> list[int]:
    bucket, full_at, allowed = rate.bucket, 0, []
    for now in moments:
        if not bucket.wait_time(full_at, now):
            full_at = bucket.take(full_at, now)
            allowed.append(now)
    return allowed


@given(rate=RATES, gaps=GAPS)
def test_no_window_holds_more_than_limit_and_burst(rate: RateLimit, gaps: list[int]) -> None:
    allowed = let_through(rate, list(accumulate(gaps, initial=1)))

    per = rate.per // timedelta(microseconds=1) * 1000
    for start, first in enumerate(allowed):
        inside = [moment for moment in allowed[start:] if moment < first + per]
        assert len(inside) <= rate.limit + (rate.burst or rate.limit)


@given(rate=RATES, gaps=GAPS)
def test_wait_is_exact_to_the_nanosecond(rate: RateLimit, gaps: list[int]) -> None:
    bucket, full_at, now = rate.bucket, 0, 1
    for gap in gaps:
        now += gap
        wait = bucket.wait_time(full_at, now)
        if wait:
            assert bucket.wait_time(full_at, now + wait - 1) == 1
            assert bucket.wait_time(full_at, now + wait) == 0
        else:
            full_at = bucket.take(full_at, now)


@given(rate=RATES)
def test_burst_comes_at_once_and_no_more(rate: RateLimit) -> None:
    assert len(let_through(rate, [1] * 130)) == (rate.burst or rate.limit)


@given(full_at=st.integers(-(2**63), 2**63 - 1), now=st.integers(0, 2**62))
def test_no_damaged_moment_blocks_for_longer_than_an_empty_bucket(full_at: int, now: int) -> None:
    bucket = TokenBucket(interval=1000, depth=5000)

    assert bucket.wait_time(full_at, now) <= 1000
    assert now < bucket.take(full_at, now) <= now + 6000


@pytest.mark.parametrize(
    ("limit", "per", "interval"),
    [(60, timedelta(minutes=1), 10**9), (7, timedelta(seconds=1), 142_857_143), (10**12, timedelta(seconds=1), 1)],
    ids=["even", "rounded-up", "at-least-one"],
)
def test_interval_is_the_share_of_one_call(limit: int, per: timedelta, interval: int) -> None:
    assert RateLimit("rule", limit, per).bucket == TokenBucket(interval, interval * limit)
