"""Roles that documents require and nothing grants. Most of them are misspelled.

An identity provider grants the roles that its document lists, and policy rows (`g`) link them to others. The claims of
a token grant only what the provider's map lists, so the set of granted roles is complete.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from gateway.config.kinds.catalogues import CatalogueDocument
from gateway.config.kinds.gate_rules import ApprovalCheckSpec, Approvers, GateRuleDocument, QuotaCheckSpec
from gateway.config.kinds.gateway import IdentityProviderDocument
from gateway.config.linking.entries import DocumentEntry
from gateway.config.linking.rule_checks import conditions_of, token_inside
from gateway.config.loader import CheckedDocument, ConfigDocuments
from gateway.config.overlays import OverlayDocument
from gateway.config.yaml.document import DocumentPath
from gateway.policy import CallNode, ConstantNode, Node, children, parse_expression
from gateway.registries import Diagnostic, suggest_name

_ROLE: Final = "role:"
_MAX_SUGGESTIONS: Final = 20
_PARTS_OF_NAMES: Final = frozenset({"startsWith", "endsWith", "contains", "matches", "glob"})


def find_ungranted_roles(loaded: ConfigDocuments, policies: Iterable[str]) -> Iterator[Diagnostic]:
    """Warn about ungranted roles in audiences, approver lists and conditions. `policies` are names in policy rows."""
    names = {name for name in policies if name.startswith(_ROLE)}
    granted = _GrantedRoles(names | {role for each in loaded.documents for role in _roles_from(each)})
    for checked in loaded.documents:
        match checked.spec:
            case CatalogueDocument() as catalogue:
                entry = DocumentEntry(catalogue.metadata.name, catalogue, checked.source)
                yield from _check_list(entry, catalogue.spec.audience, ("spec", "audience"), granted)
            case GateRuleDocument() as rule:
                of_rule = DocumentEntry(rule.metadata.name, rule, checked.source)
                match rule.spec.check:
                    case ApprovalCheckSpec() as check:
                        yield from _check_list(of_rule, check.from_, ("spec", "check", "from"), granted)
                    case QuotaCheckSpec(approval=Approvers() as approvers):
                        yield from _check_list(of_rule, approvers.from_, ("spec", "check", "approval", "from"), granted)
                yield from _check_conditions(of_rule, granted)


class _GrantedRoles:
    """The set of granted roles."""

    def __init__(self, roles: set[str]) -> None:
        self.roles = roles
        self._names = {each.removeprefix(_ROLE) for each in roles}
        self._suggestions = _MAX_SUGGESTIONS

    def suggest(self, role: str) -> str | None:
        """Suggest the nearest role, for the first few only, because each search compares all roles."""
        self._suggestions -= 1
        near = suggest_name(role.removeprefix(_ROLE), self._names) if self._suggestions >= 0 else None
        return near and near.replace("'", f"'{_ROLE}", 1)


def _roles_from(checked: CheckedDocument) -> Iterator[str]:
    """Yield the roles that a document grants. Roles in overlays of identity providers count in all environments."""
    match checked.spec:
        case IdentityProviderDocument():
            yield from _roles_in(checked.source.data["spec"])
        case OverlayDocument():
            for patch in checked.source.data["spec"]["patches"]:
                if patch["target"]["kind"] == "IdentityProvider":
                    yield from _roles_in(patch)


def _roles_in(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.startswith(_ROLE):
        yield value
    below = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in below:
        yield from _roles_in(each)


def _check_list(
    entry: DocumentEntry[Any], names: Collection[str], path: DocumentPath, granted: _GrantedRoles
) -> Iterator[Diagnostic]:
    for index, name in enumerate(names):
        if name.startswith(_ROLE) and name not in granted.roles:
            yield _problem(entry, name, (*path, index), granted)


def _check_conditions(entry: DocumentEntry[GateRuleDocument], granted: _GrantedRoles) -> Iterator[Diagnostic]:
    for source, path in conditions_of(entry):
        tree = parse_expression(source)
        for node in _role_names(tree) if tree is not None else ():
            if node.value not in granted.roles:
                found = _problem(entry, node.value, path, granted)
                is_hidden = path in entry.source.substituted
                yield found if is_hidden else token_inside(found, source, node.start, node.end - node.start)


def _role_names(node: Node) -> Iterator[ConstantNode]:
    """Yield texts of an expression that are complete role names. Arguments of `startsWith` etc. may be partial."""
    if isinstance(node, ConstantNode) and isinstance(node.value, str) and node.value.startswith(_ROLE):
        yield node
    if not isinstance(node, CallNode) or node.function not in _PARTS_OF_NAMES:
        for each in children(node):
            yield from _role_names(each)


def _problem(entry: DocumentEntry[Any], name: str, path: DocumentPath, granted: _GrantedRoles) -> Diagnostic:
    if path in entry.source.substituted:
        message = "nothing grants the role, which comes from the environment and is not shown"
        return entry.problem("unknown-role", message, path, severity="warning")
    help = granted.suggest(name) or "grant it in an identity provider, or link it in policies/roles.csv"
    return entry.problem("unknown-role", f"nothing grants the role {name!r}", path, help=help, severity="warning")
