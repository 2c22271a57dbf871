"""The official messages can read our direct encoding."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gateway.telemetry.export import wire_format as wire
from gateway.telemetry.export.otlp_exporters import SpanEncoder
from gateway.telemetry.gateway_span import SERVER, GatewaySpan, SharedAttributes, SpanEvent, Value
from gateway.telemetry.settings import LONGEST_VALUE
from tests.support.finished_spans import build_span

TEXTS = st.text(max_size=300)
VALUES = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.lists(TEXTS, min_size=1, max_size=5),
)
KEYS = st.text("abcdefghijklmnop.", min_size=1, max_size=200)
IDS = st.tuples(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
TIMES = st.integers(0, 2**63)


def decode(value: object) -> object:
    kind = value.WhichOneof("value")  # type: ignore[attr-defined]  # a protobuf message
    found = getattr(value, kind)
    return [decode(each) for each in found.values] if kind == "array_value" else found


def as_sent(value: object, limit: int) -> object:
    if isinstance(value, list):
        return [as_sent(each, limit) for each in value]
    return value[:limit].encode("utf-8", "replace").decode() if isinstance(value, str) else value


class Source:
    """What spans have in common, with a limit of the length of texts."""

    resource = Resource({"service.name": "gateway"})
    scope = InstrumentationScope("gateway", "1", "https://schema")

    def __init__(self, limit: int) -> None:
        self.limits = SpanLimits(max_span_attribute_length=limit, max_attribute_length=limit)


def around(item: bytes) -> bytes:
    resource = {"service.name": "gateway"}
    return wire.OtlpEnvelope(resource, scope="gateway", version="1", schema_url="https://schema").around([item, item])


@given(
    *(IDS, IDS, TIMES, TIMES, st.dictionaries(KEYS, VALUES, max_size=8), st.dictionaries(KEYS, VALUES, max_size=4)),
    *(TEXTS, st.booleans(), st.integers(4, 200)),
)
def test_a_span_is_read_as_it_was_written(
    ids: tuple[bytes, bytes],
    other: tuple[bytes, bytes],
    start: int,
    end: int,
    values: dict[str, Value],
    more: dict[str, Value],
    name: str,
    is_error: bool,
    limit: int,
) -> None:
    own = {key: value for key, value in more.items() if key not in values}
    source, later = Source(limit), max(start, end)
    place: dict[str, Any] = {"above": other[1], "is_remote": True, "state": "a=b", "targets": (other,)}
    content: dict[str, Any] = {"parts": [SharedAttributes(values), own], "own_events": [SpanEvent("e", start, more)]}

    def make() -> GatewaySpan:
        fields: dict[str, Any] = {
            "_name": name,
            "_kind": SERVER,
            "_start_time": start,
            "_end_time": later,
            "is_error": is_error,
        }
        return build_span(source, ids, **place, **content, **fields)

    # The second time, keys are known, and short texts and shared attributes take another path.
    payload = SpanEncoder(source).encode([make(), make()])

    [resource] = TracesData.FromString(payload).resource_spans
    [scoped] = resource.scope_spans
    span, twin = scoped.spans
    assert span == twin
    assert (scoped.scope.name, scoped.scope.version, scoped.schema_url) == ("gateway", "1", "https://schema")
    assert resource.schema_url == "https://schema"
    assert [each.key for each in resource.resource.attributes] == ["service.name"]
    assert (span.trace_id, span.span_id, span.parent_span_id, span.trace_state) == (*ids, other[1], "a=b")
    assert (span.name, span.kind) == (as_sent(name, LONGEST_VALUE), 2)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (start, max(start, end))
    assert {each.key: decode(each.value) for each in span.attributes} == {
        key: as_sent(value, limit) for key, value in {**values, **own}.items()
    }
    [event] = span.events
    assert (event.name, event.time_unix_nano) == ("e", start)
    assert {each.key: decode(each.value) for each in event.attributes} == {
        key: as_sent(value, limit) for key, value in more.items()
    }
    assert [(each.trace_id, each.span_id) for each in span.links] == [other]
    assert (span.status.code, span.flags) == (2 if is_error else 0, 0x301)


@given(IDS, TIMES, st.dictionaries(KEYS, VALUES, max_size=4))
def test_a_log_record_is_read_as_it_was_written(ids: tuple[bytes, bytes], at: int, values: dict[str, Value]) -> None:
    encoder = wire.Attributes(wire.OF_LOG, 300)
    words = wire.event_name("gateway.call.started") + wire.event_body("echo was called", 100)
    payload = around(wire.log_head(*ids, at, wire.INFO) + words + encoder.join(values))

    record, _ = LogsData.FromString(payload).resource_logs[0].scope_logs[0].log_records
    assert (record.event_name, record.body.string_value) == ("gateway.call.started", "echo was called")
    assert (record.trace_id, record.span_id, record.severity_number) == (*ids, 9)
    assert (record.time_unix_nano, record.observed_time_unix_nano, record.flags) == (at, at, 1)
    assert {each.key: decode(each.value) for each in record.attributes} == {
        key: as_sent(value, 300) for key, value in values.items()
    }


@given(st.text("aä€𝄞", max_size=300), st.integers(1, 300))
def test_what_stands_before_a_text_depends_on_its_length_alone(words: str, limit: int) -> None:
    content = wire.text(words, limit)

    values = wire.Attributes(wire.OF_SPAN, limit).join({"key": words})
    assert wire.head("key", len(content), wire.OF_SPAN) + content == values


@given(st.text(st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF), min_size=1, max_size=3))
def test_half_a_character_is_written_as_a_question_mark(text: str) -> None:
    encoder = wire.Attributes(wire.OF_SPAN, 10)
    encoder.join({"key": "once"})

    assert encoder.join({"key": text}).endswith(b"?" * len(text))


def test_the_sdk_encodes_a_span_of_the_gateway_alike() -> None:
    """Exporters of other packages read the same span as the gateway's own."""
    source = Source(20)
    values = {"text": "x" * 30, "number": 7, "flag": True, "share": 0.5, "names": ("a", "b")}
    span = build_span(
        source,
        above=b"\3" * 8,
        state="a=b",
        _kind=SERVER,
        parts=[SharedAttributes(values), {"own": "1"}],
        own_events=[SpanEvent("e", 5, {"k": "v"})],
        steps=[("authorise", 4, 1_004, True), ("record", 7, 9, None)],
        targets=((b"\4" * 16, b"\5" * 8),),
        is_error=True,
    )

    ours = TracesData.FromString(SpanEncoder(source).encode([span]))
    theirs = TracesData.FromString(encode_spans([span]).SerializeToString())

    for each in (ours, theirs):
        each.resource_spans[0].schema_url = ""  # the SDK repeats that of the scope
        each.resource_spans[0].scope_spans[0].spans[0].flags &= ~1  # the SDK leaves out whether a span is sampled
    assert ours == theirs
    assert span.to_json()


def test_more_attributes_than_the_limit_are_dropped() -> None:
    source = Source(100)
    source.limits = SpanLimits(max_span_attributes=3)
    span = build_span(source, parts=[SharedAttributes({"a": "1", "b": "2"}), {"c": "3", "d": "4"}])

    [encoded] = TracesData.FromString(SpanEncoder(source).encode([span])).resource_spans[0].scope_spans[0].spans
    assert len(encoded.attributes) == 3
    assert span.dropped_attributes == 1
