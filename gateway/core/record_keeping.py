"""RecordKeeping: the records of a context, and the callbacks that make every change to them last.

A record is checked first, then persisted, then kept here: when persisting fails, nothing has
changed. Nothing is loaded by itself, and what a `fetch_` answers is not kept by itself either.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.callbacks import Callback, call
from gateway.core.calls import ToolCall
from gateway.core.media import Chunk, MediaReader, require_media_reader
from gateway.core.records import RecordKind, RecordSets
from gateway.core.spool import SpoolReader, is_spool_reader
from gateway.core.tools import Tool
from gateway.errors import InvalidInitialToolCallValue, NotASpoolReader, ValidationException, problem

Delta = Callable[[RecordSets], object]


class RecordKeeping:
    """The part of a context that messages, memories, retrieved records, thoughts and tool calls live in."""

    def __init__(self, records: RecordSets, callbacks: Mapping[str, Callback]) -> None:
        self._records = records
        self._callbacks = callbacks
        self._ids_being_stored: set[str] = set()

    @property
    def has_records(self) -> bool:
        return self._records.are_any

    @property
    def turn_messages(self) -> list[Any]:
        return list(self._records["message"])

    @property
    def turn_memories(self) -> list[Any]:
        return list(self._records["memory"])

    @property
    def turn_retrievables(self) -> list[Any]:
        return list(self._records["retrievable"])

    @property
    def turn_thoughts(self) -> list[Any]:
        return list(self._records["thought"])

    @property
    def turn_tool_calls(self) -> list[ToolCall]:
        return list(self._records["tool_call"])

    def tool_call_count(self, checksum: str) -> int:
        """How many of the stored calls have that checksum; those of the turn so far are included."""
        return self._records.tool_calls.count(checksum)

    def equal_call_count(self, fingerprint: str) -> int:
        """The same by the exact digest of tool and arguments, in which no number is rounded."""
        return self._records.tool_calls.count_exactly(fingerprint)

    def has_tool_call(self, id: str) -> bool:
        """Whether a call of that id is stored in this turn."""
        return self._records["tool_call"].find(id) is not None

    async def fetch_messages(self) -> list[Any]:
        return await self._fetch("fetch_messages")

    async def fetch_memories(self) -> list[Any]:
        return await self._fetch("fetch_memories")

    async def fetch_retrievables(self) -> list[Any]:
        return await self._fetch("fetch_retrievables")

    async def fetch_thoughts(self) -> list[Any]:
        return await self._fetch("fetch_thoughts")

    async def fetch_tool_calls(self) -> list[ToolCall]:
        return await self._fetch("fetch_tool_calls")

    async def fetch_tools(self) -> list[Tool]:
        """Tools from the dynamic source. Never called by itself: middleware registers the answer."""
        return await self._fetch("fetch_tools")

    async def store_media_bytes(self, id: str, content: Chunk) -> MediaReader:
        """Persist bytes and get a reader for them; adds nothing to the turn."""
        return require_media_reader(await self._store_bytes("store_media_bytes", id, content))

    async def store_retrievable_bytes(self, id: str, content: Chunk) -> SpoolReader:
        """Persist bytes and get a reader for them; adds nothing to the turn."""
        reader = await self._store_bytes("store_retrievable_bytes", id, content)
        if not is_spool_reader(reader):
            raise NotASpoolReader()
        return reader

    async def store_message(self, record: Any) -> None:
        await self._store("message", record)

    async def mutate_message(self, record: Any) -> None:
        await self._mutate("message", record)

    async def delete_message(self, id: str) -> None:
        await self._delete("message", id)

    async def store_memory(self, record: Any) -> None:
        await self._store("memory", record)

    async def mutate_memory(self, record: Any) -> None:
        await self._mutate("memory", record)

    async def delete_memory(self, id: str) -> None:
        await self._delete("memory", id)

    async def store_retrievable(self, record: Any) -> None:
        await self._store("retrievable", record)

    async def mutate_retrievable(self, record: Any) -> None:
        await self._mutate("retrievable", record)

    async def delete_retrievable(self, id: str) -> None:
        await self._delete("retrievable", id)

    async def store_thought(self, record: Any) -> None:
        await self._store("thought", record)

    async def mutate_thought(self, record: Any) -> None:
        await self._mutate("thought", record)

    async def delete_thought(self, id: str) -> None:
        await self._delete("thought", id)

    async def store_tool_call(self, record: ToolCall) -> None:
        """Keep a settled record. An id already used in this turn is refused: it names another artifact."""
        _require_tool_call(record)
        if record.id in self._ids_being_stored or self._records["tool_call"].find(record.id) is not None:
            found = problem(f"the id {record.id!r} is already used in this turn", ["id"], "unique")
            raise InvalidInitialToolCallValue(cause=ValidationException([found]))
        _require_id(record.id, "a tool_call has")
        self._ids_being_stored.add(record.id)  # another call may store the same id while this one waits
        try:
            answer = self._callbacks["store_tool_call"](self, record)
            if inspect.isawaitable(answer):
                await answer
        finally:
            self._ids_being_stored.discard(record.id)
        self._change(lambda records: records["tool_call"].add(record))

    def adopt_tool_call(self, record: ToolCall) -> None:
        """Take in a record that is kept already, such as one of an earlier turn; nobody is asked to persist it."""
        _require_tool_call(record)
        self._change(lambda records: records["tool_call"].add(record))

    async def mutate_tool_call(self, record: ToolCall) -> None:
        _require_tool_call(record)
        await self._mutate("tool_call", record)

    async def delete_tool_call(self, id: str) -> None:
        await self._delete("tool_call", id)

    async def _fetch(self, name: str) -> list[Any]:
        return list(await call(self._callbacks[name], self))

    async def _store_bytes(self, name: str, id: str, content: Chunk) -> Any:
        _require_id(id, "the bytes are kept under")
        if not isinstance(content, Chunk):
            raise TypeError(f"{name}() takes bytes, not {type(content).__name__}")
        return await call(self._callbacks[name], self, id, bytes(content))

    async def _store(self, kind: RecordKind, record: Any) -> None:
        _require_id(getattr(record, "id", None), f"a {kind} has")
        await call(self._callbacks[f"store_{kind}"], self, record)
        self._change(lambda records: records[kind].add(record))

    async def _mutate(self, kind: RecordKind, record: Any) -> None:
        _require_id(getattr(record, "id", None), f"a {kind} has")
        await call(self._callbacks[f"mutate_{kind}"], self, record)
        self._change(lambda records: records[kind].replace(record))

    async def _delete(self, kind: RecordKind, id: str) -> None:
        _require_id(id, f"a {kind} is deleted by")
        await call(self._callbacks[f"delete_{kind}"], self, id)
        self._change(lambda records: records[kind].remove(id))

    def _change(self, delta: Delta) -> None:
        delta(self._records)


def _require_id(id: Any, what: str) -> None:
    if not isinstance(id, str) or not id:
        raise TypeError(f"{what} an id, a non-empty string")


def _require_tool_call(record: Any) -> None:
    if not ToolCall.is_tool_call(record):
        found = problem(f"a settled call is a ToolCall, not {type(record).__name__}", type="type")
        raise InvalidInitialToolCallValue(cause=ValidationException([found]))
