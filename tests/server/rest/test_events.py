"""Events of a turn over REST: in order, as data, to its owner, until it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gateway.errors import GatewayError
from gateway.model.turns.events import EventBuses, LogEvent, TurnEnd, TurnEvent, WarningEvent, now
from gateway.server.rest.events import (
    MAX_DATA,
    MAX_LOGS,
    EventLog,
    EventLogs,
    decode_event_id,
    encode_event,
    encode_event_id,
    event_stream,
)
from tests.server.rest.gateway import Gateway, running, with_catalogue
from tests.server.rest.sse_reader import RestEvent, open_sse_reader

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def open_turn(client: Any) -> str:
    return str((await client.post("/v1/turns", json={"catalogue": "desk"})).json()["id"])


async def call_tool(client: Any, turn: str, tool: str, **more: Any) -> Any:
    return (await client.post(f"/v1/turns/{turn}/calls", json={"tool": tool, **more})).json()


def names(events: list[RestEvent]) -> list[str]:
    return [each.name for each in events]


async def test_events_of_a_call_come_in_order_and_join_by_checksum(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        async with open_sse_reader(gateway, turn) as reader:
            answer = await call_tool(client, turn, "echo", arguments={"text": "hi"}, id="call_1")
            events = await reader.until("dispatchEnd")

    assert names(events) == [
        "dispatchStart",
        "iterationStart",
        "toolCall",
        "toolExecutionStart",
        "toolExecutionEnd",
        "toolCall",
        "iterationEnd",
        "dispatchEnd",
    ]
    proposed, start, end, done = (each.data for each in events[2:6])
    assert start["callId"] == end["callId"] == proposed["checksum"] == done["checksum"] == answer["checksum"]
    assert start["args"] == {"text": "hi", "times": 1}
    assert proposed["args"] == {"text": "hi"}
    assert (proposed["isComplete"], done["isComplete"], end["isError"]) == (False, True, False)
    assert done["results"] == {"kind": "artifact", "artifact": {"kind": "SpooledArtifact"}}
    assert start["turnId"] == turn
    assert "results" not in end


async def test_invalid_arguments_start_nothing(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        async with open_sse_reader(gateway, turn) as reader:
            await call_tool(client, turn, "echo", arguments={"text": 5})
            events = await reader.until("dispatchEnd")

    assert "toolExecutionStart" not in names(events)


async def test_stream_goes_on_under_another_revision(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        async with open_sse_reader(gateway, turn) as reader:
            with_catalogue(gateway, "desk", title="Another desk")
            await call_tool(client, turn, "echo", arguments={"text": "hi"})
            events = await reader.until("dispatchEnd")

    assert "toolExecutionEnd" in names(events)


@pytest.mark.parametrize(
    "id", ["", "x", "0123abcd", "0123abcd-", "0123abcd--1", "0123abcd-1.", "0123ABCD-1", "0123abcd-²"]
)
def test_id_that_is_none_of_ours_is_no_place(id: str) -> None:
    assert decode_event_id(id) is None


def test_place_in_several_logs_is_one_id() -> None:
    places = {"0123abcd": 7, "89abcdef": 12}

    assert decode_event_id(encode_event_id(places)) == places
    assert decode_event_id(encode_event_id({f"{number:08x}": 1 for number in range(MAX_LOGS)})) is not None
    assert decode_event_id(encode_event_id({f"{number:08x}": 1 for number in range(MAX_LOGS + 2)})) is None


async def test_stream_ends_with_the_turn(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        async with open_sse_reader(gateway, turn) as reader:
            await client.post(f"/v1/turns/{turn}/end", json={"as": "ack"})
            events = await reader.rest()
        late = await client.get(f"/v1/turns/{turn}/events")

    assert names(events) == ["turnEnd"]
    assert dict(reader.start["headers"])[b"content-type"] == b"text/event-stream"
    assert late.status_code == 204


async def test_reader_who_comes_late_or_back_misses_nothing(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        await call_tool(client, turn, "echo", arguments={"text": "a"})
        async with open_sse_reader(gateway, turn) as reader:
            first = await reader.until("dispatchEnd")
        await call_tool(client, turn, "echo", arguments={"text": "b"})
        async with open_sse_reader(gateway, turn, last=first[-1].id) as reader:
            second = await reader.until("dispatchEnd")

    numbers = [int(str(each.id).rpartition("-")[2]) for each in [*first, *second]]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert second[3].data["args"]["text"] == "b"


@pytest.mark.parametrize("last", ["nonsense", "deadbeef-1", "-", "x" * 300])
async def test_id_of_another_log_is_a_gap(gateway: Gateway, last: str) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        await call_tool(client, turn, "echo", arguments={"text": "a"})
        async with open_sse_reader(gateway, turn, last=last) as reader:
            first = await reader.next()

    assert first == RestEvent("dropped", {"missed": None})


async def test_other_principals_find_no_such_turn(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
    for who in ("bob", "other-ann", "nobody-ann", "guest"):
        async with gateway.client(who) as client:
            foreign, unknown = [await client.get(f"/v1/turns/{id}/events") for id in (turn, "turn_unknown")]

        assert (foreign.status_code, foreign.content) == (404, unknown.content)


async def test_more_streams_than_allowed_are_refused(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        readers = [open_sse_reader(gateway, turn) for _ in range(8)]
        for each in readers:
            await each.__aenter__()
        await call_tool(client, turn, "echo", arguments={"text": "a"})
        refused = await client.get(f"/v1/turns/{turn}/events")
        for each in readers:
            await each.__aexit__(None, None, None)
        async with open_sse_reader(gateway, turn) as reader:
            again = await reader.next()

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "15")
    assert again is not None


async def test_head_of_a_stream_ends_at_once(gateway: Gateway) -> None:
    async with gateway.client() as client:
        turn = await open_turn(client)
        async with open_sse_reader(gateway, turn, method="HEAD") as reader:
            events = await reader.rest()

    assert (reader.start["status"], events) == (200, [])


async def stream_of(log: EventLog, blocks: list[bytes], *, may_read: bool = True, seconds: float = 0.01) -> None:
    """Run a stream to its end, which comes when its reader loses access."""

    async def asked() -> bool:
        return may_read

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()

    async def send(message: Any) -> None:
        blocks.append(message.get("body", b""))

    stream = event_stream(log, last_event_id=None, may_read=asked, keep_alive=seconds)
    await asyncio.wait_for(stream({"method": "GET"}, receive, send), 10)


def log_event(number: int) -> LogEvent:
    return LogEvent("d", 0, now(), "info", "k", str(number))


async def test_slow_reader_learns_how_much_was_dropped() -> None:
    buses = EventBuses()
    log = EventLog(buses, max_events=4)
    for number in range(10):
        buses.emit(log_event(number))
    blocks: list[bytes] = []

    await stream_of(log, blocks, may_read=False)

    assert blocks[1] == b'event: dropped\ndata: {"missed":6}\n\n'
    assert [json.loads(each.split(b"data: ")[1])["message"] for each in blocks[2:6]] == ["6", "7", "8", "9"]


async def test_large_events_push_out_more_of_the_others() -> None:
    buses = EventBuses()
    log = EventLog(buses, max_bytes=10_000)
    for number in range(50):
        buses.emit(LogEvent("d", 0, now(), "info", "k", f"{number}", "x" * 3_000))

    assert [number for number, _, _ in log.since(0)] == [48, 49, 50]


async def test_reader_who_may_not_read_any_more_is_sent_away() -> None:
    blocks: list[bytes] = []

    await stream_of(EventLog(EventBuses()), blocks, may_read=False)

    assert blocks == [b"", b""]


async def test_reader_who_may_not_read_any_more_is_sent_away_from_a_busy_turn() -> None:
    buses = EventBuses()
    log = EventLog(buses)
    blocks: list[bytes] = []
    stream = asyncio.ensure_future(stream_of(log, blocks, may_read=False))

    while not stream.done():
        buses.emit(log_event(1))
        await asyncio.sleep(0)

    assert b": keep-alive\n\n" not in blocks


async def test_silence_is_broken_by_comments() -> None:
    buses = EventBuses()
    log = EventLog(buses)
    blocks: list[bytes] = []

    async def end_after_silence() -> None:
        while len(blocks) < 4:
            await asyncio.sleep(0)
        buses.emit(TurnEnd("t", now(), now(), 0.0))

    await asyncio.gather(stream_of(log, blocks), end_after_silence())

    assert blocks[1:4] == [b": keep-alive\n\n"] * 3
    assert b"event: turnEnd" in blocks[-2]


async def test_hushed_streams_end_and_new_ones_begin_no_more() -> None:
    logs, buses, later = EventLogs(), EventBuses(), EventBuses()
    blocks: list[bytes] = []
    stream = asyncio.ensure_future(stream_of(logs.get(buses), blocks, seconds=60))
    while not blocks:
        await asyncio.sleep(0)

    buses.emit(log_event(1))
    logs.close()
    await stream
    await stream_of(logs.get(later), blocks, seconds=60)

    assert [each[:2] for each in blocks] == [b"", b"id", b"", b"", b""]


async def test_events_from_threads_arrive() -> None:
    buses = EventBuses()
    log = EventLog(buses)
    blocks: list[bytes] = []

    def emit() -> None:
        buses.emit(log_event(1))
        buses.emit(TurnEnd("t", now(), now(), 0.0))

    await asyncio.gather(stream_of(log, blocks, seconds=5), asyncio.to_thread(emit))

    assert b"event: log" in b"".join(blocks)


@dataclass(slots=True)
class Odd(TurnEvent):
    name: ClassVar[str] = "odd"
    some_value: Any


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(b"bytes", "bytes", id="bytes-are-named"),
        pytest.param(object(), "object", id="objects-are-named"),
        pytest.param(GatewayError("ours"), {"code": "E_GATEWAY", "message": "ours", "trusted": False}, id="our-error"),
        pytest.param(ValueError("secret"), {"code": "E_FOREIGN", "message": "ValueError"}, id="their-error"),
        pytest.param({"a_b": [1, None]}, {"a_b": [1, None]}, id="keys-of-data-stay"),
        pytest.param("a\nb\r\n", "a\nb\r\n", id="newlines"),
    ],
)
def test_event_is_one_line_of_json(value: Any, shown: Any) -> None:
    data = encode_event(Odd(value))

    assert b"\n" not in data
    assert json.loads(data) == {"someValue": shown}


def test_warning_shows_nothing_of_a_foreign_error() -> None:
    data = encode_event(WarningEvent(now(), "s", "k", "m", ValueError("password=hunter2")))

    assert b"hunter2" not in data


def test_event_that_is_too_large_is_sent_without_its_data() -> None:
    data = encode_event(Odd(["x" * 1000] * 100))

    assert json.loads(data).keys() == {"omittedBytes"}
    assert len(data) < MAX_DATA


def test_event_nested_without_end_is_cut() -> None:
    value: list[Any] = []
    value.append(value)

    assert encode_event(Odd(value)).count(b"[") == 32
