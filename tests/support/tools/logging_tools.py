"""Python tools that log as programs do."""

import logging

from opentelemetry import trace

_log = logging.getLogger("acme.shop")


def note(text: str) -> str:
    """Log one line with arguments, and with fields of its own."""
    _log.warning("order %s of %d parts", text, 3, extra={"shelf": 2, "customer": text, "api_token": f"key-of-{text}"})
    return "noted"


async def note_later(text: str) -> str:
    return note(text)


def note_within(text: str) -> str:
    """Log within a span of the tool's own."""
    outer = trace.get_current_span().get_span_context()
    inner = trace.SpanContext(outer.trace_id, 0x4711, is_remote=False, trace_flags=outer.trace_flags)
    with trace.use_span(trace.NonRecordingSpan(inner)):
        return note(text)


def note_by_name(text: str) -> str:
    _log.warning("order %(order)s with %(password)s", {"order": text, "password": f"key-of-{text}"})
    return "noted"
