"""One range of bytes, as RFC 9110 has it. Several at once are not served: whoever asks for them gets the whole."""

import re
from dataclasses import dataclass
from typing import Final

_ONE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `[start, end)`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class Unsatisfiable(Exception):
    """The range is one, and none of its bytes are there."""


def span_of(header: str | None, size: int) -> Span | None:
    """What a Range header asks for; `None` means the whole, as for every header that is not exactly one range."""
    found = _ONE.fullmatch(header) if header else None
    if found is None:
        return None
    first, last = found.groups()
    if not first:
        return _suffix(last, size)
    start, end = int(first), int(last) + 1 if last else size
    if last and end <= start:
        return None
    if start >= size:
        raise Unsatisfiable
    return Span(start, min(end, size))


def _suffix(last: str, size: int) -> Span | None:
    if not last:
        return None
    if int(last) == 0 or size == 0:
        raise Unsatisfiable
    return Span(max(size - int(last), 0), size)
