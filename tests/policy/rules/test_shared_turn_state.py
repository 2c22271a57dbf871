"""One turn served by two processes: each knows what the other saw, and nothing is forgotten."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.rules.turn_state import DIFFERENT, CallBounds, Taint, TurnState
from gateway.policy.rules.turn_state_merge import merge_turn_states

AT = datetime(2027, 1, 1, tzinfo=UTC)
WORDS = st.sampled_from(["a", "b", "c"])
CALLS = st.lists(st.tuples(WORDS, WORDS, st.sampled_from(["allow", "deny"]), st.integers(0, 99)), max_size=8)


def make_state(calls: Any) -> TurnState:
    memory = TurnState()
    for tool, flag, decision, size in calls:
        if decision == "allow":
            memory.reserve_call(f"sha256:{tool}")
            memory.add_bytes(size)
        memory.record_call(Taint(tool, (flag,), f"tier-{flag}"), decision, at=AT)
    return memory


@given(CALLS, CALLS, CALLS)
def test_two_processes_come_to_know_the_same(before: Any, one: Any, other: Any) -> None:
    left, right = make_state([*before, *one]), make_state([*before, *other])
    left.merge(make_state([*before, *other]), since=make_state(before))
    right.merge(make_state([*before, *one]), since=make_state(before))

    assert (left.flags, left.tiers, left.calls, left.bytes) == (right.flags, right.tiers, right.calls, right.bytes)
    assert sorted(left.newest) == sorted(right.newest)
    assert left.flags == make_state([*before, *one, *other]).flags


@given(CALLS, CALLS, CALLS)
def test_what_either_has_counted_is_added_up(before: Any, one: Any, other: Any) -> None:
    left, all = make_state([*before, *one]), make_state([*before, *one, *other])
    left.merge(make_state([*before, *other]), since=make_state(before))

    assert (left.calls, left.bytes) == (all.calls, all.bytes)
    assert [left.count_calls(f"sha256:{tool}") for tool in "abc"] == [
        all.count_calls(f"sha256:{tool}") for tool in "abc"
    ]


@given(CALLS)
def test_what_one_has_taken_back_is_taken_back_in_both(calls: Any) -> None:
    before, other = make_state(calls), make_state(calls)
    before.reserve_call("held")
    left = TurnState.from_json(before.to_json())
    other.reserve_call("held")
    other.reserve_call("made")
    left.release_call("held")

    left.merge(other, since=before)

    assert (left.calls, left.count_calls("held"), left.count_calls("made")) == (make_state(calls).calls + 1, 0, 1)


@given(CALLS)
def test_what_is_known_already_changes_nothing(calls: Any) -> None:
    memory = make_state(calls)
    memory.merge(make_state(calls), since=make_state(calls))

    assert memory.flags == make_state(calls).flags
    assert (memory.calls, memory.bytes) == (make_state(calls).calls, make_state(calls).bytes)
    assert sorted(memory.newest) == sorted(make_state(calls).newest)


def test_counts_stay_bounded() -> None:
    left, right = TurnState(), TurnState()
    for number in range(DIFFERENT):
        left.reserve_call(f"{number:016x}")
        right.reserve_call(f"{number + DIFFERENT:016x}")
    left.merge(right, since=TurnState())

    assert TurnState.from_json(left.to_json()) == left
    assert left.count_calls(f"{0:016x}") == 1  # the calls of the absorbing process were made last


def test_calls_that_were_pushed_out_are_not_taken_back() -> None:
    before = TurnState()
    before.reserve_call("first")
    left, right = (TurnState.from_json(before.to_json()) for _ in range(2))
    for number in range(DIFFERENT):
        left.reserve_call(f"{number:016x}")
    right.reserve_call("second")

    right.merge(left, since=before)
    left.merge(right, since=before)

    assert right.count_calls("second") == 1
    assert left.count_calls(f"{DIFFERENT - 1:016x}") >= 1


@pytest.mark.parametrize(
    ("bounds", "has_room"),
    [
        (CallBounds(), True),
        (CallBounds(same=3), True),
        (CallBounds(same=2), False),
        (CallBounds(calls=4), True),
        (CallBounds(calls=3), False),
        (CallBounds(same=3, calls=3), False),
    ],
    ids=["none", "often", "too often", "many", "too many", "either"],
)
def test_there_is_room_up_to_the_bounds(bounds: CallBounds, has_room: bool) -> None:
    memory = TurnState()
    for checksum in ("same", "same", "other"):
        memory.reserve_call(checksum)

    assert memory.has_room("same", bounds) is has_room


def test_memory_that_cannot_be_read_stays_unreadable() -> None:
    assert merge_turn_states(TurnState().to_json(), b"nonsense", since=None) == b"nonsense"
    assert merge_turn_states(TurnState().to_json(), TurnState().to_json(), since=b"nonsense") != b"nonsense"
