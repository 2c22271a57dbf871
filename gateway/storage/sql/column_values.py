"""Column values of turns and calls as plain values, so that the writer process need not import record classes."""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from gateway.model import canonical, canonical_unchecked

Row = tuple[Any, ...]

MAX_ROWS_PER_INSERT: Final = 128
"""Rows in one statement."""


class InsertStatement(NamedTuple):
    """The two parts of a statement: the text before the rows, and the placeholders of each row."""

    before: str
    row: str


def insert_rows(connection: sqlite3.Connection, into: InsertStatement, rows: Sequence[Row]) -> None:
    """Insert any number of rows, `MAX_ROWS_PER_INSERT` per statement."""
    for start in range(0, len(rows), MAX_ROWS_PER_INSERT):
        some = rows[start : start + MAX_ROWS_PER_INSERT]
        connection.execute(_statement(into, len(some)), tuple(chain.from_iterable(some)))


@lru_cache(maxsize=1024)
def _statement(into: InsertStatement, size: int) -> str:
    return into.before + ", ".join([into.row] * size)


class Owner(NamedTuple):
    """Columns of a principal: `owner` is compared, operators filter by the others."""

    owner: str
    tenant: str | None
    subject: str
    roles: str


def owner_columns(tenant: str | None, subject: str, roles: frozenset[str]) -> Owner:
    return Owner(
        owner_text(tenant, subject),
        None if tenant is None else require_storable_id(tenant),
        require_storable_id(subject),
        canonical(sorted(roles)),
    )


def owner_text(tenant: str | None, subject: str) -> str:
    return canonical([tenant, subject])


def result_fields(
    kind: str, text: str | None, key: str | None, type: str | None, byte_length: int | None
) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": kind}
    if text is not None:
        fields["text"] = text
    if key is not None:
        fields["key"] = key
    if type is not None:
        fields["type"] = type
    if byte_length is not None:
        fields["byteLength"] = byte_length
    return fields


def encode_results(results: list[dict[str, Any]]) -> str:
    """Encode fields without details: the only number in them is a size."""
    return canonical_unchecked(results)


LIKE_ESCAPE: Final = "\\"


def escape_pattern(text: str) -> str:
    """Return a pattern of LIKE that matches this text only."""
    for sign in (LIKE_ESCAPE, "%", "_"):
        text = text.replace(sign, LIKE_ESCAPE + sign)
    return text


def is_storable(id: str) -> bool:
    """Whether a text can be stored as an id: half a surrogate pair cannot be written."""
    if id.isascii():
        return True
    try:
        id.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_storable_id(text: str) -> str:
    if not is_storable(text):
        raise ValueError("an id, a subject or a tenant holds half a surrogate pair and cannot be written")
    return text


def replace_surrogates(text: str) -> str:
    """Replace half surrogate pairs by U+FFFD, in texts that describe and do not identify."""
    return text if is_storable(text) else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
