"""Turn state: nothing that was seen is forgotten, the history is bounded, and contradictory JSON is refused."""

import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.rules.turn_state import DIFFERENT, MAX_JSON, NEWEST, InvalidTurnState, Taint, TurnCall, TurnState

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MAIL = Taint("mail_read", ("private-data", "untrusted-output"), "partner", "mail")
QUOTE = Taint("price_quote", (), "internal")


def test_call_that_runs_brings_its_flags_its_tier_and_its_class() -> None:
    memory = TurnState()

    memory.record_call(MAIL, "allow", at=NOON)

    assert memory.flags == {"private-data", "untrusted-output"}
    assert (memory.tiers, memory.classes) == ({"partner"}, {"mail"})
    assert [call.tool for call in memory.newest] == ["mail_read"]


@pytest.mark.parametrize("decision", ["hold", "deny"])
def test_call_that_was_refused_is_in_the_history_and_brings_nothing(decision: Any) -> None:
    memory = TurnState()

    memory.record_call(MAIL, decision, at=NOON)

    assert (memory.flags, memory.tiers, memory.classes) == (set(), set(), set())
    assert [call.decision for call in memory.newest] == [decision]


def test_reading_an_artifact_brings_what_its_tool_brings() -> None:
    memory = TurnState()

    memory.record_read(MAIL)
    memory.record_read(QUOTE)

    assert memory.flags == {"private-data", "untrusted-output"}
    assert (memory.tiers, memory.classes) == ({"partner", "internal"}, {"mail"})
    assert (memory.calls, list(memory.newest)) == (0, [])


NAMES = st.text(min_size=1, max_size=8)
BROUGHT = st.builds(Taint, NAMES, st.lists(NAMES, max_size=3).map(tuple), NAMES, st.none() | NAMES)


@given(BROUGHT, st.text(max_size=20), st.integers(0, 2**40))
def test_turn_with_one_call_is_written_as_if_it_had_been_read(brought: Taint, checksum: str, size: int) -> None:
    seen, unseen = TurnState(), TurnState()
    assert not seen.newest

    for memory in (seen, unseen):
        memory.reserve_call(checksum)
        memory.record_call(brought, "allow", at=NOON)
        memory.add_bytes(size)

    assert unseen.to_json() == seen.to_json()
    assert unseen.newest == seen.newest
    assert unseen.to_json() == seen.to_json()
    assert (unseen.flags, unseen.tiers, unseen.classes) == (seen.flags, seen.tiers, seen.classes)
    assert unseen.count_calls(checksum) == seen.count_calls(checksum) == 1


def test_looking_at_a_memory_in_between_changes_nothing() -> None:
    looked_at, other = TurnState(), TurnState()
    for memory in (looked_at, other):
        memory.reserve_call("a" * 64)
        assert memory is other or memory.count_calls("a" * 64) == 1
        memory.record_call(MAIL, "allow", at=NOON)
        memory.reserve_call("b" * 64)
        memory.record_call(QUOTE, "deny", at=NOON)

    assert looked_at == other
    assert other.calls == 2


def test_call_that_was_reserved_and_did_not_run_is_written_as_well() -> None:
    memory = TurnState()
    memory.reserve_call("a" * 64)

    assert TurnState.from_json(memory.to_json()).count_calls("a" * 64) == 1
    memory.release_call("a" * 64)
    assert (memory.calls, memory.count_calls("a" * 64)) == (0, 0)


def test_same_calls_are_counted_from_the_moment_they_are_reserved() -> None:
    memory = TurnState()

    for checksum in ("a" * 64, "b" * 64, "a" * 64):
        memory.reserve_call(checksum)

    assert (memory.count_calls("a" * 64), memory.count_calls("b" * 64), memory.count_calls("c" * 64)) == (2, 1, 0)
    assert memory.calls == 3


def test_reservation_can_be_taken_back() -> None:
    memory = TurnState()
    memory.reserve_call("a")
    memory.reserve_call("a")

    memory.release_call("a")
    assert (memory.count_calls("a"), memory.calls) == (1, 1)
    memory.release_call("a")
    memory.release_call("a")

    assert (memory.count_calls("a"), memory.calls) == (0, 0)


def test_only_calls_that_were_made_last_are_counted_one_by_one() -> None:
    memory = TurnState()
    memory.reserve_call("first")
    memory.reserve_call("second")
    for number in range(DIFFERENT - 2):
        memory.reserve_call(f"{number}")
    memory.reserve_call("first")

    memory.reserve_call("one too many")

    assert (memory.count_calls("first"), memory.count_calls("second"), memory.count_calls("0")) == (2, 0, 1)
    assert memory.calls == DIFFERENT + 2


def test_history_is_bounded_and_what_was_seen_is_not_forgotten() -> None:
    memory = TurnState()
    memory.record_call(MAIL, "allow", at=NOON)
    memory.add_bytes(10)

    for _ in range(NEWEST * 3):
        memory.record_call(QUOTE, "allow", at=NOON)
        memory.add_bytes(1)

    assert len(memory.newest) == NEWEST
    assert {call.tool for call in memory.newest} == {"price_quote"}
    assert "untrusted-output" in memory.flags
    assert memory.bytes == 10 + NEWEST * 3


def test_age_is_never_negative() -> None:
    call = TurnCall("x", (), "internal", "allow", int(NOON.timestamp() * 1000))

    assert call.age(NOON + timedelta(minutes=5)) == timedelta(minutes=5)
    assert call.age(NOON - timedelta(minutes=5)) == timedelta(0)


names = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())
brought = st.builds(Taint, names, st.lists(names, max_size=3).map(tuple), names, st.none() | names)
steps = st.lists(
    st.tuples(brought, st.sampled_from(["allow", "hold", "deny"]), st.integers(0, 2**40), names), max_size=30
)


@given(steps)
def test_memory_survives_json(made: Any) -> None:
    memory = TurnState()
    for what, decision, milliseconds, checksum in made:
        memory.reserve_call(checksum)
        memory.record_call(what, decision, at=datetime.fromtimestamp(milliseconds / 1000, UTC))
        memory.add_bytes(milliseconds)

    again = TurnState.from_json(memory.to_json())

    assert again == memory
    assert (again.flags, again.tiers, again.classes) == (memory.flags, memory.tiers, memory.classes)
    assert (again.calls, again.bytes, again.newest) == (memory.calls, memory.bytes, memory.newest)
    assert all(again.count_calls(checksum) == memory.count_calls(checksum) for *_, checksum in made)


def test_full_memory_is_a_few_kilobytes() -> None:
    memory = TurnState()
    for number in range(1_000):
        memory.reserve_call(f"{number:064x}")
        memory.record_call(MAIL if number % 2 else QUOTE, "allow", at=NOON)

    text = memory.to_json()

    assert len(text) < 16 << 10
    assert TurnState.from_json(text.decode()) == memory


GOOD: dict[str, Any] = {
    "version": 1,
    "flags": ["egress"],
    "tiers": ["internal"],
    "classes": [],
    "calls": 1,
    "bytes": 7,
    "same": [["aa", 1]],
    "kinds": [["lookup", ["egress"], "internal"]],
    "newest": [[0, "allow", 1_000]],
}


def test_valid_json_is_read() -> None:
    assert TurnState.from_json(orjson.dumps(GOOD)).newest[0].tool == "lookup"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": True},
        {"version": 1.0},
        {"more": 1},
        {"outputRan": 1},
        {"outputRan": False},
        {"outputRan": True, "more": 1},
        {"flags": None},
        {"flags": "egress"},
        {"flags": [1]},
        {"flags": [""]},
        {"flags": ["x" * 300]},
        {"flags": ["x"] * 2_000},
        {"tiers": {}},
        {"classes": [None]},
        {"calls": -1},
        {"calls": 1.5},
        {"calls": True},
        {"calls": 2**60},
        {"bytes": "7"},
        {"same": [["aa"]]},
        {"same": [["aa", 0]]},
        {"same": [["aa", 1], ["aa", 2]]},
        {"same": [["a" * 17, 1]]},
        {"same": [[1, 1]]},
        {"same": [[f"{number}", 1] for number in range(DIFFERENT + 1)]},
        {"kinds": [["lookup", [], 1]]},
        {"kinds": [["lookup", "egress", "internal"]]},
        {"kinds": [["lookup", []]]},
        {"kinds": [["lookup", [], "internal"]] * (NEWEST + 1)},
        {"newest": [[1, "allow", 0]]},
        {"newest": [[-1, "allow", 0]]},
        {"newest": [[0, "perhaps", 0]]},
        {"newest": [[0, "allow", -1]]},
        {"newest": [[0, "allow"]]},
        {"newest": [[0, "allow", 0]] * (NEWEST + 1)},
    ],
    ids=str,
)
def test_json_of_another_shape_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidTurnState):
        TurnState.from_json(orjson.dumps({**GOOD, **changes}))


@pytest.mark.parametrize("missing", GOOD)
def test_json_without_a_field_is_refused(missing: str) -> None:
    with pytest.raises(InvalidTurnState):
        TurnState.from_json(orjson.dumps({name: value for name, value in GOOD.items() if name != missing}))


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b"{", b"\xff", b"[" * 5_000, b" " * (MAX_JSON + 1)],
    ids=["nothing", "null", "list", "cut off", "no text", "deep", "large"],
)
def test_what_is_no_memory_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidTurnState):
        TurnState.from_json(text)


def test_output_that_ran_is_not_forgotten() -> None:
    one, other = TurnState(), TurnState()
    one.output_ran = True
    one.reserve_call("a" * 64)
    one.record_call(Taint("lookup", (), "internal"), "allow")

    again = TurnState.from_json(one.to_json())
    other.merge(again, since=TurnState())

    assert b'"outputRan":true' in one.to_json()
    assert (again.output_ran, other.output_ran, again) == (True, True, one)


def test_memory_is_nothing_else() -> None:
    assert TurnState() != {"version": 1}
    with pytest.raises(TypeError):
        hash(TurnState())


def test_small_state_takes_little_memory() -> None:
    def make() -> TurnState:
        state = TurnState()
        for fingerprint in ("one", "two"):
            state.reserve_call(fingerprint)
            state.record_call(Taint(f"tool-{fingerprint}", ("reads",), "open"), "allow")
        return state

    make()  # what all of them share
    tracemalloc.start()
    states = [make() for _ in range(100)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert taken / len(states) < 3_000  # one buffer of the JSON encoder is 4 KB
