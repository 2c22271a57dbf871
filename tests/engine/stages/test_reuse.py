"""Equal calls: what makes them equal, and cached answers within bounds."""

import asyncio
from collections.abc import Collection
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.stages.factory import chain_stages
from gateway.engine.stages.result_cache import CachePart, CacheStage, ResultCache, fingerprint
from gateway.model.caller import Principal
from gateway.model.tools.backend import BackendError, CallPipeline, Invocation
from tests.engine.stages.sample_calls import ALICE, Backend, Clock, HangingBackend, a_call, settled, started

pytestmark = pytest.mark.anyio

BOB = Principal("user:bob", tenant="acme")
CAROL = Principal("user:alice", tenant="other")
DOWN = BackendError("unavailable", "the server is down")


def a_cache(
    *,
    by: Collection[CachePart] = ("subject", "arguments"),
    clock: Clock | None = None,
    answers: ResultCache | None = None,
    flags: Collection[str] = (),
    catalogue: str | None = None,
) -> CacheStage:
    return CacheStage(
        timedelta(minutes=5),
        by,
        tool="look",
        flags=flags,
        answers=ResultCache() if answers is None else answers,
        clock=clock or Clock(),
        catalogue=catalogue,
        largest=1_000,
    )


# Fingerprints

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON_ARGS = st.dictionaries(st.text(max_size=3), SCALARS | st.lists(SCALARS, max_size=3), max_size=4)


@given(JSON_ARGS)
def test_order_of_arguments_does_not_matter(args: dict[str, Any]) -> None:
    turned = dict(reversed(args.items()))

    assert fingerprint("look", args, ALICE) == fingerprint("look", MappingProxyType(turned), ALICE)


@given(JSON_ARGS, JSON_ARGS)
def test_different_arguments_have_different_fingerprints(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one == other or fingerprint("t", one, ALICE) != fingerprint("t", other, ALICE)


@pytest.mark.parametrize(
    ("tool", "args", "principal"),
    [
        ("see", {"id": 2**53}, ALICE),
        ("look", {"id": 2**53 + 1}, ALICE),
        ("look", {"id": 2**53}, BOB),
        ("look", {"id": 2**53}, CAROL),
    ],
    ids=["tool", "integer past 2^53", "subject", "tenant"],
)
def test_everything_that_matters_is_in_the_fingerprint(tool: str, args: dict[str, Any], principal: Principal) -> None:
    assert fingerprint(tool, args, principal) != fingerprint("look", {"id": 2**53}, ALICE)


def test_roles_are_not_in_the_fingerprint() -> None:
    assert fingerprint("look", {}, ALICE) == fingerprint("look", {}, Principal("user:alice", frozenset("r"), "acme"))


def test_arguments_outside_json_have_no_fingerprint() -> None:
    with pytest.raises(TypeError, match="object is outside the JSON grammar"):
        fingerprint("look", {"x": object()}, ALICE)


# Cache


async def test_equal_call_is_answered_from_memory() -> None:
    backend = Backend("one", "two")
    run = chain_stages([a_cache()], backend)

    assert [await run(a_call({"q": 1})), await run(a_call({"q": 1}))] == ["one", "one"]
    assert len(backend.calls) == 1


@pytest.mark.parametrize(
    ("by", "call", "answer"),
    [
        (("subject", "arguments"), a_call({"q": 2}), "two"),
        (("subject",), a_call({"q": 2}), "two"),
        (("subject", "arguments"), a_call({"q": 1}, principal=BOB), "two"),
        (("tenant", "arguments"), a_call({"q": 1}, principal=BOB), "one"),
        (("tenant", "arguments"), a_call({"q": 1}, principal=CAROL), "two"),
        (("arguments",), a_call({"q": 1}, principal=CAROL), "one"),
    ],
    ids=["arguments", "arguments always", "subject", "same tenant", "other tenant", "anybody"],
)
async def test_calls_are_equal_by_their_parts(by: Collection[CachePart], call: Invocation, answer: str) -> None:
    run = chain_stages([a_cache(by=by)], Backend("one", "two"))
    await run(a_call({"q": 1}))

    assert await run(call) == answer


async def test_catalogues_are_apart_where_asked_for() -> None:
    answers = ResultCache()
    engineering, sales = (a_cache(by=["catalogue"], catalogue=name, answers=answers) for name in ("eng", "sales"))
    backend = Backend("one", "two")

    assert await chain_stages([engineering], backend)(a_call()) == "one"
    assert await chain_stages([sales], backend)(a_call()) == "two"
    assert await chain_stages([engineering], backend)(a_call()) == "one"


def test_catalogue_that_is_asked_for_must_be_given() -> None:
    with pytest.raises(ValueError, match="results of look are cached by catalogue, but none is given"):
        a_cache(by=["catalogue"])


@pytest.mark.parametrize("flag", ["writes", "destructive"])
def test_tools_that_change_something_are_refused(flag: str) -> None:
    with pytest.raises(ValueError, match=f"calls of look are never answered from memory: it has the flag '{flag}'"):
        a_cache(flags=["egress", flag])


async def test_answer_grows_old() -> None:
    clock = Clock()
    run = chain_stages([a_cache(clock=clock)], Backend("one", "two"))
    await run(a_call())
    clock.advance(299)
    assert await run(a_call()) == "one"

    clock.advance(1)

    assert await run(a_call()) == "two"


async def test_failure_is_not_remembered() -> None:
    run = chain_stages([a_cache()], Backend(DOWN, "done"))
    with pytest.raises(BackendError):
        await run(a_call())

    assert await run(a_call()) == "done"


@pytest.mark.parametrize("result", ["x" * 1_001, "é" * 501, b"x" * 1_001, ["media"]], ids=repr)
async def test_large_and_other_results_are_not_remembered(result: Any) -> None:
    backend = Backend(result)
    run = chain_stages([a_cache()], backend)

    assert [await run(a_call()), await run(a_call())] == [result, result]
    assert len(backend.calls) == 2


async def test_empty_answer_is_an_answer() -> None:
    backend = Backend("")
    run = chain_stages([a_cache()], backend)

    assert [await run(a_call()), await run(a_call())] == ["", ""]
    assert len(backend.calls) == 1


# Single flight


async def together(run: CallPipeline, count: int = 3) -> list["asyncio.Task[Any]"]:
    tasks = [started(run, a_call()) for _ in range(count)]
    await settled()
    return tasks


async def test_equal_calls_at_once_reach_the_backend_once() -> None:
    backend = HangingBackend()
    tasks = await together(chain_stages([a_cache()], backend))

    backend.release.set()

    assert await asyncio.gather(*tasks) == ["done"] * 3
    assert len(backend.calls) == 1


async def test_equal_calls_at_once_share_a_failure() -> None:
    async def fail(call: Invocation) -> None:
        await release.wait()
        raise DOWN

    release = asyncio.Event()
    backend = Backend(fail)
    tasks = await together(chain_stages([a_cache()], backend))

    release.set()

    assert await asyncio.gather(*tasks, return_exceptions=True) == [DOWN] * 3
    assert len(backend.calls) == 1


async def test_result_that_belongs_to_one_call_is_not_shared() -> None:
    backend = HangingBackend(answer=["a place in the spool"])
    tasks = await together(chain_stages([a_cache()], backend))

    backend.release.set()
    await asyncio.gather(*tasks)

    assert len(backend.calls) == 3


async def test_first_caller_that_goes_away_leaves_the_call_to_the_others() -> None:
    backend = HangingBackend()
    first, *others = await together(chain_stages([a_cache()], backend))

    first.cancel()
    await settled()
    backend.release.set()

    assert await asyncio.gather(*others) == ["done"] * 2
    assert (len(backend.calls), backend.cancelled) == (1, 0)


async def test_last_caller_that_goes_away_cancels_the_backend() -> None:
    backend = HangingBackend()
    run = chain_stages([a_cache()], backend)
    tasks = await together(run)

    for task in tasks:
        task.cancel()
    await settled()

    assert all(task.cancelled() for task in tasks)
    assert (backend.running, backend.cancelled) == (0, 1)
    backend.release.set()
    assert await run(a_call()) == "done"


async def test_call_that_is_being_cancelled_is_not_shared() -> None:
    async def slow_to_stop(call: Invocation) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await stopping.wait()

    stopping = asyncio.Event()
    backend = Backend(slow_to_stop, "done")
    run = chain_stages([a_cache()], backend)
    [first] = await together(run, 1)
    first.cancel()
    await settled()

    second = started(run, a_call())
    await settled()
    stopping.set()

    assert await second == "done"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await run(a_call()) == "done"
    assert len(backend.calls) == 2


async def test_backend_that_cancels_itself_cancels_its_callers_alone() -> None:
    backend = Backend(asyncio.CancelledError(), "done")
    run = chain_stages([a_cache()], backend)
    with pytest.raises(asyncio.CancelledError):
        await run(a_call())

    assert await run(a_call()) == "done"


# Bounds


def test_least_recently_used_answer_goes_first() -> None:
    answers = ResultCache(max_entries=2)
    answers.put("a", "1", until=10)
    answers.put("b", "2", until=10)
    answers.get("a", 0)

    answers.put("c", "3", until=10)

    assert [answers.get(key, 0) for key in "abc"] == ["1", None, "3"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text(max_size=40) | st.binary(max_size=2_000)), max_size=30))
def test_bounds_hold_whatever_is_put(puts: list[tuple[str, str | bytes]]) -> None:
    answers = ResultCache(max_entries=3, max_bytes=2_000)

    for key, result in puts:
        answers.put(key, result, until=10)

        assert len(answers) <= 3
        assert answers.byte_length <= 2_000
    for key in "abcdef":
        assert answers.get(key, 10) is None
    assert (len(answers), answers.byte_length) == (0, 0)
