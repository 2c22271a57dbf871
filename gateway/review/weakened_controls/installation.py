"""Finds weaker settings of an installation: identity providers, the gateway and its upstreams, results and records.

Results and records are protected by masking, flow, telemetry, retention, the decision log and webhooks.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from gateway.review.weakened_controls.spec_comparison import (
    Spec,
    Weakness,
    find_added,
    find_removed,
    is_different,
    is_later_in_order,
    is_longer,
    is_more,
    value_at_path,
    wider_networks,
)

_PROOF = ("type", "issuer", "keys", "subject", "tenant")
_DEFAULT_SKEW = "PT30S"


def new_provider(after: Spec) -> Iterator[Weakness]:
    yield Weakness("identity-added", "", str(value_at_path(after, "type")))


def weaker_provider(before: Spec, after: Spec) -> Iterator[Weakness]:
    for path in _PROOF:
        if is_different(before, after, path):
            yield Weakness("identity-changed", path)
    if names := find_added(before, after, "audience"):
        yield Weakness("identity-changed", "audience", ", ".join(names))
    if names := find_added(before, after, "algorithms"):
        yield Weakness("algorithm-added", "algorithms", ", ".join(names))
    if is_longer(value_at_path(before, "clockSkew", _DEFAULT_SKEW), value_at_path(after, "clockSkew", _DEFAULT_SKEW)):
        yield Weakness("clock-skew-raised", "clockSkew")
    if _trace_use(after) == "parent" != _trace_use(before):
        yield Weakness("trace-joined", "trace")
    yield from _new_roles(before, after)
    yield from _tokens(before, after)


def _trace_use(spec: Spec) -> str:
    return str(value_at_path(spec, "trace", "parent" if value_at_path(spec, "type") == "none" else "link"))


def _new_roles(before: Spec, after: Spec) -> Iterator[Weakness]:
    """Yield new roles that a claim is mapped to, or that the only principal of `type: none` has."""
    old, new = value_at_path(before, "roles", ()), value_at_path(after, "roles", ())
    if not isinstance(new, Mapping):
        if names := [role for role in new if role not in (() if isinstance(old, Mapping) else old)]:
            yield Weakness("role-granted", "roles", ", ".join(names))
        return
    if isinstance(old, Mapping) and old and is_different(before, after, "roles.claim"):
        yield Weakness("identity-changed", "roles.claim")
    mapped = value_at_path(before, "roles.map", {})
    for group, role in value_at_path(new, "map", {}).items():
        if mapped.get(group) != role:
            yield Weakness("role-granted", f"roles.map.{group}", f"{role} to {group}")


def _tokens(before: Spec, after: Spec) -> Iterator[Weakness]:
    known = {_digest(token): token for token in value_at_path(before, "tokens", ())}
    for index, token in enumerate(value_at_path(after, "tokens", ())):
        old = known.get(_digest(token))
        if old is None:
            yield Weakness("token-added", "tokens", token["subject"])
            continue
        if token["subject"] != old["subject"]:
            yield Weakness("identity-changed", f"tokens[{index}].subject")
        if roles := find_removed(token, old, "roles"):
            yield Weakness("role-granted", f"tokens[{index}].roles", ", ".join(roles))
        if token["expires"] > old["expires"]:
            yield Weakness("token-prolonged", f"tokens[{index}].expires")


def _digest(token: Mapping[str, Any]) -> str:
    return repr(sorted(token["sha256"].items()))


def weaker_gateway(before: Spec, after: Spec, *, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    if names := find_added(before, after, "identity"):
        yield Weakness("identity-added", "identity", ", ".join(names))
    tiers = value_at_path(before, "defaults.tier", ""), value_at_path(after, "defaults.tier", "")
    if ranks.get(tiers[1], 0) < ranks.get(tiers[0], 0):
        yield Weakness("default-tier", "defaults.tier")
    if value_at_path(before, "reload.runPolicyTests", False) and not value_at_path(
        after, "reload.runPolicyTests", False
    ):
        yield Weakness("tests-not-run", "reload.runPolicyTests")
    yield from _weaker_access_review(before, after)
    if value_at_path(before, "telemetry") and not value_at_path(after, "telemetry"):
        yield Weakness("telemetry-reduced", "telemetry")
    if is_different(before, after, "storage"):
        yield Weakness("storage-changed", "storage")
    yield from weaker_audit(before, after)
    yield from weaker_webhooks(before, after)


def _weaker_access_review(before: Spec, after: Spec) -> Iterator[Weakness]:
    if value_at_path(before, "accessReview") is None:
        return
    if value_at_path(after, "accessReview") is None:
        yield Weakness("access-review-relaxed", "accessReview")
        return
    if is_longer(value_at_path(before, "accessReview.every"), value_at_path(after, "accessReview.every")):
        yield Weakness("access-review-relaxed", "accessReview.every")
    owners = value_at_path(before, "accessReview.owners"), value_at_path(after, "accessReview.owners")
    if owners[1] is not None and (owners[0] is None or find_removed(before, after, "accessReview.owners")):
        yield Weakness("access-review-relaxed", "accessReview.owners")


def new_upstream(after: Spec) -> Iterator[Weakness]:
    yield Weakness("upstream-added")
    if value_at_path(after, "import.onChange", "quarantine") == "accept":
        yield Weakness("import-unpinned", "import.onChange")
    yield from wider_networks({}, after, "transport.networks")


def weaker_upstream(before: Spec, after: Spec, *, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    if (
        value_at_path(after, "import.onChange", "quarantine")
        == "accept"
        != value_at_path(before, "import.onChange", "quarantine")
    ):
        yield Weakness("import-unpinned", "import.onChange")
    if (
        value_at_path(after, "import.outputSchemas", "promise")
        == "ignore"
        != value_at_path(before, "import.outputSchemas", "promise")
    ):
        yield Weakness("results-unchecked", "import.outputSchemas")
    if names := find_added(before, after, "import.include"):
        yield Weakness("import-widened", "import.include", ", ".join(names))
    if names := find_removed(before, after, "import.exclude"):
        yield Weakness("import-widened", "import.exclude", ", ".join(names))
    if is_different(before, after, "transport", "auth"):
        yield Weakness("upstream-changed", "transport" if is_different(before, after, "transport") else "auth")
    yield from wider_networks(before, after, "transport.networks")
    yield from _import_trust(value_at_path(before, "import.trust", {}), value_at_path(after, "import.trust", {}), ranks)
    yield from _import_flags(before, after)


def _import_trust(old: Spec, new: Spec, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    """Yield weaker trust settings for all imported tools; the tools themselves may not be known yet."""
    furthest = max(ranks.values(), default=0)
    if ranks.get(value_at_path(new, "tier", ""), furthest) < ranks.get(value_at_path(old, "tier", ""), furthest):
        yield Weakness("tool-more-trusted", "import.trust.tier")
    if value_at_path(new, "trusted", False) and not value_at_path(old, "trusted", False):
        yield Weakness("result-trusted", "import.trust.trusted")
    if flags := find_removed(old, new, "flags"):
        yield Weakness("flag-removed", "import.trust.flags", ", ".join(flags))
    if value_at_path(old, "flags") is None and value_at_path(new, "flags") is not None:
        yield Weakness("effects-declared", "import.trust.flags")


def _import_flags(before: Spec, after: Spec) -> Iterator[Weakness]:
    """Yield weaker flags that are declared for imported tools, by name or pattern."""
    old, new = value_at_path(before, "import.tools", {}), value_at_path(after, "import.tools", {})
    for pattern in sorted({*old, *new}):
        path = f"import.tools.{pattern}.flags"
        if pattern not in old:
            yield Weakness("effects-declared", path, pattern)
        elif flags := [
            flag for flag in value_at_path(old[pattern], "flags", ()) if flag not in _flags_of(new, pattern)
        ]:
            yield Weakness("flag-removed", path, ", ".join(flags))


def _flags_of(tools: Spec, pattern: str) -> Collection[str]:
    found: Collection[str] = value_at_path(tools[pattern], "flags", ()) if pattern in tools else ()
    return found


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
_CALLERS: Final = ("hash", "name")
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
    captured = (("arguments", _ARGUMENTS, "keys"), ("results", _RESULTS, "none"), ("callers", _CALLERS, "hash"))
    for path, order, default in captured:
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
