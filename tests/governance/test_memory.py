"""What a turn remembers: nothing that was seen is forgotten, the history is bounded, and JSON that lies is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.governance.memory import (
    DIFFERENT,
    MAX_JSON,
    NEWEST,
    Brought,
    MemoryUnreadable,
    RememberedCall,
    TurnMemory,
)

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
MAIL = Brought("mail_read", ("private-data", "untrusted-output"), "partner", "mail")
QUOTE = Brought("price_quote", (), "internal")


def test_call_that_runs_brings_its_flags_its_tier_and_its_class() -> None:
    memory = TurnMemory()

    memory.notes(MAIL, "allow", at=NOON)

    assert memory.flags == {"private-data", "untrusted-output"}
    assert (memory.tiers, memory.classes) == ({"partner"}, {"mail"})
    assert [call.tool for call in memory.newest] == ["mail_read"]


@pytest.mark.parametrize("decision", ["hold", "deny"])
def test_call_that_was_refused_is_in_the_history_and_brings_nothing(decision: Any) -> None:
    memory = TurnMemory()

    memory.notes(MAIL, decision, at=NOON)

    assert (memory.flags, memory.tiers, memory.classes) == (set(), set(), set())
    assert [call.decision for call in memory.newest] == [decision]


def test_reading_an_artifact_brings_what_its_tool_brings() -> None:
    memory = TurnMemory()

    memory.reads(MAIL)
    memory.reads(QUOTE)

    assert memory.flags == {"private-data", "untrusted-output"}
    assert (memory.tiers, memory.classes) == ({"partner", "internal"}, {"mail"})
    assert (memory.calls, list(memory.newest)) == (0, [])


NAMES = st.text(min_size=1, max_size=8)
BROUGHT = st.builds(Brought, NAMES, st.lists(NAMES, max_size=3).map(tuple), NAMES, st.none() | NAMES)


@given(BROUGHT, st.text(max_size=20), st.integers(0, 2**40))
def test_turn_with_one_call_is_written_as_if_somebody_had_looked_at_it(
    brought: Brought, checksum: str, size: int
) -> None:
    seen, unseen = TurnMemory(), TurnMemory()
    assert not seen.newest

    for memory in (seen, unseen):
        memory.reserves(checksum)
        memory.notes(brought, "allow", at=NOON)
        memory.receives(size)

    assert unseen.to_json() == seen.to_json()
    assert unseen.newest == seen.newest
    assert unseen.to_json() == seen.to_json()
    assert (unseen.flags, unseen.tiers, unseen.classes) == (seen.flags, seen.tiers, seen.classes)
    assert unseen.times(checksum) == seen.times(checksum) == 1


def test_looking_at_a_memory_in_between_changes_nothing() -> None:
    looked_at, other = TurnMemory(), TurnMemory()
    for memory in (looked_at, other):
        memory.reserves("a" * 64)
        assert memory is other or memory.times("a" * 64) == 1
        memory.notes(MAIL, "allow", at=NOON)
        memory.reserves("b" * 64)
        memory.notes(QUOTE, "deny", at=NOON)

    assert looked_at == other
    assert other.calls == 2


def test_call_that_was_reserved_and_did_not_run_is_written_as_well() -> None:
    memory = TurnMemory()
    memory.reserves("a" * 64)

    assert TurnMemory.from_json(memory.to_json()).times("a" * 64) == 1
    memory.releases("a" * 64)
    assert (memory.calls, memory.times("a" * 64)) == (0, 0)


def test_same_calls_are_counted_from_the_moment_they_are_reserved() -> None:
    memory = TurnMemory()

    for checksum in ("a" * 64, "b" * 64, "a" * 64):
        memory.reserves(checksum)

    assert (memory.times("a" * 64), memory.times("b" * 64), memory.times("c" * 64)) == (2, 1, 0)
    assert memory.calls == 3


def test_reservation_can_be_taken_back() -> None:
    memory = TurnMemory()
    memory.reserves("a")
    memory.reserves("a")

    memory.releases("a")
    assert (memory.times("a"), memory.calls) == (1, 1)
    memory.releases("a")
    memory.releases("a")

    assert (memory.times("a"), memory.calls) == (0, 0)


def test_only_calls_that_were_made_last_are_counted_one_by_one() -> None:
    memory = TurnMemory()
    memory.reserves("first")
    memory.reserves("second")
    for number in range(DIFFERENT - 2):
        memory.reserves(f"{number}")
    memory.reserves("first")

    memory.reserves("one too many")

    assert (memory.times("first"), memory.times("second"), memory.times("0")) == (2, 0, 1)
    assert memory.calls == DIFFERENT + 2


def test_history_is_bounded_and_what_was_seen_is_not_forgotten() -> None:
    memory = TurnMemory()
    memory.notes(MAIL, "allow", at=NOON)
    memory.receives(10)

    for _ in range(NEWEST * 3):
        memory.notes(QUOTE, "allow", at=NOON)
        memory.receives(1)

    assert len(memory.newest) == NEWEST
    assert {call.tool for call in memory.newest} == {"price_quote"}
    assert "untrusted-output" in memory.flags
    assert memory.bytes == 10 + NEWEST * 3


def test_age_is_never_negative() -> None:
    call = RememberedCall("x", (), "internal", "allow", int(NOON.timestamp() * 1000))

    assert call.age(NOON + timedelta(minutes=5)) == timedelta(minutes=5)
    assert call.age(NOON - timedelta(minutes=5)) == timedelta(0)


names = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())
brought = st.builds(Brought, names, st.lists(names, max_size=3).map(tuple), names, st.none() | names)
steps = st.lists(
    st.tuples(brought, st.sampled_from(["allow", "hold", "deny"]), st.integers(0, 2**40), names), max_size=30
)


@given(steps)
def test_memory_survives_json(made: Any) -> None:
    memory = TurnMemory()
    for what, decision, milliseconds, checksum in made:
        memory.reserves(checksum)
        memory.notes(what, decision, at=datetime.fromtimestamp(milliseconds / 1000, UTC))
        memory.receives(milliseconds)

    again = TurnMemory.from_json(memory.to_json())

    assert again == memory
    assert (again.flags, again.tiers, again.classes) == (memory.flags, memory.tiers, memory.classes)
    assert (again.calls, again.bytes, again.newest) == (memory.calls, memory.bytes, memory.newest)
    assert all(again.times(checksum) == memory.times(checksum) for *_, checksum in made)


def test_full_memory_is_a_few_kilobytes() -> None:
    memory = TurnMemory()
    for number in range(1_000):
        memory.reserves(f"{number:064x}")
        memory.notes(MAIL if number % 2 else QUOTE, "allow", at=NOON)

    text = memory.to_json()

    assert len(text) < 16 << 10
    assert TurnMemory.from_json(text.decode()) == memory


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


def test_json_that_says_what_it_should_is_read() -> None:
    assert TurnMemory.from_json(orjson.dumps(GOOD)).newest[0].tool == "lookup"


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
    with pytest.raises(MemoryUnreadable):
        TurnMemory.from_json(orjson.dumps({**GOOD, **changes}))


@pytest.mark.parametrize("missing", GOOD)
def test_json_without_a_field_is_refused(missing: str) -> None:
    with pytest.raises(MemoryUnreadable):
        TurnMemory.from_json(orjson.dumps({name: value for name, value in GOOD.items() if name != missing}))


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"[]", b"{", b"\xff", b"[" * 5_000, b" " * (MAX_JSON + 1)],
    ids=["nothing", "null", "list", "cut off", "no text", "deep", "large"],
)
def test_what_is_no_memory_is_refused(text: bytes) -> None:
    with pytest.raises(MemoryUnreadable):
        TurnMemory.from_json(text)


def test_output_that_ran_is_not_forgotten() -> None:
    one, other = TurnMemory(), TurnMemory()
    one.output_ran = True
    one.reserves("a" * 64)
    one.notes(Brought("lookup", (), "internal"), "allow")

    again = TurnMemory.from_json(one.to_json())
    other.absorbs(again, since=TurnMemory())

    assert b'"outputRan":true' in one.to_json()
    assert (again.output_ran, other.output_ran, again) == (True, True, one)


def test_memory_is_nothing_else() -> None:
    assert TurnMemory() != {"version": 1}
    with pytest.raises(TypeError):
        hash(TurnMemory())
