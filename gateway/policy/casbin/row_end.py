"""The end of a policy row, which a comment directly above the row states: until when the row is in force, and why.

    # until 2027-01-31 INC-42: g, user:kim, role:oncall
    g, user:kim, role:oncall

Casbin's own tools skip the comment and load the row. The comment repeats the row, so that moving, sorting or merging
lines cannot give the end to another row: a comment that is not directly above the row it repeats is an error.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from gateway.registries import Diagnostic, Position

ENDING_SOON: Final = timedelta(days=14)
"""How long before its end `gateway check` warns about a row."""

_HELP: Final = "write the comment directly above the row: # until 2027-01-31 TICKET: followed by the row itself"
_COMMENT: Final = re.compile(r"[ \t]*#[ \t]*(?P<text>.*)")
_UNTIL: Final = re.compile(r"until\b", re.IGNORECASE)
_END: Final = re.compile(r"until[ \t]+(?P<moment>\S+)[ \t]+(?P<ticket>[^\s:]+):[ \t]*(?P<row>.*)")
_TICKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/#-]{0,63}")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?Z")


@dataclass(frozen=True, slots=True)
class RowEnd:
    """The row is in force up to, not including, `until`."""

    until: datetime
    ticket: str
    position: Position
    """The comment."""

    def is_over(self, at: datetime) -> bool:
        return at >= self.until

    @property
    def describe(self) -> str:
        return f"until {self.until.isoformat(timespec='seconds').replace('+00:00', 'Z')} ({self.ticket})"


@dataclass(frozen=True, slots=True)
class EndComment:
    """A comment that ends a row, and the cells of the row that it repeats."""

    end: RowEnd
    cells: tuple[str, ...]


def parse_end_comment(line: str, position: Position) -> EndComment | Diagnostic | None:
    """Return the end that a comment states, or what is wrong with it; `None` for any other line."""
    comment = _COMMENT.fullmatch(line)
    text = "" if comment is None else comment["text"].rstrip()
    if _UNTIL.match(text) is None:
        return None
    found = _END.fullmatch(text)
    if found is None:
        return _problem("a comment that starts with 'until' ends the row below, and this one cannot be read", position)
    until = _parse_moment(found["moment"])
    if until is None:
        message = f"{found['moment'][:40]!r} is not when a row can end"
        return _problem(message, position, "write the last day, 2027-01-31, or a time in UTC, 2027-01-31T18:00Z")
    if _TICKET.fullmatch(found["ticket"]) is None:
        message = f"{found['ticket'][:80]!r} is not a ticket"
        return _problem(message, position, "use letters, digits and . _ / # -, at most 64")
    return EndComment(RowEnd(until, found["ticket"], position), split_cells(found["row"]))


def check_end_comment(comment: EndComment, cells: Sequence[str]) -> Diagnostic | None:
    """Return the problem if the row below a comment is not the one that the comment repeats, or cannot end."""
    if tuple(cells) != comment.cells:
        return _problem("the row below is not the one that this comment repeats", comment.end.position)
    if cells[0] == "g2":
        help = "only p and g rows can end: an object that leaves a class could escape a deny"
        return _problem("the group of an object cannot end", comment.end.position, help)
    return None


def detached_comment(comment: EndComment) -> Diagnostic:
    return _problem("there is no row below this comment", comment.end.position)


def check_near_miss(line: str, position: Position, cells: Sequence[str]) -> Diagnostic | None:
    """Return the problem of a comment that repeats the row below but does not end it, such as a misspelt `until`."""
    comment = _COMMENT.fullmatch(line)
    head, colon, row = ("", "", "") if comment is None else comment["text"].partition(f": {cells[0]}")
    if not colon or not head or split_cells(cells[0] + row) != tuple(cells):
        return None
    return _problem("this comment repeats the row below, but does not end it", position)


def split_cells(row: str) -> tuple[str, ...]:
    return tuple(cell.strip(" \t") for cell in row.split(","))


def _parse_moment(text: str) -> datetime | None:
    """Return the moment from which the row is not in force; a day counts to its last moment in UTC."""
    try:
        if _DAY.fullmatch(text):
            return datetime.combine(date.fromisoformat(text) + timedelta(days=1), time(), UTC)
        return datetime.fromisoformat(text) if _MOMENT.fullmatch(text) else None
    except (ValueError, OverflowError):  # no such day; the last day of the calendar
        return None


def _problem(message: str, position: Position, help: str = _HELP) -> Diagnostic:
    return Diagnostic("row-end", message, position, help=help)
