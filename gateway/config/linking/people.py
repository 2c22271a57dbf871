"""Who is known by name or by role: what identity providers and the links of the policy say together."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Final

from gateway.governance.approvers import People
from gateway.snapshot import Snapshot

_PREFIX: Final = "user:"
"""What an issuer's subjects begin with, if its document does not say."""

Links = Iterable[tuple[str, str]]
"""Members with the role each is given."""


def people_of(snapshot: Snapshot, links: Links) -> People:
    """Everybody whom a document or a link names. Providers that are not in use count: overlays choose others."""
    members = _linked(links)
    providers = _providers(snapshot).values()
    for spec in providers:
        for subject, roles in _subjects(spec):
            members.setdefault(subject, set()).update(roles)
    issuers = [spec for spec in providers if _is_issuer(spec)]
    return People(
        _frozen(members),
        outside=frozenset(role for spec in issuers for role in _mapped(spec)),
        named=frozenset(name for name in members if not name.startswith("role:")),
        is_open=bool(issuers),
        nobody=everybody_at(snapshot),
    )


def people_in_use(snapshot: Snapshot, links: Links, *, today: date) -> People | None:
    """Only those whom a provider in use lets in on that day; names that an issuer could give count.

    `None` where everybody is one named principal: that is for trying things out, and nobody is there to approve.
    """
    if everybody_at(snapshot) is not None:
        return None
    in_use = _in_use(snapshot)
    members = _linked(links)
    known = {*members, *_asked(snapshot)}
    issuers = [spec for spec in in_use if _is_issuer(spec)]
    prefixes = tuple(spec.get("subject", {}).get("prefix", _PREFIX) for spec in issuers)
    named = {name for name in known if name.startswith(prefixes)}
    for spec in in_use:
        for subject, roles in _subjects(spec, today=today):
            members.setdefault(subject, set()).update(roles)
            named.add(subject)
    return People(
        _frozen(members),
        outside=frozenset(role for spec in issuers for role in _mapped(spec)),
        named=frozenset(named),
        nobody=next(iter(named)) if len(named) == 1 and not issuers else None,
        are_let_in=True,
    )


def everybody_at(snapshot: Snapshot) -> str | None:
    """The one principal that everybody is, if no provider in use tells callers apart."""
    in_use = _in_use(snapshot)
    subjects = {spec.get("subject") for spec in in_use if spec.get("type") == "none"}
    return subjects.pop() if len(subjects) == 1 == len(in_use) else None


def _linked(links: Links) -> dict[str, set[str]]:
    members: dict[str, set[str]] = {}
    for member, role in links:
        members.setdefault(member, set()).add(role)
    return members


def _subjects(spec: Mapping[str, Any], *, today: date | None = None) -> Iterator[tuple[str, Iterable[str]]]:
    """Whom a provider names, with the roles it gives them; with a day, only those whose token counts on it."""
    match spec:
        case {"type": "token", "tokens": [*tokens]}:
            for token in tokens:
                if today is None or date.fromisoformat(token["expires"]) >= today:
                    yield token["subject"], token.get("roles", ())
        case {"type": "none", "subject": str(subject)}:
            yield subject, spec.get("roles", ())


def _is_issuer(spec: Mapping[str, Any]) -> bool:
    return spec.get("type") == "jwt"


def _mapped(spec: Mapping[str, Any]) -> Iterable[str]:
    roles: Mapping[str, str] = spec.get("roles", {}).get("map", {})
    return roles.values()


def _asked(snapshot: Snapshot) -> Iterator[str]:
    """Every name that an approval rule asks for."""
    for rule in snapshot.gates.values():
        if rule.approval is not None:
            yield from rule.approval.approvers


def _providers(snapshot: Snapshot) -> dict[str, Any]:
    return {name: each.data["spec"] for name, each in snapshot.documents.get("IdentityProvider", {}).items()}


def _in_use(snapshot: Snapshot) -> list[Any]:
    providers = _providers(snapshot)
    gateways = snapshot.documents.get("Gateway", {}).values()
    return [providers.get(name, {}) for gateway in gateways for name in gateway.data["spec"].get("identity", ())]


def _frozen(members: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {member: frozenset(roles) for member, roles in members.items()}
