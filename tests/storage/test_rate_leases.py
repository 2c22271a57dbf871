"""Leases of rates: the results of one process are those without leases, and those of several are never more."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import StoreUnavailable
from gateway.model.caller import Principal
from gateway.policy.limits import LimitKey, RateLimit, TokenBucket
from gateway.storage.rate_leases import BELIEVED_FOR, IDLE_AFTER, MOST_LEASES
from gateway.storage.rate_table import RateTable
from tests.policy.limits.samples import ADA, FakeClocks, rate

pytestmark = pytest.mark.anyio

IDLE = timedelta(microseconds=IDLE_AFTER // 1000)
HOURLY = RateLimit("hour", 1000, timedelta(hours=1))


@dataclass
class Bucket:
    """One bucket of the whole host, without leases."""

    bucket: TokenBucket
    clocks: FakeClocks
    full_at: int = 0

    def take(self) -> int:
        """Count a call, or return how long it has to wait."""
        now = self.clocks.nanoseconds
        wait = self.bucket.wait_time(self.full_at, now)
        if not wait:
            self.full_at = self.bucket.take(self.full_at, now)
        return wait

    def give_back(self) -> None:
        self.full_at -= self.bucket.interval


class Host:
    """Tables of some processes, which no test of the machine's clock disturbs."""

    def __init__(self, folder: Path, processes: int = 1, *, sets: int = 16) -> None:
        self.sets = sets
        self.database = folder / "gateway.db"
        self.database.touch()
        self.clocks = FakeClocks()
        self.tables = [self.open() for _ in range(processes)]

    def open(self) -> RateTable:
        return RateTable(self.database, clock=self.clocks.counter, sets=self.sets)

    def allowed(self, limit: RateLimit, calls: int, *, table: int = 0) -> int:
        return sum(self.tables[table].take([limit], ADA).is_allowed for _ in range(calls))

    def warm(self, limit: RateLimit, calls: int) -> None:
        """Make calls that are all allowed; leases become as large as they get."""
        assert self.allowed(limit, calls) == calls


def sized(draw: st.DrawFn) -> RateLimit:
    limit = draw(st.integers(1, 3000))
    burst = draw(st.none() | st.integers(1, 3000))
    return RateLimit("rule", limit, timedelta(seconds=draw(st.integers(1, 100))), burst)


LIMITS = st.composite(sized)()
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "give-back", "idle", "again"]),
        st.integers(0, 2),
        st.integers(1, 150),
        st.sampled_from([0, 0, 0, 1, 1000, 10**6, 5 * 10**6, 10**8, 10**9, 10**10]),
    ),
    max_size=40,
)


def test_one_process_is_refused_exactly_as_without_leases(tmp_path: Path) -> None:
    host, names = Host(tmp_path), count()

    @given(limit=LIMITS, steps=STEPS)
    @settings(max_examples=300)
    def check(limit: RateLimit, steps: list[tuple[str, int, int, int]]) -> None:
        call = LimitKey(Principal(f"user:{next(names)}"), "tool", "catalogue")
        reference, counted = Bucket(limit.bucket, host.clocks), 0
        for step, _, times, later in steps:
            host.clocks.nanoseconds += later
            if step == "idle":
                host.tables[0].return_idle_leases()
            elif step == "again":  # as after an orderly restart
                host.tables[0].close()
                host.tables[0] = host.open()
            for _ in range(times if step in ("take", "give-back") else 0):
                if step == "give-back" and counted:
                    counted -= 1
                    reference.give_back()
                    host.tables[0].give_back([limit], call)
                elif step == "take":
                    wait = reference.take()
                    taken = host.tables[0].take([limit], call)
                    assert taken.is_allowed is not bool(wait)
                    assert taken.retry_after == (timedelta(microseconds=-(-wait // 1000)) if wait else None)
                    counted += taken.is_allowed
        host.clocks.nanoseconds += 10**15  # the buckets of this example are full again

    check()


def test_several_processes_never_admit_more_than_the_limit(tmp_path: Path) -> None:
    host, names = Host(tmp_path, 3), count()

    @given(limit=LIMITS, steps=STEPS)
    @settings(max_examples=300)
    def check(limit: RateLimit, steps: list[tuple[str, int, int, int]]) -> None:
        call = LimitKey(Principal(f"user:{next(names)}"), "tool", "catalogue")
        reference, counted = Bucket(limit.bucket, host.clocks), [0, 0, 0]
        for step, which, times, later in steps:
            host.clocks.nanoseconds += later
            if step == "idle":
                host.tables[which].return_idle_leases()
            elif step == "again":
                host.tables[which].close()
                host.tables[which] = host.open()
            for _ in range(times if step in ("take", "give-back") else 0):
                if step == "give-back" and counted[which]:
                    counted[which] -= 1
                    reference.give_back()
                    host.tables[which].give_back([limit], call)
                elif step == "take" and host.tables[which].take([limit], call).is_allowed:
                    assert not reference.take(), "more than the limit"
                    counted[which] += 1
        host.clocks.nanoseconds += 10**15

    check()


def test_most_calls_of_a_busy_caller_need_no_file(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.warm(HOURLY, 300)
    (tmp_path / "gateway.db-rates").write_bytes(b"")  # a table that cannot be read refuses every call that needs it

    taken: list[bool] = []
    with pytest.raises(StoreUnavailable):
        taken.extend(host.tables[0].take([HOURLY], ADA).is_allowed for _ in range(100))

    assert taken
    assert all(taken)


def test_rest_of_a_lease_is_returned_when_it_is_not_used(tmp_path: Path) -> None:
    host = Host(tmp_path, 2)
    host.warm(HOURLY, 500)
    early = host.allowed(HOURLY, 1000, table=1)
    host.clocks.advance(IDLE)
    host.tables[0].return_idle_leases()

    assert 400 <= early < 500
    assert early + host.allowed(HOURLY, 1000, table=1) == 500


async def test_process_that_makes_no_more_calls_returns_its_leases(tmp_path: Path) -> None:
    host = Host(tmp_path, 2)
    host.warm(HOURLY, 500)
    host.clocks.advance(IDLE)
    async with asyncio.timeout(5):
        while len(host.tables[0]._leases):
            await asyncio.sleep(0.01)

    assert host.allowed(HOURLY, 1000, table=1) == 500
    host.tables[0].close()
    host.tables[1].close()


def test_processes_that_share_a_bucket_lease_one_per_cent(tmp_path: Path) -> None:
    host = Host(tmp_path, 2)
    for _ in range(100):
        assert host.allowed(HOURLY, 1) + host.allowed(HOURLY, 1, table=1) == 2

    assert host.allowed(HOURLY, 1000) >= 790  # of 800


@pytest.mark.parametrize("limit", [1, 5, 19])
def test_small_limits_are_leased_call_by_call(tmp_path: Path, limit: int) -> None:
    host = Host(tmp_path, 2)

    assert host.allowed(rate(limit), limit - 1) == limit - 1
    assert host.allowed(rate(limit), 10, table=1) == 1


def test_killed_process_costs_its_lease_at_most(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.warm(HOURLY, 500)
    host.tables[0] = host.open()

    assert 400 <= host.allowed(HOURLY, 1000) <= 500


def test_refusal_holds_until_another_process_may_have_returned_its_lease(tmp_path: Path) -> None:
    host = Host(tmp_path, 2)
    host.warm(HOURLY, 500)
    host.allowed(HOURLY, 1000, table=1)
    host.tables[0].close()

    assert host.allowed(HOURLY, 1, table=1) == 0
    host.clocks.nanoseconds += BELIEVED_FOR
    assert host.allowed(HOURLY, 1, table=1) == 1


def test_rate_that_only_observes_refuses_nothing_from_memory(tmp_path: Path) -> None:
    host, observed = Host(tmp_path), rate(2, "observed", enforced=False)
    for _ in range(3):
        host.tables[0].take([HOURLY, observed], ADA)

    taken = host.tables[0].take([HOURLY, observed], ADA)

    assert taken.is_allowed
    assert ([each.limit for each in taken.observed], taken.taken) == ([observed], (HOURLY,))


def test_call_that_another_rate_refuses_uses_no_lease(tmp_path: Path) -> None:
    host, narrow = Host(tmp_path), rate(2, "narrow")
    taken = [host.tables[0].take([HOURLY, narrow], ADA).is_allowed for _ in range(50)]

    assert sum(taken) == 2
    assert host.allowed(HOURLY, 2000) == 998


def test_new_table_knows_no_leases(tmp_path: Path) -> None:
    host = Host(tmp_path, 2)
    host.warm(HOURLY, 500)
    (tmp_path / "gateway.db-rates").unlink()
    for each in host.tables:
        each._file.reopen_if_replaced()

    assert host.allowed(HOURLY, 500) == 500
    assert host.allowed(HOURLY, 1000, table=1) <= 500


def test_memory_of_leases_is_bounded(tmp_path: Path) -> None:
    host = Host(tmp_path, sets=1 << 10)
    host.warm(HOURLY, 500)
    for number in range(MOST_LEASES):
        host.tables[0].take([rate(2)], LimitKey(Principal(f"user:{number}"), "tool", "catalogue"))

    assert len(host.tables[0]._leases) <= MOST_LEASES
    host.tables[0] = host.open()
    assert host.allowed(HOURLY, 1000) == 500


def test_leases_of_a_table_that_cannot_be_written_run_out(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.warm(HOURLY, 500)
    host.clocks.advance(IDLE)
    (tmp_path / "gateway.db-rates").write_bytes(b"")

    host.tables[0].return_idle_leases()

    with pytest.raises(StoreUnavailable):
        host.allowed(HOURLY, 100)
    host.tables[0].close()
