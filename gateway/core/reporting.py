"""Reporter: what an executor announces while it works. Reporting is separate from storing."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from gateway.core.canonical import call_id
from gateway.core.context import DispatchContext
from gateway.core.events import GenerationStats, LogEvent, MessageEvent, ThoughtEvent, ToolCallEvent, now

Level = Literal["trace", "debug", "info", "warn", "error"]


class Log:
    """`log.info({"kind": ..., "message": ..., "payload": ...})` and its siblings."""

    def __init__(self, ctx: DispatchContext) -> None:
        self._ctx = ctx

    def trace(self, entry: Mapping[str, Any]) -> None:
        self._emit("trace", entry)

    def debug(self, entry: Mapping[str, Any]) -> None:
        self._emit("debug", entry)

    def info(self, entry: Mapping[str, Any]) -> None:
        self._emit("info", entry)

    def warn(self, entry: Mapping[str, Any]) -> None:
        self._emit("warn", entry)

    def error(self, entry: Mapping[str, Any]) -> None:
        self._emit("error", entry)

    def _emit(self, level: Level, entry: Mapping[str, Any]) -> None:
        ctx = self._ctx
        kind, message = str(entry["kind"]), str(entry["message"])
        ctx.emit(LogEvent(ctx.dispatch_id, ctx.iteration, now(), level, kind, message, entry.get("payload")))


class Reporter:
    """Emits progress on the functional bus. State per id lives for the whole dispatch."""

    def __init__(self, ctx: DispatchContext) -> None:
        self._ctx = ctx
        self._texts: dict[tuple[type[MessageEvent], str], MessageEvent] = {}
        self._calls: dict[str, ToolCallEvent] = {}
        self.log = Log(ctx)

    def report_message(self, id: str, delta: str, is_complete: bool = False) -> None:
        self._report_text(MessageEvent, id, delta, is_complete)

    def report_thought(self, id: str, delta: str, is_complete: bool = False) -> None:
        self._report_text(ThoughtEvent, id, delta, is_complete)

    def report_tool_call(
        self,
        id: str,
        *,
        tool: str | None = None,
        args: dict[str, Any] | None = None,
        results: Any = None,
        is_error: bool = False,
        is_complete: bool = False,
    ) -> None:
        """Announce a call or its completion; fields that are left out keep what was reported before."""
        known = self._calls.get(id)
        _refuse_update_after_completion(id, known)
        moment = now()
        tool = tool if tool is not None else known.tool if known else ""
        args = args if args is not None else known.args if known else None
        checksum = call_id(tool, args) if tool and args is not None else ""
        created_at = known.created_at if known else moment
        completed_at = moment if is_complete else None
        event = ToolCallEvent(
            id, tool, args, checksum, created_at, moment, is_complete, is_error, results, completed_at
        )
        self._calls[id] = event
        self._ctx.emit(event)

    def report_generation_stats(self, stats: Mapping[str, Any]) -> None:
        self._ctx.emit(GenerationStats(self._ctx.dispatch_id, self._ctx.iteration, now(), dict(stats)))

    def _report_text(self, kind: type[MessageEvent], id: str, delta: str, is_complete: bool) -> None:
        known = self._texts.get((kind, id))
        _refuse_update_after_completion(id, known)
        moment = now()
        created_at: datetime = known.created_at if known else moment
        full = (known.full if known else "") + delta
        event = kind(id, created_at, moment, full, delta, is_complete, moment if is_complete else None)
        self._texts[kind, id] = event
        self._ctx.emit(event)


def _refuse_update_after_completion(id: str, known: MessageEvent | ToolCallEvent | None) -> None:
    if known is not None and known.is_complete:
        raise ValueError(f"{id!r} was already reported as complete")
