"""Calls as a backend gets them, with a spool that counts."""

import asyncio
from collections.abc import AsyncIterable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.core.context import DispatchContext, TurnContext
from gateway.core.events import Buses
from gateway.core.registry import Registry
from gateway.core.spool import InMemoryStore, SpoolReader, chunks_of
from gateway.core.tool_registry import ToolRegistry
from gateway.governance.ports import Invocation
from gateway.governance.principals import Principal


class TooMuch(Exception):
    """What this spool raises past its limit."""


class Spool:
    """Keeps results in memory; `kept` is empty as long as nothing was kept to its end."""

    def __init__(self, limit: int = 64 << 20) -> None:
        self.limit = limit
        self.kept: list[bytes] = []

    async def keep(self, content: AsyncIterable[bytes] | Iterable[bytes]) -> SpoolReader:
        data = bytearray()
        async for chunk in chunks_of(content):
            data += chunk
            if len(data) > self.limit:
                raise TooMuch
        self.kept.append(bytes(data))
        return await InMemoryStore().write("result", bytes(data))


def invocation(args: Mapping[str, Any], spool: Spool | None = None, *, key: str | None = None) -> Invocation:
    buses = Buses()
    turn = TurnContext({"system_prompt": "Help."}, tools=ToolRegistry(), callbacks={}, buses=buses)
    return Invocation(
        tool="a_tool",
        args=args,
        principal=Principal("ann"),
        ctx=DispatchContext(turn, buses=buses),
        meta=Registry({"team": "tests"}),
        id="call-1",
        keep=(spool or Spool()).keep,
        idempotency_key=key,
    )


def other_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def is_gone(pid: int) -> bool:
    """Whether a process has ended, given the time to; that its new parent has not noticed yet does not matter."""
    for _ in range(300):
        try:
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        await asyncio.sleep(0.01)
    return False
