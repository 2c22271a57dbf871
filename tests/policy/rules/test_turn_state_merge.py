"""States of a turn that one process writes in groups, in any order: every call is counted once."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import Taint, TurnState, TurnStateWrite, load_turn_state, merge_state_writes

AT = datetime(2027, 1, 1, tzinfo=UTC)
MAIL = Taint("mail", ("egress",), "internal")
WIKI = Taint("wiki", ("reads-untrusted",), "partner", "text")


def make_call(state: TurnState, number: int) -> None:
    state.reserve_call(f"{number % 3:016x}")
    state.record_call(WIKI if number % 2 else MAIL, "allow", at=AT)
    state.add_bytes(number)


def make_writes(state: TurnState, count: int) -> list[TurnStateWrite]:
    writes = []
    for number in range(count):
        make_call(state, number)
        writes.append(TurnStateWrite("turn", *state.begin_write()))
    return writes


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_every_call_is_counted_once_in_whatever_groups_it_is_written(groups: list[int], random: object) -> None:
    state = TurnState()
    make_call(state, 0)
    stored: dict[str, bytes | None] = {"turn": state.begin_write()[0]}
    written: dict[int, list[TurnStateWrite]] = {}
    for group, write in zip(groups, make_writes(state, len(groups)), strict=True):
        written.setdefault(group, []).append(write)

    order = sorted(written)
    random.shuffle(order)  # type: ignore[attr-defined]  # of `random.Random`
    for group in order:
        stored |= merge_state_writes(written[group], stored)

    found = load_turn_state(stored["turn"])
    assert (found.calls, found.bytes) == (state.calls, state.bytes)
    assert [found.count_calls(f"{number:016x}") for number in range(3)] == [
        state.count_calls(f"{number:016x}") for number in range(3)
    ]
    assert sorted(found.newest) == sorted(state.newest)
    assert (found.flags, found.tiers, found.classes) == (state.flags, state.tiers, state.classes)


def test_the_newest_state_replaces_those_that_it_continues() -> None:
    writes = make_writes(TurnState(), 3)

    assert merge_state_writes(writes, {"turn": None}) == {"turn": writes[-1].memory}


def test_a_write_that_was_made_without_an_answer_counts_once() -> None:
    [write] = make_writes(TurnState(), 1)

    assert merge_state_writes([write], {"turn": write.memory}) == {"turn": write.memory}


def test_a_turn_that_is_not_stored_gets_no_state() -> None:
    assert merge_state_writes(make_writes(TurnState(), 1), {}) == {}


def test_calls_of_another_process_are_added() -> None:
    other = TurnState()
    make_call(other, 5)

    merged = merge_state_writes(make_writes(TurnState(), 2), {"turn": other.to_json()})

    assert load_turn_state(merged["turn"]).calls == 3
