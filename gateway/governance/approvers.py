"""Who could ever decide about a held call: the holders of the names that approval rules ask for.

A role can be held through links of the policy, by a subject that a provider names, or by anybody whom an issuer outside
gives it to. Whether such a person exists today is not known here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.governance.diagnostics import Diagnostic
from gateway.governance.rules import Approval, GateRule


@dataclass(frozen=True, slots=True)
class People:
    """Who is known: `members` leads from a name to the roles it is directly given, by links and providers alike.

    `outside` are roles that an issuer gives to people nobody here knows, `named` the subjects that a provider or a link
    names. `is_open` if some issuer may name any subject; `nobody` is who callers without a credential are, if all are.
    With `are_let_in` only those count whom a provider in use lets in.
    """

    members: Mapping[str, frozenset[str]]
    outside: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    is_open: bool = False
    nobody: str | None = None
    are_let_in: bool = False


def approver_problems(rules: Iterable[GateRule], people: People) -> Iterator[Diagnostic]:
    """Approval rules that nobody, or too few, or only the requester could ever satisfy: their calls wait in vain."""
    for rule in rules:
        if rule.approval is not None and rule.mode != "disabled":
            problem = _problem(rule, rule.approval, people)
            if problem is not None:
                message, help = problem
                yield Diagnostic("nobody-approves", message, rule.position, "warning", help)


def _problem(rule: GateRule, check: Approval, people: People) -> tuple[str, str] | None:
    holders = _holders(check.approvers, people)
    if holders is None:
        return None
    names = ", ".join(check.approvers)
    if not holders and people.are_let_in:
        return (
            f"nobody can approve: no provider in use lets in anybody who is or holds {names}",
            "name a provider that does in the Gateway, or another approver",
        )
    if not holders:
        return (
            f"nobody can approve: no subject is or holds {names}",
            "give the role to somebody, or name another approver",
        )
    if holders == {people.nobody}:
        return (
            f"only {people.nobody} could approve, who is also everybody that calls: a requester never approves",
            "give the role to somebody else, or add an identity provider",
        )
    if len(holders) < check.count:
        return f"{check.count} approvals are asked for, but only {len(holders)} can approve", "name more approvers"
    return None


def _holders(approvers: Iterable[str], people: People) -> set[str] | None:
    """Every subject that is, or holds, one of the names; `None` if there may be others that nobody knows."""
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
