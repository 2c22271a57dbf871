"""Contents in the span of a call: keyed hashes, and only those in its decision log entry."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.engine.call import Call
from gateway.model.caller import Principal
from gateway.model.primitives.deadline import to_microseconds
from gateway.storage.call_store import StoredCall, StoredResult
from gateway.telemetry import names
from gateway.telemetry.settings import Kept, SamplingSettings, TelemetrySettings
from tests.support.finished_spans import KEY, observe

NOON = to_microseconds(datetime(2026, 11, 16, 12, tzinfo=UTC))
ADA = Principal("user:ada")
CHECKSUM = "5e" * 32
PIECES = [StoredResult("artifact", key=f"k{n}", content=content) for n, content in enumerate((None, b"1", b"2"))]
STORED = StoredCall("c", "t", "pay", "pay", {}, CHECKSUM, ADA, "desk", "r", NOON, results=PIECES)


class Hashing:
    """Records what it was asked to hash."""

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


def read_failed_spans(
    call: Call, hashes: Hashing, *, ratio: float = 1.0, always: frozenset[Kept] = frozenset()
) -> list[Any]:
    """The spans of a call that did not finish."""
    observer, kept = observe(TelemetrySettings({}, sampling=SamplingSettings(ratio, always)), hashes)
    seen = observer.start_call(call, None, None)
    assert seen is not None
    seen.end_with_error(ValueError("hunter2"))
    return list(kept.get_finished_spans())


def test_span_has_the_keyed_hashes_of_the_decision_log() -> None:
    call = Call("c", "pay", {}, ADA, "desk", "r", checksum=CHECKSUM, stored=STORED, is_logged=True)
    (span,) = read_failed_spans(call, Hashing())

    assert span.attributes[names.ARGUMENT_DIGEST] == KEY.arguments(CHECKSUM.encode())
    assert span.attributes[names.RESULT_DIGEST] == KEY.result(b"1")


@pytest.mark.parametrize(
    "more", [{"stored": STORED}, {"is_logged": True, "checksum": ""}], ids=["unlogged", "unhashed"]
)
def test_what_the_log_does_not_have_is_not_hashed(more: dict[str, Any]) -> None:
    hashes = Hashing()
    (span,) = read_failed_spans(Call("c", "pay", {}, ADA, "desk", "r", **{"checksum": CHECKSUM, **more}), hashes)

    assert span.attributes.keys().isdisjoint({names.ARGUMENT_DIGEST, names.RESULT_DIGEST})
    assert hashes.asked == []


@pytest.mark.parametrize(("always", "sent"), [(frozenset(), 0), (frozenset({"error"}), 1)])
def test_only_what_is_sent_is_hashed(always: frozenset[Kept], sent: int) -> None:
    hashes = Hashing()
    call = Call("c", "pay", {}, ADA, "desk", "r", checksum=CHECKSUM, stored=STORED, is_logged=True)

    assert len(read_failed_spans(call, hashes, ratio=0.0, always=always)) == sent
    assert hashes.asked == ["arguments", "result"] * sent
