"""Pages of a query: how much one answer of a paged query tool takes in, and the words that say how to go on.

What was asked for and where the answer ended travel in the context of the call and not through the method's signature,
so an artifact class that overrides a method with its own is paged like every other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from gateway.core.searching import Bounds, Page

PAGE_BYTES: Final = 64 << 10
"""Text of one page. An artifact that is not larger is answered in one piece, unless fewer lines are asked for."""

FIRST_SECONDS: Final = 0.15
NEXT_SECONDS: Final = 1.0
"""Whoever asks for a further page knows that there is much to search, and would rather ask less often."""

PAGE_ARGUMENTS: Final[dict[str, Any]] = {
    "limit": {
        "type": "integer",
        "minimum": 1,
        "description": f"At most so many lines in one answer; without it, about {PAGE_BYTES >> 10} KiB of them.",
    },
    "fromLine": {
        "type": "integer",
        "minimum": 0,
        "description": "Line to start from, counted from 0: where the answer before this one said to go on.",
    },
}


class PagedQuery:
    """One query that is answered a page at a time."""

    def __init__(self, limit: int | None = None, from_line: int = 0) -> None:
        self.limit = limit
        self.from_line = from_line
        self._ends: list[tuple[int, bool]] = []

    def bounds(self, limit: int | None) -> Bounds:
        """Those of a page, of which the method itself wants `limit` lines at most."""
        lines = min((each for each in (limit, self.limit) if each is not None), default=None)
        return Bounds(lines, PAGE_BYTES, NEXT_SECONDS if self.from_line else FIRST_SECONDS)

    def answered(self, page: Page) -> None:
        """Remember where a page ended."""
        if page.next_line is not None:
            self._ends.append((page.next_line, page.matches_next))

    def told(self, text: str, *, tool: str, line_count: int) -> str:
        """The text of an answer, and a last line about what is missing in it, if anything is."""
        note = self._note(tool, line_count)
        return f"{text}\n\n({note})" if note else text

    def _note(self, tool: str, line_count: int) -> str | None:
        if self.from_line and self.from_line >= line_count:
            return f"fromLine is past the end: the artifact has {line_count} lines, counted from 0"
        if not self._ends:
            return None
        line, matches = min(self._ends)  # a method that asks several times has to go on from the earliest
        known = "more lines match" if matches else "the rest was not searched yet"
        return (
            f"{known}: this answer ends before line {line} of {line_count}; call {tool} with fromLine {line} to go on"
        )


_current: ContextVar[PagedQuery | None] = ContextVar("paged_query", default=None)


@contextmanager
def paged(query: PagedQuery | None) -> Iterator[None]:
    """Searches inside the block are those of `query`."""
    token = _current.set(query)
    try:
        yield
    finally:
        _current.reset(token)


def current_query() -> PagedQuery | None:
    """The paged query that this call belongs to; `None` outside of one."""
    return _current.get()
