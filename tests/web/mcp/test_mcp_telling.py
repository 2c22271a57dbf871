"""Functions that tell and ask, tried on their own: telling is silent where nobody listens, asking is an error."""

import asyncio

import orjson
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
from gateway.web.mcp.exchanges import lacking
from gateway.web.mcp.listings import Told
from gateway.web.mcp.streams import Stream, event_of

FORM = Question.form("Who?", {"type": "object", "properties": {}})
PAGE = Question.url("Sign in", "https://example.com/", id="1")
SAMPLE = Question.sample([], max_tokens=1)
TOOLED = Question.sample([], max_tokens=1, tools=[])


def test_telling_is_silent_where_nobody_listens() -> None:
    report_progress(1, 2, message="half")
    log_message("hello", "alert")

    assert not can_ask_caller(FORM)


def test_asking_nobody_is_an_error() -> None:
    with pytest.raises(CallerCannotAnswer, match="nobody can be asked here"):
        asyncio.run(_asked())
    with pytest.raises(CallerCannotAnswer):
        ask_caller_blocking(who=FORM)


async def _asked() -> None:
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
    assert lacking(declared, question) == lacks


@pytest.mark.parametrize("id", ["", ".", "a", "a.", "a.b", "a.-1", "a.١", "a." + "1" * 17])
def test_strange_event_ids_name_nothing(id: str) -> None:
    assert event_of(id) is None


def test_event_ids_name_their_stream_and_number() -> None:
    assert event_of("7.12") == ("7", 12)


def test_stream_keeps_its_newest_events_and_takes_nothing_after_its_end() -> None:
    stream = Stream("s", kept=3)
    for number in range(5):
        stream.put(b"%d" % number)
    stream.put(b"last", final=True)
    stream.put(b"too late")
    sent: list[bytes] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message["body"])

    asyncio.run(stream.pump(send, stream.take(), after=0))

    assert sent == [
        b"id: s.4\nevent: message\ndata: 3\n\n",
        b"id: s.5\nevent: message\ndata: 4\n\n",
        b"id: s.6\nevent: message\ndata: last\n\n",
    ]


def test_silent_stream_is_kept_alive_by_comments() -> None:
    stream = Stream()
    sent: list[bytes] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(message["body"])
        if len(sent) == 3:
            stream.end()

    asyncio.run(stream.pump(send, stream.take(), keep_alive=0.0))

    assert sent == [b": ping\n\n"] * 3


def test_long_list_is_told_in_pages() -> None:
    names = [f"tool_{number:02}" for number in range(7)]
    told = Told(names, [f'"{name}"'.encode() for name in names])
    seen: list[str] = []
    cursor = None

    for _ in range(3):
        page, cursor = told.page(cursor, 3)
        seen += orjson.loads(page)

    assert seen == names
    assert cursor is None
    assert told.page(None, 3) == told.page("", 3)


def test_cursor_of_a_tool_that_is_gone_goes_on_after_it() -> None:
    _, cursor = Told(["a", "b", "c"], [b"1", b"2", b"3"]).page(None, 2)

    assert Told(["a", "c", "d"], [b"1", b"3", b"4"]).page(cursor, 2) == (b"[3,4]", None)
