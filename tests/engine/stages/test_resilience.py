"""Timeouts, retries, circuit breakers and bulkheads, with a clock that stands still."""

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest
from anyio import fail_after

from gateway.engine.stages.factory import chain_stages
from gateway.engine.stages.resilience import Bulkhead, CallRejected, CircuitBreaker, Retry, Timeout, to_seconds
from gateway.model.primitives.concurrency import CompletedAwaitable
from gateway.model.primitives.deadline import current_deadline
from gateway.model.tools.backend import BackendError, BackendErrorKind, CallPipeline, CallStage, Invocation
from tests.engine.stages.sample_calls import Backend, Clock, HangingBackend, a_call, settled, started

pytestmark = pytest.mark.anyio

AT_ONCE = timedelta(0)
LONG = timedelta(hours=1)
DOWN = BackendError("unavailable", "the server is down")


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


async def caught(run: CallPipeline, call: Invocation | None = None) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - the tests check the message
        await run(call or a_call())
    return raised.value


# Timeout


async def test_hanging_backend_is_cancelled_at_the_deadline() -> None:
    backend = HangingBackend()

    with fail_after(5):
        failure = await caught(chain_stages([Timeout(AT_ONCE, clock=Clock())], backend))

    assert isinstance(failure, BackendError)
    assert (failure.word, failure.message) == ("unavailable", "no answer within 0s")
    assert backend.cancelled == len(backend.calls)


async def test_backend_at_work_is_cancelled_at_the_deadline() -> None:
    backend = HangingBackend()

    with fail_after(5):
        await caught(chain_stages([Timeout(timedelta(milliseconds=5), clock=Clock())], backend))

    assert (backend.running, backend.cancelled) == (0, 1)


async def test_bytes_that_trickle_in_do_not_move_the_deadline() -> None:
    async def trickle(call: Invocation) -> Any:
        async def forever() -> Any:
            while True:
                await asyncio.sleep(0)
                yield b"."

        return await call.keep(forever())

    with fail_after(5):
        failure = await caught(chain_stages([Timeout(timedelta(milliseconds=5), clock=Clock())], Backend(trickle)))

    assert isinstance(failure, BackendError)


async def test_answer_in_time_passes() -> None:
    assert await chain_stages([Timeout(LONG, clock=Clock())], Backend("done"))(a_call()) == "done"


async def test_answer_that_is_there_already_passes_with_its_deadline_set() -> None:
    deadlines = []

    class AtOnce:
        def run(self, call: Invocation) -> CompletedAwaitable[str]:
            deadlines.append(current_deadline())
            return CompletedAwaitable("done")

        async def close(self) -> None: ...

    assert await chain_stages([Timeout(LONG, clock=Clock())], AtOnce())(a_call()) == "done"
    assert [each.at for each in deadlines if each is not None] == [Clock()() + LONG.total_seconds()]
    assert current_deadline() is None


async def test_timeout_of_the_backend_itself_is_not_ours() -> None:
    own = TimeoutError("mine")

    assert await caught(chain_stages([Timeout(LONG, clock=Clock())], Backend(own))) is own


@pytest.mark.parametrize(
    ("stage", "tool", "effective"),
    [(30, 10, 10), (10, 30, 10), (30, None, 30)],
    ids=["tool is shorter", "stage is shorter", "tool has none"],
)
def test_shorter_limit_counts(stage: float, tool: float | None, effective: float) -> None:
    own = None if tool is None else seconds(tool)

    assert Timeout(seconds(stage), own, clock=Clock()).after == seconds(effective)


async def test_caller_that_goes_away_cancels_the_backend() -> None:
    backend = HangingBackend()
    task = started(chain_stages([Timeout(LONG, clock=Clock())], backend), a_call())
    await settled()

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.cancelled == 1


# Retry


def a_retry(clock: Clock, *, attempts: int = 3, is_safe: bool = True, causes: Any = ("unavailable",)) -> Retry:
    return Retry(
        attempts, causes, is_safe=is_safe, delay=seconds(2), clock=clock, random=lambda: 0.5, sleep=clock.sleep
    )


async def test_failure_for_a_cause_is_tried_again() -> None:
    backend = Backend(DOWN, DOWN, "done")

    assert await chain_stages([a_retry(Clock())], backend)(a_call()) == "done"
    assert len(backend.calls) == 3


async def test_pauses_double_and_are_random() -> None:
    clock = Clock()

    await chain_stages([a_retry(clock)], Backend(DOWN, DOWN, "done"))(a_call())

    assert clock.now - 1_000 == 0.5 * 2 + 0.5 * 4


async def test_pause_has_a_longest() -> None:
    clock = Clock()
    retry = Retry(10, ["unavailable"], is_safe=True, delay=LONG, clock=clock, random=lambda: 1.0, sleep=clock.sleep)

    await caught(chain_stages([retry], Backend(DOWN)))

    assert clock.now - 1_000 == 9 * 30


async def test_last_failure_is_the_answer() -> None:
    backend = Backend(DOWN)

    assert await caught(chain_stages([a_retry(Clock())], backend)) is DOWN
    assert len(backend.calls) == 3


@pytest.mark.parametrize("word", ["invalid", "not-permitted", "not-found", "conflict", "failed"])
async def test_other_failures_are_not_tried_again(word: BackendErrorKind) -> None:
    backend = Backend(BackendError(word, "no"))

    await caught(chain_stages([a_retry(Clock())], backend))

    assert len(backend.calls) == 1


async def test_every_listed_cause_is_tried_again() -> None:
    backend = Backend(BackendError("failed", "no"), "done")

    assert await chain_stages([a_retry(Clock(), causes=("failed",))], backend)(a_call()) == "done"


async def test_error_of_another_kind_is_not_tried_again() -> None:
    backend = Backend(ValueError("bug"))

    assert isinstance(await caught(chain_stages([a_retry(Clock())], backend)), ValueError)
    assert len(backend.calls) == 1


async def test_call_that_is_not_safe_runs_once() -> None:
    backend = Backend(DOWN)

    await caught(chain_stages([a_retry(Clock(), is_safe=False)], backend))

    assert len(backend.calls) == 1


async def test_call_that_kept_bytes_is_not_tried_again() -> None:
    async def half(call: Invocation) -> Any:
        await call.keep([b"half"])
        raise DOWN

    backend = Backend(half)

    assert await caught(chain_stages([a_retry(Clock())], backend)) is DOWN
    assert len(backend.calls) == 1


async def test_backend_that_was_spared_is_not_asked_again() -> None:
    backend = Backend(CallRejected("resting"))

    await caught(chain_stages([a_retry(Clock())], backend))

    assert len(backend.calls) == 1


async def test_pause_that_lasts_past_the_deadline_is_not_begun() -> None:
    clock = Clock()
    backend = Backend(DOWN)

    failure = await caught(chain_stages([Timeout(seconds(2.5), clock=clock), a_retry(clock)], backend))

    assert failure is DOWN  # the first pause takes 1 s, the second would take 2 s
    assert len(backend.calls) == 2


# CircuitBreaker


def a_breaker(clock: Clock, *, open_after: int = 3) -> CircuitBreaker:
    return CircuitBreaker(open_after, within=seconds(30), probe_after=seconds(15), clock=clock)


async def opened(clock: Clock) -> CircuitBreaker:
    breaker = a_breaker(clock)
    for _ in range(3):
        await caught(chain_stages([breaker], Backend(DOWN)))
    assert breaker.state == "open"
    return breaker


async def test_open_circuit_answers_without_asking() -> None:
    clock = Clock()
    breaker = await opened(clock)
    backend = Backend("done")
    clock.advance(5)

    failure = await caught(chain_stages([breaker], backend))

    assert isinstance(failure, CallRejected)
    assert (failure.word, failure.retry_after) == ("unavailable", seconds(10))
    assert failure.message == "the backend keeps failing and is not asked for a while; try again in 10s"
    assert backend.calls == []


async def test_failures_far_apart_do_not_open() -> None:
    clock = Clock()
    breaker = a_breaker(clock)

    for _ in range(10):
        await caught(chain_stages([breaker], Backend(DOWN)))
        clock.advance(16)

    assert breaker.state == "closed"


@pytest.mark.parametrize(
    "answer",
    [BackendError("failed", "no"), BackendError("invalid", "no"), ValueError("bug"), CallRejected("busy")],
    ids=["failed", "invalid", "another error", "spared"],
)
async def test_only_unavailable_counts(answer: Exception) -> None:
    breaker = a_breaker(Clock(), open_after=1)

    await caught(chain_stages([breaker], Backend(answer)))

    assert breaker.state == "closed"


async def test_probe_that_succeeds_closes() -> None:
    clock = Clock()
    breaker = await opened(clock)
    clock.advance(15)

    assert await chain_stages([breaker], Backend("done"))(a_call()) == "done"

    assert breaker.state == "closed"


async def test_circuit_that_rested_is_half_open() -> None:
    clock = Clock()
    breaker = await opened(clock)

    clock.advance(15)

    assert breaker.state == "half-open"


async def test_probe_that_fails_opens_again() -> None:
    clock = Clock()
    breaker = await opened(clock)
    clock.advance(15)

    await caught(chain_stages([breaker], Backend(DOWN)))

    assert breaker.state == "open"
    assert isinstance(await caught(chain_stages([breaker], Backend("done"))), CallRejected)


async def test_one_probe_goes_at_a_time() -> None:
    clock = Clock()
    breaker = await opened(clock)
    clock.advance(15)
    backend = HangingBackend()
    probe = started(chain_stages([breaker], backend), a_call())
    await settled()

    failure = await caught(chain_stages([breaker], backend))

    assert isinstance(failure, CallRejected)
    assert failure.retry_after == seconds(15)
    backend.release.set()
    assert await probe == "done"
    assert breaker.state == "closed"


async def test_cancelled_probe_makes_room_for_another() -> None:
    clock = Clock()
    breaker = await opened(clock)
    clock.advance(15)
    probe = started(chain_stages([breaker], HangingBackend()), a_call())
    await settled()

    probe.cancel()
    await settled()

    assert breaker.state == "half-open"
    assert await chain_stages([breaker], Backend("done"))(a_call()) == "done"


async def test_call_from_before_the_opening_closes_nothing() -> None:
    clock = Clock()
    breaker = a_breaker(clock)
    slow = HangingBackend()
    early = started(chain_stages([breaker], slow), a_call())
    await settled()
    for _ in range(3):
        await caught(chain_stages([breaker], Backend(DOWN)))

    slow.release.set()
    await early

    assert breaker.state == "open"


async def test_backend_that_hangs_past_the_deadline_opens_the_circuit() -> None:
    breaker = a_breaker(Clock(), open_after=1)

    with fail_after(5):
        await caught(chain_stages([Timeout(timedelta(milliseconds=5), clock=Clock()), breaker], HangingBackend()))

    assert breaker.state == "open"


async def test_client_that_goes_away_does_not_count() -> None:
    breaker = a_breaker(Clock(), open_after=1)
    task = started(chain_stages([Timeout(LONG, clock=Clock()), breaker], HangingBackend()), a_call())
    await settled()

    task.cancel()
    await settled()

    assert breaker.state == "closed"


async def test_deadline_passed_in_our_own_line_does_not_count() -> None:
    breaker, bulkhead = a_breaker(Clock(), open_after=1), Bulkhead(1)
    first = started(chain_stages([bulkhead], HangingBackend()), a_call())
    await settled()

    with fail_after(5):
        stages: list[CallStage] = [Timeout(timedelta(milliseconds=5), clock=Clock()), breaker, bulkhead]
        await caught(chain_stages(stages, Backend("done")))

    assert breaker.state == "closed"
    first.cancel()
    await settled()


# Concurrency


async def test_calls_past_the_limit_wait_in_order() -> None:
    bulkhead = Bulkhead(1)
    order: list[int] = []

    async def note(call: Invocation) -> None:
        order.append(call.args["n"])

    first = HangingBackend()
    run_first, run = chain_stages([bulkhead], first), chain_stages([bulkhead], Backend(note))
    tasks = [started(run_first, a_call())]
    await settled()
    tasks += [started(run, a_call({"n": number})) for number in (1, 2)]
    await settled()
    assert (bulkhead.running, bulkhead.waiting, order) == (1, 2, [])

    first.release.set()
    await asyncio.gather(*tasks)

    assert order == [1, 2]
    assert (bulkhead.running, bulkhead.waiting) == (0, 0)


async def test_full_line_refuses_at_once() -> None:
    bulkhead = Bulkhead(2)
    backend = HangingBackend()
    run = chain_stages([bulkhead], backend)
    tasks = [started(run, a_call()) for _ in range(6)]
    await settled()

    failure = await caught(run)

    assert isinstance(failure, CallRejected)
    assert failure.message == "2 calls are running and 4 are waiting; try again later"
    backend.release.set()
    assert await asyncio.gather(*tasks) == ["done"] * 6


async def test_failing_call_gives_its_slot_back() -> None:
    bulkhead = Bulkhead(1)

    await caught(chain_stages([bulkhead], Backend(DOWN)))

    assert bulkhead.running == 0


async def test_slot_handed_to_a_cancelled_call_is_passed_on() -> None:
    bulkhead = Bulkhead(1)
    backend = HangingBackend()
    run = chain_stages([bulkhead], backend)
    first, second, third = [started(run, a_call()) for _ in range(3)]
    await settled()

    backend.release.set()
    while not first.done():
        await asyncio.sleep(0)  # the slot now belongs to the second, which has not woken up yet
    second.cancel()

    assert await third == "done"
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (bulkhead.running, bulkhead.waiting) == (0, 0)


async def test_cancelled_call_that_waits_leaves_the_line() -> None:
    bulkhead = Bulkhead(1)
    backend = HangingBackend()
    run = chain_stages([bulkhead], backend)
    first, second = [started(run, a_call()) for _ in range(2)]
    await settled()

    second.cancel()
    first.cancel()  # it leaves while the second is cancelled and still in line
    await settled()

    assert (bulkhead.running, bulkhead.waiting) == (0, 0)


async def test_ten_thousand_random_cancels_leak_no_slot() -> None:
    chance = random.Random(7)
    bulkhead = Bulkhead(4)
    call = a_call()

    async def brief(call: Invocation) -> str:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        return "done"

    run = chain_stages([bulkhead], Backend(brief))
    for _ in range(1_000):
        tasks = [started(run, call) for _ in range(10)]
        while not all(task.done() for task in tasks):
            chance.choice(tasks).cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)

    assert (bulkhead.running, bulkhead.waiting) == (0, 0)
    assert await asyncio.gather(*(run(call) for _ in range(12))) == ["done"] * 12


def test_durations_read_as_seconds() -> None:
    assert [to_seconds(each) for each in (seconds(30), seconds(0.25))] == ["30s", "0.25s"]


async def test_time_stands_still_while_a_caller_is_asked() -> None:
    clock = Clock()

    async def asks(call: Invocation) -> Any:
        deadline = current_deadline()
        assert deadline is not None
        with deadline.pause():
            clock.now += 60
            await asyncio.sleep(0.02)  # longer than the call's deadline, by the wall clock
        await asyncio.sleep(0)
        return "answered"

    assert await chain_stages([Timeout(timedelta(milliseconds=10), clock=clock)], Backend(asks))(a_call()) == "answered"
    assert current_deadline() is None


async def test_time_runs_again_after_the_answer() -> None:
    async def asks(call: Invocation) -> Any:
        deadline = current_deadline()
        assert deadline is not None
        await asyncio.sleep(0)
        with deadline.pause():
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    with fail_after(5):
        failure = await caught(chain_stages([Timeout(timedelta(milliseconds=5), clock=Clock())], Backend(asks)))

    assert isinstance(failure, BackendError)
