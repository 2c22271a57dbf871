"""The kill switch: what it stops, in every process, from the moment the command returns."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic_ns

import anyio
import pytest

from gateway.app.status_report import stop_list_status
from gateway.errors import StoreUnavailable
from gateway.policy.stop_list import (
    CallQuarantined,
    InvalidQuarantine,
    QuarantineNotFound,
    Stop,
    StopChange,
    StopList,
    StopTarget,
)
from gateway.storage.cache_invalidation import FileChangeSignal
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.stop_list import SqlStopList
from tests.storage.sample_records import NOON, Clock
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

SEARCH = Stop(StopTarget("tool", "search"), "leaks data", "ops", NOON)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture(params=["sqlite"])
async def two(request: pytest.FixtureRequest, database: Path, clock: Clock) -> AsyncIterator[tuple[StopList, StopList]]:
    """Two openings of the same store, like those of two processes."""
    assert request.param == "sqlite"
    stores = [await open_sqlite_store(database) for _ in range(2)]
    notices = [FileChangeSignal(database) for _ in range(2)]
    first, second = (SqlStopList(store.writer, each, clock=clock) for store, each in zip(stores, notices, strict=True))
    yield first, second
    for quarantines, board, store in zip((first, second), notices, stores, strict=True):
        quarantines.close()
        board.close()
        await store.close()


def find_stop(
    quarantines: StopList, tool: str = "search", subject: str = "user:ada", upstream: str | None = None
) -> Stop | None:
    return quarantines.find_stop(tool=tool, subject=subject, upstream=upstream, is_consequential=True)


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("tool:search", {"tool": "search"}),
        ("principal:user:ada", {"subject": "user:ada"}),
        ("upstream:github", {"upstream": "github"}),
    ],
    ids=["tool", "principal", "upstream"],
)
async def test_what_is_quarantined_is_stopped_everywhere(
    two: tuple[StopList, StopList], target: str, asked: dict[str, str]
) -> None:
    here, there = two
    quarantine = replace(SEARCH, target=StopTarget.parse(target))
    others = {"tool": "other", "subject": "user:bob", "upstream": "other"}
    assert find_stop(there, **{**others, **asked}) is None

    await here.add(quarantine)

    assert find_stop(here, **{**others, **asked}) == quarantine
    assert find_stop(there, **{**others, **asked}) == quarantine
    assert find_stop(there, **others) is None


async def test_upstream_without_a_name_is_not_one_that_is_called_none(
    two: tuple[StopList, StopList],
) -> None:
    await two[0].add(replace(SEARCH, target=StopTarget("upstream", "None")))

    assert find_stop(two[0], upstream=None) is None


async def test_lifted_quarantine_stops_no_call(two: tuple[StopList, StopList]) -> None:
    here, there = two
    await here.add(SEARCH)

    change = await there.lift(SEARCH.target, reason="fixed", by="ana")

    assert change == StopChange("lift", SEARCH, "fixed", "ana", NOON)
    assert find_stop(here) is None
    assert find_stop(there) is None


async def test_quarantine_ends_by_the_clock(two: tuple[StopList, StopList], clock: Clock) -> None:
    here, there = two
    await here.add(replace(SEARCH, until=NOON + timedelta(hours=2)))

    clock.advance(hours=2, microseconds=-1)
    assert find_stop(there) is not None
    assert len(await there.list_stops()) == 1
    clock.advance(microseconds=1)
    assert find_stop(there) is None
    assert await there.list_stops() == []
    with pytest.raises(QuarantineNotFound):
        await there.lift(SEARCH.target, reason="over", by="ana")


async def test_newer_quarantine_takes_the_place_of_the_older(two: tuple[StopList, StopList]) -> None:
    here, there = two
    await here.add(replace(SEARCH, until=NOON + timedelta(hours=2)))
    newer = replace(SEARCH, reason="still leaks", since=NOON + timedelta(minutes=1))

    await there.add(newer)

    assert await here.list_stops() == [newer]


async def test_listing_is_oldest_first(two: tuple[StopList, StopList], clock: Clock) -> None:
    later = Stop(StopTarget("tool", "another"), "slow", "ops", NOON + timedelta(minutes=1))
    over = Stop(StopTarget("tool", "over"), "slow", "ops", NOON - timedelta(hours=2), NOON)
    for each in (over, later, SEARCH):
        await two[0].add(each)

    assert await two[1].list_stops() == [SEARCH, later]
    assert SEARCH.to_dict() == {
        "target": "tool:search",
        "reason": "leaks data",
        "by": "ops",
        "since": "2026-05-01T12:00:00Z",
        "until": None,
    }
    assert over.to_dict()["until"] == "2026-05-01T12:00:00Z"


async def test_what_is_not_quarantined_cannot_be_lifted(two: tuple[StopList, StopList]) -> None:
    with pytest.raises(QuarantineNotFound, match="tool:search is not quarantined"):
        await two[0].lift(SEARCH.target, reason="fixed", by="ana")


async def test_change_and_its_audit_are_written_together(two: tuple[StopList, StopList], database: Path) -> None:
    seen: list[StopChange] = []

    def also(connection: sqlite3.Connection, change: StopChange) -> None:
        assert connection.in_transaction
        seen.append(change)

    added = await two[0].add(SEARCH, also=also)
    lifted = await two[0].lift(SEARCH.target, reason="fixed", by="ana", also=also)

    assert seen == [added, lifted]
    assert added == StopChange("add", SEARCH, "leaks data", "ops", NOON)


async def test_change_without_its_audit_is_not_made(two: tuple[StopList, StopList]) -> None:
    def fail(connection: sqlite3.Connection, change: StopChange) -> None:
        raise RuntimeError("no audit")

    with pytest.raises(RuntimeError, match="no audit"):
        await two[0].add(SEARCH, also=fail)
    assert find_stop(two[1]) is None
    await two[0].add(SEARCH)
    with pytest.raises(RuntimeError, match="no audit"):
        await two[0].lift(SEARCH.target, reason="fixed", by="ana", also=fail)
    assert find_stop(two[1]) == SEARCH


async def test_quarantine_is_there_after_a_restart(two: tuple[StopList, StopList], database: Path) -> None:
    await two[0].add(SEARCH)

    store, notices = await open_sqlite_store(database), FileChangeSignal(database)
    again = SqlStopList(store.writer, notices, clock=Clock())

    assert find_stop(again) == SEARCH
    again.close()
    notices.close()
    await store.close()


async def test_notices_that_were_removed_are_found_again(two: tuple[StopList, StopList], database: Path) -> None:
    here, there = two
    assert find_stop(there) is None
    database.with_name("gateway.db-notices").unlink()

    await here.add(SEARCH)

    assert find_stop(there) == SEARCH


@pytest.mark.parametrize("damage", ["short", "folder"])
async def test_notices_that_cannot_be_read_stop_what_is_consequential(
    two: tuple[StopList, StopList], database: Path, damage: str
) -> None:
    here, there = two
    await here.add(SEARCH)
    assert find_stop(there) == SEARCH
    path = database.with_name("gateway.db-notices")
    if damage == "short":
        os.truncate(path, 3)
    else:
        path.unlink()
        path.mkdir()
    await until_unknown(there)

    with pytest.raises(StoreUnavailable, match="-notices beside the database cannot be used"):
        find_stop(there, tool="other")

    assert there.problem is not None
    assert there.find_stop(tool="other", subject="user:ada", is_consequential=False) is None
    assert there.find_stop(tool="search", subject="user:ada", is_consequential=False) == SEARCH


async def test_change_that_cannot_be_announced_is_reported(two: tuple[StopList, StopList], database: Path) -> None:
    path = database.with_name("gateway.db-notices")
    path.unlink()
    path.mkdir()

    with pytest.raises(StoreUnavailable, match="the change is stored, but"):
        await two[0].add(SEARCH)

    path.rmdir()
    assert find_stop(two[0]) == SEARCH


async def until_unknown(quarantines: StopList) -> None:
    """Wait until files are checked again, which does not happen on every call."""
    with anyio.fail_after(5):
        while quarantines.problem is None:
            quarantines.find_stop(tool="other", subject="user:ada", is_consequential=False)
            await anyio.sleep(0)


async def test_store_that_cannot_be_read_stops_what_is_consequential(
    two: tuple[StopList, StopList], database: Path
) -> None:
    _, there = two
    assert find_stop(there) is None
    database.rename(database.with_name("moved.db"))
    await FileChangeSignal(database.with_name("moved.db")).publish()
    database.with_name("moved.db-notices").rename(database.with_name("gateway.db-notices"))
    await until_unknown(there)

    with pytest.raises(StoreUnavailable):
        find_stop(there)

    assert there.problem is not None
    database.with_name("moved.db").rename(database)
    assert find_stop(there) is None
    assert there.problem is None


async def test_row_that_cannot_be_understood_stops_what_is_consequential(
    two: tuple[StopList, StopList], database: Path
) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO quarantines VALUES ('nonsense', 'because', 'somebody', 0, NULL)")

    with pytest.raises(StoreUnavailable, match="what this version cannot read"):
        find_stop(two[0])
    connection.close()


async def test_store_without_the_table_stops_what_is_consequential(
    two: tuple[StopList, StopList], database: Path
) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("DROP TABLE quarantines")

    with pytest.raises(StoreUnavailable, match="what this version cannot read"):
        find_stop(two[0])
    connection.close()


async def test_status_lists_what_is_stopped(two: tuple[StopList, StopList], database: Path) -> None:
    await two[0].add(SEARCH)

    assert await stop_list_status(two[1]) == {"quarantines": [SEARCH.to_dict()], "problem": None}
    path = database.with_name("gateway.db-notices")
    path.unlink()
    path.mkdir()
    await until_unknown(two[1])
    status = await stop_list_status(two[1])
    assert status["quarantines"] is None
    assert "cannot be used" in status["problem"]


async def test_clock_that_ran_ahead_has_lifted_nothing(two: tuple[StopList, StopList], clock: Clock) -> None:
    await two[0].add(replace(SEARCH, until=NOON + timedelta(hours=2)))
    clock.advance(days=1)
    await two[0].add(replace(SEARCH, target=StopTarget("tool", "other")))
    assert find_stop(two[1]) is None

    clock.now = NOON

    assert find_stop(two[1]) is not None


async def test_what_is_long_over_is_forgotten(two: tuple[StopList, StopList], clock: Clock) -> None:
    await two[0].add(replace(SEARCH, until=NOON + timedelta(hours=2)))
    clock.advance(days=31)
    await two[0].add(replace(SEARCH, target=StopTarget("tool", "other")))

    clock.now = NOON

    assert find_stop(two[1]) is None


# Messages


@pytest.mark.parametrize(
    "text",
    [
        *("", "search", "tool:", "tool:a b", "tool:a*", "class:x", "principal:ada", "principal:role:admin", "tool:a\n"),
        *(
            "upstream:é",
            "upstream:" + "x" * 129,
            "tool:" + "x" * 258,
            "TOOL:search",
            " tool:search",
            "tool:\ud800",
            "tool:\0",
        ),
    ],
)
def test_malformed_target_is_refused_with_help(text: str) -> None:
    with pytest.raises(InvalidQuarantine, match="is not a tool, upstream or principal to quarantine") as caught:
        StopTarget.parse(text)

    assert "write tool:NAME, upstream:NAME" in (caught.value.help or "")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["tool:ticket_create", "tool:github." + "x" * 128, "upstream:git-hub.2", "principal:user:ana@example.com"],
    ids=["tool", "imported-tool", "upstream", "principal"],
)
def test_target_reads_as_it_was_written(text: str) -> None:
    assert str(StopTarget.parse(text)) == text


@pytest.mark.parametrize("words", ["", "  ", "two\nlines", "\x1b[31m", "x" * 1001, "\ud800"])
def test_reason_that_is_no_line_of_text_is_refused(words: str) -> None:
    with pytest.raises(InvalidQuarantine, match="not one line of text"):
        replace(SEARCH, reason=words)
    with pytest.raises(InvalidQuarantine, match="not one line of text"):
        replace(SEARCH, by=words)


async def test_quarantine_is_not_lifted_without_a_reason(two: tuple[StopList, StopList]) -> None:
    await two[0].add(SEARCH)

    with pytest.raises(InvalidQuarantine):
        await two[0].lift(SEARCH.target, reason=" ", by="ana")


def test_quarantine_ends_after_it_begins() -> None:
    with pytest.raises(InvalidQuarantine, match="end before it begins"):
        replace(SEARCH, until=NOON)


@pytest.mark.parametrize(
    ("until", "expected"),
    [(None, ""), (NOON + timedelta(hours=1), " until 2026-05-01T13:00:00Z")],
    ids=["for-good", "for-a-while"],
)
def test_caller_does_not_learn_why(until: datetime | None, expected: str) -> None:
    error = CallQuarantined(replace(SEARCH, until=until))

    assert (error.message, error.code, error.status) == (f"the tool is quarantined{expected}", "E_QUARANTINED", 403)


# Processes


@pytest.fixture
def workers(database: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    async def make() -> None:
        await (await open_sqlite_store(database)).close()

    asyncio.run(make())
    command = [sys.executable, str(ROOT / "tests" / "storage" / "stop_list_worker.py"), str(database)]
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)) for _ in range(2)]
        try:
            for worker in started:
                assert read_line(worker) == "ready"
            yield started
        finally:
            for worker in started:
                worker.kill()


def read_line(worker: "subprocess.Popen[str]") -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def ask(worker: "subprocess.Popen[str]", times: int) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{times}\n")
    worker.stdin.flush()
    assert read_line(worker) == "asking"


def test_no_call_passes_in_any_process_after_the_command_returned(
    workers: list["subprocess.Popen[str]"], database: Path
) -> None:
    async def change(number: int) -> int:
        store, notices = await open_sqlite_store(database), FileChangeSignal(database)
        quarantines = SqlStopList(store.writer, notices, clock=Clock())
        if number % 2:
            await quarantines.lift(SEARCH.target, reason="fixed", by="ops")
        else:
            await quarantines.add(SEARCH)
        returned = monotonic_ns()
        quarantines.close()
        notices.close()
        await store.close()
        return returned

    asked = 0
    for number in range(5):
        for worker in workers:
            ask(worker, 12_000)
        returned = asyncio.run(change(number))
        for worker in workers:
            last, changed = map(int, read_line(worker).split())
            assert 0 < last < returned
            asked += changed

    assert asked > 100_000
