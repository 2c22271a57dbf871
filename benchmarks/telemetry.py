"""The cost of observing one plain call: turned off, dropped by the ratio, and sent with its start record.

The reference is the same two spans made with the OpenTelemetry SDK, with the same attributes: in the caller's thread
until they are queued, and what its exporter does with them afterwards. Nothing is sent over a network.

Then the effect of faulty backends on callers; see `telemetry_backends`.
"""

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from time import time_ns
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON
from opentelemetry.trace import SpanKind

from benchmarks.telemetry_backends import compare
from gateway.engine.call import Call
from gateway.engine.result_content import CallOutcome
from gateway.model.caller import Principal
from gateway.model.primitives.deadline import now_microseconds
from gateway.model.primitives.identifiers import new_id
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.tool_call import ToolCall
from gateway.telemetry import names
from gateway.telemetry.export.otlp_exporters import SpanEncoder
from gateway.telemetry.observer import TelemetryObserver
from gateway.telemetry.settings import SamplingSettings, TelemetrySettings
from gateway.telemetry.span_pipeline import SpanPipeline, TailSampling

ADA = Principal("user:ada", roles=frozenset({"role:agent"}))
ARGS = {"order": "A-1001", "verbose": True}
NOW = now_microseconds()
REPEATS = 5
RECORDS = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to measure each, per repeat")
    parser.add_argument("--rounds", type=int, default=5, help="rounds through all backends; 0 leaves them out")
    parser.add_argument("--busy", type=float, default=2.0, help="seconds that each gateway is asked in a round")
    parser.add_argument("--connections", type=int, default=2)
    options = parser.parse_args()
    seconds = options.seconds
    print(f"Python {platform.python_version()}, µs of processor time for each call, best of {REPEATS}\n")
    made = best(lambda: served_call(), seconds)
    print(f"{'a call that nobody observes (taken off below)':58} {made:8.2f}")
    for name, ratio in (
        ("dropped by the ratio", 0.0),
        ("two spans with events and a start record, until queued", 1.0),
    ):
        one, kept, records, pipeline = make_observed_call(ratio)
        print(f"{name:58} {best(one, seconds) - made:8.2f}")
    encoder = SpanEncoder(pipeline)
    ours: Any = kept.spans[:2048]
    encoding = best(lambda: encoder.encode(ours), seconds) / len(ours) * 2
    encoding += best(lambda: [encode() for encode in records], seconds) / len(records)
    print(f"{'encoding them afterwards, in the thread that exports':58} {encoding:8.2f}")
    queue = SpanQueue()
    print(f"{'SDK: two spans, until they are queued':58} {best(with_sdk(queue), seconds):8.2f}")
    batch = queue.spans[:2048]
    encoding = best(lambda: encode_spans(batch).SerializeToString(), seconds) / len(batch) * 2
    print(f"{'SDK: encoding them afterwards':58} {encoding:8.2f}")
    if options.rounds:
        compare(rounds=options.rounds, seconds=options.busy, connections=options.connections)


def served_call() -> Call:
    call = Call(new_id(), "order_read", ARGS, ADA, "desk", "r" * 64, checksum="c" * 64, definition="d" * 64)
    call.is_logged = True
    call.set_decision("allow", "permitted", None)
    return call


class PrecomputedHashes:
    """Precomputed hashes: the SDK makes none either."""

    def name(self, text: str) -> str:
        return text.ljust(64, "0")

    def arguments(self, checksum: bytes) -> str:
        return "a" * 64

    def result(self, content: bytes) -> str:
        return "b" * 64


def make_observed_call(ratio: float) -> tuple[Callable[[], None], "SpanQueue", "Records", SpanPipeline]:
    spans, logs = SpanQueue(), Records()
    settings = replace(TelemetrySettings({"service.name": "bench"}), sampling=SamplingSettings(ratio))
    provider = TracerProvider(sampler=DEFAULT_ON, active_span_processor=TailSampling(settings.sampling))
    provider.add_span_processor(spans)
    pipeline = SpanPipeline(provider, "1", settings.sampling)
    telemetry = TelemetryObserver(settings, pipeline=pipeline, logs=logs, hashes=PrecomputedHashes())
    record = ToolCall.from_result(
        id="call",
        tool="order_read",
        args=ARGS,
        checksum="c" * 64,
        is_error=False,
        results=Tokenizable("done"),
        from_artifact_tool=False,
        inline=True,
        trusted=False,
        created=NOW,
        completed=NOW,
    )
    turn: Any = None
    settled = CallOutcome(record, turn)
    peer = ("127.0.0.1", 50_000)

    def one() -> None:
        call = served_call()
        request = telemetry.start_request("tools/call", ADA, fields={}, peer=peer, id=1, version="2026-07-28")
        seen = telemetry.start_call(call, None, request)
        assert request is not None and seen is not None  # noqa: PT018 - only where observing fails
        since = time_ns()
        seen.record_step("authorise", since=since, is_cached=True)
        deactivate = seen.activate()
        seen.record_step("backend python", since=since)
        deactivate()
        seen.record_execution(since, time_ns())
        seen.record_step("record", since=since)
        seen.end(settled)
        request.end()
        if len(logs) >= RECORDS:
            logs.clear()

    return one, spans, logs, pipeline


class Records(list[Callable[[], bytes]]):
    """Keeps start records."""

    def put(self, encode: Callable[[], bytes]) -> None:
        self.append(encode)


class SpanQueue(SpanProcessor):
    """A queue for finished spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        if len(self.spans) > 10_000:
            del self.spans[5_000:]
        self.spans.append(span)


def with_sdk(queue: SpanQueue) -> Callable[[], None]:
    provider = TracerProvider()
    provider.add_span_processor(queue)
    tracer = provider.get_tracer("bench")
    shared = {names.OPERATION: "execute_tool", names.TOOL_NAME: "order_read", names.CATALOGUE: "desk"}
    request = {**shared, names.MCP_METHOD: "tools/call", names.MCP_VERSION: "2026-07-28", names.REQUEST_ID: "1"}
    request |= {names.NETWORK_TRANSPORT: "tcp", names.NETWORK_PROTOCOL: "http", names.CLIENT_ADDRESS: "127.0.0.1"}
    execution = {**shared, names.TOOL_TYPE: "datastore", names.CONFIG_REVISION: "r" * 64, names.PRINCIPAL: "p" * 64}
    execution |= {names.POLICY_REVISION: "r" * 64, names.DEFINITION: "d" * 64, names.ARGUMENT_DIGEST: "a" * 64}
    decided = {names.DECISION: "allow", names.DECISION_REASON: "permitted"}

    def one() -> None:
        call = served_call()
        with tracer.start_as_current_span("tools/call order_read", kind=SpanKind.SERVER, attributes=request) as outer:
            outer.set_attribute(names.CLIENT_PORT, 50_000)
            with tracer.start_as_current_span("execute_tool order_read", attributes=execution) as inner:
                inner.set_attributes({names.CALL_ID: call.id, names.TOOL_CALL_ID: call.id, names.ARGUMENT_BYTES: 33})
                inner.set_attributes(decided)
            outer.set_attributes(decided)

    return one


def best(operation: Callable[[], object], seconds: float) -> float:
    """Microseconds."""
    found = []
    for _ in range(REPEATS):
        count, began = 0, time.process_time()
        while time.process_time() - began < seconds:
            for _ in range(100):
                operation()
            count += 100
        found.append((time.process_time() - began) / count)
    return min(found) * 1e6


if __name__ == "__main__":
    main()
