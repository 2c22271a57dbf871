"""What the span of a call tells of contents: keyed hashes, and only those that its entry in the decision log has."""

from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.audit.contents import ContentKey
from gateway.core.moments import microseconds
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall, StoredResult
from gateway.serving.current import ServedCall
from gateway.telemetry import names
from gateway.telemetry.exporting import Queue
from gateway.telemetry.observing import Telemetry
from gateway.telemetry.settings import Batching, Kept, Sampling, Settings

KEY = ContentKey(bytes(range(160, 192)))
NOON = microseconds(datetime(2026, 11, 16, 12, tzinfo=UTC))
ADA = Principal("user:ada")
CHECKSUM = "5e" * 32
PIECES = [StoredResult("artifact", key=f"k{n}", content=content) for n, content in enumerate((None, b"1", b"2"))]
STORED = StoredCall("c", "t", "pay", "pay", {}, CHECKSUM, ADA, "desk", "r", NOON, results=PIECES)


class Hashing:
    """Knows what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def name(self, text: str) -> str:
        return KEY.name(text)

    def arguments(self, checksum: bytes) -> str:
        self.asked.append("arguments")
        return KEY.arguments(checksum)

    def result(self, content: bytes) -> str:
        self.asked.append("result")
        return KEY.result(content)


def failed(
    call: ServedCall, hashes: Hashing, *, ratio: float = 1.0, always: frozenset[Kept] = frozenset()
) -> list[Any]:
    """The spans of a call that did not come to its end."""
    spans = Queue(Batching())
    observer = Telemetry(Settings({}, sampling=Sampling(ratio, always)), spans=spans, logs=None, hashes=hashes)
    seen = observer.called(call, None, None)
    assert seen is not None
    seen.failed(ValueError("hunter2"))
    return [Span.FromString(each) for each in spans.take()]


def told(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


def test_span_has_the_keyed_hashes_of_the_decision_log() -> None:
    call = ServedCall("c", "pay", {}, ADA, "desk", "r", checksum=CHECKSUM, stored=STORED, is_logged=True)
    (span,) = failed(call, Hashing())

    assert told(span)[names.ARGUMENT_DIGEST] == KEY.arguments(CHECKSUM.encode())
    assert told(span)[names.RESULT_DIGEST] == KEY.result(b"1")


@pytest.mark.parametrize(
    "more", [{"stored": STORED}, {"is_logged": True, "checksum": ""}], ids=["unlogged", "unhashed"]
)
def test_what_the_log_does_not_have_is_not_hashed(more: dict[str, Any]) -> None:
    hashes = Hashing()
    (span,) = failed(ServedCall("c", "pay", {}, ADA, "desk", "r", **{"checksum": CHECKSUM, **more}), hashes)

    assert told(span).keys().isdisjoint({names.ARGUMENT_DIGEST, names.RESULT_DIGEST})
    assert hashes.asked == []


@pytest.mark.parametrize(("always", "sent"), [(frozenset(), 0), (frozenset({"error"}), 1)])
def test_only_what_is_sent_is_hashed(always: frozenset[Kept], sent: int) -> None:
    hashes = Hashing()
    call = ServedCall("c", "pay", {}, ADA, "desk", "r", checksum=CHECKSUM, stored=STORED, is_logged=True)

    assert len(failed(call, hashes, ratio=0.0, always=always)) == sent
    assert hashes.asked == ["arguments", "result"] * sent
