"""Calls as a backend gets them, with a spool that counts."""

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.artifacts.spool_stores import InMemoryStore, iter_chunks
from gateway.model.caller import Principal
from gateway.model.primitives.containers import DottedDict
from gateway.model.tools.artifact import SpoolReader
from gateway.model.tools.backend import Invocation
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.model.turns.context import DispatchContext, TurnContext
from gateway.model.turns.events import EventBuses


class TooMuch(Exception):
    """Raised by this spool past its limit."""


class Spool:
    """Stores results in memory; `kept` is empty until a result was written completely."""

    def __init__(self, limit: int = 64 << 20) -> None:
        self.limit = limit
        self.kept: list[bytes] = []

    async def keep(self, content: AsyncIterable[bytes] | Iterable[bytes] | bytes) -> SpoolReader:
        data = bytearray()
        async for chunk in iter_chunks(content):
            data += chunk
            if len(data) > self.limit:
                raise TooMuch
        self.kept.append(bytes(data))
        return await InMemoryStore().write("result", bytes(data))


def invocation(args: Mapping[str, Any], spool: Spool | None = None, *, key: str | None = None) -> Invocation:
    buses = EventBuses()
    turn = TurnContext({"system_prompt": "Help."}, tools=ToolRegistry(), callbacks={}, buses=buses)
    return Invocation(
        tool="a_tool",
        args=args,
        principal=Principal("ann"),
        ctx=DispatchContext(turn, buses=buses),
        meta=DottedDict({"team": "tests"}),
        id="call-1",
        keep=(spool or Spool()).keep,
        idempotency_key=key,
    )


def other_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def is_gone(pid: int) -> bool:
    """Whether a process ends within the allowed time, even if its new parent has not reaped it yet."""
    for _ in range(300):
        try:
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        await asyncio.sleep(0.01)
    return False
