"""The official messages can read our direct encoding."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from gateway.telemetry.export import wire_format as wire
from gateway.telemetry.spans import SpanContext

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


def around(item: bytes) -> bytes:
    attributes = wire.Attributes(100)
    resource = attributes.all({"service.name": "gateway"})
    return wire.OtlpEnvelope(resource, scope="gateway", version="1", schema_url="https://schema").around([item, item])


@given(IDS, IDS, TIMES, TIMES, st.dictionaries(KEYS, VALUES, max_size=8), TEXTS, st.booleans(), st.integers(4, 200))
def test_a_span_is_read_as_it_was_written(
    ids: tuple[bytes, bytes],
    other: tuple[bytes, bytes],
    start: int,
    end: int,
    values: dict[str, wire.Value],
    name: str,
    is_error: bool,
    limit: int,
) -> None:
    encoder = wire.Attributes(limit)
    for _ in range(2):  # the second time, keys are known and short texts take another path
        rest = wire.of_span(encoder.all(values)) + wire.link(*other)
    context = SpanContext(*ids, parent=other[1], state="a=b")
    context.is_remote = True
    head = wire.span_head(context, wire.SERVER, start, end)
    payload = around(head + wire.span_name(name, limit) + rest + (wire.FAILED if is_error else b""))

    [resource] = TracesData.FromString(payload).resource_spans
    [scoped] = resource.scope_spans
    span, twin = scoped.spans
    assert span == twin
    assert (scoped.scope.name, scoped.scope.version, scoped.schema_url) == ("gateway", "1", "https://schema")
    assert resource.schema_url == "https://schema"
    assert [each.key for each in resource.resource.attributes] == ["service.name"]
    assert (span.trace_id, span.span_id, span.parent_span_id, span.trace_state) == (*ids, other[1], "a=b")
    assert (span.name, span.kind) == (as_sent(name, limit), 2)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (start, max(start, end))
    assert {each.key: decode(each.value) for each in span.attributes} == {
        key: as_sent(value, limit) for key, value in values.items()
    }
    assert [(each.trace_id, each.span_id) for each in span.links] == [other]
    assert (span.status.code, span.flags) == (2 if is_error else 0, 0x301)


@given(IDS, TIMES, st.dictionaries(KEYS, VALUES, max_size=4))
def test_a_log_record_is_read_as_it_was_written(
    ids: tuple[bytes, bytes], at: int, values: dict[str, wire.Value]
) -> None:
    encoder = wire.Attributes(300)
    words = wire.event_name("gateway.call.started") + wire.event_body("echo was called", 100)
    payload = around(wire.log_head(*ids, at, wire.INFO) + words + wire.of_log(encoder.all(values)))

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

    values = wire.of_span(wire.Attributes(limit).all({"key": words}))
    assert wire.head("key", len(content), wire.OF_SPAN) + content == values


@given(st.text(st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF), min_size=1, max_size=3))
def test_half_a_character_is_written_as_a_question_mark(text: str) -> None:
    encoder = wire.Attributes(10)
    encoder.encode("key", "once")

    assert encoder.encode("key", text).endswith(b"?" * len(text))
