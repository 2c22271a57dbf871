"""Delivery of requests: repetitions, counts of what did not arrive, and a transport to JSON lines.

It never delays a call. Items that a collector does not accept in time are dropped and counted. Exporters of the SDK are
called in threads, where each has an event loop of its own.

JSON lines go to standard error or into a file: for inspection, not for load. A line is a whole OTLP request in JSON,
the form that collectors read from files.
"""

import asyncio
import json
import logging
import os
import sys
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from random import uniform
from time import monotonic
from typing import Any, Final, Protocol

from gateway.telemetry.names import QUEUE_FULL
from gateway.telemetry.settings import InvalidTelemetry, Signal

FLUSH_SECONDS: Final = 5.0
"""Seconds that a shutdown waits for unsent items."""

_ATTEMPTS: Final = 5
_LOG_INTERVAL: Final = 60.0
_WORDS: Final[Mapping[Signal, str]] = {"traces": "spans", "logs": "log records", "metrics": "metrics"}

_log: Final = logging.getLogger(__name__)


class ExportFailed(Exception):
    """An export failed. `again` is whether to retry, `after` how many seconds later, if the collector sent that."""

    def __init__(self, reason: str, *, again: bool, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.after = after


class Transport(Protocol):
    async def send(self, signal: Signal, payload: bytes) -> int:
        """Send a request; return how many items the collector refused. Raises `ExportFailed`."""
        ...

    async def close(self) -> None: ...


class RecordSink(Protocol):
    """Takes log records from any thread. They are encoded in the thread that exports them."""

    def put(self, encode: Callable[[], bytes]) -> None: ...


class Delivery:
    """Sends requests of one signal, from threads and in an event loop of its own.

    It tries again for a while, and counts in `dropped` what did not arrive, by reason. The SDK suppresses the
    instrumentation of what its threads export, and the loop runs in their context.
    """

    def __init__(self, signal: Signal, transport: Transport, dropped: Counter[str]) -> None:
        self._signal: Signal = signal
        self._transport = transport
        self._dropped = dropped
        self._logged_at = float("-inf")
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closing = asyncio.Event()
        """Once it is set, nothing is tried again."""
        self._until: float | None = None
        """When the export ends, on the clock of the loop."""
        self._time_left: asyncio.Timeout | None = None

    def send(self, payload: bytes, count: int, *, within: float = FLUSH_SECONDS * 4) -> bool:
        """Send a request with so many items. Return whether it arrived."""
        arrived: bool = self._run(lambda: self._send(payload, count, within))
        return arrived

    def limit(self, seconds: float = FLUSH_SECONDS) -> None:
        """Try nothing again from now on, and give up whatever was not sent after so many seconds."""
        self._loop.call_soon_threadsafe(self._end_at, self._loop.time() + seconds)

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self._transport.close)
            with self._lock:
                self._loop.close()

    def _run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine to its end in the loop of the exporter, also where another loop runs."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            with self._lock:
                return self._loop.run_until_complete(work())
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, self._run, work).result()

    async def _send(self, payload: bytes, count: int, within: float) -> bool:
        try:
            async with asyncio.timeout_at(self._until) as self._time_left:
                return await self._try(payload, count, monotonic() + within)
        except TimeoutError:
            self._drop(count, "closed")
            return False
        finally:
            self._time_left = None

    async def _try(self, payload: bytes, count: int, until: float) -> bool:
        for attempt in range(_ATTEMPTS):
            try:
                refused = await self._transport.send(self._signal, payload)
            except ExportFailed as error:
                pause = uniform(0.8, 1.2) * 2**attempt  # noqa: S311 - no secret depends on it
                wait = pause if error.after is None else error.after
                is_last = attempt == _ATTEMPTS - 1 or self._closing.is_set() or monotonic() + wait > until
                if not error.again or is_last:
                    self._drop(count, error.reason)
                    return False
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), wait)
            except Exception:  # a bug must not end the export
                _log.exception("telemetry could not be sent")
                self._drop(count, "failed")
                return False
            else:
                if refused:
                    self._dropped["rejected"] += refused
                return True
        return False

    def _end_at(self, until: float) -> None:
        self._until = until
        self._closing.set()
        if self._time_left is not None:
            self._time_left.reschedule(until)

    def _drop(self, count: int, reason: str) -> None:
        self._dropped[reason] += count
        if monotonic() - self._logged_at > _LOG_INTERVAL:  # at most one line per minute
            self._logged_at = monotonic()
            _log.warning("%d %s were not sent (%s); calls are not affected", count, _WORDS[self._signal], reason)


class QueueCounts:
    """What the queue of a processor of the SDK took and dropped. Both counts only grow."""

    dropped: Counter[str]
    _batch_processor: Any

    def start_counts(self, dropped: Counter[str]) -> None:
        self.dropped = dropped
        self._given = 0
        self._reported = self._batch_processor._metrics
        self._batch_processor._metrics = self  # its place for counts

    def put(self, item: object) -> None:
        """Take an item, as `emit` of the SDK does, which also asks the system for the process every time."""
        to = self._batch_processor
        queue = to._queue
        size = len(queue)
        if size >= to._max_queue_size or to._shutdown:
            to.emit(item)
            return
        queue.appendleft(item)
        if size >= to._max_export_batch_size - 1 and not to._worker_awaken.is_set():
            to._worker_awaken.set()

    @property
    def taken(self) -> int:
        return self._given + len(self) + self.dropped[QUEUE_FULL]

    def __len__(self) -> int:
        return len(self._batch_processor._queue)

    def register_queue_size(self, get_queue_size: Callable[[], int]) -> None:
        self._reported.register_queue_size(get_queue_size)

    def drop_items(self, count: int, error_type: str = QUEUE_FULL) -> None:
        self.dropped[error_type] += count
        self._reported.drop_items(count, error_type)

    def finish_items(self, count: int) -> None:
        self._given += count
        self._reported.finish_items(count)


_IDS: Final = frozenset({"traceId", "spanId", "parentSpanId"})


class JsonLinesExporter:
    """Writes JSON lines. Raises `InvalidTelemetry` for a file that cannot be written to."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise InvalidTelemetry(
                    f"telemetry cannot be written to {path}: {error.strerror}",
                    help="check the folder and its permissions",
                ) from error

    async def send(self, signal: Signal, payload: bytes) -> int:
        try:
            await asyncio.to_thread(self._write, signal, payload)
        except OSError as error:
            raise ExportFailed("unwritable", again=False) from error
        return 0

    async def close(self) -> None:
        """Do nothing: no file is open between two batches, so that it can be moved at any time."""

    def _write(self, signal: Signal, payload: bytes) -> None:
        line = json.dumps(as_json(signal, payload), separators=(",", ":"), ensure_ascii=True) + "\n"
        if self._path is None:
            sys.stderr.write(line)
            sys.stderr.flush()
            return
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            content = memoryview(line.encode())
            while content:
                content = content[os.write(file, content) :]
        finally:
            os.close(file)


def as_json(signal: Signal, payload: bytes) -> Any:
    """Return an OTLP request as JSON, with ids as hexadecimal digits, not as the base64 of protobuf."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    kinds: dict[Signal, Any] = {"traces": TracesData, "logs": LogsData, "metrics": MetricsData}
    message = kinds[signal].FromString(payload)
    return _with_hex_ids(MessageToDict(message, use_integers_for_enums=True))


def _with_hex_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_hex_ids(each) for each in value]
    if isinstance(value, dict):
        return {
            key: b64decode(each).hex() if key in _IDS and isinstance(each, str) else _with_hex_ids(each)
            for key, each in value.items()
        }
    return value
