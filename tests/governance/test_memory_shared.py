"""One turn served by two processes: what either of them saw is known to both, and nothing is forgotten."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.governance.memory import DIFFERENT, Brought, TurnMemory, both_remembered

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


@given(CALLS, CALLS)
def test_two_processes_come_to_know_the_same(one: Any, other: Any) -> None:
    left, right = made(one), made(other)
    left.absorbs(made(other))
    right.absorbs(made(one))

    assert (left.flags, left.tiers, left.calls, left.bytes) == (right.flags, right.tiers, right.calls, right.bytes)
    assert sorted(left.newest) == sorted(right.newest)
    assert made(one).flags | made(other).flags == left.flags
    assert left.calls >= max(made(one).calls, made(other).calls)


@given(CALLS)
def test_what_is_known_already_changes_nothing(calls: Any) -> None:
    memory = made(calls)
    memory.absorbs(made(calls))

    assert memory.flags == made(calls).flags
    assert (memory.calls, memory.bytes) == (made(calls).calls, made(calls).bytes)
    assert sorted(memory.newest) == sorted(made(calls).newest)


def test_counts_stay_bounded() -> None:
    left, right = TurnMemory(), TurnMemory()
    for number in range(DIFFERENT):
        left.reserves(f"{number:064x}")
        right.reserves(f"{number + DIFFERENT:064x}")
    left.absorbs(right)

    assert TurnMemory.from_json(left.to_json()) == left


def test_memory_that_cannot_be_read_stays_unreadable() -> None:
    assert both_remembered(TurnMemory().to_json(), b"nonsense") == b"nonsense"
