"""A custom artifact class: an invoice is JSON, and a model can query its total or its large lines."""

from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Final

from gateway.artifacts import SpooledJsonArtifact, ToolMethod, to_bounded_text
from gateway.errors import ArtifactError

_LARGEST: Final = Decimal(10) ** 15

_AMOUNT: Final = {
    "type": "object",
    "properties": {"amount": {"type": "number", "minimum": 0, "description": "Lines that cost more are returned."}},
    "required": ["amount"],
}


class InvoiceArtifact(SpooledJsonArtifact):
    """A JSON artifact with two additional queries for invoices."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        ToolMethod(
            "artifact_invoice_total",
            "invoice_total",
            "Queries an invoice of this turn, selected by callId. Returns the sum of its lines and its currency.",
        ),
        ToolMethod(
            "artifact_invoice_lines_over",
            "invoice_lines_over",
            "Queries an invoice of this turn, selected by callId. Returns its lines that cost more than an amount.",
            _AMOUNT,
            to_bounded_text,
        ),
    )

    async def invoice_total(self) -> str:
        """Return the sum of the lines, regardless of the total in the document."""
        invoice = await self._invoice()
        total = sum((amount for _, amount in _lines(invoice)), Decimal(0))
        currency = invoice.get("currency")
        return f"{total} {currency}" if isinstance(currency, str) else str(total)

    async def invoice_lines_over(self, amount: float) -> list[Any]:
        limit = Decimal(str(amount))
        return [line for line, cost in _lines(await self._invoice()) if cost > limit]

    async def _invoice(self) -> dict[str, Any]:
        value = await self.value()
        if not isinstance(value, dict) or not isinstance(value.get("lines"), list):
            raise ArtifactError(
                "the result is not an invoice: it has no list of lines", help="use artifact_json_keys instead"
            )
        return value


def _lines(invoice: dict[str, Any]) -> Iterator[tuple[Any, Decimal]]:
    for number, line in enumerate(invoice["lines"], start=1):
        amount = line.get("amount") if isinstance(line, dict) else None
        cost = _money(amount)
        if cost is None:
            raise ArtifactError(f"line {number} of the invoice has no amount", help="use artifact_json_get instead")
        yield line, cost


def _money(amount: object) -> Decimal | None:
    """Parse an amount, a text or a number; return `None` if it is invalid or too large."""
    if isinstance(amount, str | int | float) and not isinstance(amount, bool):
        with suppress(InvalidOperation):
            cost = Decimal(str(amount))
            return cost if cost.is_finite() and -_LARGEST < cost < _LARGEST else None
    return None
