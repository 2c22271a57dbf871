"""Tools with spans of their own, made by the SDK of OpenTelemetry as an instrumented library makes them."""

import asyncio
import json

from opentelemetry import baggage, propagate, trace
from opentelemetry.sdk.trace import TracerProvider


def spans_within(text: str) -> str:
    """Return the parent of a span of the tool, and the headers that an instrumented client would send."""
    headers: dict[str, str] = {}
    with TracerProvider().get_tracer("tool").start_as_current_span("inner") as inner:
        propagate.inject(headers)
        parent = inner.parent  # type: ignore[attr-defined]  # of a recording span
        context = inner.get_span_context()
    found = {
        "parent": None if parent is None else [f"{parent.trace_id:032x}", f"{parent.span_id:016x}"],
        "sent": headers.get("traceparent"),
        "inner": f"00-{context.trace_id:032x}-{context.span_id:016x}-01",
        "baggage": dict(baggage.get_all()),
    }
    return json.dumps(found)


async def spans_within_later(text: str) -> str:
    await asyncio.sleep(0)
    return spans_within(text)


def describe(text: str) -> str:
    current = trace.get_current_span()
    current.set_attribute("shop.items", 3)
    current.set_attributes({"shop.names": ["chair", "desk"], "shop.price": 1.5, "shop.open": True})
    current.set_attribute("gateway.decision", "deny")
    current.set_attribute("gen_ai.tool.name", "another")
    current.add_event("looked", {"shop.shelf": 2})
    current.update_name("another")
    current.set_status(trace.StatusCode.ERROR)
    current.end()
    return json.dumps({"recording": current.is_recording()})


def fails(text: str) -> str:
    raise KeyError(text)
