"""Events of an executor: growing texts, settling calls, log lines and figures, each with state per id."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.engine.turn_pipeline.dispatch_loop import in_memory_callbacks
from gateway.model.media import InMemoryMediaReader, Media
from gateway.model.primitives.canonical_json import call_id
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext, TurnContext
from gateway.model.turns.events import (
    EventBuses,
    GenerationStats,
    LogEvent,
    MessageEvent,
    ThoughtEvent,
    ToolCallEvent,
    TurnEvent,
)
from gateway.model.turns.progress_reporter import Reporter


class Announced:
    """A reporter, its context, and all its events on either bus."""

    def __init__(self) -> None:
        buses = EventBuses()
        raw = {"system_prompt": "p"}
        turn = TurnContext(raw, tools=ToolRegistry(), callbacks=in_memory_callbacks(), buses=buses)
        self.ctx = DispatchContext(turn, buses=buses)
        self.reporter = Reporter(self.ctx)
        self.functional: list[Any] = []
        self.observed: list[Any] = []
        self.buses = buses
        buses.functional.on("*", self.functional.append)
        buses.observability.on("*", self.observed.append)


TEXTS = [
    pytest.param("report_message", MessageEvent, id="message"),
    pytest.param("report_thought", ThoughtEvent, id="thought"),
]


@pytest.mark.parametrize(("method", "kind"), TEXTS)
def test_text_grows_by_deltas_until_it_is_complete(method: str, kind: type[TurnEvent]) -> None:
    seen = Announced()
    report: Callable[..., None] = getattr(seen.reporter, method)

    report("m", "Hel")
    report("m", "lo")
    report("m", "", is_complete=True)

    assert [type(event) for event in seen.functional] == [kind] * 3
    first, second, third = seen.functional
    assert [(event.a_delta, event.full) for event in seen.functional] == [
        ("Hel", "Hel"),
        ("lo", "Hello"),
        ("", "Hello"),
    ]
    assert [event.is_complete for event in seen.functional] == [False, False, True]
    assert first.created_at == second.created_at == third.created_at
    assert first.updated_at <= second.updated_at <= third.updated_at
    assert (first.completed_at, third.completed_at) == (None, third.updated_at)
    assert seen.observed == []


@pytest.mark.parametrize(("method", "kind"), TEXTS)
def test_text_that_is_complete_cannot_grow(method: str, kind: type[TurnEvent]) -> None:
    seen = Announced()
    report: Callable[..., None] = getattr(seen.reporter, method)
    report("m", "all", is_complete=True)

    with pytest.raises(ValueError, match="'m' was already reported as complete"):
        report("m", "more")

    assert len(seen.functional) == 1
    report("another", "fine")


def test_messages_and_thoughts_of_one_id_do_not_mix() -> None:
    seen = Announced()

    seen.reporter.report_message("x", "said", is_complete=True)
    seen.reporter.report_thought("x", "thought")

    assert [event.full for event in seen.functional] == ["said", "thought"]


@pytest.mark.parametrize("delta", [None, 5, b"bytes"], ids=["none", "number", "bytes"])
def test_delta_that_is_no_text_changes_nothing(delta: Any) -> None:
    seen = Announced()
    seen.reporter.report_message("m", "a")

    with pytest.raises(TypeError):
        seen.reporter.report_message("m", delta)

    seen.reporter.report_message("m", "b")
    assert seen.functional[-1].full == "ab"


def test_call_is_announced_and_then_settled_under_one_id() -> None:
    seen = Announced()
    answer = Tokenizable("said")

    seen.reporter.report_tool_call("c", tool="echo", args={"n": 1})
    seen.reporter.report_tool_call("c", results=answer, is_complete=True)

    asked, settled = seen.functional
    checksum = call_id("echo", {"n": 1})
    assert asked.to_dict() == {
        "id": "c",
        "tool": "echo",
        "args": {"n": 1},
        "checksum": checksum,
        "created_at": asked.created_at,
        "updated_at": asked.created_at,
        "is_complete": False,
        "is_error": False,
    }
    assert settled.to_dict() == {
        **asked.to_dict(),
        "updated_at": settled.updated_at,
        "is_complete": True,
        "results": answer,
        "completed_at": settled.updated_at,
    }


def test_checksum_is_empty_until_tool_and_arguments_are_known() -> None:
    seen = Announced()

    seen.reporter.report_tool_call("c")
    seen.reporter.report_tool_call("c", tool="echo")
    seen.reporter.report_tool_call("c", args={})
    seen.reporter.report_tool_call("d", args={})

    checksums = [event.checksum for event in seen.functional]
    assert checksums == ["", "", call_id("echo", {}), ""]
    assert [event.tool for event in seen.functional] == ["", "echo", "echo", ""]
    assert [event.args for event in seen.functional] == [None, None, {}, {}]


def test_fields_left_out_keep_what_was_reported_before() -> None:
    seen = Announced()
    answer = Tokenizable("failed")

    seen.reporter.report_tool_call("c", tool="echo", args={}, results=answer, is_error=True)
    seen.reporter.report_tool_call("c", is_complete=True)

    settled = seen.functional[-1]
    assert (settled.tool, settled.args, settled.results, settled.is_error) == ("echo", {}, answer, True)


def test_error_flag_can_be_taken_back_before_completion() -> None:
    seen = Announced()

    seen.reporter.report_tool_call("c", is_error=True)
    seen.reporter.report_tool_call("c", is_error=False, is_complete=True)

    assert [event.is_error for event in seen.functional] == [True, False]


def test_settled_call_cannot_be_updated() -> None:
    seen = Announced()
    seen.reporter.report_tool_call("c", tool="echo", args={}, is_complete=True)

    with pytest.raises(ValueError, match="'c' was already reported as complete"):
        seen.reporter.report_tool_call("c", is_error=True)

    assert len(seen.functional) == 1


def test_arguments_that_cannot_be_hashed_leave_the_state_alone() -> None:
    seen = Announced()
    bad: Any = {"when": object()}

    with pytest.raises(TypeError):
        seen.reporter.report_tool_call("c", tool="echo", args=bad)

    seen.reporter.report_tool_call("c", tool="echo", args={"n": 1})
    assert [event.args for event in seen.functional] == [{"n": 1}]


def test_listener_that_rewrites_events_changes_nothing_that_follows() -> None:
    seen = Announced()

    def rewrite(event: Any) -> None:
        event.is_complete = True
        if isinstance(event, ToolCallEvent):
            event.tool = "forged"
            if event.args is not None:
                event.args["n"] = 666
            if event.results:
                event.results.clear()
        else:
            event.full = "forged"

    seen.buses.functional.on("*", rewrite)
    media = Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=InMemoryMediaReader(b""))
    args, results = {"n": 1}, [media]

    seen.reporter.report_message("m", "Hel")
    seen.reporter.report_message("m", "lo")
    seen.reporter.report_tool_call("c", tool="echo", args=args)
    seen.reporter.report_tool_call("c", results=results, is_complete=True)

    assert (args, results) == ({"n": 1}, [media])
    assert seen.functional[1].a_delta == "lo"
    assert seen.functional[3].checksum == call_id("echo", {"n": 1})


def test_reporting_does_not_store() -> None:
    seen = Announced()

    seen.reporter.report_message("m", "all", is_complete=True)
    seen.reporter.report_tool_call("c", tool="echo", args={}, is_complete=True)

    assert (seen.ctx.turn_messages, seen.ctx.turn_tool_calls) == ([], [])


@pytest.mark.parametrize("level", ["trace", "debug", "info", "warn", "error"])
def test_log_line_carries_its_level_and_place(level: str) -> None:
    seen = Announced()
    seen.ctx.iteration = 2

    getattr(seen.reporter.log, level)({"kind": "retry", "message": "again", "payload": {"n": 1}})

    [event] = seen.observed
    assert isinstance(event, LogEvent)
    assert event.to_dict() == {
        "dispatch_id": seen.ctx.dispatch_id,
        "iteration": 2,
        "emitted_at": event.emitted_at,
        "level": level,
        "kind": "retry",
        "message": "again",
        "payload": {"n": 1},
    }
    assert seen.functional == []


def test_log_line_needs_no_payload_and_keeps_its_own_copy() -> None:
    seen = Announced()
    payload = {"n": 1}

    seen.reporter.log.info({"kind": "k", "message": "m"})
    seen.reporter.log.info({"kind": "k", "message": "m", "payload": payload})
    seen.observed[1].payload["n"] = 666

    assert "payload" not in seen.observed[0].to_dict()
    assert payload == {"n": 1}


@pytest.mark.parametrize("entry", [None, "text", {}, {"kind": "k"}, {"message": "m"}], ids=repr)
def test_log_line_without_kind_and_message_is_refused(entry: Any) -> None:
    seen = Announced()

    with pytest.raises(ValueError, match="a log entry must be a mapping"):
        seen.reporter.log.warn(entry)

    assert seen.observed == []


def test_generation_figures_carry_their_place_and_are_copied() -> None:
    seen = Announced()
    stats = {"outputTokens": 7, "raw": {"id": "x"}}

    seen.reporter.report_generation_stats(stats)
    seen.observed[0].stats["raw"]["id"] = "changed"

    [event] = seen.observed
    assert isinstance(event, GenerationStats)
    assert (event.dispatch_id, event.iteration) == (seen.ctx.dispatch_id, 0)
    assert stats == {"outputTokens": 7, "raw": {"id": "x"}}
