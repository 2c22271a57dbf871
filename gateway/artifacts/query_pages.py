"""Pages of a query: the limits of one answer of a paged query tool, and the note on how to continue.

The page request is a context variable, not a parameter of the method, so artifact classes that override the method are
paged, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from gateway.artifacts.search import SearchLimits, SearchPage

PAGE_BYTES: Final = 64 << 10
"""Bytes of text in one page. A smaller artifact needs one page, unless `limit` is lower."""

FIRST_SECONDS: Final = 0.15
NEXT_SECONDS: Final = 1.0
"""Later pages take longer: the caller knows that there is much to search, and prefers fewer requests."""

PAGE_ARGUMENTS: Final[dict[str, Any]] = {
    "limit": {
        "type": "integer",
        "minimum": 1,
        "description": f"At most this many lines in one answer; without it, about {PAGE_BYTES >> 10} KiB of lines.",
    },
    "fromLine": {
        "type": "integer",
        "minimum": 0,
        "description": "Line to start from, counted from 0: the fromLine that the previous answer named.",
    },
}


class PageRequest:
    """One request for a page of a query."""

    def __init__(self, limit: int | None = None, from_line: int = 0) -> None:
        self.limit = limit
        self.from_line = from_line
        self._ends: list[tuple[int, bool]] = []

    def limits(self, limit: int | None) -> SearchLimits:
        """Return the limits of the page; `limit` is the method's own limit of lines."""
        lines = min((each for each in (limit, self.limit) if each is not None), default=None)
        return SearchLimits(lines, PAGE_BYTES, NEXT_SECONDS if self.from_line else FIRST_SECONDS)

    def record_page(self, page: SearchPage) -> None:
        """Record where a page ended."""
        if page.next_line is not None:
            self._ends.append((page.next_line, page.matches_next))

    def append_continuation(self, text: str, *, tool: str, line_count: int) -> str:
        """Append a last line on how to continue, if the answer is incomplete."""
        note = self._note(tool, line_count)
        return f"{text}\n\n({note})" if note else text

    def _note(self, tool: str, line_count: int) -> str | None:
        if self.from_line and self.from_line >= line_count:
            return f"fromLine is past the end: the artifact has {line_count} lines, counted from 0"
        if not self._ends:
            return None
        line, matches = min(self._ends)  # a method that searches several times continues from the earliest
        known = "more lines match" if matches else "the rest was not searched yet"
        return (
            f"{known}: this answer ends before line {line} of {line_count}; call {tool} with fromLine {line} to go on"
        )


_current: ContextVar[PageRequest | None] = ContextVar("paged_query", default=None)


@contextmanager
def use_page_request(query: PageRequest | None) -> Iterator[None]:
    """Make searches inside the block use the page request `query`."""
    token = _current.set(query)
    try:
        yield
    finally:
        _current.reset(token)


def current_page_request() -> PageRequest | None:
    """Return the page request of this call; `None` outside of one."""
    return _current.get()
