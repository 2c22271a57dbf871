"""What the company sells and whom it billed: the data behind the pricing tools."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

CURRENCY: Final = "EUR"


@dataclass(frozen=True, slots=True)
class Article:
    """Something we sell. `history` are its prices at the start of each quarter, the newest last."""

    sku: str
    title: str
    history: tuple[Decimal, ...]

    @property
    def price(self) -> Decimal:
        return self.history[-1]


@dataclass(frozen=True, slots=True)
class Bill:
    """An invoice as the books have it: who bought how many of what."""

    number: str
    customer: str
    email: str
    lines: tuple[tuple[str, int], ...]


def _article(sku: str, title: str, *prices: str) -> Article:
    return Article(sku, title, tuple(map(Decimal, prices)))


ARTICLES: Final[Mapping[str, Article]] = {
    article.sku: article
    for article in (
        _article("DESK-160", "Desk, 160 cm, oak", "289.00", "289.00", "305.00", "312.00", "319.00", "329.00"),
        _article("CHAIR-02", "Office chair with armrests", "149.00", "155.00", "155.00", "149.00", "139.00", "145.00"),
        _article("LAMP-9", "Desk lamp, dimmable", "34.50", "36.00", "36.00", "38.50", "39.90", "39.90"),
        _article("MAT-1", "Anti-fatigue mat", "24.00", "24.00", "22.50", "22.50", "21.00", "19.90"),
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
