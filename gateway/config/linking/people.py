"""Who is known by name or by role: what identity providers and the links of the policy say together."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.governance.approvers import People
from gateway.snapshot import Snapshot


def people_of(snapshot: Snapshot, links: Iterable[tuple[str, str]]) -> People:
    """`links` are members with the role each is given. Providers that are not in use count: overlays choose others."""
    members: dict[str, set[str]] = {}
    for member, role in links:
        members.setdefault(member, set()).add(role)
    outside: set[str] = set()
    is_open = False
    providers = {name: each.data["spec"] for name, each in snapshot.documents.get("IdentityProvider", {}).items()}
    for spec in providers.values():
        match spec:
            case {"type": "jwt"}:
                is_open = True
                outside |= set(spec.get("roles", {}).get("map", {}).values())
            case {"type": "token", "tokens": [*tokens]}:
                for token in tokens:
                    members.setdefault(token["subject"], set()).update(token.get("roles", ()))
            case {"subject": str(subject)}:
                members.setdefault(subject, set()).update(spec.get("roles", ()))
    return People(
        {member: frozenset(roles) for member, roles in members.items()},
        outside=frozenset(outside),
        named=frozenset(name for name in members if not name.startswith("role:")),
        is_open=is_open,
        nobody=_nobody(snapshot, providers),
    )


def _nobody(snapshot: Snapshot, providers: Mapping[str, Any]) -> str | None:
    """The one principal that everybody is, if no provider in use tells callers apart."""
    gateways = snapshot.documents.get("Gateway", {}).values()
    in_use = [providers.get(name, {}) for gateway in gateways for name in gateway.data["spec"].get("identity", ())]
    subjects = {spec.get("subject") for spec in in_use if spec.get("type") == "none"}
    return subjects.pop() if len(subjects) == 1 == len(in_use) else None
