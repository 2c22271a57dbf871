"""Tasks of upstream servers: work that a server hands out a name for is waited for, and is one call to whoever made it.

The call's own time is all the time there is. When it is up, or the caller is gone, the server is told to give up.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from gateway.governance.ports import BackendFailed
from gateway.upstreams.connections import PROBE_SECONDS, Connection, Exchange
from gateway.upstreams.messages import Json, error_of

EXTENSION: Final = "io.modelcontextprotocol/tasks"
LONGEST_ID: Final = 2_048
SHORTEST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 5.0
_USUAL_PAUSE: Final = 500
"""Milliseconds between two looks, where a server does not say."""

_giving_up: Final[set["asyncio.Task[None]"]] = set()


def has_tasks(connection: Connection) -> bool:
    """Whether a modern server may answer a call with a task, if it is told that this is understood."""
    extensions = connection.capabilities.get("extensions")
    return connection.era == "modern" and isinstance(extensions, dict) and EXTENSION in extensions


def takes_tasks(connection: Connection) -> bool:
    """Whether an older server says that calls of tools can be tasks."""
    found: Any = connection.capabilities
    for part in ("tasks", "requests", "tools", "call"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return connection.era == "legacy" and found is not None


def task_id(task: Any) -> str:
    id = task.get("taskId") if isinstance(task, dict) else None
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
        raise BackendFailed("failed", "the upstream server began a task without a name")
    return id


def pause_of(task: Json) -> float:
    """Seconds until it is worth looking again, as the server says within reason."""
    given = task.get("pollIntervalMs")
    known = given if isinstance(given, int | float) and not isinstance(given, bool) else _USUAL_PAUSE
    return min(max(known / 1000, SHORTEST_PAUSE), LONGEST_PAUSE)


def outcome_of(task: Json) -> Json | None:
    """The result of a task that is over; `None` for one that is not. Raises `BackendFailed` for one that failed."""
    match task.get("status"):
        case "working" | "input_required":
            return None
        case "completed" if isinstance(result := task.get("result"), dict):
            return result
        case "failed":
            raise error_of(task.get("error"))
        case "cancelled":
            raise BackendFailed("failed", "the upstream server has given the call up")
    _refuse()


async def legacy_result(connection: Connection, created: Json, exchange: Exchange) -> Json:
    """The result of an older server's task: asked for once, and answered when it is over."""
    id = task_id(created.get("task"))
    try:
        return await connection.request("tasks/result", {"taskId": id}, exchange=exchange, timeout=None)
    except asyncio.CancelledError:
        give_up(connection, id, exchange)
        raise


def give_up(connection: Connection, id: str, exchange: Exchange) -> None:
    """Nobody waits for the task any more. That is told behind the back of whoever was cancelled."""

    async def told() -> None:
        with suppress(BackendFailed):
            await connection.request("tasks/cancel", {"taskId": id}, exchange=exchange, timeout=PROBE_SECONDS)

    task = asyncio.create_task(told())
    _giving_up.add(task)
    task.add_done_callback(_giving_up.discard)


def _refuse() -> NoReturn:
    raise BackendFailed("failed", "the upstream server's task is in a state that is not known here")
