"""The contract of every store, whatever its engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import pytest

from gateway.errors import RecordConflict, StoreUnavailable
from gateway.model.caller import Principal
from gateway.policy.rules.turn_state import CallBounds, Taint, TurnState
from gateway.storage.call_store import CallFilter, CallStore, StoredCall, StoredResult
from gateway.storage.sql.postgres.engine import open_postgres_store
from gateway.storage.sql.sqlite.engine import open_sqlite_store
from gateway.storage.sql.store import SqlStore
from tests.storage.sample_records import ADA, BOB, NOON, OTHER_ADA, Clock, call, settled, spooled, turn
from tests.support.ready_databases import put_ready_database

pytestmark = pytest.mark.anyio

Opening = Callable[[], Awaitable[CallStore]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def opening(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Opening:
    """Opens the same store again, as another process would."""
    match request.param:
        case "sqlite":
            path = put_ready_database(tmp_path / "gateway.db")
            return lambda: open_sqlite_store(path, clock=clock)
        case "postgres":
            address = request.getfixturevalue("new_database")()
            return lambda: open_postgres_store(address, clock=clock)
    raise AssertionError(request.param)


@pytest.fixture
async def store(opening: Opening) -> AsyncIterator[CallStore]:
    store = await opening()
    yield store
    await store.close()


async def ids(store: CallStore, **filter: str) -> list[str]:
    found, _ = await store.list_calls(CallFilter(**filter), limit=100)  # type: ignore[arg-type] # names and strings
    return [call.id for call in found]


# Turn state


async def test_call_is_reserved_as_often_as_there_is_room(opening: Opening) -> None:
    one, other = await opening(), await opening()
    assert isinstance(one, SqlStore)
    assert isinstance(other, SqlStore)
    await one.open_turn(turn())

    both = [one, other] * 20
    made = await asyncio.gather(*(each.reserve_call("turn", "same", bounds=CallBounds(same=7)) for each in both))
    more = [await each.reserve_call("turn", "more", bounds=CallBounds(calls=9)) for each in both[:4]]
    memory = await one.read_turn_state("turn")
    await one.close()
    await other.close()

    assert sum(each.is_made for each in made) == 7
    assert [each.is_made for each in more] == [True, True, False, False]
    assert memory == more[-1].memory
    assert memory is not None
    assert (TurnState.from_json(memory).count_calls("same"), TurnState.from_json(memory).calls) == (7, 9)


async def test_reservation_of_a_caller_who_went_away_is_taken_back(opening: Opening) -> None:
    store = await opening()
    assert isinstance(store, SqlStore)
    await store.open_turn(turn())
    waiting = [asyncio.create_task(store.reserve_call("turn", "same", bounds=CallBounds(same=1))) for _ in range(2)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)

    again = await store.reserve_call("turn", "same", bounds=CallBounds(same=1))
    await store.close()

    assert again.is_made


async def test_nothing_is_reserved_in_a_turn_that_is_not_kept(opening: Opening) -> None:
    store = await opening()
    assert isinstance(store, SqlStore)
    with pytest.raises(RecordConflict):
        await store.reserve_call("gone", "same", bounds=CallBounds())
    assert await store.read_turn_state("gone") is None
    await store.close()


# Turns


async def test_turn_is_found_as_it_was_opened(store: CallStore) -> None:
    opened = turn(stash={"deep": {"list": [1, 2.5, None, "é"]}})

    await store.open_turn(opened)

    assert await store.find_turn("turn", ADA) == opened


@pytest.mark.parametrize(
    "stranger",
    [BOB, OTHER_ADA, replace(ADA, tenant=None), replace(ADA, tenant=""), Principal('acme","user:ada')],
    ids=["same-tenant", "same-subject", "no-tenant", "empty-tenant", "quoting"],
)
async def test_turn_of_another_principal_is_not_found(store: CallStore, stranger: Principal) -> None:
    await store.record_call(settled(), turn=turn())

    assert await store.find_turn("turn", stranger) is None
    assert await store.find_call("call", stranger) is None
    assert await store.find_call("call", stranger, turn_id="turn") is None


async def test_roles_do_not_matter_for_finding(store: CallStore) -> None:
    await store.record_call(settled(), turn=turn())

    promoted = replace(ADA, roles=frozenset({"role:admin"}))
    assert await store.find_turn("turn", promoted) is not None
    assert await store.find_call("call", promoted) is not None


async def test_turn_is_gone_at_the_moment_it_expires(store: CallStore, clock: Clock) -> None:
    await store.record_call(settled(), turn=turn())

    clock.advance(hours=1, microseconds=-1)
    assert await store.find_turn("turn", ADA) is not None
    assert await store.find_call("call", ADA) is not None

    clock.advance(microseconds=1)
    assert await store.find_turn("turn", ADA) is None
    assert await store.find_call("call", ADA) is None


async def test_ended_turn_is_found_with_its_ending(store: CallStore) -> None:
    await store.open_turn(turn())

    await store.end_turn("turn", "nack", NOON + timedelta(minutes=1), stash={"left": 1})

    ended = turn(ended_at=NOON + timedelta(minutes=1), ending="nack", stash={"left": 1})
    assert await store.find_turn("turn", ADA) == ended


async def test_turn_ends_once(store: CallStore) -> None:
    await store.open_turn(turn())
    await store.end_turn("turn", "ack", NOON, stash={})

    with pytest.raises(RecordConflict):
        await store.end_turn("turn", "abort", NOON, stash={})
    with pytest.raises(RecordConflict):
        await store.end_turn("unknown", "ack", NOON, stash={})


async def test_id_of_a_turn_is_not_given_twice(store: CallStore) -> None:
    await store.open_turn(turn())

    with pytest.raises(RecordConflict):
        await store.open_turn(turn(principal=BOB))

    assert await store.find_turn("turn", BOB) is None


# Calls


async def test_settled_call_is_found_as_it_was_written(store: CallStore) -> None:
    written = settled(
        args={"text": "a\x00b\ud800", "n": [1, -0.5, True, None]},
        because="rule 'weekend'",
        definition="sha256:1",
        is_error=True,
        inline=False,
        trusted=True,
        from_artifact_tool=True,
        idempotency_key="key",
        results=(
            StoredResult("text", text="hello"),
            StoredResult("artifact", key="k", type="json", byte_length=9, details={"options": {"a": [1]}}),
        ),
    )

    await store.record_call(written, turn=turn())

    assert await store.find_call("call", ADA) == written
    assert await store.find_call("call", ADA, turn_id="turn") == written
    assert await store.find_call("call", ADA, turn_id="another") is None


async def test_views_of_mappings_are_stored_as_objects(store: CallStore) -> None:
    args = MappingProxyType({"inner": MappingProxyType({"list": (1, 2)})})

    results = [StoredResult("text", text="t", details=args)]
    await store.record_call(replace(settled(), args=args, results=results), turn=turn())

    found = await store.find_call("call", ADA)
    assert found is not None
    assert found.args == found.results[0].details == {"inner": {"list": [1, 2]}}


async def test_long_integers_are_kept_to_the_last_digit(store: CallStore) -> None:
    args = {"z": 2**53 + 1, "id": -(2**63), "list": [10**30 + 7], "text": "9" * 40, "é": 0.1}

    await store.record_call(settled(args=args), turn=turn())

    found = await store.find_call("call", ADA)
    assert found is not None
    assert found.args == args


async def test_started_call_is_found_and_not_among_the_settled(store: CallStore) -> None:
    await store.start_call(call(), turn=turn())

    assert await store.find_call("call", ADA) == call()
    assert await store.list_turn_calls("turn") == []
    assert await ids(store, status="started") == ["call"]


async def test_settling_keeps_what_was_asked(store: CallStore) -> None:
    await store.start_call(call(args={"asked": 1}), turn=turn())

    await store.record_call(settled(args={"asked": 2}, because="b", results=(StoredResult("text", text="t"),)))

    found = await store.find_call("call", ADA)
    assert found is not None
    assert (found.args, found.status, found.because, found.results[0].text) == ({"asked": 1}, "settled", "b", "t")


async def test_call_starts_once_and_settles_once(store: CallStore) -> None:
    await store.start_call(call(), turn=turn())
    with pytest.raises(RecordConflict):
        await store.start_call(call())

    await store.record_call(settled(because="first"))
    with pytest.raises(RecordConflict):
        await store.record_call(settled(because="second"))
    with pytest.raises(RecordConflict):
        await store.start_call(call())

    found = await store.find_call("call", ADA)
    assert found is not None
    assert found.because == "first"
    assert await ids(store) == ["call"]


async def test_call_needs_a_turn_of_its_principal(store: CallStore) -> None:
    await store.open_turn(turn())

    for write in (store.start_call, store.record_call):
        with pytest.raises(RecordConflict):
            await write(settled(principal=BOB))
        with pytest.raises(RecordConflict):
            await write(settled(turn_id="unknown"))
        with pytest.raises(RecordConflict):
            await write(settled(principal=BOB), turn=turn(principal=BOB))

    assert await ids(store) == []


async def test_started_call_is_not_settled_by_another_principal(store: CallStore) -> None:
    await store.start_call(call(), turn=turn())

    with pytest.raises(RecordConflict):
        await store.record_call(settled(principal=BOB))

    assert await store.find_call("call", ADA) == call()


async def test_turn_is_not_stored_when_its_call_is_refused(store: CallStore) -> None:
    with pytest.raises(RecordConflict):
        await store.record_call(settled(turn_id="elsewhere"), turn=turn("new"))

    assert await store.find_turn("new", ADA) is None


async def test_turn_given_again_with_a_call_stays_as_it_was(store: CallStore) -> None:
    await store.record_call(settled("a"), turn=turn(stash={"n": 1}))

    await store.record_call(settled("b"), turn=turn(stash={"n": 2}))

    assert await store.find_turn("turn", ADA) == turn(stash={"n": 1})


async def test_calls_of_a_turn_come_in_the_order_they_settled(store: CallStore) -> None:
    await store.start_call(call("slow"), turn=turn())
    await store.record_call(settled("other", "another"), turn=turn("another"))
    await store.record_call(settled("quick"))
    await store.record_call(settled("slow"))
    await store.record_call(settled("last"))

    assert [found.id for found in await store.list_turn_calls("turn")] == ["quick", "slow", "last"]


async def test_newest_call_of_an_id_is_found(store: CallStore) -> None:
    await store.record_call(settled(because="old"), turn=turn())
    await store.record_call(settled(turn_id="later", because="new"), turn=turn("later"))

    found = await store.find_call("call", ADA)
    assert found is not None
    assert found.because == "new"


@pytest.mark.parametrize("id", ["", "\x00", "\ud800", "x" * 100_000, "' OR 1=1 --", "../..", "%"])
async def test_strange_ids_find_nothing(store: CallStore, id: str) -> None:
    await store.record_call(settled(), turn=turn())

    assert await store.find_turn(id, ADA) is None
    assert await store.find_call(id, ADA) is None
    assert await store.find_call("call", ADA, turn_id=id or "-") is None
    assert await store.list_turn_calls(id) == []
    assert await ids(store, tenant=id) == []


async def test_what_cannot_be_written_is_refused_and_what_describes_is_mended(store: CallStore) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        await store.record_call(settled("\ud800"), turn=turn())
    with pytest.raises(ValueError, match="surrogate"):
        await store.open_turn(turn(principal=Principal("user:\ud800")))
    with pytest.raises(TypeError):
        await store.record_call(replace(settled(), args={"n": object()}))

    await store.record_call(replace(settled(), tool="a\ud800b", because="\udfff"), turn=turn())

    found = await store.find_call("call", ADA)
    assert found is not None
    assert (found.tool, found.because) == ("a\ufffdb", "\ufffd")


# Listing


async def test_pages_are_newest_first_and_complete(store: CallStore) -> None:
    await store.open_turn(turn())
    for n in range(7):
        await store.record_call(settled(f"c{n}"))

    first, cursor = await store.list_calls(CallFilter(), limit=3)
    await store.record_call(settled("newer"))
    second, cursor = await store.list_calls(CallFilter(), limit=3, before=cursor)
    third, end = await store.list_calls(CallFilter(), limit=3, before=cursor)

    assert [found.id for found in (*first, *second, *third)] == ["c6", "c5", "c4", "c3", "c2", "c1", "c0"]
    assert end is None


async def test_call_that_settles_between_two_pages_is_not_missed(store: CallStore) -> None:
    await store.start_call(call("old"), turn=turn())
    await store.record_call(settled("new"))

    _, cursor = await store.list_calls(CallFilter(), limit=1)
    await store.record_call(settled("old"))
    page, _ = await store.list_calls(CallFilter(), limit=1, before=cursor)

    assert [found.id for found in page] == ["old"]


async def test_last_page_that_is_full_ends_without_a_cursor(store: CallStore) -> None:
    await store.record_call(settled("a"), turn=turn())
    await store.record_call(settled("b"))

    page, cursor = await store.list_calls(CallFilter(), limit=2)

    assert len(page) == 2
    assert cursor is None


async def test_filters_narrow_and_add_up(store: CallStore) -> None:
    await store.record_call(settled("ada"), turn=turn())
    await store.record_call(settled("bob", "b", BOB, tool="wiki"), turn=turn("b", BOB))
    await store.record_call(settled("other", "o", OTHER_ADA, catalogue="ops"), turn=turn("o", OTHER_ADA))
    await store.start_call(call("running"))

    assert await ids(store, tenant="acme") == ["running", "bob", "ada"]
    assert await ids(store, tenant="umbrella") == ["other"]
    assert await ids(store, tenant="acme", subject="user:ada") == ["running", "ada"]
    assert await ids(store, turn_id="b") == ["bob"]
    assert await ids(store, catalogue="ops") == ["other"]
    assert await ids(store, tool="wiki") == ["bob"]
    assert await ids(store, status="settled", tenant="acme") == ["bob", "ada"]
    assert await ids(store, tenant="acme", catalogue="ops") == []


async def test_filters_find_what_was_decided_by_what_and_in_which_trace(store: CallStore) -> None:
    denied = replace(settled("denied"), decision="deny", because="limit_100% at gates.yaml:2", trace_id="ab" * 16)
    await store.record_call(denied, turn=turn())
    await store.record_call(replace(settled("allowed"), decision="allow", because="role:x at policy.csv:2"))
    await store.record_single_call(
        replace(settled("single"), turn_id="own", decision="hold", because=None), turn("own")
    )

    assert await ids(store, decision="deny") == ["denied"]
    assert await ids(store, decision="hold") == ["single"]
    assert await ids(store, trace_id="ab" * 16) == ["denied"]
    assert await ids(store, rule="limit_100%") == ["denied"]
    assert await ids(store, rule=":2") == ["allowed", "denied"]
    assert [await ids(store, rule=text) for text in ("limit?100", "limit%100", "_:", "\\", "'")] == [[]] * 5
    assert await ids(store, rule="limit", decision="allow") == []


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.0", "٣", "9" * 40, "1 OR 1", "\ud800"])
async def test_cursor_that_is_none_is_refused(store: CallStore, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await store.list_calls(CallFilter(), limit=1, before=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1_000_000])
async def test_page_size_is_bounded(store: CallStore, limit: int) -> None:
    with pytest.raises(ValueError, match="page"):
        await store.list_calls(CallFilter(), limit=limit)


async def test_two_processes_do_not_make_a_turn_forget(store: CallStore) -> None:
    def saw(flag: str) -> bytes:
        memory = TurnState()
        memory.record_call(Taint("tool", (flag,), "tier"), "allow", at=NOON)
        return memory.to_json()

    await store.open_turn(turn())
    await store.record_call(settled("a"), memory=saw("first"))
    await store.record_call(settled("b"), memory=saw("second"), knowing=None)
    found = await store.find_turn("turn", ADA)

    assert found is not None
    assert found.memory is not None
    both = TurnState.from_json(found.memory)
    await store.record_call(settled("c"), memory=saw("third"), knowing=found.memory)
    last = await store.find_turn("turn", ADA)

    assert both.flags == {"first", "second"}
    assert last is not None
    assert last.memory == saw("third")


# Idempotency keys


async def claim_key(
    store: CallStore, id: str, *, digest: str = "d", principal: Principal = ADA, hours: float = 24
) -> str:
    name = f"turn-{id}"
    claim = await store.claim_idempotency_key(
        "key",
        principal,
        digest=digest,
        call=call(id, name, principal, idempotency_key="key"),
        until=NOON + timedelta(hours=hours),
        turn=turn(name, principal),
    )
    return claim.state


async def test_claim_goes_from_fresh_over_running_to_settled(store: CallStore) -> None:
    assert await claim_key(store, "a") == "fresh"
    assert await claim_key(store, "b") == "running"

    outcome = settled("a", "turn-a", idempotency_key="key", results=(StoredResult("text", text="done"),))
    await store.record_call(outcome)
    again = await store.claim_idempotency_key("key", ADA, digest="d", call=call("c"), until=NOON)

    assert again.state == "settled"
    assert again.call == outcome
    assert await ids(store) == ["a"]


@pytest.mark.parametrize("decision", ["hold", "deny"])
async def test_key_of_a_call_that_did_not_run_is_free(decision: str, store: CallStore) -> None:
    await claim_key(store, "a")
    await store.record_call(settled("a", "turn-a", idempotency_key="key", decision=decision, is_error=True))

    assert await claim_key(store, "b", digest="other") == "taken"
    assert await claim_key(store, "b") == "fresh"
    assert await claim_key(store, "c") == "running"


async def test_fresh_claim_writes_the_start_of_the_call(store: CallStore) -> None:
    await claim_key(store, "a")

    found = await store.find_call("a", ADA)
    assert found is not None
    assert found.status == "started"


async def test_key_of_another_call_is_taken(store: CallStore) -> None:
    await claim_key(store, "a")

    assert await claim_key(store, "b", digest="other") == "taken"
    assert await store.find_turn("turn-b", ADA) is None


async def test_keys_of_two_principals_have_nothing_in_common(store: CallStore) -> None:
    assert await claim_key(store, "a") == "fresh"
    assert await claim_key(store, "b", principal=BOB) == "fresh"
    assert await claim_key(store, "c", principal=OTHER_ADA) == "fresh"


async def test_key_can_be_taken_again_when_its_time_is_over(store: CallStore, clock: Clock) -> None:
    await claim_key(store, "a", hours=1)
    clock.advance(hours=1)

    assert await claim_key(store, "b", hours=2, digest="other") == "fresh"
    assert await claim_key(store, "c", hours=2) == "taken"


async def test_claim_in_an_unknown_turn_leaves_the_key_free(store: CallStore) -> None:
    with pytest.raises(RecordConflict):
        await store.claim_idempotency_key(
            "key", ADA, digest="d", call=call(turn_id="unknown"), until=NOON + timedelta(hours=1)
        )

    assert await claim_key(store, "a") == "fresh"


async def test_one_of_many_concurrent_claims_is_fresh(opening: Opening) -> None:
    stores = [await opening() for _ in range(3)]

    states = await asyncio.gather(*(claim_key(stores[n % 3], f"c{n}") for n in range(60)))

    assert sorted(states) == ["fresh"] + ["running"] * 59
    for store in stores:
        await store.close()


# Recovery


async def test_only_calls_of_closed_stores_become_unknown(opening: Opening) -> None:
    gone, alive, recovering = [await opening() for _ in range(3)]
    await gone.start_call(call("lost"), turn=turn())
    await gone.record_call(settled("done"))
    await alive.start_call(call("running"))
    await recovering.start_call(call("own"))
    await gone.close()

    later = NOON + timedelta(minutes=5)
    assert await recovering.close_interrupted_calls(later) == 1
    assert await recovering.close_interrupted_calls(later) == 0

    assert await recovering.find_call("lost", ADA) == call("lost", status="unknown", completed_at=later)
    assert await ids(recovering, status="started") == ["own", "running"]
    assert await ids(recovering, status="settled") == ["done"]
    await alive.record_call(settled("running"))
    await alive.close()
    await recovering.close()


async def test_outcome_that_is_unknown_stays_unknown(opening: Opening) -> None:
    gone, recovering = await opening(), await opening()
    assert await claim_key(gone, "a") == "fresh"
    await gone.close()
    await recovering.close_interrupted_calls(NOON)

    with pytest.raises(RecordConflict):
        await recovering.record_call(settled("a", "turn-a"))
    assert await claim_key(recovering, "b") == "unknown"
    await recovering.close()


# End of life


async def test_spooled_pieces_are_named_until_they_are_forgotten(store: CallStore, clock: Clock) -> None:
    pieces = [spooled(f"key-{n}") for n in range(3)]
    await store.record_call(settled("a", results=(StoredResult("text", text="t"), *pieces[:2])), turn=turn())
    await store.record_call(settled("b", results=pieces[2:]))

    assert await store.list_expired_results(clock(), limit=10) == []

    end = clock.advance(hours=1)
    assert await store.list_expired_results(end, limit=10) == pieces
    assert await store.list_expired_results(end, limit=2) == pieces[:2]
    assert await store.prune(end) == 0

    await store.delete_results(["key-0", "key-1", "unknown", "\ud800"])
    assert await store.list_expired_results(end, limit=10) == pieces[2:]
    await store.delete_results(["key-2"])
    assert await store.prune(end) == 3
    assert await ids(store) == []


async def test_prune_removes_only_what_is_over(store: CallStore, clock: Clock) -> None:
    await store.record_call(settled("old"), turn=turn())
    await store.record_call(settled("new", "young"), turn=turn("young", expires_at=NOON + timedelta(hours=3)))
    await store.record_call(settled("bob", "b", BOB), turn=turn("b", BOB))

    assert await store.prune(clock.advance(hours=1)) == 4

    assert await ids(store) == ["new"]
    assert await store.find_turn("young", ADA) is not None


async def test_turn_stays_while_a_key_stands_for_its_call(store: CallStore, clock: Clock) -> None:
    await claim_key(store, "a")
    await store.record_call(settled("a", "turn-a", results=(spooled("key-a"),)))

    end = clock.advance(hours=1)
    assert await store.list_expired_results(end, limit=10) == []
    assert await store.prune(end) == 0
    assert await claim_key(store, "b") == "settled"

    end = clock.advance(hours=23)
    assert await store.list_expired_results(end, limit=10) == [spooled("key-a")]
    await store.delete_results(["key-a"])
    assert await store.prune(end) == 3


async def test_turn_stays_while_a_call_of_it_runs(store: CallStore, clock: Clock) -> None:
    await store.start_call(call(), turn=turn())

    assert await store.prune(clock.advance(hours=2)) == 0

    await store.record_call(settled())
    assert await store.prune(clock()) == 2


async def test_prune_of_many_turns_takes_all(store: CallStore, clock: Clock) -> None:
    await asyncio.gather(*(store.record_call(settled("c", f"t{n}"), turn=turn(f"t{n}")) for n in range(450)))

    assert await store.prune(clock.advance(hours=1)) == 900


# Many at once


async def test_thousand_concurrent_settles_are_all_kept(store: CallStore) -> None:
    await store.open_turn(turn())

    await asyncio.gather(*(store.record_call(settled(f"c{n}")) for n in range(1000)))

    kept = await store.list_turn_calls("turn")
    assert sorted(found.id for found in kept) == sorted(f"c{n}" for n in range(1000))


async def test_failing_write_fails_only_its_own_caller(store: CallStore) -> None:
    await store.open_turn(turn())

    def write(n: int) -> Awaitable[None]:
        return store.record_call(settled(f"c{n}", "unknown" if n % 10 == 3 else "turn"))

    outcomes = await asyncio.gather(*(write(n) for n in range(200)), return_exceptions=True)

    failed = [n for n, outcome in enumerate(outcomes) if outcome is not None]
    assert failed == list(range(3, 200, 10))
    assert {type(outcomes[n]) for n in failed} == {RecordConflict}
    assert len(await store.list_turn_calls("turn")) == 180


async def test_two_processes_settle_side_by_side(opening: Opening) -> None:
    first, second = await opening(), await opening()
    await first.open_turn(turn())

    def write(n: int) -> Awaitable[None]:
        return (first, second)[n % 2].record_call(settled(f"c{n}"))

    await asyncio.gather(*(write(n) for n in range(200)))

    assert len(await first.list_turn_calls("turn")) == 200
    assert await first.list_turn_calls("turn") == await second.list_turn_calls("turn")
    await first.close()
    await second.close()


async def test_write_goes_on_when_its_caller_is_cancelled(store: CallStore) -> None:
    await store.open_turn(turn())
    writing = asyncio.ensure_future(store.record_call(settled()))
    await asyncio.sleep(0)

    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await store.record_call(settled("after"))

    assert [found.id for found in await store.list_turn_calls("turn")] == ["call", "after"]


async def test_close_writes_what_was_taken_on(opening: Opening) -> None:
    store = await opening()
    await store.open_turn(turn())
    writes = [asyncio.ensure_future(store.record_call(settled(f"c{n}"))) for n in range(100)]
    await asyncio.sleep(0)

    await store.close()

    await asyncio.gather(*writes)
    again = await opening()
    assert len(await again.list_turn_calls("turn")) == 100
    await again.close()


async def test_closed_store_is_reported_as_closed(opening: Opening) -> None:
    store = await opening()
    await store.close()

    with pytest.raises(StoreUnavailable):
        await store.open_turn(turn())
    with pytest.raises(StoreUnavailable):
        await store.find_turn("turn", ADA)


async def test_record_survives_reopening(opening: Opening) -> None:
    store = await opening()
    written: StoredCall = settled(results=(StoredResult("text", text="t"),))
    await store.record_call(written, turn=turn())
    await store.close()

    again = await opening()

    assert await again.find_turn("turn", ADA) == turn()
    assert await again.find_call("call", ADA) == written
    await again.close()
