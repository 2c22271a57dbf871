"""The framing of chunked bodies is bounded, whatever it consists of, and so are events."""

import pytest

from gateway.mcp.http_bodies import (
    FRAMING_PER_BYTE,
    MAX_FRAMING,
    MAX_TRAILERS,
    ChunkFraming,
    FramingTooLarge,
    SseReader,
)
from gateway.model import BackendError


def test_plain_chunks_go_on_for_ever_however_small_they_are() -> None:
    framing = ChunkFraming()
    for _ in range(20_000):
        framing.chunk()
        framing.body(1)
        framing.count_received(len(b"1\r\nx\r\n"))


def test_framing_is_bounded_by_the_content() -> None:
    framing = ChunkFraming()
    framing.count_received(1 << 20)  # the head and everything before it
    framing.chunk()
    framing.body(10)
    framing.count_received(MAX_FRAMING + 10 * (FRAMING_PER_BYTE + 1))
    with pytest.raises(FramingTooLarge, match="framing"):
        framing.count_received(1)


def test_complete_trailers_are_bounded_together() -> None:
    framing = ChunkFraming()
    framing.chunk()
    framing.trailer(b"a" * 100, b"b" * (MAX_TRAILERS - 208))
    framing.trailer(b"a" * 50, b"b" * 50)
    with pytest.raises(FramingTooLarge, match="trailers"):
        framing.trailer(b"", b"")


def test_trailer_that_does_not_end_is_bounded_after_any_body() -> None:
    framing = ChunkFraming()
    framing.chunk()
    framing.body(1 << 22)
    framing.count_received(1 << 16)
    framing.chunk()
    framing.count_received(1 << 16)
    framing.count_received(MAX_TRAILERS)
    with pytest.raises(FramingTooLarge, match="trailers"):
        framing.count_received(1)


def test_event_of_many_lines_is_bounded_like_one_of_a_single_line() -> None:
    [event] = SseReader(12).events(b"data: 12345\ndata: 12345\n\n")

    assert event.data == b"12345\n12345"
    with pytest.raises(BackendError):
        list(SseReader(12).events(b"data: 12345\ndata: 123456\n\n"))
