"""Who is known to call: subjects and roles of policy rows and links, and whom identity providers let in.

A role stands for whoever holds just this role. A subject that a provider gives roles to holds them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gateway.governance.principals import Principal
from gateway.review.rows import MemberRow, PolicyRow
from gateway.snapshot import Snapshot

Callers = Mapping[str, Principal]
"""By the name that a reader is shown."""


def known_callers(snapshot: Snapshot, rows: Iterable[PolicyRow | MemberRow]) -> Callers:
    names = {*snapshot.roles, *snapshot.subjects}
    for row in rows:
        if isinstance(row, PolicyRow):
            names.add(row.subject)
        elif row.section == "g":
            names |= {row.member, row.group}
    return {**{name: Principal(name) for name in names}, **_granted(snapshot)}


def both(before: Callers, after: Callers) -> Iterator[tuple[str, Principal, Principal]]:
    """Every caller of either side. Whom a side does not know holds no role of a provider there."""
    for name in sorted({*before, *after}):
        there = after.get(name) or before[name]
        nobody = Principal(there.subject)
        yield name, before.get(name, nobody), after.get(name, nobody)


def _granted(snapshot: Snapshot) -> dict[str, Principal]:
    grants: dict[str, set[frozenset[str]]] = {}
    for provider in snapshot.documents.get("IdentityProvider", {}).values():
        for subject, roles in _grants(provider.data.get("spec", {})):
            grants.setdefault(subject, set()).add(frozenset(roles))
    found = {}
    for subject, given in grants.items():
        for roles in given:
            name = subject if len(given) == 1 else f"{subject} as {', '.join(sorted(roles)) or 'nothing else'}"
            found[name] = Principal(subject, roles)
    return found


def _grants(spec: Mapping[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    match spec:
        case {"type": "token", "tokens": [*tokens]}:
            for token in tokens:
                yield token["subject"], token.get("roles", ())
        case {"type": "none", "subject": str(subject)}:
            yield subject, spec.get("roles", ())
