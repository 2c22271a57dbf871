"""Log lines (JSON and text, one per record), and the way of log records to the processors of an SDK.

An error is logged with its type, its place in the code and, if it is a `GatewayError`, its message, which is safe.
Messages of other errors may contain data of calls, and are omitted; so is all but the first line from other libraries.

The logger provider is that of the process, if one is set and has processors. Otherwise the pipeline has its own, with
the exporters of the Telemetry document or of the variables. Exporters of other packages are entry points in the group
`opentelemetry_logs_exporter`.
"""

import asyncio
import errno
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from logging import Formatter, LogRecord
from pathlib import Path
from time import monotonic
from traceback import walk_tb
from typing import Any, Final

from opentelemetry._logs import Logger, SeverityNumber, get_logger_provider
from opentelemetry._logs import LogRecord as ExportedRecord
from opentelemetry.context import Context
from opentelemetry.sdk._logs import LoggerProvider, LogRecordLimits, ReadableLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span, set_span_in_context
from opentelemetry.util.types import AttributeValue

from gateway.engine import find_current_call
from gateway.errors import GatewayError
from gateway.telemetry import names
from gateway.telemetry.export.delivery import FLUSH_SECONDS, QueueCounts
from gateway.telemetry.export.otlp_exporters import EncodedRecord, OtlpLogExporter, RecordSource, decode_record
from gateway.telemetry.export.otlp_transports import open_transport
from gateway.telemetry.export.wire_format import OtlpEnvelope
from gateway.telemetry.sdk_components import load_exporter
from gateway.telemetry.settings import (
    AnyExporter,
    BatchSettings,
    PluginSettings,
    TelemetrySettings,
    describe_exporter,
)

OURS: Final = "gateway"
LONGEST: Final = 2_000
"""Characters of a message."""

_log: Final = logging.getLogger(__name__)
_MOST_CAUSES: Final = 5
_MOST_PLACES: Final = 12
_PACKAGE: Final = Path(__file__).parent.parent


class JsonLogFormatter(Formatter):
    """One JSON object a line."""

    def format(self, record: LogRecord) -> str:
        return json.dumps(log_fields(record), ensure_ascii=False, separators=(",", ":"))


class TextLogFormatter(Formatter):
    """One line of text, for terminals."""

    def format(self, record: LogRecord) -> str:
        fields = log_fields(record)
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        words = [at, fields["level"].upper(), fields["message"]]
        if problem := fields.get("error"):
            words.append(f"({_words_of(problem)})")
        if call := fields.get("callId"):
            words.append(f"[call {call} of {fields['tool']}]")
        return " ".join(words)


def log_fields(record: LogRecord) -> dict[str, Any]:
    """Return the fields of a record; `traceId` and `spanId` are those of the current span."""
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, Any] = {
        "time": moment.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": one_line(record.name),
        "message": message_of(record),
    }
    fields |= _of_call()
    if (context := span_context()) is not None:
        fields |= {"traceId": f"{context.trace_id:032x}", "spanId": f"{context.span_id:016x}"}
    if record.exc_info and isinstance(error := record.exc_info[1], BaseException):
        fields["error"] = problem_of(error)
    return fields


def message_of(record: LogRecord) -> str:
    """Return the message; from other libraries only its first line, without the values of its arguments."""
    if record.name.partition(".")[0] == OURS:
        try:
            return one_line(record.getMessage())
        except (TypeError, ValueError):
            return one_line(str(record.msg))
    return one_line(str(record.msg).partition("\n")[0])


def problem_of(error: BaseException) -> dict[str, Any]:
    """Return type, place and causes of an error, and its text only if it is safe."""
    causes = list(_causes(error))
    fields: dict[str, Any] = {"type": type(error).__name__, **_details(error), "at": _places(error)}
    if causes:
        fields["causes"] = [{"type": type(each).__name__, **_details(each)} for each in causes]
    return fields


def one_line(text: str) -> str:
    """Return the text truncated and without control characters and line breaks."""
    short = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    if short.isprintable():
        return short
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in short)


def span_context() -> SpanContext | None:
    """Return the current span of OpenTelemetry, or that of the current call if it is not in the same trace."""
    found = get_current_span().get_span_context()
    call = find_current_call()
    if call is None or call.seen is None:
        return found if found.is_valid else None
    trace_id = int(call.seen.trace_id, 16)
    if found.trace_id == trace_id:
        return found
    flags = TraceFlags(TraceFlags.SAMPLED if call.seen.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(trace_id, int(call.seen.span_id, 16), is_remote=False, trace_flags=flags)


def _of_call() -> Mapping[str, str]:
    call = find_current_call()
    return {} if call is None else {"callId": one_line(call.id), "tool": one_line(call.identity or call.tool)}


def _details(error: BaseException) -> dict[str, str]:
    if isinstance(error, GatewayError):
        return {"code": error.code, "message": one_line(error.message)}
    if isinstance(error, OSError) and (number := error.errno) is not None and number in errno.errorcode:
        return {"code": errno.errorcode[number]}
    name = getattr(error, "sqlite_errorname", None)
    return {"code": name} if isinstance(name, str) else {}


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = {id(error)}
    while len(seen) <= _MOST_CAUSES:
        cause = getattr(error, "cause", None) if isinstance(error, GatewayError) else None
        following = cause or error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if not isinstance(following, BaseException) or id(following) in seen:
            return
        error = following
        seen.add(id(error))
        yield error


def _places(error: BaseException) -> list[str]:
    """Return files, lines and functions, the innermost last. Files of the gateway have their path in the repository."""
    found = [
        f"{_file(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
        for frame, line in walk_tb(error.__traceback__)
    ]
    return found[-_MOST_PLACES:]


def _file(name: str) -> str:
    path = Path(name)
    return f"{OURS}/{path.relative_to(_PACKAGE)}" if path.is_relative_to(_PACKAGE) else path.name


def _words_of(problem: Mapping[str, Any]) -> str:
    words = problem["type"]
    if message := problem.get("message"):
        words = f"{words}: {message}"
    if causes := problem.get("causes"):
        words = f"{words}, of {', of '.join(each['type'] for each in causes)}"
    return f"{words} at {problem['at'][-1]}" if problem["at"] else words


def has_logger_provider() -> bool:
    """Whether the process has a provider with processors of its own."""
    found = get_logger_provider()
    return isinstance(found, LoggerProvider) and found.get_logger(names.SCOPE).enabled()


class LogPipeline:
    """The log records of a gateway. `taken` counts all, `dropped` those that did not arrive, by reason."""

    def __init__(self, settings: TelemetrySettings, *, version: str) -> None:
        """Raises `InvalidTelemetry` for exporters that cannot be used."""
        self._settings = settings
        self.taken = 0
        self.dropped: Counter[str] = Counter()
        self._source = RecordSource(
            Resource(dict(settings.resource), names.SCHEMA_URL),
            InstrumentationScope(names.SCOPE, version, names.SCHEMA_URL),
            LogRecordLimits(max_log_record_attribute_length=settings.longest_value),
        )
        exporters = [self._create_exporter(each) for each in settings.logs]
        self._limited = [each for each in exporters if isinstance(each, OtlpLogExporter)]
        self._queues = [LogQueue(each, settings.records, self.dropped) for each in exporters]
        found = get_logger_provider()
        self._is_own = not (isinstance(found, LoggerProvider) and has_logger_provider())
        if self._is_own or not isinstance(found, LoggerProvider):
            resource, limits = self._source.resource, self._source.limits
            found = LoggerProvider(resource, shutdown_on_exit=False, log_record_limits=limits)
        for each in self._queues:
            found.add_log_record_processor(each)
        words = [describe_exporter(each) for each in settings.logs]
        words += [] if self._is_own else ["the logger provider of the process"]
        _log.info("log records are sent: %s", "; ".join(words))
        self._logger: Logger = found.get_logger(names.SCOPE, version, names.SCHEMA_URL)

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def put(self, encode: Callable[[], bytes]) -> None:
        """Take a record that the gateway encodes."""
        self.taken += 1
        if not self._is_own:
            self._logger.emit(decode_record(encode()))
            return
        record = EncodedRecord(encode, self._source)
        for each in self._queues:
            each.put(record)

    def emit(self, record: ExportedRecord) -> None:
        self.taken += 1
        self._logger.emit(record)

    async def close(self) -> None:
        """Send what waits, for at most `FLUSH_SECONDS`; the rest is dropped and counted."""
        for each in self._limited:
            each.limit()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        until = monotonic() + FLUSH_SECONDS
        for each in self._queues:
            each.end(until)

    def _create_exporter(self, settings: AnyExporter) -> LogRecordExporter:
        if isinstance(settings, PluginSettings):
            made: LogRecordExporter = load_exporter("logs", settings.name, LogRecordExporter)
            return made
        version = self._source.instrumentation_scope.version or ""
        envelope = OtlpEnvelope(
            self._settings.resource, scope=names.SCOPE, version=version, schema_url=names.SCHEMA_URL
        )
        return OtlpLogExporter(open_transport(settings), envelope, self.dropped)


class LogQueue(QueueCounts, BatchLogRecordProcessor):
    """The SDK's queue of log records."""

    def __init__(self, exporter: LogRecordExporter, batching: BatchSettings, dropped: Counter[str]) -> None:
        counted = exporter if isinstance(exporter, OtlpLogExporter) else _CountedExporter(exporter, dropped)
        super().__init__(counted, batching.delay * 1000, batching.batch, max_queue_size=batching.queue)
        self.start_counts(dropped)

    def end(self, until: float) -> None:
        """Send what waits until then, on the monotonic clock."""
        self._batch_processor.shutdown(timeout_millis=max(1, int((until - monotonic()) * 1000)))
        if len(self):
            self.dropped["closed"] += len(self)


class _CountedExporter(LogRecordExporter):
    """An exporter of another package."""

    def __init__(self, exporter: LogRecordExporter, dropped: Counter[str]) -> None:
        self._exporter = exporter
        self._dropped = dropped

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        result = LogRecordExportResult.FAILURE
        try:
            result = self._exporter.export(batch)
        finally:
            if result is not LogRecordExportResult.SUCCESS:
                self._dropped["failed"] += len(batch)
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


_NOT_EXPORTED: Final = ("gateway.telemetry", "opentelemetry")
"""Records of telemetry itself are not exported: failed exports would cause further ones."""

_SEVERITIES: Final = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
)
_RESERVED: Final = ("gateway.", "gen_ai.", "mcp.")
_OF_EVERY_RECORD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
_SECRET: Final = re.compile("authorization|cookie|credential|passw|private|secret|token|api.?key", re.IGNORECASE)
_MASK: Final = "***"
_MOST_ARGUMENTS: Final = 32


class OtlpLogHandler(logging.Handler):
    """Exports log records, with the arguments of the log call as attributes.

    Arguments of other loggers than the gateway's may be contents of calls: `captures` says whether those of the current
    call may be exported.
    """

    def __init__(self, pipeline: LogPipeline, *, captures: Callable[[], bool]) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._captures = captures

    def emit(self, record: LogRecord) -> None:
        if record.name.startswith(_NOT_EXPORTED):
            return
        try:
            self._pipeline.emit(self._translate(record))
        except Exception:  # the line on standard error has it
            return

    def _translate(self, record: LogRecord) -> ExportedRecord:
        fields = log_fields(record)
        attributes: dict[str, AttributeValue] = {names.LOGGER: fields["logger"]}
        if "callId" in fields:
            attributes |= {names.CALL_ID: fields["callId"], names.TOOL_NAME: fields["tool"]}
        if "error" in fields:
            attributes[names.ERROR_TYPE] = fields["error"].get("code") or fields["error"]["type"]
        body = fields["message"]
        if record.name.partition(".")[0] == OURS or self._captures():
            body = one_line(record.getMessage())
            attributes |= _arguments(record)
        context = span_context()
        return ExportedRecord(
            timestamp=int(record.created * 1e9),
            context=None if context is None else set_span_in_context(NonRecordingSpan(context), Context()),
            severity_number=next(
                (each for level, each in _SEVERITIES if record.levelno >= level), SeverityNumber.DEBUG
            ),
            severity_text=record.levelname,
            body=body,
            attributes=attributes,
        )


def _arguments(record: LogRecord) -> dict[str, AttributeValue]:
    """Return the template of the message and its arguments, and what the caller added to the record."""
    arguments: dict[str, AttributeValue] = {}
    if isinstance(record.args, Mapping):
        arguments[names.LOG_ARGUMENTS] = [f"{name}={_shown(str(name), value)}" for name, value in record.args.items()]
    elif record.args:
        arguments[names.LOG_ARGUMENTS] = [_shown("", value) for value in record.args[:_MOST_ARGUMENTS]]
    if arguments:
        arguments[names.LOG_TEMPLATE] = one_line(str(record.msg))
    for name, value in vars(record).items():
        if name not in _OF_EVERY_RECORD and not name.startswith(_RESERVED) and len(arguments) < _MOST_ARGUMENTS:
            arguments[name] = value if type(value) in (bool, int, float) else _shown(name, value)
    return arguments


def _shown(name: str, value: object) -> str:
    return _MASK if _SECRET.search(name) else one_line(str(value))
