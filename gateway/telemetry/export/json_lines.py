"""Spans and log records as JSON lines, on standard error or in a file: for inspection, not for load.

A line is a whole OTLP request in JSON, the form that collectors read from files.
"""

import asyncio
import json
import os
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

from gateway.telemetry.export.queue import ExportFailed
from gateway.telemetry.settings import InvalidTelemetry, Signal

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
