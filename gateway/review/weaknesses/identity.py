"""Finds weaker identity providers, and weaker settings of the gateway and its upstreams."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gateway.review.weaknesses.comparison import (
    Spec,
    Weakness,
    find_added,
    find_removed,
    is_different,
    is_longer,
    value_at_path,
    wider_networks,
)
from gateway.review.weaknesses.records import weaker_audit, weaker_webhooks

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
    if value_at_path(before, "telemetry") and not value_at_path(after, "telemetry"):
        yield Weakness("telemetry-reduced", "telemetry")
    if is_different(before, after, "storage"):
        yield Weakness("storage-changed", "storage")
    yield from weaker_audit(before, after)
    yield from weaker_webhooks(before, after)


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
