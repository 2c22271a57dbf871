"""Single-call rows stay one row: found by their ids, listed with the others, and deleted when expired."""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from gateway.errors import RecordConflict
from gateway.model.caller import Principal
from gateway.storage.call_store import CallFilter, StoredCall, StoredResult
from gateway.storage.sql import call_statements as statements
from gateway.storage.sql.read_only.read_only_store import list_calls
from gateway.storage.sql.sqlite import single_call_table as finding_fresh
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from gateway.storage.sql.sqlite.single_call_conversion import SINGLE_CALL_INSERT, to_single_call_values
from gateway.storage.sql.sqlite.single_call_table import AT_ONCE, add_id_run, insert_single_calls, to_single_call_row
from gateway.storage.sql.sqlite.writer_client import WriterClient
from gateway.storage.sql.sqlite.writer_process import WriterJob, WriterProcess
from gateway.storage.sql.tables import calls, fresh
from tests.storage.sample_records import ADA, BOB, NOON, Clock, call, piece_key, settled, small, spooled, turn, turn_id

pytestmark = pytest.mark.anyio

LATER = NOON + timedelta(hours=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    store = await open_sqlite_store(path, clock=clock)
    yield store
    await store.close()


def large(number: int) -> StoredResult:
    return spooled(piece_key("f", number))


async def write_calls(store: SqliteStore, *some: StoredCall, run: bool = False) -> None:
    """Write single-call rows whose turns live for an hour; with `run`, write their ids as well."""
    of = [to_single_call_values(each, turn(each.turn_id, each.principal), process="p") for each in some]
    rows = [to_single_call_row(values) for values in of if values is not None]

    def write(connection: sqlite3.Connection) -> None:
        insert_single_calls(connection, SINGLE_CALL_INSERT, rows)
        if run:
            add_id_run(connection)

    await store.writer.run(write)


def column(path: Path, statement: str) -> list[object]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return [value for value, *_ in database.execute(statement)]


async def find_turn_id(store: SqliteStore, id: str, principal: Principal = ADA) -> str | None:
    found = await store.find_call(id, principal)
    return None if found is None else found.turn_id


async def test_call_is_found_by_its_id_in_every_run_and_after_the_last(store: SqliteStore, path: Path) -> None:
    ids = [f"c{Random(number).random()}" for number in range(90)]
    for start in (0, 30, 60):
        await write_calls(store, *(settled(ids[n], f"t{n}") for n in range(start, start + 30)), run=start < 60)

    assert [await find_turn_id(store, id) for id in ids[::7]] == [f"t{n}" for n in range(0, 90, 7)]
    assert await find_turn_id(store, "c") is None
    assert await find_turn_id(store, ids[0], BOB) is None
    assert column(path, "SELECT count(*) FROM fresh") == [90]  # reading changes nothing


@pytest.mark.parametrize("run", [True, False], ids=["in a run", "after the last"])
@pytest.mark.parametrize("together", [True, False])
async def test_of_calls_with_the_same_id_the_newest_is_found(store: SqliteStore, run: bool, together: bool) -> None:
    old, new = settled("c", "old"), settled("c", "new")
    if together:
        await write_calls(store, old, new, run=run)
    else:
        await write_calls(store, old, run=True)
        await write_calls(store, new, run=run)

    assert await find_turn_id(store, "c") == "new"
    await store.record_call(settled("c", "newest"), turn=turn("newest"))
    assert await find_turn_id(store, "c") == "newest"
    await write_calls(store, settled("c", "other", BOB), run=run)
    assert await find_turn_id(store, "c") == "newest"
    await write_calls(store, settled("c", "fresh"), run=run)
    assert await find_turn_id(store, "c") == "fresh"


@pytest.mark.parametrize("run", [True, False], ids=["in a run", "after the last"])
async def test_expired_call_is_not_found(store: SqliteStore, clock: Clock, run: bool) -> None:
    await write_calls(store, settled("c"), run=run)
    clock.advance(hours=2)

    assert await store.find_call("c", ADA) is None


async def test_calls_are_listed_in_the_order_they_were_written_in_wherever_they_are(
    store: SqliteStore, path: Path
) -> None:
    order: list[str] = []
    for number in range(40):
        id = f"c{number}"
        match number % 4:
            case 0:
                await write_calls(store, settled(id, f"t{number}"))
            case 1:
                await store.record_call(settled(id, f"t{number}"), turn=turn(f"t{number}"))
            case 2:
                await write_calls(store, settled(id, f"t{number}", BOB))
                await store.end_turn(f"t{number}", "ack", NOON, stash={})  # this expands it
            case 3:
                await store.record_single_call(settled(id, f"t{number}"), turn(f"t{number}"))
        order.insert(0, id)

    pages, cursor = [], None
    while True:
        page, cursor = await store.list_calls(CallFilter(), limit=7, before=cursor)
        pages += [each.id for each in page]
        if cursor is None:
            break
    of_bob, _ = await store.list_calls(CallFilter(tenant="acme", subject="user:bob"), limit=3)
    assert pages == order
    assert [each.id for each in of_bob] == ["c38", "c34", "c30"]
    assert [each.id for each in list_calls(path, CallFilter(), since=None, limit=9)] == order[:9]
    assert column(path, "SELECT count(*) FROM fresh") == [10]


async def test_same_turn_is_not_fresh_twice(store: SqliteStore) -> None:
    await write_calls(store, settled())

    with pytest.raises(sqlite3.IntegrityError):
        await write_calls(store, settled("another"))


async def test_expired_ones_are_forgotten_with_their_ids(store: SqliteStore, path: Path) -> None:
    for start in (0, 300):
        some = (settled(f"c{n}", turn_id(n), results=(small(n),)) for n in range(start, start + 300))
        await write_calls(store, *some, run=True)
    await write_calls(store, settled("running", "t"))
    await store.start_call(call("another", "t"))

    assert await store.prune(NOON) == 0
    assert await store.prune(LATER) == 1200
    assert column(path, "SELECT id FROM fresh UNION ALL SELECT id FROM fresh_ids") == []
    assert column(path, "SELECT id FROM calls ORDER BY number") == ["running", "another"]
    await write_calls(store, settled("c", "after"), run=True)
    assert await find_turn_id(store, "c") == "after"


async def test_runs_stay_as_long_as_one_of_their_calls_does(store: SqliteStore, path: Path) -> None:
    await write_calls(store, *(settled(f"a{n}", f"a{n}") for n in range(3)), run=True)
    await write_calls(store, settled("b0", "b0"), settled("b1", turn_id(1), results=(large(1),)), run=True)

    await store.prune(LATER)

    assert column(path, "SELECT id FROM fresh") == ["b1"]
    assert column(path, "SELECT id FROM fresh_ids") == ["b0", "b1"]
    assert await find_turn_id(store, "b1") == turn_id(1)


async def test_ids_go_with_their_calls_whatever_else_stays(store: SqliteStore, path: Path) -> None:
    long_lived = replace(turn("first"), expires=turn().expires * 2)
    values = to_single_call_values(settled("first", "first"), long_lived, process="p")
    assert values is not None
    await store.writer.run(
        lambda connection: insert_single_calls(connection, SINGLE_CALL_INSERT, [to_single_call_row(values)]) and None
    )
    for start in (1, 4):
        some = (settled(f"c{n}", turn_id(n), results=(large(n),)) for n in range(start, start + 3))
        await write_calls(store, *some, run=True)
    await write_calls(store, settled("c9", "c9"), run=True)

    await store.delete_results([each.key or "" for each in await store.list_expired_results(LATER, limit=10)])
    await store.prune(LATER)

    assert column(path, "SELECT id FROM fresh") == ["first"]
    assert column(path, "SELECT id FROM fresh_ids") == ["c1", "c2", "c3", "first"]  # one run of ids, which contains it
    await write_calls(store, settled("c", "after"), run=True)
    assert await find_turn_id(store, "first") == "first"
    assert await find_turn_id(store, "c") == "after"


async def test_fresh_calls_are_read_while_nothing_can_be_written(store: SqliteStore, path: Path) -> None:
    made = settled("c", turn_id(1), results=(small(1),))
    await write_calls(store, made, settled("expired", turn_id(2), results=(large(2),)), run=True)
    key = piece_key("s", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")

        found = await store.find_call("c", ADA)
        of_turn = await store.find_turn(turn_id(1), ADA)
        assert found == await store.find_call("c", ADA, turn_id=turn_id(1))
        assert found == (await store.list_turn_calls(turn_id(1)))[0]
        assert await store.read_turn_state(turn_id(1)) is None
        assert await store.find_blob(key) == b"abc"
        assert await store.find_last_blob(key[:-3]) == (key, b"abc")
        assert await store.filter_known_results([key]) == {key}
        assert [each.key for each in await store.list_expired_results(LATER, limit=10)] == [large(2).key]
        holder.execute("ROLLBACK")

    await store.engine.expand_single_calls()
    assert await store.find_call("c", ADA) == found
    assert await store.find_turn(turn_id(1), ADA) == of_turn == turn(turn_id(1))


async def test_more_single_calls_than_one_transaction_takes_are_all_expanded(store: SqliteStore, path: Path) -> None:
    await write_calls(store, *(settled("c", turn_id(number)) for number in range(AT_ONCE + 1)))

    await store.engine.expand_single_calls()

    assert column(path, "SELECT count(*) FROM fresh") == [0]
    assert column(path, "SELECT count(*) FROM calls") == [AT_ONCE + 1]


async def test_turn_of_a_fresh_call_is_not_opened_again(store: SqliteStore) -> None:
    await write_calls(store, settled())

    with pytest.raises(RecordConflict):
        await store.open_turn(turn(principal=BOB))
    assert await find_turn_id(store, "call") == "turn"


async def test_call_is_not_put_away_in_the_place_of_another(store: SqliteStore, path: Path) -> None:
    """Two calls with one number: the writer of one of them numbered differently."""
    await store.record_call(settled("c", "other"), turn=turn("other"))
    await write_calls(store, settled())
    await store.writer.run(lambda connection: connection.execute("UPDATE fresh SET number = 1") and None)

    with pytest.raises(sqlite3.IntegrityError):
        await store.engine.expand_single_calls()
    assert column(path, "SELECT id FROM fresh") == ["call"]
    assert await find_turn_id(store, "call") == "turn"


async def test_what_is_in_the_spool_is_reported_before_it_is_forgotten(store: SqliteStore, path: Path) -> None:
    await write_calls(
        store, *(settled(f"c{n}", turn_id(n), results=((large if n % 2 else small)(n),)) for n in range(10))
    )

    assert await store.list_expired_results(NOON, limit=10) == []
    expired = await store.list_expired_results(LATER, limit=3)
    assert [each.key for each in expired] == [large(n).key for n in (1, 3, 5)]
    await store.prune(LATER)
    assert column(path, "SELECT id FROM fresh ORDER BY id") == ["c1", "c3", "c5", "c7", "c9"]
    await store.delete_results([each.key or "" for each in expired])
    await store.prune(LATER)
    assert column(path, "SELECT id FROM fresh ORDER BY id") == ["c7", "c9"]
    keys = [each.key or "" for each in await store.list_expired_results(LATER, limit=10)]
    await store.delete_results(keys)
    await store.prune(LATER)
    assert column(path, "SELECT id FROM fresh UNION ALL SELECT id FROM calls") == []


async def test_pieces_of_fresh_calls_are_deleted(store: SqliteStore) -> None:
    await write_calls(
        store, settled(turn_id=turn_id(1), results=(small(1),)), settled("other", turn_id(2), results=(small(2),))
    )
    mine = piece_key("s", 1)

    assert await store.delete_blobs(mine[:-2])
    assert await store.find_blob(mine) is None
    assert not await store.delete_blobs(mine[:-2])
    assert await store.find_blob(piece_key("s", 2)) == b"abc"


def test_piece_that_does_not_lead_to_its_turn_is_not_left_fresh() -> None:
    assert (
        to_single_call_values(settled(turn_id=turn_id(2), results=(small(1),)), turn(turn_id(2)), process="p") is None
    )
    assert to_single_call_values(settled(turn_id="t", results=(large(1),)), turn("t"), process="p") is None
    assert (
        to_single_call_values(settled(turn_id=turn_id(1), results=(small(1),)), turn(turn_id(1)), process="p")
        is not None
    )


async def test_process_that_writes_adds_a_run_to_what_others_left_and_one_when_enough_has_come(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.storage.sql.sqlite.writer_process.ID_RUN_SIZE", 4)
    await write_calls(store, settled("left", "left"))
    recorder = WriterProcess(WriterClient(path, place=None, shard="shard")._order)
    counts = []
    for number in range(9):
        values = to_single_call_values(settled(f"c{number}", f"t{number}"), turn(f"t{number}"), process="p")
        assert values is not None
        assert recorder.write([WriterJob(number, values, None, (), ())])
        counts.append(column(path, "SELECT count(*) FROM fresh_ids")[0])
    recorder.close()

    assert counts == [2, 2, 2, 2, 6, 6, 6, 6, 10]


def statements_of(module: object) -> Iterator[str]:
    yield from (text for name, text in vars(module).items() if name.startswith("_") and isinstance(text, str))


async def test_nothing_is_looked_for_from_row_to_row(store: SqliteStore, path: Path) -> None:
    """Except where intended: among the rows that came since the last run of ids."""
    texts = [text for text in statements_of(finding_fresh) if text.lstrip().startswith(("SELECT", "WITH", "DELETE"))]
    paging = statements.call_list_statement(frozenset({"tenant"}), from_the_top=False, tables=(calls, fresh)).sql
    assert len(texts) >= 5
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        for text in (*texts, paging):
            plan = [how for *_, how in database.execute(f"EXPLAIN QUERY PLAN {text}", [None] * text.count("?"))]
            assert not [how for how in plan if "SCAN" in how and "runs" not in how and "CONSTANT" not in how], plan
            assert not [how for how in plan if "TEMP B-TREE" in how], plan


def without(results: Sequence[StoredResult]) -> list[StoredResult]:
    return [replace(each, content=None) for each in results]


async def test_listed_is_what_was_written(store: SqliteStore) -> None:
    made = settled("c", turn_id(1), results=(small(1),), because="so", trusted=True)
    await write_calls(store, made)

    [listed], _ = await store.list_calls(CallFilter(turn_id=turn_id(1)), limit=1)
    found = await store.find_call("c", ADA)

    assert listed == found
    assert list(listed.results) == without(made.results)
