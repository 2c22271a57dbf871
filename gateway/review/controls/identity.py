"""How more callers are let in, with more roles; and how the gateway and its upstreams are bound more loosely."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gateway.review.controls.audit import changed_webhooks, weaker_audit
from gateway.review.controls.common import Spec, Weakness, added, at, differs, dropped, is_longer
from gateway.review.controls.networks import wider_networks

_PROOF = ("type", "issuer", "keys", "subject", "tenant")
_DEFAULT_SKEW = "PT30S"


def new_provider(after: Spec) -> Iterator[Weakness]:
    yield Weakness("identity-added", "", str(at(after, "type")))


def weaker_provider(before: Spec, after: Spec) -> Iterator[Weakness]:
    for path in _PROOF:
        if differs(before, after, path):
            yield Weakness("identity-changed", path)
    if names := added(before, after, "audience"):
        yield Weakness("identity-changed", "audience", ", ".join(names))
    if names := added(before, after, "algorithms"):
        yield Weakness("algorithm-added", "algorithms", ", ".join(names))
    if is_longer(at(before, "clockSkew", _DEFAULT_SKEW), at(after, "clockSkew", _DEFAULT_SKEW)):
        yield Weakness("clock-skew-raised", "clockSkew")
    if _trace_use(after) == "parent" != _trace_use(before):
        yield Weakness("trace-joined", "trace")
    yield from _granted_roles(before, after)
    yield from _tokens(before, after)


def _trace_use(spec: Spec) -> str:
    return str(at(spec, "trace", "parent" if at(spec, "type") == "none" else "link"))


def _granted_roles(before: Spec, after: Spec) -> Iterator[Weakness]:
    """Roles that a claim is mapped to, or that the one principal of `type: none` holds."""
    old, new = at(before, "roles", ()), at(after, "roles", ())
    if not isinstance(new, Mapping):
        if names := [role for role in new if role not in (() if isinstance(old, Mapping) else old)]:
            yield Weakness("role-granted", "roles", ", ".join(names))
        return
    if isinstance(old, Mapping) and old and differs(before, after, "roles.claim"):
        yield Weakness("identity-changed", "roles.claim")
    mapped = at(before, "roles.map", {})
    for group, role in at(new, "map", {}).items():
        if mapped.get(group) != role:
            yield Weakness("role-granted", f"roles.map.{group}", f"{role} to {group}")


def _tokens(before: Spec, after: Spec) -> Iterator[Weakness]:
    known = {_digest(token): token for token in at(before, "tokens", ())}
    for index, token in enumerate(at(after, "tokens", ())):
        old = known.get(_digest(token))
        if old is None:
            yield Weakness("token-added", "tokens", token["subject"])
            continue
        if token["subject"] != old["subject"]:
            yield Weakness("identity-changed", f"tokens[{index}].subject")
        if roles := dropped(token, old, "roles"):
            yield Weakness("role-granted", f"tokens[{index}].roles", ", ".join(roles))
        if token["expires"] > old["expires"]:
            yield Weakness("token-prolonged", f"tokens[{index}].expires")


def _digest(token: Mapping[str, Any]) -> str:
    return repr(sorted(token["sha256"].items()))


def weaker_gateway(before: Spec, after: Spec, *, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    if names := added(before, after, "identity"):
        yield Weakness("identity-added", "identity", ", ".join(names))
    tiers = at(before, "defaults.tier", ""), at(after, "defaults.tier", "")
    if ranks.get(tiers[1], 0) < ranks.get(tiers[0], 0):
        yield Weakness("default-tier", "defaults.tier")
    if at(before, "reload.runPolicyTests", False) and not at(after, "reload.runPolicyTests", False):
        yield Weakness("tests-not-run", "reload.runPolicyTests")
    if at(before, "telemetry") and not at(after, "telemetry"):
        yield Weakness("telemetry-reduced", "telemetry")
    if differs(before, after, "storage"):
        yield Weakness("storage-changed", "storage")
    yield from weaker_audit(before, after)
    yield from changed_webhooks(before, after)


def new_upstream(after: Spec) -> Iterator[Weakness]:
    yield Weakness("upstream-added")
    if at(after, "import.onChange", "quarantine") == "accept":
        yield Weakness("import-unpinned", "import.onChange")
    yield from wider_networks({}, after, "transport.networks")


def weaker_upstream(before: Spec, after: Spec, *, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    if at(after, "import.onChange", "quarantine") == "accept" != at(before, "import.onChange", "quarantine"):
        yield Weakness("import-unpinned", "import.onChange")
    if at(after, "import.outputSchemas", "promise") == "ignore" != at(before, "import.outputSchemas", "promise"):
        yield Weakness("results-unchecked", "import.outputSchemas")
    if names := added(before, after, "import.include"):
        yield Weakness("import-widened", "import.include", ", ".join(names))
    if names := dropped(before, after, "import.exclude"):
        yield Weakness("import-widened", "import.exclude", ", ".join(names))
    if differs(before, after, "transport", "auth"):
        yield Weakness("upstream-changed", "transport" if differs(before, after, "transport") else "auth")
    yield from wider_networks(before, after, "transport.networks")
    yield from _import_trust(at(before, "import.trust", {}), at(after, "import.trust", {}), ranks)
    yield from _import_flags(before, after)


def _import_trust(old: Spec, new: Spec, ranks: Mapping[str, int]) -> Iterator[Weakness]:
    """Imported tools may not be known yet, so what is said about all of them is judged here."""
    furthest = max(ranks.values(), default=0)
    if ranks.get(at(new, "tier", ""), furthest) < ranks.get(at(old, "tier", ""), furthest):
        yield Weakness("tool-more-trusted", "import.trust.tier")
    if at(new, "trusted", False) and not at(old, "trusted", False):
        yield Weakness("result-trusted", "import.trust.trusted")
    if flags := dropped(old, new, "flags"):
        yield Weakness("flag-removed", "import.trust.flags", ", ".join(flags))
    if at(old, "flags") is None and at(new, "flags") is not None:
        yield Weakness("effects-declared", "import.trust.flags")


def _import_flags(before: Spec, after: Spec) -> Iterator[Weakness]:
    """What is said about the effects of many tools at once, tool by tool or by pattern."""
    old, new = at(before, "import.tools", {}), at(after, "import.tools", {})
    for pattern in sorted({*old, *new}):
        path = f"import.tools.{pattern}.flags"
        if pattern not in old:
            yield Weakness("effects-declared", path, pattern)
        elif flags := [flag for flag in at(old[pattern], "flags", ()) if flag not in _flags_of(new, pattern)]:
            yield Weakness("flag-removed", path, ", ".join(flags))


def _flags_of(tools: Spec, pattern: str) -> Collection[str]:
    found: Collection[str] = at(tools[pattern], "flags", ()) if pattern in tools else ()
    return found
