"""Tickets and refunds of the example helpdesk, kept in memory. Knows what may be asked of them, and no HTTP."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any, Final

MAX_KEPT: Final = 10_000
MAX_FOUND: Final = 50
PRIORITIES: Final = ("low", "normal", "high")
CURRENCIES: Final = ("EUR", "GBP", "USD")

Record = dict[str, Any]


class Refused(Exception):
    """A request that cannot be fulfilled, as an HTTP status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class Desk:
    """The records of one service. Every method may be called from any thread."""

    _tickets: dict[int, Record] = field(default_factory=dict)
    _refunds: dict[str, Record] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=lambda: count(1001))
    _lock: Lock = field(default_factory=Lock)

    def open_ticket(self, wanted: Mapping[str, Any], *, requester: Mapping[str, str]) -> Record:
        _refuse_unknown(wanted, ("subject", "body", "priority"))
        subject, body = _text(wanted, "subject", longest=200), _text(wanted, "body", longest=20_000)
        priority = _choice(wanted, "priority", PRIORITIES) if "priority" in wanted else "normal"
        with self._lock:
            _refuse_full(self._tickets)
            number = next(self._numbers)
            self._tickets[number] = {
                "number": number,
                "subject": subject,
                "body": body,
                "priority": priority,
                "state": "open",
                "requester": dict(requester),
            }
            return self._tickets[number]

    def ticket(self, number: str) -> Record:
        with self._lock:
            found = self._tickets.get(int(number)) if number.isascii() and number.isdigit() else None
        if found is None:
            raise Refused(404, "there is no such ticket")
        return found

    def search(self, query: str, limit: int = 10) -> list[Record]:
        """The newest tickets whose subject or body contains the text, whatever its case."""
        wanted = query.casefold()
        with self._lock:
            newest = [*reversed(self._tickets.values())]
        found = (each for each in newest if wanted in f"{each['subject']}\n{each['body']}".casefold())
        return [ticket for ticket, _ in zip(found, range(limit), strict=False)]

    def refund(self, wanted: Mapping[str, Any]) -> Record:
        """Pays back once per order: whoever asks again learns that it is done, and nothing is paid twice."""
        _refuse_unknown(wanted, ("order", "amount", "currency"))
        order, currency = _text(wanted, "order", longest=40), _choice(wanted, "currency", CURRENCIES)
        amount = wanted.get("amount")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount <= 100_000:
            raise Refused(400, "'amount' is a number above 0 and at most 100000")
        with self._lock:
            if order in self._refunds:
                raise Refused(409, f"order {order} has been refunded before")
            _refuse_full(self._refunds)
            refund = {"number": f"R-{len(self._refunds) + 1}", "order": order, "amount": amount, "currency": currency}
            self._refunds[order] = {**refund, "account": "DE02 1203 0000 0000 2020 51"}
            return self._refunds[order]


def furnished() -> Desk:
    """A desk on which some customers have left a ticket."""
    desk = Desk()
    for name, email, subject, body in (
        ("Miriam Falk", "miriam@falk.example", "Chair squeaks", "The new office chair squeaks when I lean back."),
        ("Jon Berg", "jon@northwind.example", "Desk arrived scratched", "Order A-1007: one desk has a long scratch."),
        (
            "Lakeside School",
            "office@lakeside.example",
            "Invoice address",
            "Please move our invoices to the new street.",
        ),
    ):
        desk.open_ticket({"subject": subject, "body": body}, requester={"name": name, "email": email})
    return desk


def _refuse_unknown(wanted: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if any(name not in known for name in wanted):
        raise Refused(400, f"only {', '.join(known)} can be given")


def _refuse_full(kept: Mapping[Any, Any]) -> None:
    if len(kept) >= MAX_KEPT:
        raise Refused(507, f"more than {MAX_KEPT} records are not kept")


def _text(wanted: Mapping[str, Any], name: str, *, longest: int) -> str:
    return _valid(
        wanted.get(name),
        lambda value: isinstance(value, str) and bool(value.strip()) and len(value) <= longest,
        f"{name!r} is a text of 1 to {longest} characters",
    )


def _choice(wanted: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    return _valid(wanted.get(name), lambda value: value in choices, f"{name!r} is one of {', '.join(choices)}")


def _valid(value: Any, holds: Callable[[Any], bool], reason: str) -> str:
    if not holds(value):
        raise Refused(400, reason)
    return str(value)
