"""Prices, price charts and invoices: plain functions that a Tool of `type: python` names by `module:function`.

Arguments arrive validated against the tool's input schema; whether an article exists is not a matter of schemas.
"""

import json
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from gateway.errors import ToolError
from gateway.examples.articles import ARTICLES, BILLS, CURRENCY, Article, Bill
from gateway.examples.png import Canvas, Colour

DISCOUNTS: Final = ((1000, Decimal("0.12")), (100, Decimal("0.05")))
"""From how many pieces on, and how much; the largest first."""

_CENT: Final = Decimal("0.01")
_MAX_QUANTITY: Final = 10_000

_WIDTH, _HEIGHT, _MARGIN = 320, 160, 16
_PAPER: Final[Colour] = (255, 255, 255)
_LINE: Final[Colour] = (208, 213, 221)
_BAR: Final[Colour] = (52, 104, 192)


def quote(sku: str, quantity: int) -> dict[str, Any]:
    """The price of so many pieces of one article, with the discount for large orders."""
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
    """A PNG with one bar for each price an article has had."""
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
    """An invoice as JSON text."""
    bill = BILLS.get(number)
    if bill is None:
        raise ToolError(f"there is no invoice {number[:40]!r}", help=_known(BILLS), status=404)
    return json.dumps(_written_out(bill), indent=2, ensure_ascii=False)


def _written_out(bill: Bill) -> dict[str, Any]:
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
        raise ToolError(f"there is no article {sku[:40]!r}", help=_known(ARTICLES), status=404)
    return ARTICLES[sku]


def _known(names: Iterable[str]) -> str:
    return f"known: {', '.join(names)}"


def _money(amount: Decimal) -> str:
    """Text, because a JSON number would be read as a double."""
    return str(amount.quantize(_CENT, ROUND_HALF_UP))
