"""Where the log records of a process go: a `LoggerProvider` of the SDK with batch processors.

The provider is that of the process, if one is set and has processors. Otherwise the pipeline has its own, with the
exporters of the Telemetry document or of the variables. Exporters of other packages are entry points in the group
`opentelemetry_logs_exporter`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from opentelemetry._logs import Logger, LogRecord, get_logger_provider
from opentelemetry.sdk._logs import LoggerProvider, LogRecordLimits, ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gateway.telemetry import names
from gateway.telemetry.export.otlp_logs import EncodedRecord, OtlpLogExporter, RecordSource, decode_record
from gateway.telemetry.export.signal_exporter import FLUSH_SECONDS, Transport
from gateway.telemetry.export.wire_format import Attributes, OtlpEnvelope
from gateway.telemetry.sdk_components import load_exporter
from gateway.telemetry.settings import (
    AnyExporter,
    BatchSettings,
    Exporter,
    PluginSettings,
    TelemetrySettings,
    describe_exporter,
)

_log: Final = logging.getLogger(__name__)


def has_logger_provider() -> bool:
    """Whether the process has a provider with processors of its own."""
    found = get_logger_provider()
    return isinstance(found, LoggerProvider) and found.get_logger(names.SCOPE).enabled()


class LogPipeline:
    """The log records of a gateway. `taken` counts all, `dropped` those that did not arrive, by reason."""

    def __init__(
        self, settings: TelemetrySettings, *, transport: Callable[[Exporter], Transport], version: str
    ) -> None:
        """Raises `InvalidTelemetry` for exporters that cannot be used."""
        self._settings = settings
        self._transport = transport
        self.taken = 0
        self.dropped: Counter[str] = Counter()
        self._source = RecordSource(
            Resource(dict(settings.resource), names.SCHEMA_URL),
            InstrumentationScope(names.SCOPE, version, names.SCHEMA_URL),
            LogRecordLimits(max_log_record_attribute_length=settings.longest_value),
        )
        exporters = [self._create_exporter(each) for each in settings.logs]
        self._limited = [each for each in exporters if isinstance(each, OtlpLogExporter)]
        self._processors = [_BatchProcessor(each, settings.records, self.dropped) for each in exporters]
        found = get_logger_provider()
        self._is_own = not (isinstance(found, LoggerProvider) and has_logger_provider())
        if self._is_own or not isinstance(found, LoggerProvider):
            resource, limits = self._source.resource, self._source.limits
            found = LoggerProvider(resource, shutdown_on_exit=False, log_record_limits=limits)
        for each in self._processors:
            found.add_log_record_processor(each)
        words = [describe_exporter(each) for each in settings.logs]
        words += [] if self._is_own else ["the logger provider of the process"]
        _log.info("log records are sent: %s", "; ".join(words))
        self._logger: Logger = found.get_logger(names.SCOPE, version, names.SCHEMA_URL)

    def __len__(self) -> int:
        return sum(map(len, self._processors))

    def put(self, encoded: bytes) -> None:
        """Take a record that the gateway has encoded."""
        self.taken += 1
        if not self._is_own:
            self._logger.emit(decode_record(encoded))
            return
        record = EncodedRecord(encoded, self._source)
        for each in self._processors:
            each.add(record)

    def emit(self, record: LogRecord) -> None:
        self.taken += 1
        self._logger.emit(record)

    async def close(self) -> None:
        """Send what waits, for at most `FLUSH_SECONDS`; the rest is dropped and counted."""
        for each in self._limited:
            each.limit()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        until = monotonic() + FLUSH_SECONDS
        for each in self._processors:
            each.end(until)

    def _create_exporter(self, settings: AnyExporter) -> LogRecordExporter:
        if isinstance(settings, PluginSettings):
            made: LogRecordExporter = load_exporter("logs", settings.name, LogRecordExporter)
            return made
        resource = Attributes(self._settings.longest_value).all(dict(self._settings.resource))
        version = self._source.instrumentation_scope.version or ""
        envelope = OtlpEnvelope(resource, scope=names.SCOPE, version=version, schema_url=names.SCHEMA_URL)
        return OtlpLogExporter(self._transport(settings), envelope, self.dropped)


class _BatchProcessor(BatchLogRecordProcessor):
    """Counts what is dropped."""

    def __init__(self, exporter: LogRecordExporter, batching: BatchSettings, dropped: Counter[str]) -> None:
        counted = exporter if isinstance(exporter, OtlpLogExporter) else _CountedExporter(exporter, dropped)
        super().__init__(counted, batching.delay * 1000, batching.batch, max_queue_size=batching.queue)
        self._dropped = dropped
        self._most = batching.queue

    def __len__(self) -> int:
        return len(self._batch_processor._queue)

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        self._count()
        super().on_emit(log_record)

    def add(self, record: EncodedRecord) -> None:
        self._count()
        self._batch_processor.emit(record)

    def end(self, until: float) -> None:
        """Send what waits until then, on the monotonic clock."""
        self._batch_processor.shutdown(timeout_millis=max(1, int((until - monotonic()) * 1000)))
        if len(self):
            self._dropped["closed"] += len(self)

    def _count(self) -> None:
        if len(self) >= self._most:  # the SDK drops the oldest one
            self._dropped[names.QUEUE_FULL] += 1


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
