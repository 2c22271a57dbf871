"""Finds weaker protection of results and records: masking, flow, telemetry, retention, decision log, webhooks."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.review.weaknesses.comparison import (
    Spec,
    Weakness,
    find_removed,
    is_different,
    is_later_in_order,
    is_longer,
    is_more,
    value_at_path,
    wider_networks,
)

_EVERY: Final = "PT1M"
_ENTRIES: Final = 1000


def weaker_audit(before: Spec, after: Spec) -> Iterator[Weakness]:
    if value_at_path(before, "audit") and not value_at_path(after, "audit"):
        yield Weakness("audit-removed", "audit")
        return
    if value_at_path(before, "audit.key") and is_different(before, after, "audit.key"):
        yield Weakness("audit-key-changed" if value_at_path(after, "audit.key") else "audit-key-removed", "audit.key")
    old, new = value_at_path(before, "audit.anchors"), value_at_path(after, "audit.anchors")
    if old and not new:
        yield Weakness("anchors-removed", "audit.anchors")
    elif old:
        yield from _weaker_anchors(old, new)


def _weaker_anchors(old: Spec, new: Spec) -> Iterator[Weakness]:
    for path in ("path", "signingKey"):
        if is_different(old, new, path):
            yield Weakness("anchors-changed", f"audit.anchors.{path}")
    if is_longer(value_at_path(old, "every", _EVERY), value_at_path(new, "every", _EVERY)):
        yield Weakness("anchors-rarer", "audit.anchors.every")
    if is_more(value_at_path(old, "entries", _ENTRIES), value_at_path(new, "entries", _ENTRIES)):
        yield Weakness("anchors-rarer", "audit.anchors.entries")


def weaker_webhooks(before: Spec, after: Spec) -> Iterator[Weakness]:
    old, new = _webhooks_by_name(before), _webhooks_by_name(after)
    for name in sorted(old.keys() - new.keys()):
        yield Weakness("webhook-removed", "webhooks", name)
    for name in sorted(new.keys() - old.keys()):
        yield Weakness("webhook-added", "webhooks", name)
    for name, webhook in new.items():
        known = old.get(name)
        if known is not None and is_different(known, webhook, "url", "secret", "events"):
            yield Weakness("webhook-changed", "webhooks", name)
        for found in wider_networks(known or {}, webhook, "networks"):
            yield Weakness(found.code, "webhooks", f"{name} reaches {found.note}")


def _webhooks_by_name(spec: Spec) -> dict[str, Mapping[str, Any]]:
    return {webhook["name"]: webhook for webhook in value_at_path(spec, "webhooks", ())}


_ARGUMENTS: Final = ("none", "keys", "values")
_RESULTS: Final = ("none", "values")
_SENSITIVITY: Final = ("restricted", "confidential", "internal", "public")
_ALWAYS: Final = ("error", "denied", "held")


def weaker_artifact(before: Spec, after: Spec, *, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    if paths := find_removed(before, after, "redact"):
        yield Weakness("redact-removed", "redact", ", ".join(paths))
    if _ceiling(after, ranks) > _ceiling(before, ranks):
        yield Weakness("flow-widened", "flow.maxTier")
    if names := find_removed(before, after, "flow.blockedBy"):
        yield Weakness("flow-widened", "flow.blockedBy", ", ".join(names))
    for path, order, default in (("arguments", _ARGUMENTS, "keys"), ("results", _RESULTS, "none")):
        levels = _capture_level(before, path, order, default), _capture_level(after, path, order, default)
        if is_later_in_order(*levels, order=order):
            yield Weakness("capture-widened", f"capture.{path}")
    if is_later_in_order(
        value_at_path(before, "sensitivity", "internal"),
        value_at_path(after, "sensitivity", "internal"),
        order=_SENSITIVITY,
    ):
        yield Weakness("sensitivity-lowered", "sensitivity")
    if is_different(before, after, "queries") and (
        value_at_path(after, "queries", "all") == "all" or find_removed(after, before, "queries")
    ):
        yield Weakness("queries-widened", "queries")


def _capture_level(spec: Spec, path: str, order: tuple[str, ...], default: str) -> str:
    """Return how much the class lets telemetry record; without `capture` everything."""
    word: str = order[-1] if value_at_path(spec, "capture") is None else value_at_path(spec, f"capture.{path}", default)
    return word


def _ceiling(spec: Spec, ranks: Mapping[str, int]) -> float:
    tier = value_at_path(spec, "flow.maxTier")
    return float("inf") if tier is None else ranks.get(tier, float("inf"))


def weaker_telemetry(before: Spec, after: Spec) -> Iterator[Weakness]:
    for path, order, default in (("arguments", _ARGUMENTS, "keys"), ("results", _RESULTS, "none")):
        levels = value_at_path(before, f"capture.{path}", default), value_at_path(after, f"capture.{path}", default)
        if is_later_in_order(*levels, order=order):
            yield Weakness("capture-widened", f"capture.{path}")
    present = set(value_at_path(after, "traces.sample.always", _ALWAYS))
    if names := [each for each in value_at_path(before, "traces.sample.always", _ALWAYS) if each not in present]:
        yield Weakness("refusals-sampled", "traces.sample.always", ", ".join(names))
    if value_at_path(before, "startRecords", True) and not value_at_path(after, "startRecords", True):
        yield Weakness("telemetry-reduced", "startRecords")
    for signal in ("traces", "metrics", "logs"):
        exporter = value_at_path(before, f"{signal}.exporter"), value_at_path(after, f"{signal}.exporter")
        if (
            exporter[0]
            and (not exporter[1] or value_at_path(exporter[1], "type") == "none")
            and exporter[0] != exporter[1]
        ):
            yield Weakness("telemetry-reduced", f"{signal}.exporter")
        elif exporter[1] and exporter[0] != exporter[1]:
            yield Weakness("telemetry-redirected", f"{signal}.exporter")


def weaker_storage(before: Spec, after: Spec) -> Iterator[Weakness]:
    for path in ("retain.audit", "retain.calls", "retain.approvals"):
        if is_different(before, after, path) and is_longer(value_at_path(after, path), value_at_path(before, path)):
            yield Weakness("audit-shortened", path)
    if is_different(before, after, "type", "path", "connection", "blobs"):
        yield Weakness("storage-changed", "path" if is_different(before, after, "path") else "type")
