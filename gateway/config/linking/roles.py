"""Roles that documents ask for and nothing grants: most of them are misspelt.

An identity provider grants the roles that its document lists, and policy rows (`g`) link them to others. A token's own
claims grant nothing beyond the map of its provider, so the list is complete.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from gateway.config.linking.entries import Entry
from gateway.config.linking.rule_conditions import conditions_of, token_inside
from gateway.config.loader import Checked, Loaded
from gateway.config.nodes import Path
from gateway.config.specs.catalogues import CatalogueDocument
from gateway.config.specs.gates import ApprovalCheck, Approvers, GateRuleDocument, QuotaCheck
from gateway.config.specs.gateway import IdentityProviderDocument
from gateway.config.specs.overlays import OverlayDocument
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.expression_tree import CallNode, ConstantNode, Node, children, parse_expression

_ROLE: Final = "role:"
_MAX_SUGGESTIONS: Final = 20
_PARTS_OF_NAMES: Final = frozenset({"startsWith", "endsWith", "contains", "matches", "glob"})


def ungranted_roles(loaded: Loaded, policies: Iterable[str]) -> Iterator[Diagnostic]:
    """Roles in audiences, approver lists and conditions that nothing grants. `policies` are the names in its rows."""
    names = {name for name in policies if name.startswith(_ROLE)}
    granted = _Granted(names | {role for each in loaded.documents for role in _given_by(each)})
    for checked in loaded.documents:
        match checked.spec:
            case CatalogueDocument() as catalogue:
                entry = Entry(catalogue.metadata.name, catalogue, checked.source)
                yield from _listed(entry, catalogue.spec.audience, ("spec", "audience"), granted)
            case GateRuleDocument() as rule:
                of_rule = Entry(rule.metadata.name, rule, checked.source)
                match rule.spec.check:
                    case ApprovalCheck() as check:
                        yield from _listed(of_rule, check.from_, ("spec", "check", "from"), granted)
                    case QuotaCheck(approval=Approvers() as approvers):
                        yield from _listed(of_rule, approvers.from_, ("spec", "check", "approval", "from"), granted)
                yield from _in_conditions(of_rule, granted)


class _Granted:
    """Every role that something grants."""

    def __init__(self, roles: set[str]) -> None:
        self.roles = roles
        self._names = {each.removeprefix(_ROLE) for each in roles}
        self._suggestions = _MAX_SUGGESTIONS

    def near(self, role: str) -> str | None:
        """The nearest role, for the first few: each takes as long as there are roles."""
        self._suggestions -= 1
        near = did_you_mean(role.removeprefix(_ROLE), self._names) if self._suggestions >= 0 else None
        return near and near.replace("'", f"'{_ROLE}", 1)


def _given_by(checked: Checked) -> Iterator[str]:
    """Roles that a provider gives. What an overlay adds to one counts in every environment: somewhere it is granted."""
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


def _listed(entry: Entry[Any], names: Collection[str], path: Path, granted: _Granted) -> Iterator[Diagnostic]:
    for index, name in enumerate(names):
        if name.startswith(_ROLE) and name not in granted.roles:
            yield _problem(entry, name, (*path, index), granted)


def _in_conditions(entry: Entry[GateRuleDocument], granted: _Granted) -> Iterator[Diagnostic]:
    for source, path in conditions_of(entry):
        tree = parse_expression(source)
        for node in _role_names(tree) if tree is not None else ():
            if node.value not in granted.roles:
                found = _problem(entry, node.value, path, granted)
                is_hidden = path in entry.source.substituted
                yield found if is_hidden else token_inside(found, source, node.start, node.end - node.start)


def _role_names(node: Node) -> Iterator[ConstantNode]:
    """Texts of an expression that are whole names of roles; what a function compares may be a part of one."""
    if isinstance(node, ConstantNode) and isinstance(node.value, str) and node.value.startswith(_ROLE):
        yield node
    if not isinstance(node, CallNode) or node.function not in _PARTS_OF_NAMES:
        for each in children(node):
            yield from _role_names(each)


def _problem(entry: Entry[Any], name: str, path: Path, granted: _Granted) -> Diagnostic:
    if path in entry.source.substituted:
        message = "nothing grants the role; it comes from the environment, so it is not shown"
        return entry.problem("unknown-role", message, path, severity="warning")
    help = granted.near(name) or "grant it in an identity provider, or link it in policies/roles.csv"
    return entry.problem("unknown-role", f"nothing grants {name!r}", path, help=help, severity="warning")
