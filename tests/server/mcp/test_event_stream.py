"""Notifying and asking, tested on their own: without a listener, notifying is silent and asking is an error."""

import asyncio

import pytest

from gateway import (
    CallerCannotAnswer,
    Question,
    ask_caller,
    ask_caller_blocking,
    can_ask_caller,
    log_message,
    report_progress,
)
from gateway.server.mcp.caller_channel import find_missing_capabilities
from gateway.server.mcp.responses import EventStream, parse_event_id

FORM = Question.form("Who?", {"type": "object", "properties": {}})
PAGE = Question.url("Sign in", "https://example.com/", id="1")
SAMPLE = Question.sample([], max_tokens=1)
TOOLED = Question.sample([], max_tokens=1, tools=[])


def test_notifying_is_silent_without_a_listener() -> None:
    report_progress(1, 2, message="half")
    log_message("hello", "alert")

    assert not can_ask_caller(FORM)


def test_asking_without_a_listener_is_an_error() -> None:
    with pytest.raises(CallerCannotAnswer, match="there is no caller to ask"):
        asyncio.run(_ask())
    with pytest.raises(CallerCannotAnswer):
        ask_caller_blocking(who=FORM)


async def _ask() -> None:
    await ask_caller(who=FORM)


@pytest.mark.parametrize(
    ("declared", "question", "lacks"),
    [
        ({}, FORM, {"elicitation": {}}),
        ({"elicitation": {}}, FORM, None),
        ({"elicitation": {"form": {}}}, FORM, None),
        ({"elicitation": {"url": {}}}, FORM, {"elicitation": {}}),
        ({"elicitation": {"url": {}, "form": {}}}, FORM, None),
        ({"elicitation": {}}, PAGE, {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, PAGE, None),
        ({"elicitation": True}, FORM, {"elicitation": {}}),
        ({"sampling": {}}, SAMPLE, None),
        ({"sampling": {}}, TOOLED, {"sampling": {"tools": {}}}),
        ({"sampling": {"tools": {}}}, TOOLED, None),
        ({}, SAMPLE, {"sampling": {}}),
        ({"roots": {}}, Question.roots(), None),
        ({"roots": []}, Question.roots(), {"roots": {}}),
    ],
)
def test_what_a_client_lacks_is_named(declared: dict[str, object], question: Question, lacks: object) -> None:
    assert find_missing_capabilities(declared, question) == lacks


@pytest.mark.parametrize("id", ["", ".", "a", "a.", "a.b", "a.-1", "a.١", "a." + "1" * 17])
def test_strange_event_ids_name_nothing(id: str) -> None:
    assert parse_event_id(id) is None


def test_event_ids_name_their_stream_and_number() -> None:
    assert parse_event_id("7.12") == ("7", 12)


def test_stream_keeps_its_newest_events_and_takes_nothing_after_its_end() -> None:
    stream = EventStream("s", max_events=3)
    for number in range(5):
        stream.put(b"%d" % number)
    stream.put(b"last", final=True)
    stream.put(b"too late")
    sent: list[bytes] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message["body"])

    asyncio.run(stream.send_events(send, stream.attach(), after=0))

    assert sent == [
        b"id: s.4\nevent: message\ndata: 3\n\n",
        b"id: s.5\nevent: message\ndata: 4\n\n",
        b"id: s.6\nevent: message\ndata: last\n\n",
    ]


def test_silent_stream_is_kept_alive_by_comments() -> None:
    stream = EventStream()
    sent: list[bytes] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message["body"])
        if len(sent) == 3:
            stream.end()

    asyncio.run(stream.send_events(send, stream.attach(), keep_alive=0.0))

    assert sent == [b": ping\n\n"] * 3
