"""The pricing tools: sums exact to the cent, a valid picture, and errors that suggest a better call."""

import json
import struct
import zlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ToolError
from gateway.examples.pricing import ARTICLES, BILLS, Canvas, chart, invoice, quote

SKUS = st.sampled_from(sorted(ARTICLES))


@pytest.mark.parametrize(
    ("quantity", "percent", "total"),
    [
        pytest.param(1, 0, "39.90", id="one"),
        pytest.param(99, 0, "3950.10", id="just below the discount"),
        pytest.param(100, 5, "3790.50", id="first discount"),
        pytest.param(1000, 12, "35112.00", id="second discount"),
    ],
)
def test_quote_takes_the_discount_off(quantity: int, percent: int, total: str) -> None:
    quoted = quote("LAMP-9", quantity)

    assert (quoted["discountPercent"], quoted["total"], quoted["currency"]) == (percent, total, "EUR")


@given(SKUS, st.integers(1, 10_000))
def test_quote_never_costs_more_per_piece_than_one_piece(sku: str, quantity: int) -> None:
    quoted = quote(sku, quantity)

    assert Decimal(quoted["total"]) <= Decimal(quoted["unitPrice"]) * quantity
    assert json.loads(json.dumps(quoted)) == quoted


@pytest.mark.parametrize("quantity", [0, -1, 10_001])
def test_quantity_that_is_not_sold_is_refused(quantity: int) -> None:
    with pytest.raises(ToolError) as caught:
        quote("LAMP-9", quantity)

    assert (caught.value.status, caught.value.help) == (422, "ask for 1 to 10000 pieces")


@pytest.mark.parametrize("ask", [lambda: quote("LAMP-10", 1), lambda: chart("LAMP-10"), lambda: invoice("LAMP-10")])
def test_unknown_name_is_refused_with_those_there_are(ask: object) -> None:
    assert callable(ask)

    with pytest.raises(ToolError) as caught:
        ask()

    assert caught.value.status == 404
    assert caught.value.help is not None
    assert caught.value.help.startswith("known: ")


def test_long_unknown_name_is_not_repeated_in_full() -> None:
    with pytest.raises(ToolError) as caught:
        invoice("x" * 1_000_000)

    assert len(caught.value.message) < 100


@pytest.mark.parametrize("sku", sorted(ARTICLES))
def test_chart_is_a_png_with_a_bar_as_tall_as_the_highest_price(sku: str) -> None:
    width, height, rows = parsed(chart(sku))

    assert (width, height) == (320, 160)
    blue = {y for y, row in enumerate(rows) if (52, 104, 192) in row}
    assert blue == set(range(16, 144))


def test_chart_has_a_bar_for_each_price() -> None:
    _, _, rows = parsed(chart("DESK-160"))
    bottom = rows[143]
    starts = [x for x in range(1, 320) if bottom[x] == (52, 104, 192) != bottom[x - 1]]

    assert len(starts) == len(ARTICLES["DESK-160"].history)


def test_what_is_drawn_outside_a_canvas_is_cut_off() -> None:
    canvas = Canvas(4, 4, (0, 0, 0))
    canvas.fill(-5, -5, width=6, height=6, colour=(255, 255, 255))
    canvas.fill(3, 3, width=100, height=100, colour=(255, 255, 255))
    canvas.fill(-9, -9, width=2, height=2, colour=(1, 1, 1))

    _, _, rows = parsed(canvas.png())

    assert [[pixel[0] for pixel in row] for row in rows] == [
        [255, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 255],
    ]


@pytest.mark.parametrize("number", sorted(BILLS))
def test_invoice_adds_up(number: str) -> None:
    written = json.loads(invoice(number))

    assert written["number"] == number
    assert Decimal(written["total"]) == sum(Decimal(line["amount"]) for line in written["lines"])
    for line in written["lines"]:
        assert Decimal(line["amount"]) == line["quantity"] * Decimal(line["unitPrice"])


def parsed(png: bytes) -> tuple[int, int, list[list[tuple[int, ...]]]]:
    """Width, height and rows of pixels; asserts every checksum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    rest = png[8:]
    while rest:
        [length] = struct.unpack(">I", rest[:4])
        kind, data = rest[4:8], rest[8 : 8 + length]
        assert struct.unpack(">I", rest[8 + length : 12 + length]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        rest = rest[12 + length :]
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert form == [8, 2, 0, 0, 0]
    pixels = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + 3 * width
    assert len(pixels) == stride * height
    lines = [pixels[y * stride : (y + 1) * stride] for y in range(height)]
    assert {line[0] for line in lines} == {0}
    return width, height, [[tuple(line[x : x + 3]) for x in range(1, stride, 3)] for line in lines]
