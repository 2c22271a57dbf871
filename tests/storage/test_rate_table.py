"""The shared table of rates when it is full, damaged, lost or locked, and when its clock is set back."""

import fcntl
import os
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.errors import StoreUnavailable
from gateway.model.caller import Principal
from gateway.policy.limits import LimitKey, RateLimit
from gateway.storage.rate_table import SLOTS_PER_SET, RateTable
from tests.policy.limits.samples import ADA, SECOND, FakeClocks, rate

HOUR = timedelta(hours=1)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.db"
    path.touch()
    return path


def table(database: Path, clocks: FakeClocks, sets: int = 16) -> RateTable:
    return RateTable(database, clock=clocks.counter, sets=sets)


def caller(number: int) -> LimitKey:
    return ADA._replace(principal=Principal(f"user:{number}"))


def allowed(rates: RateTable, limit: RateLimit, calls: int = 10, call: LimitKey = ADA) -> int:
    return sum(rates.take([limit], call).is_allowed for _ in range(calls))


def test_two_openings_share_one_count(database: Path) -> None:
    clocks = FakeClocks()
    first, second = table(database, clocks), table(database, clocks)

    assert allowed(first, rate(5), 3) == 3
    assert allowed(second, rate(5)) == 2


def test_counts_outlive_the_process_that_made_them(database: Path) -> None:
    clocks = FakeClocks()
    first = table(database, clocks)
    allowed(first, rate(5), 3)
    first.close()

    assert allowed(table(database, clocks), rate(5)) == 2


def test_file_is_for_its_owner_alone(database: Path) -> None:
    table(database, FakeClocks())

    assert (database.parent / "gateway.db-rates").stat().st_mode & 0o777 == 0o600


def test_invented_callers_do_not_make_the_file_grow(database: Path) -> None:
    clocks, path = FakeClocks(), database.parent / "gateway.db-rates"
    rates = table(database, clocks, sets=4)
    size = path.stat().st_size
    for number in range(2000):
        clocks.advance(timedelta(milliseconds=20))
        assert rates.take([rate(3)], caller(number)).is_allowed

    assert path.stat().st_size == size


def test_full_set_refuses_until_a_place_is_free(database: Path) -> None:
    clocks = FakeClocks()
    rates = table(database, clocks, sets=1)
    for number in range(SLOTS_PER_SET):
        assert rates.take([rate(2)], caller(number)).is_allowed
        clocks.advance(timedelta(milliseconds=1))

    refused = rates.take([rate(2)], ADA)

    assert refused.retry_after == timedelta(milliseconds=500 - SLOTS_PER_SET)
    assert rates.take([rate(2)], caller(SLOTS_PER_SET - 1)).is_allowed
    clocks.advance(timedelta(milliseconds=500 - SLOTS_PER_SET))
    assert rates.take([rate(2)], ADA).is_allowed


def test_more_rates_than_places_are_refused(database: Path) -> None:
    rates = table(database, FakeClocks(), sets=1)

    refused = rates.take([rate(2, f"rule-{number}") for number in range(SLOTS_PER_SET + 1)], ADA)

    assert [each.limit.rule for each in refused.exceeded] == [f"rule-{SLOTS_PER_SET}"]
    assert rates.take([rate(2, f"rule-{number}") for number in range(SLOTS_PER_SET)], ADA).is_allowed


def test_each_file_spreads_callers_in_its_own_way(tmp_path: Path) -> None:
    contents = []
    for name in ("one.db", "two.db"):
        (tmp_path / name).touch()
        allowed(table(tmp_path / name, FakeClocks()), rate())
        contents.append((tmp_path / f"{name}-rates").read_bytes()[4096:])

    assert contents[0] != contents[1]


def test_clock_that_is_set_back_neither_grants_nor_blocks(database: Path) -> None:
    clocks = FakeClocks()
    rates, limit = table(database, clocks), rate(6, per=HOUR)
    assert allowed(rates, limit) == 6
    clocks.nanoseconds = 5 * SECOND  # as after a restart of the machine

    assert allowed(rates, limit) == 0
    clocks.advance(HOUR / 2)
    assert allowed(rates, limit) == 3


def test_clock_that_is_read_a_little_earlier_is_not_set_back(database: Path) -> None:
    clocks = FakeClocks()
    rates, limit = table(database, clocks), rate(6, per=HOUR)
    allowed(rates, limit, 6)
    clocks.nanoseconds -= SECOND // 2

    assert allowed(rates, limit) == 0
    clocks.nanoseconds += SECOND // 2
    clocks.advance(HOUR / 6)
    assert allowed(rates, limit) == 1


def test_giving_back_to_a_bucket_that_is_gone_changes_nothing(database: Path) -> None:
    rates = table(database, FakeClocks())

    rates.give_back([rate(2)], ADA)

    assert allowed(rates, rate(2)) == 2


def test_digest_across_two_places_is_not_taken_for_a_bucket(database: Path) -> None:
    rates = table(database, FakeClocks(), sets=1)
    allowed(rates, rate(2), 2)
    path = database.parent / "gateway.db-rates"
    content = bytearray(path.read_bytes())
    digest = content[4096 : 4096 + 16]
    content[4096 : 4096 + 48] = b"\0" * 8 + digest + b"\0" * 24
    path.write_bytes(content)

    assert allowed(rates, rate(2)) == 2


def test_table_that_was_removed_is_made_anew_by_all(database: Path) -> None:
    clocks = FakeClocks()
    first, second = table(database, clocks), table(database, clocks)
    (database.parent / "gateway.db-rates").unlink()
    first._file.reopen_if_replaced()
    second._file.reopen_if_replaced()

    assert allowed(first, rate(5), 3) == 3
    assert allowed(second, rate(5)) == 2


@pytest.mark.parametrize("left", [0, 30, 4200], ids=["nothing", "half-a-head", "half-a-table"])
def test_table_that_is_cut_short_refuses(database: Path, left: int) -> None:
    rates = table(database, FakeClocks())
    os.truncate(database.parent / "gateway.db-rates", left)

    with pytest.raises(StoreUnavailable, match="beside the database cannot be used: it is cut short"):
        rates.take([rate()], ADA)
    with pytest.raises(StoreUnavailable):
        rates.give_back([rate()], ADA) if left else rates.take([rate()], ADA)


@pytest.mark.parametrize("content", [b"something else of somebody else's", b"agwrate1" + b"s" * 100])
def test_file_of_another_layout_is_left_alone(database: Path, content: bytes) -> None:
    path = database.parent / "gateway.db-rates"
    path.write_bytes(content)

    with pytest.raises(StoreUnavailable, match="another layout") as caught:
        table(database, FakeClocks())

    assert caught.value.help == "remove it; a new one is made"
    assert path.read_bytes() == content


def test_half_made_table_is_finished_by_the_next(database: Path) -> None:
    (database.parent / "gateway.db-rates").write_bytes(b"\0" * 5000)

    assert allowed(table(database, FakeClocks()), rate(2)) == 2


@pytest.mark.parametrize("stands", ["folder", "link"])
def test_what_cannot_be_opened_is_reported(database: Path, stands: str) -> None:
    path = database.parent / "gateway.db-rates"
    path.mkdir() if stands == "folder" else path.symlink_to(database)

    with pytest.raises(StoreUnavailable, match="beside the database cannot be used"):
        table(database, FakeClocks())


def test_lock_that_is_never_released_refuses(database: Path) -> None:
    rates = table(database, FakeClocks())
    with (database.parent / "gateway.db-rates").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        with pytest.raises(StoreUnavailable, match="locked by a process that does not continue"):
            rates.take([rate()], ADA)
        with pytest.raises(StoreUnavailable, match="locked by a process that does not continue"):
            table(database, FakeClocks())

    assert allowed(rates, rate(2)) == 2


def test_disk_that_fails_refuses(database: Path) -> None:
    rates = table(database, FakeClocks())
    read_only = os.open(database.parent / "gateway.db-rates", os.O_RDONLY)
    os.dup2(read_only, rates._file.last)

    with pytest.raises(StoreUnavailable, match="cannot be used"):
        rates.take([rate()], ADA)
    os.close(read_only)


def test_disk_that_fails_gives_nothing_back(database: Path) -> None:
    rates = table(database, FakeClocks())
    rates.take([rate()], ADA)
    read_only = os.open(database.parent / "gateway.db-rates", os.O_RDONLY)
    os.dup2(read_only, rates._file.last)

    with pytest.raises(StoreUnavailable, match="cannot be used"):
        rates.give_back([rate()], ADA)
    os.close(read_only)


def test_closed_table_refuses(database: Path) -> None:
    rates = table(database, FakeClocks())
    rates.close()

    with pytest.raises(StoreUnavailable, match="the store is closed"):
        rates.take([rate()], ADA)
