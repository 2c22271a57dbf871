"""Callbacks: what a turn needs from whoever keeps its records. Missing ones are errors, no-ops are fine.

Each may be sync or async and gets the context first, then the record, the id, or the id and its
bytes. A `store_`, `mutate_` or `delete_` that raises leaves the context's records as they were.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.core.media import InMemoryMediaReader
from gateway.core.records import RECORD_KINDS, RecordKind, RecordSet, plural
from gateway.core.spool import InMemoryReader

Callback = Callable[..., Any]

CALLBACKS: Final = (
    *(f"{verb}_{kind}" for kind in RECORD_KINDS for verb in ("store", "mutate", "delete")),
    *(f"fetch_{plural(kind)}" for kind in RECORD_KINDS),
    "fetch_tools",
    "store_media_bytes",
    "store_retrievable_bytes",
)
"""`store_`, `mutate_` and `delete_` of each record kind, `fetch_` of everything, and two byte conduits."""


async def call(callback: Callback, *args: Any) -> Any:
    """Call it; wait if it is async."""
    answer = callback(*args)
    return await answer if inspect.isawaitable(answer) else answer


def in_memory_callbacks() -> dict[str, Callback]:
    """Callbacks that keep everything in this process, for tests and for turns nobody needs to remember."""
    kept = {kind: RecordSet() for kind in RECORD_KINDS}
    callbacks: dict[str, Callback] = {
        "fetch_tools": lambda ctx: [],
        "store_media_bytes": lambda ctx, key, content: InMemoryMediaReader(content),
        "store_retrievable_bytes": lambda ctx, key, content: InMemoryReader(content),
    }
    for kind, records in kept.items():
        callbacks |= _record_callbacks(kind, records)
    return callbacks


def _record_callbacks(kind: RecordKind, records: RecordSet) -> Mapping[str, Callback]:
    return {
        f"store_{kind}": lambda ctx, record: records.add(record),
        f"mutate_{kind}": lambda ctx, record: records.replace(record),
        f"delete_{kind}": lambda ctx, key: records.remove(key),
        f"fetch_{plural(kind)}": lambda ctx: list(records),
    }
