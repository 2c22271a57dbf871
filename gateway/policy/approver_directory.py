"""Who could approve held calls: known subjects and their roles; warns about rules that no known subject can satisfy.

A subject holds a role through links of the policy, through an identity provider that names the subject, or through an
issuer outside that gives the role to subjects unknown here. Whether such a subject exists today is not checked.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from gateway.policy.rules.gate_checks import ApprovalCheck
from gateway.policy.rules.gate_rules import GateRule
from gateway.registries import Diagnostic, Snapshot


@dataclass(frozen=True, slots=True)
class ApproverDirectory:
    """The known subjects. `members` maps a name to the roles it is directly given, by links and providers.

    `outside` are roles that an issuer gives to subjects unknown here, `named` the subjects that a provider or a link
    names. `is_open`: some issuer may name any subject. `common_subject`: the subject of callers without a credential,
    if all callers are that subject. `is_active_only`: only subjects that a provider in use accepts are included.
    """

    members: Mapping[str, frozenset[str]]
    outside: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    is_open: bool = False
    common_subject: str | None = None
    is_active_only: bool = False


def check_approvers(rules: Iterable[GateRule], people: ApproverDirectory) -> Iterator[Diagnostic]:
    """Yield a warning for each approval rule that no subject, too few, or only the requester could ever satisfy."""
    for rule in rules:
        if rule.approval is not None and rule.mode != "disabled":
            problem = _problem(rule, rule.approval, people)
            if problem is not None:
                message, help = problem
                yield Diagnostic("nobody-approves", message, rule.position, "warning", help)


def _problem(rule: GateRule, check: ApprovalCheck, people: ApproverDirectory) -> tuple[str, str] | None:
    holders = find_approvers(check.approvers, people)
    if holders is None:
        return None
    names = ", ".join(check.approvers)
    if not holders and people.is_active_only:
        return (
            f"no one can approve: no provider in use accepts a subject that is or holds {names}",
            "name a provider that does in the Gateway, or another approver",
        )
    if not holders:
        return (
            f"no one can approve: no subject is or holds {names}",
            "give the role to a subject, or name another approver",
        )
    subject = people.common_subject
    if holders == {subject}:
        return (
            f"only {subject} could approve, but every caller is {subject} and requesters never approve",
            "give the role to another subject, or add an identity provider",
        )
    if len(holders) < check.count:
        return f"{check.count} approvals are required, but only {len(holders)} can approve", "name more approvers"
    return None


def find_approvers(approvers: Iterable[str], people: ApproverDirectory) -> set[str] | None:
    """Return every subject that is, or holds, one of the names; `None` if there may be further, unknown ones."""
    wanted = set(approvers)
    found: set[str] = set()
    for name in wanted:
        if not name.startswith("role:"):
            if people.is_open:
                return None
            found |= {name} & people.named
    if any(not wanted.isdisjoint(_reach(role, people.members)) for role in people.outside):
        return None
    for subject in people.named:
        if not wanted.isdisjoint(_reach(subject, people.members)):
            found.add(subject)
    return found


def _reach(name: str, members: Mapping[str, frozenset[str]]) -> set[str]:
    reached = {name}
    waiting = [name]
    while waiting:
        new = members.get(waiting.pop(), frozenset()) - reached
        reached |= new
        waiting += new
    return reached


_PREFIX: Final = "user:"
"""The prefix of an issuer's subjects if its document sets none."""

RoleLinks = Iterable[tuple[str, str]]
"""Pairs of a member and a role it is directly given."""


def build_approver_directory(snapshot: Snapshot, links: RoleLinks) -> ApproverDirectory:
    """Return every subject that a document or a link names, also by providers not in use: overlays may choose them."""
    members = _group_links(links)
    providers = _providers(snapshot).values()
    for spec in providers:
        for subject, roles in _subjects(spec):
            members.setdefault(subject, set()).update(roles)
    issuers = [spec for spec in providers if _is_issuer(spec)]
    return ApproverDirectory(
        _frozen(members),
        outside=frozenset(role for spec in issuers for role in _roles_in_map(spec)),
        named=frozenset(name for name in members if not name.startswith("role:")),
        is_open=bool(issuers),
        common_subject=find_common_subject(snapshot),
    )


def build_active_approver_directory(snapshot: Snapshot, links: RoleLinks, *, today: date) -> ApproverDirectory | None:
    """Return only the subjects that a provider in use accepts on that day, and names that an issuer could assert.

    `None` if all callers are one named principal: that is a trial setup without approvers.
    """
    if find_common_subject(snapshot) is not None:
        return None
    in_use = _in_use(snapshot)
    members = _group_links(links)
    known = {*members, *_list_approvers(snapshot)}
    issuers = [spec for spec in in_use if _is_issuer(spec)]
    prefixes = tuple(spec.get("subject", {}).get("prefix", _PREFIX) for spec in issuers)
    named = {name for name in known if name.startswith(prefixes)}
    for spec in in_use:
        for subject, roles in _subjects(spec, today=today):
            members.setdefault(subject, set()).update(roles)
            named.add(subject)
    return ApproverDirectory(
        _frozen(members),
        outside=frozenset(role for spec in issuers for role in _roles_in_map(spec)),
        named=frozenset(named),
        common_subject=next(iter(named)) if len(named) == 1 and not issuers else None,
        is_active_only=True,
    )


def find_common_subject(snapshot: Snapshot) -> str | None:
    """Return the principal that every caller is, if no provider in use distinguishes callers."""
    in_use = _in_use(snapshot)
    subjects = {spec.get("subject") for spec in in_use if spec.get("type") == "none"}
    return subjects.pop() if len(subjects) == 1 == len(in_use) else None


def _group_links(links: RoleLinks) -> dict[str, set[str]]:
    members: dict[str, set[str]] = {}
    for member, role in links:
        members.setdefault(member, set()).add(role)
    return members


def _subjects(spec: Mapping[str, Any], *, today: date | None = None) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the subjects a provider names, with their roles; with a day, only those whose token is valid on it."""
    match spec:
        case {"type": "token", "tokens": [*tokens]}:
            for token in tokens:
                if today is None or date.fromisoformat(token["expires"]) >= today:
                    yield token["subject"], token.get("roles", ())
        case {"type": "none", "subject": str(subject)}:
            yield subject, spec.get("roles", ())


def _is_issuer(spec: Mapping[str, Any]) -> bool:
    return spec.get("type") == "jwt"


def _roles_in_map(spec: Mapping[str, Any]) -> Iterable[str]:
    roles: Mapping[str, str] = spec.get("roles", {}).get("map", {})
    return roles.values()


def _list_approvers(snapshot: Snapshot) -> Iterator[str]:
    """Yield every name in an approval rule."""
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
