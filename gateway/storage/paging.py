"""Pages of calls, newest first, and ranges of keys: what is asked for, as parameters of statements."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import Table

from gateway.governance.records import CallFilter, StoredCall
from gateway.storage import statements
from gateway.storage.columns import is_storable
from gateway.storage.rows import call_from
from gateway.storage.schema import calls

LARGEST_PAGE: Final = 1000

Row = dict[str, Any]
Read = Callable[[Callable[[Any], list[Row]]], Awaitable[list[Row]]]
"""Runs work on a connection that reads."""


async def page_of_calls(
    read: Read, filter: CallFilter, *, limit: int, before: str | None, tables: tuple[Table, ...] = (calls,)
) -> tuple[list[StoredCall], str | None]:
    """With the cursor of the next page, if there is one. Raises `ValueError` for a size or a cursor that is none."""
    if not 1 <= limit <= LARGEST_PAGE:
        raise ValueError(f"a page has 1 to {LARGEST_PAGE} calls, not {limit}")
    wanted: Row = {"limit": limit + 1}
    if before is not None:
        wanted["before"] = _number(before)
    asked = {name: getattr(filter, name) for name in CallFilter.__dataclass_fields__}
    chosen = {name: value for name, value in asked.items() if value is not None}
    if not all(map(is_storable, chosen.values())):
        return [], None
    statement = statements.listing(frozenset(chosen), from_the_top=before is None, tables=tables)
    rows = await read(lambda connection: statement.rows(connection, {**wanted, **chosen}))
    page = rows[:limit]
    return [call_from(row) for row in page], str(page[-1]["number"]) if len(rows) > limit else None


def beginning_with(prefix: str) -> Row:
    """All keys that begin like that."""
    return {"prefix": prefix, "end": f"{prefix}\U0010ffff"}


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
        raise ValueError("the cursor is not one that a page ended with")
    return int(cursor)
