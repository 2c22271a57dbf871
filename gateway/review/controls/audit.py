"""How the decision log proves less, and who else is told of approvals, or no longer."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.review.controls.common import Spec, Weakness, at, differs, is_longer, is_more
from gateway.review.controls.networks import wider_networks

_EVERY: Final = "PT1M"
_ENTRIES: Final = 1000


def weaker_audit(before: Spec, after: Spec) -> Iterator[Weakness]:
    if at(before, "audit") and not at(after, "audit"):
        yield Weakness("audit-removed", "audit")
        return
    if at(before, "audit.key") and differs(before, after, "audit.key"):
        yield Weakness("audit-key-changed" if at(after, "audit.key") else "audit-key-removed", "audit.key")
    old, new = at(before, "audit.anchors"), at(after, "audit.anchors")
    if old and not new:
        yield Weakness("anchors-removed", "audit.anchors")
    elif old:
        yield from _weaker_anchors(old, new)


def _weaker_anchors(old: Spec, new: Spec) -> Iterator[Weakness]:
    for path in ("path", "signingKey"):
        if differs(old, new, path):
            yield Weakness("anchors-changed", f"audit.anchors.{path}")
    if is_longer(at(old, "every", _EVERY), at(new, "every", _EVERY)):
        yield Weakness("anchors-rarer", "audit.anchors.every")
    if is_more(at(old, "entries", _ENTRIES), at(new, "entries", _ENTRIES)):
        yield Weakness("anchors-rarer", "audit.anchors.entries")


def changed_webhooks(before: Spec, after: Spec) -> Iterator[Weakness]:
    old, new = _named(before), _named(after)
    for name in sorted(old.keys() - new.keys()):
        yield Weakness("webhook-removed", "webhooks", name)
    for name in sorted(new.keys() - old.keys()):
        yield Weakness("webhook-added", "webhooks", name)
    for name, webhook in new.items():
        known = old.get(name)
        if known is not None and differs(known, webhook, "url", "secret", "events"):
            yield Weakness("webhook-changed", "webhooks", name)
        for found in wider_networks(known or {}, webhook, "networks"):
            yield Weakness(found.code, "webhooks", f"{name} reaches {found.note}")


def _named(spec: Spec) -> dict[str, Mapping[str, Any]]:
    return {webhook["name"]: webhook for webhook in at(spec, "webhooks", ())}
