"""Link grant policies, and warn about those whose grants can never be approved."""

from gateway.config.kinds.grants import GrantPolicyDocument
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.registries import Diagnostic, GrantPolicy


def link_grant_policies(entries: DocumentIndex) -> tuple[dict[str, GrantPolicy], list[Diagnostic]]:
    """Return the policies, and a problem of each role that a policy also lets approve."""
    found = entries.of(GrantPolicyDocument)
    problems = [problem for entry in found.values() for problem in _find_self_serving(entry)]
    return {name: _link(entry) for name, entry in found.items()}, problems


def _link(entry: DocumentEntry[GrantPolicyDocument]) -> GrantPolicy:
    spec = entry.document.spec
    return GrantPolicy(
        entry.name,
        spec.roles,
        spec.to,
        spec.approvers,
        spec.max_duration,
        spec.max_total or spec.max_duration,
        spec.period,
        spec.max_active,
        entry.position,
        spec.description,
    )


def _find_self_serving(entry: DocumentEntry[GrantPolicyDocument]) -> list[Diagnostic]:
    """Report an only approver that is also the only recipient: no one approves their own grant."""
    spec = entry.document.spec
    if len(set(spec.to)) > 1 or set(spec.to) != set(spec.approvers) or spec.to[0].startswith("role:"):
        return []
    message = f"only {spec.to[0]} receives and approves these grants, and recipients never approve"
    help = "name another approver"
    return [entry.problem("nobody-approves", message, ("spec", "approvers"), help=help, severity="warning")]
