"""A fresh call as plain values, which another process can be told, and the row that whoever writes it makes of them."""

from functools import lru_cache
from typing import Any, Final

from gateway.storage.columns import checked_id, owner_columns, plain_results_text, result_fields, writable
from gateway.storage.inserting import Row

Result = tuple[str, str | None, str | None, str | None, int | None]
"""What `result_fields` are made of."""

Values = tuple[
    str,
    str,
    tuple[str | None, str, frozenset[str]],
    str,
    str,
    tuple[Any, ...],
    str | None,
    tuple[bool, bool, bool, bool],
    str | tuple[Result, ...],
    tuple[Any, ...],
]
"""A call in the order of the table's columns. Columns that are written as they are stand together; the others are turn
and id of the call, tenant, subject and roles of its caller, tool, identity, reason, and results, as JSON if they have
details.
"""

_owner: Final = lru_cache(maxsize=1024)(owner_columns)  # callers come again


def fresh_row(values: Values) -> Row:
    """Raises `ValueError` for ids that cannot be written."""
    turn_id, id, caller, tool, identity, asked, because, flags, results, others = values
    return (
        checked_id(turn_id),
        checked_id(id),
        *_owner(*caller),
        writable(tool),
        writable(identity),
        *asked,
        None if because is None else writable(because),
        *flags,
        results if isinstance(results, str) else plain_results_text([result_fields(*each) for each in results]),
        *others,
    )
