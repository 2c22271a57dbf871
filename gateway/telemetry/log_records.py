"""What the gateway logs, as log records of OTLP: the same safe words as on its standard error output."""

import logging
from typing import Final

from gateway.telemetry import names
from gateway.telemetry.exporting import Queue
from gateway.telemetry.log_lines import fields_of
from gateway.telemetry.wire_format import Attributes, Value, event_body, log_head, of_log

_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_OWN: Final = "gateway.telemetry"
"""What sending has to say is not sent: a collector that is down would be told so by what it does not take."""

_SEVERITIES: Final = ((logging.CRITICAL, 21), (logging.ERROR, 17), (logging.WARNING, 13), (logging.INFO, 9))
_DEBUG: Final = 5


class LogRecords(logging.Handler):
    def __init__(self, queue: Queue, *, limit: int) -> None:
        super().__init__()
        self._queue = queue
        self._limit = limit
        self._attributes = Attributes(limit)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(_OWN):
            return
        try:
            self._queue.put(self._encoded(record))
        except Exception:  # the line on the standard error output has it
            return

    def _encoded(self, record: logging.LogRecord) -> bytes:
        told = fields_of(record)
        attributes: dict[str, Value] = {names.LOGGER: told["logger"]}
        if "callId" in told:
            attributes |= {names.CALL_ID: told["callId"], names.TOOL_NAME: told["tool"]}
        if "error" in told:
            attributes[names.ERROR_TYPE] = told["error"].get("code") or told["error"]["type"]
        trace_id = bytes.fromhex(told.get("traceId", _NO_TRACE))
        span_id = bytes.fromhex(told.get("spanId", _NO_SPAN))
        severity = next((number for level, number in _SEVERITIES if record.levelno >= level), _DEBUG)
        head = log_head(trace_id, span_id, int(record.created * 1e9), severity)
        return head + event_body(told["message"], self._limit) + of_log(self._attributes.all(attributes))
