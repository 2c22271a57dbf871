"""The pages of the company's wiki."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    title: str
    text: str


PAGES: Final[Mapping[str, Page]] = {
    page.name: page
    for page in (
        Page(
            "refunds",
            "Refunds",
            "Support promises no refund; finance pays it.\n\n"
            "- Up to 500 in any currency a finance clerk decides alone.\n"
            "- Above that a finance lead agrees first; the gateway asks for it.\n"
            "- One order is refunded once.\n",
        ),
        Page(
            "tickets",
            "Writing a good ticket",
            "Search before you open a ticket.\n\n"
            "Say what you expected, what happened, and the order number. Priority *high* wakes somebody up.\n",
        ),
        Page(
            "releases",
            "How we release",
            "Releases go out from Monday to Thursday. Read the commit log of the repository before you tag it, and\n"
            "write down in the ticket what changed for customers.\n",
        ),
        Page(
            "price-list",
            "Where prices come from",
            "The price list changes at the start of a quarter. From 100 pieces on 5 percent are taken off, from\n"
            "1000 pieces on 12 percent. Ask for a quote instead of doing the sum yourself.\n",
        ),
    )
}
