"""Python backends: how functions are called, where they run, and what their results and errors become."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway import Media
from gateway.backends.command.child_process import HostControls
from gateway.backends.python.backend import PythonBackend, PythonFunction
from gateway.backends.result_conversion import BackendUnusable, MediaTemplate
from gateway.errors import TurnGateTimeout
from gateway.examples import pricing
from gateway.model.tools.backend import BackendError
from gateway.telemetry.logs import JsonLogFormatter
from tests.backends import sample_functions as functions
from tests.backends.invocations import invocation, is_gone, other_tasks

pytestmark = pytest.mark.anyio

Run = Literal["loop", "thread", "process"]
PLACES: tuple[Run, ...] = ("loop", "thread", "process")
CHART = MediaTemplate("image", "image/png", "history.png", "first-party", "opaque-perceptual", "Price history")


@asynccontextmanager
async def backend(function: Callable[..., Any], **settings: Any) -> AsyncIterator[PythonBackend]:
    made = PythonBackend(PythonFunction(function, **settings))
    try:
        yield made
    finally:
        await made.close()


async def result(function: Callable[..., Any], args: dict[str, Any], **settings: Any) -> Any:
    async with backend(function, **settings) as made, asyncio.timeout(20):
        return await made.run(invocation(args))


async def failure(function: Callable[..., Any], args: dict[str, Any], **settings: Any) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await result(function, args, **settings)
    return caught.value


@pytest.mark.parametrize("run", PLACES)
async def test_arguments_arrive_by_name(run: Run) -> None:
    assert await result(functions.greeting, {"name": "ann", "times": 2}, run=run) == "hello ann hello ann "


@pytest.mark.parametrize("run", PLACES)
async def test_async_function_is_awaited(run: Run) -> None:
    assert await result(functions.greeting_later, {"name": "ann"}, run=run) == "later ann"


@pytest.mark.parametrize("run", ["loop", "thread"])
async def test_function_of_args_ctx_and_meta_gets_the_call(run: Run) -> None:
    assert await result(functions.whole_call, {"name": "ann"}, run=run) == "ann True tests"


@pytest.mark.parametrize("run", PLACES)
async def test_example_prices_are_quoted(run: Run) -> None:
    quoted = await result(pricing.quote, {"sku": "DESK-160", "quantity": 3}, run=run, json_results=True)

    assert json.loads(quoted)["quantity"] == 3


@pytest.mark.parametrize("run", PLACES)
async def test_bytes_become_the_declared_media(run: Run) -> None:
    chart = await result(pricing.chart, {"sku": "DESK-160"}, run=run, media=CHART)

    assert isinstance(chart, Media)
    assert (chart.filename, chart.trust_tier, chart.modality_hazard) == ("history.png", "first-party", CHART.hazard)
    assert chart.stash.get("text:caption")["value"] == "Price history"
    assert (await chart.as_bytes()).startswith(b"\x89PNG")


@pytest.mark.parametrize("run", PLACES)
@pytest.mark.parametrize(("kind", "expected"), [("bytes", b"\x00\xff"), ("bytearray", b"ab"), ("surrogate", "\ud800")])
async def test_text_and_bytes_stay_as_they_are(run: Run, kind: str, expected: str | bytes) -> None:
    assert await result(functions.made, {"kind": kind}, run=run, json_results=True) == expected


@pytest.mark.parametrize("run", PLACES)
async def test_media_pass_with_their_fields_and_bytes(run: Run) -> None:
    one = await result(functions.made, {"kind": "media"}, run=run)
    both = await result(functions.made, {"kind": "media list"}, run=run)

    assert (one.filename, one.trust_tier, await one.as_bytes()) == ("one.png", "first-party", b"one")
    assert [item.filename for item in both] == ["one.png", "two.png"]


@pytest.mark.parametrize("run", PLACES)
@pytest.mark.parametrize("value", [{"a": [1, None, "ü"]}, [], 5, True, None], ids=str)
async def test_data_become_json_only_for_json_tools(run: Run, value: Any) -> None:
    text = await result(functions.given_back, {"value": value}, run=run, json_results=True)
    refused = await failure(functions.given_back, {"value": value}, run=run)

    assert json.loads(text) == value
    assert refused.word == "failed"
    assert refused.message == f"the tool returned {type(value).__name__}; its results are not JSON"


@pytest.mark.parametrize("run", PLACES)
@pytest.mark.parametrize("kind", ["set", "object", "nan"])
async def test_what_json_cannot_express_is_refused(run: Run, kind: str) -> None:
    refused = await failure(functions.made, {"kind": kind}, run=run, json_results=True)

    assert refused.word == "failed"
    assert "the tool returned" in refused.message


@pytest.mark.parametrize("run", PLACES)
async def test_number_keys_are_not_quietly_turned_into_text(run: Run) -> None:
    assert (await failure(functions.made, {"kind": "number keys"}, run=run, json_results=True)).word == "failed"


@pytest.mark.parametrize("run", PLACES)
@pytest.mark.parametrize(
    ("status", "word"),
    [
        (404, "not-found"),
        (409, "conflict"),
        (422, "invalid"),
        (403, "not-permitted"),
        (503, "unavailable"),
        (500, "failed"),
        (418, "failed"),
    ],
)
async def test_tool_errors_become_words(run: Run, status: int, word: str) -> None:
    refused = await failure(functions.refused, {"status": status}, run=run)

    assert (refused.word, refused.message, refused.help) == (word, r"no\nsuch thing", "look elsewhere")


@pytest.mark.parametrize("run", PLACES)
async def test_other_exceptions_show_their_class_and_nothing_else(run: Run) -> None:
    failed = await failure(functions.broken, {"secret": "hunter22"}, run=run)

    assert (failed.word, failed.message) == ("failed", "the tool raised ValueError")
    assert failed.cause is not None


@pytest.mark.parametrize("run", PLACES)
async def test_an_exception_is_one_line_of_the_log_with_its_place(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    failed = await failure(functions.broken, {"secret": "hunter22"}, run=run)

    [record] = caplog.records
    line = JsonLogFormatter().format(record)
    assert "ValueError" in line
    assert "in broken" in line or " broken" in line
    assert "hunter22" not in line
    assert run != "process" or (failed.kind, "hunter22" in str(failed.places)) == ("ValueError", False)


@pytest.mark.parametrize("run", PLACES)
@pytest.mark.parametrize("function", [functions.leaving, functions.stopped], ids=["exit", "stop"])
async def test_exits_do_not_end_the_gateway(run: Run, function: Callable[..., Any]) -> None:
    failed = await failure(function, {}, run=run)

    assert failed.word == "failed"
    assert failed.message.startswith("the tool raised ")


async def test_gate_errors_pass_untouched() -> None:
    def waits(args: Any, ctx: Any, meta: Any) -> str:
        raise TurnGateTimeout()

    with pytest.raises(TurnGateTimeout):
        await result(waits, {})


@pytest.mark.parametrize("run", PLACES)
async def test_argument_that_fits_no_parameter_is_named(run: Run) -> None:
    failed = await failure(functions.greeting, {"name": "ann", "shout": True}, run=run)

    assert failed.word == "failed"
    assert "'shout'" in failed.message


PROBLEMS: list[tuple[Callable[..., Any], dict[str, Any], list[str]]] = [
    (functions.greeting, {"properties": {"name": {}}, "required": ["name"]}, []),
    (functions.greeting, {"properties": {"name": {"default": "you"}}}, []),
    (
        functions.greeting,
        {"properties": {"name": {}}},
        ["parameter 'name' has no default, and the input schema does not require it"],
    ),
    (functions.greeting, {}, ["parameter 'name' is not in the input schema"]),
    (
        functions.greeting,
        {"properties": {"name": {}, "volume": {}}, "required": ["name"]},
        ["the function takes no 'volume'"],
    ),
    (functions.anything, {"properties": {"name": {}}}, []),
    (functions.whole_call, {}, []),
    (lambda name, /: name, {"properties": {"name": {}}}, ["parameter 'name' cannot be given by name"]),
]


@pytest.mark.parametrize(
    ("function", "schema", "problems"),
    PROBLEMS,
    ids=["fits", "filled in", "not required", "missing", "extra", "any", "whole", "positional"],
)
def test_misfits_are_found_at_construction(
    function: Callable[..., Any], schema: dict[str, Any], problems: list[str]
) -> None:
    if not problems:
        PythonBackend(PythonFunction(function, schema=schema))
        return

    with pytest.raises(BackendUnusable) as caught:
        PythonBackend(PythonFunction(function, schema=schema))
    assert caught.value.message == "; ".join(problems)


@pytest.mark.parametrize("function", [lambda: "x", functions.whole_call], ids=["lambda", "whole call"])
def test_function_that_cannot_cross_processes_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(BackendUnusable):
        PythonBackend(PythonFunction(function, run="process"))


async def test_sync_function_runs_where_it_was_declared_to() -> None:
    def thread() -> str:
        return threading.current_thread().name

    assert await result(thread, {}, run="loop") == threading.main_thread().name
    assert await result(thread, {}, run="thread") == "thread-1"


async def test_threads_are_bounded_and_used_again() -> None:
    together = threading.Barrier(2, timeout=10)

    def thread() -> str:
        together.wait()
        return threading.current_thread().name

    async with backend(thread, parallel=2) as made:
        names = await asyncio.gather(*(made.run(invocation({})) for _ in range(8)))

    assert set(names) == {"thread-1", "thread-2"}


async def test_call_given_up_while_waiting_never_runs() -> None:
    free, ran = threading.Event(), []

    def waits(name: str) -> str:
        free.wait(10)
        ran.append(name)
        return name

    async with backend(waits, parallel=1) as made:
        first = asyncio.ensure_future(made.run(invocation({"name": "first"})))
        second = asyncio.ensure_future(made.run(invocation({"name": "second"})))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        free.set()

        assert await first == "first"
        assert await made.run(invocation({"name": "third"})) == "third"
    assert ran == ["first", "third"]


async def test_blocked_threads_refuse_further_calls_at_some_point() -> None:
    free = threading.Event()

    def waits() -> str:
        free.wait(20)
        return "done"

    async with backend(waits, parallel=1) as made:
        calls = [asyncio.ensure_future(made.run(invocation({}))) for _ in range(257)]
        await asyncio.sleep(0)
        with pytest.raises(BackendError) as caught:
            await made.run(invocation({}))
        free.set()
        await asyncio.gather(*calls)

    assert caught.value.word == "unavailable"


async def test_timeout_is_a_typed_failure() -> None:
    free = threading.Event()

    def waits() -> str:
        free.wait(20)
        return "done"

    failed = await failure(waits, {}, timeout=timedelta(milliseconds=20))
    free.set()

    assert (failed.word, failed.message) == ("unavailable", "no result within 0.02 s")


async def test_worker_is_used_again() -> None:
    async with backend(functions.where, run="process", json_results=True) as made:
        pids = {await made.run(invocation({})) for _ in range(3)}

    assert len(pids) == 1
    assert pids != {str(os.getpid())}


async def test_worker_sees_only_harmless_and_declared_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_DATABASE_PASSWORD", "hunter22")

    seen = json.loads(
        await result(functions.environment, {}, run="process", json_results=True, environment={"REGION": "eu"})
    )

    assert seen.keys() <= {"REGION", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "PATH", "TZ"}
    assert seen["REGION"] == "eu"


@pytest.mark.skipif(not HostControls.detect().landlock, reason="this kernel has no Landlock")
async def test_worker_cannot_read_the_environment_of_the_gateway() -> None:
    failed = await failure(functions.parents_environment, {}, run="process")

    assert failed.message == "the tool raised PermissionError"


async def test_declared_environment_is_not_in_the_representation() -> None:
    assert "hunter22" not in repr(PythonFunction(functions.where, environment={"TOKEN": "hunter22"}))


async def test_result_past_the_limit_is_refused_and_the_worker_goes_on() -> None:
    async with backend(functions.large, run="process", max_result=1000) as made:
        with pytest.raises(BackendError) as caught:
            await made.run(invocation({"size": 1001}))

        assert await made.run(invocation({"size": 1000})) == bytes(1000)
    assert caught.value.message == "the tool returned more than 1000 bytes"


async def test_worker_that_dies_fails_its_call_only() -> None:
    async with backend(functions.dying, run="process") as made:
        for _ in range(2):
            with pytest.raises(BackendError) as caught:
                await made.run(invocation({}))
            assert caught.value.message == "the function's process ended without a result"


async def test_printing_worker_disturbs_nothing() -> None:
    assert await result(functions.chatty, {}, run="process") == "done"


async def test_forged_frame_is_refused() -> None:
    failed = await failure(functions.forged_frame, {}, run="process")

    assert failed.message == "the worker process did not answer with a result"


async def test_cancelled_worker_is_killed_with_its_children(tmp_path: Path) -> None:
    before, note = other_tasks(), tmp_path / "pids"
    async with backend(functions.stuck, run="process") as made:
        call = asyncio.ensure_future(made.run(invocation({"note": str(note)})))
        async with asyncio.timeout(20):
            while not note.exists():
                await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])

    assert call.cancelled()
    assert all([await is_gone(int(pid)) for pid in note.read_text(encoding="ascii").split()])
    assert other_tasks() == before
