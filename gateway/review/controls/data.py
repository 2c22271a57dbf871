"""How results and records are guarded less: masking, flow, telemetry, retention."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.review.controls.common import Spec, Weakness, at, differs, dropped, is_further, is_longer

_ARGUMENTS: Final = ("none", "keys", "values")
_RESULTS: Final = ("none", "values")
_SENSITIVITY: Final = ("restricted", "confidential", "internal", "public")
_ALWAYS: Final = ("error", "denied", "held")


def weaker_artifact(before: Spec, after: Spec, *, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    if paths := dropped(before, after, "redact"):
        yield Weakness("redact-removed", "redact", ", ".join(paths))
    if _ceiling(after, ranks) > _ceiling(before, ranks):
        yield Weakness("flow-widened", "flow.maxTier")
    if names := dropped(before, after, "flow.blockedBy"):
        yield Weakness("flow-widened", "flow.blockedBy", ", ".join(names))
    for path, order, default in (("arguments", _ARGUMENTS, "keys"), ("results", _RESULTS, "none")):
        words = _captured(before, path, order, default), _captured(after, path, order, default)
        if is_further(*words, order=order):
            yield Weakness("capture-widened", f"capture.{path}")
    if is_further(at(before, "sensitivity", "internal"), at(after, "sensitivity", "internal"), order=_SENSITIVITY):
        yield Weakness("sensitivity-lowered", "sensitivity")
    if differs(before, after, "queries") and (
        at(after, "queries", "all") == "all" or dropped(after, before, "queries")
    ):
        yield Weakness("queries-widened", "queries")


def _captured(spec: Spec, path: str, order: tuple[str, ...], default: str) -> str:
    """What the class lets telemetry keep; without `capture` it holds nothing back."""
    word: str = order[-1] if at(spec, "capture") is None else at(spec, f"capture.{path}", default)
    return word


def _ceiling(spec: Spec, ranks: Mapping[str, int]) -> float:
    tier = at(spec, "flow.maxTier")
    return float("inf") if tier is None else ranks.get(tier, float("inf"))


def weaker_telemetry(before: Spec, after: Spec) -> Iterator[Weakness]:
    for path, order, default in (("arguments", _ARGUMENTS, "keys"), ("results", _RESULTS, "none")):
        words = at(before, f"capture.{path}", default), at(after, f"capture.{path}", default)
        if is_further(*words, order=order):
            yield Weakness("capture-widened", f"capture.{path}")
    kept = set(at(after, "traces.sample.always", _ALWAYS))
    if names := [each for each in at(before, "traces.sample.always", _ALWAYS) if each not in kept]:
        yield Weakness("refusals-sampled", "traces.sample.always", ", ".join(names))
    if at(before, "startRecords", True) and not at(after, "startRecords", True):
        yield Weakness("telemetry-reduced", "startRecords")
    for signal in ("traces", "metrics", "logs"):
        exporter = at(before, f"{signal}.exporter"), at(after, f"{signal}.exporter")
        if exporter[0] and (not exporter[1] or at(exporter[1], "type") == "none") and exporter[0] != exporter[1]:
            yield Weakness("telemetry-reduced", f"{signal}.exporter")
        elif exporter[1] and exporter[0] != exporter[1]:
            yield Weakness("telemetry-redirected", f"{signal}.exporter")


def weaker_storage(before: Spec, after: Spec) -> Iterator[Weakness]:
    for path in ("retain.audit", "retain.calls", "retain.approvals"):
        if differs(before, after, path) and is_longer(at(after, path), at(before, path)):
            yield Weakness("audit-shortened", path)
    if differs(before, after, "type", "path", "connection", "blobs"):
        yield Weakness("storage-changed", "path" if differs(before, after, "path") else "type")
