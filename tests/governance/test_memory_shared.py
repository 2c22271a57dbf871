"""One turn served by two processes: what either of them saw is known to both, and nothing is forgotten."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.governance.memory import DIFFERENT, Bounds, Brought, TurnMemory, both_remembered

AT = datetime(2027, 1, 1, tzinfo=UTC)
WORDS = st.sampled_from(["a", "b", "c"])
CALLS = st.lists(st.tuples(WORDS, WORDS, st.sampled_from(["allow", "deny"]), st.integers(0, 99)), max_size=8)


def made(calls: Any) -> TurnMemory:
    memory = TurnMemory()
    for tool, flag, decision, size in calls:
        if decision == "allow":
            memory.reserves(f"sha256:{tool}")
            memory.receives(size)
        memory.notes(Brought(tool, (flag,), f"tier-{flag}"), decision, at=AT)
    return memory


@given(CALLS, CALLS, CALLS)
def test_two_processes_come_to_know_the_same(before: Any, one: Any, other: Any) -> None:
    left, right = made([*before, *one]), made([*before, *other])
    left.absorbs(made([*before, *other]), since=made(before))
    right.absorbs(made([*before, *one]), since=made(before))

    assert (left.flags, left.tiers, left.calls, left.bytes) == (right.flags, right.tiers, right.calls, right.bytes)
    assert sorted(left.newest) == sorted(right.newest)
    assert left.flags == made([*before, *one, *other]).flags


@given(CALLS, CALLS, CALLS)
def test_what_either_has_counted_is_added_up(before: Any, one: Any, other: Any) -> None:
    left, all = made([*before, *one]), made([*before, *one, *other])
    left.absorbs(made([*before, *other]), since=made(before))

    assert (left.calls, left.bytes) == (all.calls, all.bytes)
    assert [left.times(f"sha256:{tool}") for tool in "abc"] == [all.times(f"sha256:{tool}") for tool in "abc"]


@given(CALLS)
def test_what_one_has_taken_back_is_taken_back_in_both(calls: Any) -> None:
    before, other = made(calls), made(calls)
    before.reserves("held")
    left = TurnMemory.from_json(before.to_json())
    other.reserves("held")
    other.reserves("made")
    left.releases("held")

    left.absorbs(other, since=before)

    assert (left.calls, left.times("held"), left.times("made")) == (made(calls).calls + 1, 0, 1)


@given(CALLS)
def test_what_is_known_already_changes_nothing(calls: Any) -> None:
    memory = made(calls)
    memory.absorbs(made(calls), since=made(calls))

    assert memory.flags == made(calls).flags
    assert (memory.calls, memory.bytes) == (made(calls).calls, made(calls).bytes)
    assert sorted(memory.newest) == sorted(made(calls).newest)


def test_counts_stay_bounded() -> None:
    left, right = TurnMemory(), TurnMemory()
    for number in range(DIFFERENT):
        left.reserves(f"{number:016x}")
        right.reserves(f"{number + DIFFERENT:016x}")
    left.absorbs(right, since=TurnMemory())

    assert TurnMemory.from_json(left.to_json()) == left
    assert left.times(f"{0:016x}") == 1  # those of the one that absorbs were made last


def test_calls_that_were_pushed_out_are_not_taken_back() -> None:
    before = TurnMemory()
    before.reserves("first")
    left, right = (TurnMemory.from_json(before.to_json()) for _ in range(2))
    for number in range(DIFFERENT):
        left.reserves(f"{number:016x}")
    right.reserves("second")

    right.absorbs(left, since=before)
    left.absorbs(right, since=before)

    assert right.times("second") == 1
    assert left.times(f"{DIFFERENT - 1:016x}") >= 1


@pytest.mark.parametrize(
    ("bounds", "has_room"),
    [
        (Bounds(), True),
        (Bounds(same=3), True),
        (Bounds(same=2), False),
        (Bounds(calls=4), True),
        (Bounds(calls=3), False),
        (Bounds(same=3, calls=3), False),
    ],
    ids=["none", "often", "too often", "many", "too many", "either"],
)
def test_there_is_room_up_to_the_bounds(bounds: Bounds, has_room: bool) -> None:
    memory = TurnMemory()
    for checksum in ("same", "same", "other"):
        memory.reserves(checksum)

    assert memory.has_room("same", bounds) is has_room


def test_memory_that_cannot_be_read_stays_unreadable() -> None:
    assert both_remembered(TurnMemory().to_json(), b"nonsense", since=None) == b"nonsense"
    assert both_remembered(TurnMemory().to_json(), TurnMemory().to_json(), since=b"nonsense") != b"nonsense"
