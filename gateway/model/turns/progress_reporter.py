"""Reporter: how an executor reports its progress. Reporting is separate from storing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from gateway.model.primitives.canonical_json import call_id
from gateway.model.primitives.containers import deep_copy_containers
from gateway.model.turns.events import (
    GenerationStats,
    LogEvent,
    MessageEvent,
    ThoughtEvent,
    ToolCallEvent,
    TurnEvent,
    now,
)

ReportLevel = Literal["trace", "debug", "info", "warn", "error"]


class ReportedDispatch(Protocol):
    """The dispatch whose progress is reported."""

    @property
    def dispatch_id(self) -> str: ...

    @property
    def iteration(self) -> int: ...

    @property
    def emit(self) -> Callable[[TurnEvent], None]: ...

    @property
    def has_listener(self) -> Callable[[type[TurnEvent]], bool]: ...


class ReporterLog:
    """`log.info({"kind": ..., "message": ..., "payload": ...})` and its siblings."""

    def __init__(self, ctx: ReportedDispatch) -> None:
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

    def _emit(self, level: ReportLevel, entry: Mapping[str, Any]) -> None:
        if not isinstance(entry, Mapping) or not {"kind", "message"} <= entry.keys():
            raise ValueError("a log entry must be a mapping with 'kind', 'message' and optionally 'payload'")
        ctx = self._ctx
        kind, message, payload = str(entry["kind"]), str(entry["message"]), deep_copy_containers(entry.get("payload"))
        ctx.emit(LogEvent(ctx.dispatch_id, ctx.iteration, now(), level, kind, message, payload))


@dataclass(frozen=True, slots=True)
class _Text:
    """The state of a message or thought. Separate from its events, which listeners could change."""

    created_at: datetime
    full: str = ""
    is_complete: bool = False


@dataclass(slots=True)
class _Call:
    """The state of a call, separate from its events for the same reason."""

    created_at: datetime
    tool: str = ""
    args: dict[str, Any] | None = None
    results: Any = None
    is_error: bool = False
    is_complete: bool = False

    @property
    def checksum(self) -> str:
        return call_id(self.tool, self.args) if self.tool and self.args is not None else ""


class Reporter:
    """Emits progress on the functional bus. The state of each id lasts for the whole dispatch.

    Reporting an id again after it was complete raises `ValueError`.
    """

    def __init__(self, ctx: ReportedDispatch) -> None:
        self._ctx = ctx
        self._texts: dict[tuple[type[MessageEvent], str], _Text] = {}
        self._calls: dict[str, _Call] = {}

    @property
    def log(self) -> ReporterLog:
        return ReporterLog(self._ctx)

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
        is_error: bool | None = None,
        is_complete: bool = False,
    ) -> None:
        """Report a call or its completion; omitted fields have the values of the previous report."""
        moment = now()
        known = self._calls.get(id)
        if known is None:
            known = _Call(moment)
        _refuse_update_after_completion(id, known)
        call = self._calls[id] = _Call(
            known.created_at,
            known.tool if tool is None else tool,
            known.args if args is None else deep_copy_containers(args),
            known.results if results is None else deep_copy_containers(results),
            known.is_error if is_error is None else is_error,
            is_complete,
        )
        if not self._ctx.has_listener(ToolCallEvent):
            return
        event = ToolCallEvent(
            id=id,
            tool=call.tool,
            args=deep_copy_containers(call.args),
            checksum=call.checksum,
            created_at=call.created_at,
            updated_at=moment,
            is_complete=is_complete,
            is_error=call.is_error,
            results=deep_copy_containers(call.results),
            completed_at=moment if is_complete else None,
        )
        self._ctx.emit(event)

    def has_reported(self, id: str) -> bool:
        """Whether a call with that id was reported in this dispatch, finished or not."""
        return id in self._calls

    def report_generation_stats(self, stats: Mapping[str, Any]) -> None:
        copied = deep_copy_containers(dict(stats))
        self._ctx.emit(GenerationStats(self._ctx.dispatch_id, self._ctx.iteration, now(), copied))

    def _report_text(self, kind: type[MessageEvent], id: str, delta: str, is_complete: bool) -> None:
        moment = now()
        known = self._texts.get((kind, id)) or _Text(moment)
        _refuse_update_after_completion(id, known)
        text = _Text(known.created_at, known.full + delta, is_complete)
        self._texts[kind, id] = text
        completed_at = moment if is_complete else None
        self._ctx.emit(kind(id, text.created_at, moment, text.full, delta, is_complete, completed_at))


def _refuse_update_after_completion(id: str, known: _Text | _Call) -> None:
    if known.is_complete:
        raise ValueError(f"{id!r} was already reported as complete")
