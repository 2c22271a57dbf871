"""What a replay rebuilds: states of turns beyond its memory, counts of limits, what it remembers of callers."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gateway.model.caller import Principal
from gateway.policy.limits import Limit, LimitKey, QuotaLimit, RateLimit
from gateway.policy.rules.turn_state import Taint
from gateway.review.replay import caller_memory, limit_counters, turn_states
from gateway.review.replay.caller_memory import CallerMemory
from gateway.review.replay.limit_counters import LimitCounters
from gateway.review.replay.turn_states import TurnStates
from tests.review.replay.sample_calls import ANA, recorded

EVE = Principal("user:eve")
HOUR = timedelta(hours=1)
FETCH = Taint("fetch", ("untrusted-output",), "internal", None)
KEY = LimitKey(ANA, "tool", "desk")


def test_states_beyond_memory_are_encoded_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_states, "_IN_MEMORY", 2)
    states = TurnStates(None, are_whole=True)
    states.find(recorded(turn="first"), HOUR).state.record_call(FETCH, "allow")
    for number in range(5):
        states.find(recorded(turn=f"turn {number}"), HOUR)
    found = states.find(recorded(turn="first"), HOUR)

    assert found.is_known
    assert found.state.flags == {"untrusted-output"}


def test_dropped_state_is_unknown_and_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_states, "_IN_MEMORY", 1)
    monkeypatch.setattr(turn_states, "_MOST_BYTES", 1)
    states = TurnStates(None, are_whole=True)
    for turn in ("first", "second", "third"):
        states.find(recorded(turn=turn), HOUR)

    assert not states.find(recorded(turn="first"), HOUR).is_known
    assert states.find(recorded(turn="new"), HOUR).is_known


def test_implicit_state_of_the_first_records_is_unknown_until_it_idles() -> None:
    states = TurnStates(recorded(after=-60).at, are_whole=True)

    assert not states.find(recorded(implicit="one"), HOUR).is_known
    assert states.find(recorded(implicit="one", after=3 * 3600), HOUR).is_known


def test_catalogue_without_implicit_turns_gives_each_call_its_own_state() -> None:
    states = TurnStates(None, are_whole=True)
    states.find(recorded(implicit="one"), None).state.record_call(FETCH, "allow")

    assert states.find(recorded(implicit="one"), None).state.flags == set()


def test_read_makes_earlier_implicit_states_of_its_caller_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_states, "_MOST_READERS", 1)
    states = TurnStates(None, are_whole=True)
    states.find(recorded(implicit="one"), HOUR)
    states.note_read(recorded(after=1))
    other = recorded(implicit="two", after=2, principal=EVE, subject=EVE.subject)

    assert not states.find(recorded(implicit="one", after=2), HOUR).is_known
    assert states.find(other, HOUR).is_known
    states.note_read(recorded(after=3, principal=EVE, subject=EVE.subject))  # forgets Ana's
    assert not states.find(recorded(implicit="three", after=4), HOUR).is_known


def test_counts_of_windows_that_ended_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_counters, "_PRUNED_EVERY", 2)
    counters = LimitCounters()
    limits: list[Limit] = [QuotaLimit("quota", 1, HOUR), RateLimit("rate", 1, timedelta(seconds=1))]

    async def count() -> list[bool]:
        found = []
        for seconds in (0, 3600, 3600, 7200):
            counters.set_time(seconds * 1_000_000)
            found.append((await counters.acquire(limits, KEY)).is_allowed)
        return found

    assert asyncio.run(count()) == [True, True, False, True]
    counters.set_time(90_000 * 1_000_000)
    assert asyncio.run(counters.prune()) == 4


def test_released_call_is_not_counted_any_more() -> None:
    counters = LimitCounters()
    limits: list[Limit] = [QuotaLimit("quota", 1, HOUR), RateLimit("rate", 1, timedelta(minutes=1))]

    async def count() -> list[bool]:
        first = await counters.acquire(limits, KEY)
        await counters.release(first, KEY)
        second = await counters.acquire(limits, KEY)
        counters.close()
        third = await counters.acquire(limits, KEY)
        return [each.is_allowed for each in (first, second, third)]

    assert asyncio.run(count()) == [True, True, True]


def test_observing_limit_refuses_nothing_and_counts_nothing_beyond_it() -> None:
    counters = LimitCounters()
    limits: list[Limit] = [QuotaLimit("quota", 1, HOUR, enforced=False)]

    async def count() -> list[Any]:
        return [await counters.acquire(limits, KEY) for _ in range(2)]

    first, second = asyncio.run(count())
    assert (first.is_allowed, first.observed) == (True, ())
    assert (second.is_allowed, len(second.observed), second.taken) == (True, 1, ())


def test_memory_of_callers_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_memory, "_MOST_CALLERS", 1)
    monkeypatch.setattr(caller_memory, "_MOST_RESULTS", 1)
    memory = CallerMemory()
    memory.add_sightings(ANA, (), 1)
    memory.add_sightings(ANA, ("egress",), 2)
    memory.add_result(ANA, "one", "fetch", "page")

    assert memory.sightings_of(ANA) == {"egress": 2}
    assert memory.find_result(ANA, "one") == memory.find_result(ANA, "one#0") == ("fetch", "page")
    assert memory.find_result(EVE, "one") is None
    forgotten = [memory.has_forgotten]
    memory.add_sightings(EVE, ("egress",), 3)
    memory.add_result(EVE, "two", "fetch", "page")
    assert [*forgotten, memory.has_forgotten] == [False, True]
    assert memory.sightings_of(ANA) == {}
    assert memory.find_result(ANA, "one") is None
