"""The onion: what runs, what is skipped and what is reported, for everything a middleware can do."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import AbortError, TurnGateAborted
from gateway.model.primitives.concurrency import AbortController
from gateway.model.turns.middleware_pipeline import (
    Middleware,
    Next,
    PipelineRun,
    is_abort,
    is_task_cancelled,
    run_middleware,
    run_pipeline,
)

pytestmark = pytest.mark.anyio


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


class Trace:
    """Middlewares that record when they are entered and left."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def through(self, name: str) -> Middleware:
        async def middleware(ctx: Any, next: Next) -> None:
            self.steps.append(f"{name}>")
            await next()
            self.steps.append(f"<{name}")

        return middleware

    def around(
        self, name: str, *, before: Callable[[], object] | None = None, after: Callable[[], object] | None = None
    ) -> Middleware:
        async def middleware(ctx: Any, next: Next) -> None:
            self.steps.append(f"{name}>")
            if before:
                before()
            await next()
            if after:
                after()
            self.steps.append(f"<{name}")

        return middleware

    def stopping(self, name: str) -> Middleware:
        async def middleware(ctx: Any, next: Next) -> None:
            self.steps.append(f"{name}.")

        return middleware

    async def core(self) -> None:
        self.steps.append("core")


def raising(error: BaseException) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail


async def test_middlewares_run_in_order_around_the_core_and_back() -> None:
    trace = Trace()

    passage = await run_pipeline(None, [trace.through("a"), trace.through("b")], trace.core)

    assert trace.steps == ["a>", "b>", "core", "<b", "<a"]
    assert passage == PipelineRun(reached_core=True)
    assert not passage.is_short_circuited


async def test_every_middleware_gets_the_same_context() -> None:
    ctx, seen = object(), list[object]()

    async def look(ctx: Any, next: Next) -> None:
        seen.append(ctx)
        await next()

    await run_pipeline(ctx, [look, look])

    assert seen == [ctx, ctx]


@pytest.mark.parametrize("core", [None, lambda: None], ids=["no-core", "sync-core"])
async def test_empty_pipeline_reaches_the_core(core: Any) -> None:
    assert await run_pipeline(None, [], core) == PipelineRun(reached_core=True)


async def test_sync_middleware_passes_on_by_returning_next() -> None:
    trace = Trace()

    def passing(ctx: Any, next: Next) -> Any:
        return next()

    await run_pipeline(None, [passing, trace.through("b")], trace.core)

    assert trace.steps == ["b>", "core", "<b"]


async def test_sync_middleware_that_returns_nothing_is_a_short_circuit() -> None:
    passage = await run_pipeline(None, [lambda ctx, following: None])

    assert passage.is_short_circuited


async def test_forgotten_next_skips_downstream_and_is_a_short_circuit() -> None:
    trace = Trace()

    passage = await run_pipeline(None, [trace.through("a"), trace.stopping("b"), trace.through("c")], trace.core)

    assert trace.steps == ["a>", "b.", "<a"]
    assert passage == PipelineRun()
    assert passage.is_short_circuited


async def test_second_next_does_nothing() -> None:
    trace = Trace()

    async def twice(ctx: Any, next: Next) -> None:
        await next()
        await next()

    passage = await run_pipeline(None, [twice, trace.through("b")], trace.core)

    assert trace.steps == ["b>", "core", "<b"]
    assert passage.reached_core


async def test_two_simultaneous_nexts_run_downstream_once() -> None:
    trace = Trace()

    async def both(ctx: Any, next: Next) -> None:
        await asyncio.gather(next(), next())

    await run_pipeline(None, [both], trace.core)

    assert trace.steps == ["core"]


@pytest.mark.parametrize("error", [ValueError("broken"), Falsy("broken")], ids=["plain", "falsy"])
async def test_exception_before_next_skips_the_rest_while_outer_post_steps_run(error: Exception) -> None:
    trace = Trace()
    failing = trace.around("b", before=raising(error))

    passage = await run_pipeline(None, [trace.through("a"), failing, trace.through("c")], trace.core)

    assert trace.steps == ["a>", "b>", "<a"]
    assert passage.errors == [error]
    assert not passage.is_short_circuited


async def test_exception_after_next_is_reported_and_outer_post_steps_run() -> None:
    trace, error = Trace(), ValueError("broken")
    failing = trace.around("b", after=raising(error))

    passage = await run_pipeline(None, [trace.through("a"), failing], trace.core)

    assert trace.steps == ["a>", "b>", "core", "<a"]
    assert passage == PipelineRun(reached_core=True, errors=[error])


async def test_exception_of_the_core_is_reported_and_all_post_steps_run() -> None:
    trace, error = Trace(), ValueError("broken")

    passage = await run_pipeline(None, [trace.through("a")], raising(error))  # type: ignore[arg-type]  # it raises

    assert trace.steps == ["a>", "<a"]
    assert passage == PipelineRun(reached_core=True, errors=[error])


async def test_exception_of_a_sync_middleware_is_reported() -> None:
    error = ValueError("broken")

    def fail(ctx: Any, next: Next) -> None:
        raise error

    assert (await run_pipeline(None, [fail])).errors == [error]


async def test_upstream_cannot_catch_what_downstream_raised() -> None:
    caught: list[Exception] = []

    async def catching(ctx: Any, next: Next) -> None:
        try:
            await next()
        except Exception as error:
            caught.append(error)

    passage = await run_pipeline(None, [catching, Trace().around("b", before=raising(ValueError("broken")))])

    assert caught == []
    assert len(passage.errors) == 1


async def test_two_exceptions_of_one_pass_are_kept_from_the_inside_out() -> None:
    trace, inner, outer = Trace(), ValueError("inner"), ValueError("outer")

    passage = await run_pipeline(
        None, [trace.around("a", after=raising(outer)), trace.around("b", before=raising(inner))]
    )

    assert passage.errors == [inner, outer]


async def test_abort_lets_the_middleware_finish_and_skips_later_bodies() -> None:
    trace, controller = Trace(), AbortController()
    aborting = trace.around("b", before=controller.abort)

    passage = await run_pipeline(
        None,
        [trace.through("a"), aborting, trace.through("c")],
        trace.core,
        is_aborted=lambda: controller.signal.aborted,
    )

    assert trace.steps == ["a>", "b>", "<b", "<a"]
    assert passage == PipelineRun(aborted=True)
    assert not passage.is_short_circuited


async def test_abort_without_next_is_no_short_circuit() -> None:
    controller = AbortController()

    async def refuse(ctx: Any, next: Next) -> None:
        controller.abort("not today")

    passage = await run_pipeline(None, [refuse], is_aborted=lambda: controller.signal.aborted)

    assert passage.aborted
    assert not passage.is_short_circuited


async def test_abort_in_a_post_step_is_seen_although_the_core_ran() -> None:
    trace, controller = Trace(), AbortController()

    passage = await run_pipeline(
        None,
        [trace.around("a", after=controller.abort)],
        trace.core,
        is_aborted=lambda: controller.signal.aborted,
    )

    assert passage == PipelineRun(reached_core=True, aborted=True)


async def test_aborted_context_enters_nothing() -> None:
    trace = Trace()

    passage = await run_pipeline(None, [trace.through("a")], trace.core, is_aborted=lambda: True)

    assert trace.steps == []
    assert passage == PipelineRun(aborted=True)


async def test_thrown_abort_error_counts_as_an_abort_and_not_as_an_error() -> None:
    trace, error = Trace(), AbortError("given up")

    passage = await run_pipeline(None, [trace.through("a"), trace.around("b", before=raising(error))], trace.core)

    assert trace.steps == ["a>", "b>", "<a"]
    assert passage == PipelineRun(aborted=True, aborts=[error])
    assert not passage.is_short_circuited


async def test_error_beside_an_abort_is_still_reported() -> None:
    trace, error = Trace(), ValueError("broken")
    failing, aborting = trace.around("a", after=raising(error)), trace.around("b", before=raising(AbortError()))

    passage = await run_pipeline(None, [failing, aborting])

    assert passage.errors == [error]
    assert passage.aborted


async def test_gate_given_up_with_the_turn_counts_as_an_abort() -> None:
    controller, error = AbortController(), TurnGateAborted()

    async def waits_at_a_gate(ctx: Any, next: Next) -> None:
        controller.abort()
        raise error

    passage = await run_pipeline(None, [waits_at_a_gate], is_aborted=lambda: controller.signal.aborted)

    assert passage == PipelineRun(aborted=True, aborts=[error])


async def test_gate_given_up_alone_is_an_error_of_the_waiting_task() -> None:
    error = TurnGateAborted()

    passage = await run_pipeline(None, [Trace().around("a", before=raising(error))])

    assert passage == PipelineRun(errors=[error])


async def test_cancelled_foreign_future_counts_as_an_abort() -> None:
    trace = Trace()

    async def asks_a_cancelled_future(ctx: Any, next: Next) -> None:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    passage = await run_pipeline(None, [trace.through("a"), asks_a_cancelled_future], trace.core)

    assert trace.steps == ["a>", "<a"]
    assert passage.aborted
    assert [type(error) for error in passage.aborts] == [asyncio.CancelledError]
    assert passage.errors == []


@pytest.mark.parametrize("cancel", ["task", "scope"])
async def test_cancellation_passes_through_at_once(cancel: str) -> None:
    trace, entered = Trace(), anyio.Event()

    async def hang(ctx: Any, next: Next) -> None:
        entered.set()
        await anyio.sleep_forever()

    async def run() -> None:
        await run_pipeline(None, [trace.through("a"), hang], trace.core)
        trace.steps.append("returned")

    with anyio.fail_after(5):
        if cancel == "task":
            task = asyncio.ensure_future(run())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(run)
                await entered.wait()
                group.cancel_scope.cancel()

    assert trace.steps == ["a>"]


async def test_exit_of_the_interpreter_is_not_held_up() -> None:
    trace = Trace()

    with pytest.raises(SystemExit):
        await run_pipeline(None, [trace.through("a"), trace.around("b", before=raising(SystemExit()))])


async def test_each_run_has_a_cursor_of_its_own() -> None:
    trace = Trace()
    middlewares = [trace.through("a"), trace.through("b")]

    for _ in range(3):
        assert (await run_pipeline(None, middlewares, trace.core)).reached_core
    await asyncio.gather(*(run_pipeline(None, middlewares) for _ in range(3)))

    assert trace.steps[:15] == ["a>", "b>", "core", "<b", "<a"] * 3
    assert trace.steps.count("a>") == 6


async def test_onion_without_middleware_runs_the_core() -> None:
    trace = Trace()

    await run_middleware(None, [], trace.core, on_no_next=lambda: trace.steps.append("no next"))

    assert trace.steps == ["core"]


async def test_onion_reports_that_the_core_never_ran() -> None:
    trace = Trace()

    await run_middleware(
        None, [trace.through("a"), trace.stopping("b")], trace.core, on_no_next=lambda: trace.steps.append("no next")
    )

    assert trace.steps == ["a>", "b.", "<a", "no next"]


@pytest.mark.parametrize(
    "error",
    [ValueError("broken"), Falsy("broken"), AbortError("given up"), TurnGateAborted()],
    ids=["plain", "falsy", "abort", "gate"],
)
@pytest.mark.parametrize("where", ["middleware", "core"])
async def test_onion_raises_the_very_error_it_captured(error: Exception, where: str) -> None:
    trace = Trace()
    inner: Sequence[Middleware] = [trace.around("b", before=raising(error))] if where == "middleware" else []
    core: Any = raising(error) if where == "core" else trace.core

    with pytest.raises(type(error)) as raised:
        await run_middleware(None, [trace.through("a"), *inner], core, on_no_next=lambda: trace.steps.append("no next"))

    assert raised.value is error
    assert trace.steps[-1] == "<a"
    assert "no next" not in trace.steps


async def test_onion_raises_the_last_of_several_errors() -> None:
    trace, outer = Trace(), ValueError("outer")
    middlewares = [
        trace.around("a", after=raising(outer)),
        trace.around("b", before=raising(ValueError("inner"))),
    ]

    with pytest.raises(ValueError, match="outer"):
        await run_middleware(None, middlewares, trace.core, on_no_next=lambda: None)


def test_abort_is_distinguished_from_failure_by_class() -> None:
    class AbortErrorLookAlike(Exception):
        pass

    AbortErrorLookAlike.__name__ = "AbortError"
    assert is_abort(AbortError(), aborted=False)
    assert is_abort(TurnGateAborted(), aborted=True)
    assert not is_abort(TurnGateAborted(), aborted=False)
    assert not is_abort(AbortErrorLookAlike(), aborted=True)


async def test_running_task_is_not_being_cancelled() -> None:
    assert not is_task_cancelled()


@given(
    st.lists(st.sampled_from(["through", "stop", "before", "after", "twice"]), max_size=6),
    st.sampled_from(["ok", "bad"]),
)
def test_any_pipeline_enters_a_prefix_and_leaves_in_reverse(kinds: list[str], core_kind: str) -> None:
    steps: list[int] = []

    def middleware(index: int, kind: str) -> Middleware:
        async def run(ctx: Any, next: Next) -> None:
            steps.append(index)
            if kind == "before":
                raise ValueError
            if kind != "stop":
                await next()
            if kind == "twice":
                await next()
            if kind == "after":
                raise ValueError
            steps.append(-index)

        return run

    async def core() -> None:
        if core_kind == "bad":
            raise ValueError

    async def pass_through() -> PipelineRun:
        return await run_pipeline(None, [middleware(n + 1, kind) for n, kind in enumerate(kinds)], core)

    passage = asyncio.run(pass_through())

    blocker = next((n for n, kind in enumerate(kinds) if kind in ("stop", "before")), None)
    entered = list(range(1, (len(kinds) if blocker is None else blocker + 1) + 1))
    left = [-n for n in reversed(entered) if kinds[n - 1] not in ("before", "after")]
    failed = [n for n in entered if kinds[n - 1] in ("before", "after")]
    assert steps == entered + left
    assert passage.reached_core == (blocker is None)
    assert len(passage.errors) == len(failed) + (blocker is None and core_kind == "bad")
    assert passage.is_short_circuited == (blocker is not None and not failed)
