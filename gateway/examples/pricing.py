"""Prices, price charts and invoices: plain functions that a Tool of `type: python` names by `module:function`.

Arguments are validated against the tool's input schema. The functions check whether an article or invoice exists.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from gateway.errors import ToolError

CURRENCY: Final = "EUR"


@dataclass(frozen=True, slots=True)
class Article:
    """An article. `history` has its price at the start of each quarter, the newest last."""

    sku: str
    title: str
    history: tuple[Decimal, ...]

    @property
    def price(self) -> Decimal:
        return self.history[-1]


@dataclass(frozen=True, slots=True)
class Bill:
    """An invoice: the customer, and the quantity of each article."""

    number: str
    customer: str
    email: str
    lines: tuple[tuple[str, int], ...]


def _entry(sku: str, title: str, *prices: str) -> Article:
    return Article(sku, title, tuple(map(Decimal, prices)))


ARTICLES: Final[Mapping[str, Article]] = {
    article.sku: article
    for article in (
        _entry("DESK-160", "Desk, 160 cm, oak", "289.00", "289.00", "305.00", "312.00", "319.00", "329.00"),
        _entry("CHAIR-02", "Office chair with armrests", "149.00", "155.00", "155.00", "149.00", "139.00", "145.00"),
        _entry("LAMP-9", "Desk lamp, dimmable", "34.50", "36.00", "36.00", "38.50", "39.90", "39.90"),
        _entry("MAT-1", "Anti-fatigue mat", "24.00", "24.00", "22.50", "22.50", "21.00", "19.90"),
    )
}

BILLS: Final[Mapping[str, Bill]] = {
    bill.number: bill
    for bill in (
        Bill("2026-0101", "Northwind Offices", "accounts@northwind.example", (("DESK-160", 4), ("CHAIR-02", 4))),
        Bill("2026-0102", "Lakeside School", "office@lakeside.example", (("LAMP-9", 30), ("MAT-1", 12))),
        Bill("2026-0103", "Miriam Falk", "miriam@falk.example", (("CHAIR-02", 1), ("LAMP-9", 2), ("MAT-1", 1))),
    )
}

Colour = tuple[int, int, int]

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_TRUE_COLOUR: Final = 2


class Canvas:
    """A picture of rectangles, as rows of pixels from the top. Drawing outside is cut off."""

    def __init__(self, width: int, height: int, paper: Colour) -> None:
        self._width = width
        self._height = height
        self._rows = [bytearray(bytes(paper) * width) for _ in range(height)]

    def fill(self, left: int, top: int, *, width: int, height: int, colour: Colour) -> None:
        first, last = max(left, 0), min(left + width, self._width)
        if first < last:
            for row in self._rows[max(top, 0) : max(top + height, 0)]:
                row[first * 3 : last * 3] = bytes(colour) * (last - first)

    def png(self) -> bytes:
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, _TRUE_COLOUR, 0, 0, 0)
        unfiltered = b"".join(b"\x00" + row for row in self._rows)
        return b"".join(
            (_SIGNATURE, _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(unfiltered, 9)), _chunk(b"IEND", b""))
        )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


DISCOUNTS: Final = ((1000, Decimal("0.12")), (100, Decimal("0.05")))
"""Minimum quantities and their discounts, the largest first."""

_CENT: Final = Decimal("0.01")
_MAX_QUANTITY: Final = 10_000

_WIDTH, _HEIGHT, _MARGIN = 320, 160, 16
_PAPER: Final[Colour] = (255, 255, 255)
_LINE: Final[Colour] = (208, 213, 221)
_BAR: Final[Colour] = (52, 104, 192)


def quote(sku: str, quantity: int) -> dict[str, Any]:
    """Return the price of a quantity of an article, with the discount for large orders."""
    if not 1 <= quantity <= _MAX_QUANTITY:
        raise ToolError(f"{quantity} pieces cannot be quoted", help=f"ask for 1 to {_MAX_QUANTITY} pieces", status=422)
    article = _article(sku)
    discount = next((share for pieces, share in DISCOUNTS if quantity >= pieces), Decimal(0))
    return {
        "sku": article.sku,
        "title": article.title,
        "quantity": quantity,
        "unitPrice": _money(article.price),
        "discountPercent": int(discount * 100),
        "total": _money(article.price * quantity * (1 - discount)),
        "currency": CURRENCY,
    }


def chart(sku: str) -> bytes:
    """Return a PNG with one bar for each price of an article."""
    history = _article(sku).history
    canvas = Canvas(_WIDTH, _HEIGHT, _PAPER)
    bottom, tallest = _HEIGHT - _MARGIN, _HEIGHT - 2 * _MARGIN
    for quarter in range(5):
        canvas.fill(_MARGIN, bottom - tallest * quarter // 4, width=_WIDTH - 2 * _MARGIN, height=1, colour=_LINE)
    step = (_WIDTH - 2 * _MARGIN) // len(history)
    for index, price in enumerate(history):
        height = int(tallest * price / max(history))
        left = _MARGIN + index * step + step // 6
        canvas.fill(left, bottom - height, width=step * 2 // 3, height=height, colour=_BAR)
    return canvas.png()


def invoice(number: str) -> str:
    """Return an invoice as JSON text."""
    bill = BILLS.get(number)
    if bill is None:
        raise ToolError(f"there is no invoice {number[:40]!r}", help=_list_names(BILLS), status=404)
    return json.dumps(_to_json(bill), indent=2, ensure_ascii=False)


def _to_json(bill: Bill) -> dict[str, Any]:
    billed = [(ARTICLES[sku], quantity) for sku, quantity in bill.lines]
    return {
        "number": bill.number,
        "customer": {"name": bill.customer, "email": bill.email},
        "currency": CURRENCY,
        "lines": [
            {
                "sku": article.sku,
                "title": article.title,
                "quantity": quantity,
                "unitPrice": _money(article.price),
                "amount": _money(article.price * quantity),
            }
            for article, quantity in billed
        ],
        "total": _money(sum((article.price * quantity for article, quantity in billed), Decimal(0))),
    }


def _article(sku: str) -> Article:
    if sku not in ARTICLES:
        raise ToolError(f"there is no article {sku[:40]!r}", help=_list_names(ARTICLES), status=404)
    return ARTICLES[sku]


def _list_names(names: Iterable[str]) -> str:
    return f"known: {', '.join(names)}"


def _money(amount: Decimal) -> str:
    """Return an amount as text, because a JSON number would be parsed as a double."""
    return str(amount.quantize(_CENT, ROUND_HALF_UP))
