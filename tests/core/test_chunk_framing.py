"""The framing of chunked bodies: bounded, whatever it is made of."""

import pytest

from gateway.core.chunk_framing import FRAMING_PER_BYTE, MAX_FRAMING, MAX_TRAILERS, ChunkFraming, FramingTooLarge


def test_plain_chunks_go_on_for_ever_however_small_they_are() -> None:
    framing = ChunkFraming()
    for _ in range(20_000):
        framing.chunk()
        framing.body(1)
        framing.received(len(b"1\r\nx\r\n"))


def test_framing_is_bounded_by_the_content() -> None:
    framing = ChunkFraming()
    framing.received(1 << 20)  # the head, and whatever came before it
    framing.chunk()
    framing.body(10)
    framing.received(MAX_FRAMING + 10 * (FRAMING_PER_BYTE + 1))
    with pytest.raises(FramingTooLarge, match="framing"):
        framing.received(1)


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
    framing.received(1 << 16)
    framing.chunk()
    framing.received(1 << 16)
    framing.received(MAX_TRAILERS)
    with pytest.raises(FramingTooLarge, match="trailers"):
        framing.received(1)
