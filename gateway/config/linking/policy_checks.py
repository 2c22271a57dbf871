"""Warn about gate rules without effect, about required roles that nothing grants (often misspelled), and about tokens.

Gate rules: those that match no call, conditions that do not fit the tools of their rule, and rules about earlier calls
that a caller can reset by opening a new session.

Roles: an identity provider grants the roles that its document lists, and policy rows (`g`) link them to others. The
claims of a token grant only what the provider's map lists, so the set of granted roles is complete.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.config.document_checks import position_inside
from gateway.config.kinds import gate_rules as specs
from gateway.config.kinds.catalogues import CatalogueDocument
from gateway.config.kinds.gate_rules import (
    ApprovalCheckSpec,
    Approvers,
    BudgetCheckSpec,
    GateRuleDocument,
    LoopCheckSpec,
    QuotaCheckSpec,
)
from gateway.config.kinds.grants import GrantPolicyDocument
from gateway.config.kinds.identity_providers import (
    AnonymousProviderSpec,
    IdentityProviderDocument,
    JwtProviderSpec,
    TokenProviderSpec,
)
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.config.linking.tools import could_match
from gateway.config.loader import CheckedDocument, ConfigDocuments
from gateway.config.overlays import OverlayDocument
from gateway.config.yaml.document import DocumentPath
from gateway.model import glob_matches
from gateway.policy import (
    CallNode,
    ConditionMistake,
    ConstantNode,
    GateRule,
    Node,
    SchemaView,
    Scope,
    children,
    compile_condition,
    find_mistakes,
    line_and_column,
    parse_expression,
)
from gateway.registries import Catalogue, DeclaredTool, Diagnostic, GovernedTool, Query, Selector, suggest_name


def conditions_of(entry: DocumentEntry[GateRuleDocument]) -> Iterator[tuple[str, DocumentPath]]:
    """Yield every expression of a rule with its path."""
    spec = entry.document.spec
    if spec.when is not None:
        yield spec.when, ("spec", "when")
    if isinstance(spec.check, specs.ArgumentsCheckSpec):
        yield spec.check.require, ("spec", "check", "require")


class ConditionCheck:
    """The known variables of conditions for each tool, built once for all rules."""

    def __init__(self, *, flags: frozenset[str], tiers: frozenset[str]) -> None:
        self._flags = flags
        self._turn = _turn(flags, tiers)
        self._scopes: dict[str, Scope] = {}

    def problems(
        self, entry: DocumentEntry[GateRuleDocument], chosen: Sequence[DeclaredTool | Query]
    ) -> Iterator[Diagnostic]:
        """Warn about arguments that no tool of the rule takes, impossible values, and constant conditions."""
        for source, path in conditions_of(entry):
            scopes = [self._scope(tool) for tool in chosen]
            for mistake in find_mistakes(source, scopes, is_requirement=path[-1] == "require"):
                yield _to_diagnostic(entry, mistake, source, path)

    def _scope(self, tool: DeclaredTool | Query) -> Scope:
        key = tool.name if isinstance(tool, DeclaredTool) else f"{tool.name} of {tool.maker.name}"
        if key not in self._scopes:
            self._scopes[key] = _scope(tool, self._turn, self._flags)
        return self._scopes[key]


def token_inside(found: Diagnostic, source: str, start: int, width: int) -> Diagnostic:
    """Return the problem at a part of its expression; `start` counts from 0."""
    _, column = line_and_column(source, start)
    return replace(found, position=position_inside(found.position, source, column=column, width=width))


def _to_diagnostic(
    entry: DocumentEntry[GateRuleDocument], mistake: ConditionMistake, source: str, path: DocumentPath
) -> Diagnostic:
    if path in entry.source.substituted:  # the message would quote the value from the environment
        message = "the condition does not fit the tools of the rule; it comes from the environment, so it is not shown"
        return entry.problem(mistake.code, message, path, severity="warning")
    found = entry.problem(mistake.code, mistake.message, path, help=mistake.help, severity="warning")
    return token_inside(found, source, mistake.start, mistake.width)


def _scope(tool: DeclaredTool | Query, turn: SchemaView, flags: frozenset[str]) -> Scope:
    """Return schemas of the condition variables. `tool` allows only the properties of this tool."""
    about: Mapping[str, Any] = {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            "tier": {"const": tool.trust.tier.name},
            "flags": _names(flags | tool.trust.flags),
            "labels": {
                "type": "object",
                "additionalProperties": False,
                "properties": {key: {"const": value} for key, value in tool.labels.items()},
            },
        },
    }
    schema = tool.input_schema
    args = None if schema is None else SchemaView(schema, schema)
    return {"args": args, "tool": SchemaView(about, about), "turn": turn}


def _turn(flags: frozenset[str], tiers: frozenset[str]) -> SchemaView:
    names = {"seen": _names(flags), "tiers": _names(tiers), "classes": {}, "calls": {}}
    known = {"type": "object", "properties": names}
    return SchemaView(known, known)


def _names(names: frozenset[str]) -> Mapping[str, Any]:
    return {"type": "array", "items": {"type": "string", "enum": sorted(names)}}


_MATCH: Final[DocumentPath] = ("spec", "match")
_CRITERIA: Final = ("tools", "labels", "flags", "upstreams", "tiers", "artifacts", "prompts", "resources")
_GUARDS_NOTHING: Final = "correct spec.match, or remove the rule"


def find_idle_matches(
    entry: DocumentEntry[GateRuleDocument], match: Selector, tools: Sequence[GovernedTool], *, has_tools: bool
) -> Iterator[Diagnostic]:
    """Warn about a rule, or a pattern of it, that matches no tool."""
    if not has_tools:
        yield _idle_problem(entry, match, tools)
        return
    for criterion, name_of in (("tools", _name), ("upstreams", _upstream)):
        for index, pattern in enumerate(getattr(match, criterion)):
            if "*" in pattern and not any(glob_matches(name_of(tool), pattern) for tool in tools):
                message = f"{pattern!r} matches no {criterion.removesuffix('s')}, so this pattern has no effect"
                help = suggest_name(pattern.strip("*"), {name_of(tool) for tool in tools}) or "correct or remove it"
                path = (*_MATCH, criterion, index)
                yield entry.problem("idle-rule", message, path, help=help, severity="warning")


def find_unreached_rules(
    entries: DocumentIndex,
    rules: Mapping[str, GateRule],
    tools: Mapping[str, DeclaredTool],
    catalogues: Mapping[str, Catalogue],
    prospects: Sequence[GovernedTool],
) -> Iterator[Diagnostic]:
    """Warn about rules whose catalogues publish none of the tools that the rule matches."""
    if not entries.is_complete:
        return
    for name, entry in entries.of(GateRuleDocument).items():
        rule = rules.get(name)
        if rule is None or not rule.catalogues or could_match(rule.match, prospects):
            continue
        chosen = {tool.name for tool in tools.values() if rule.match.matches(tool.to_governed)}
        if chosen and not any(tools[each].lifecycle == "draft" for each in chosen):
            yield from _check_catalogues(entry, rule, chosen, catalogues)


def _check_catalogues(
    entry: DocumentEntry[GateRuleDocument], rule: GateRule, chosen: Collection[str], catalogues: Mapping[str, Catalogue]
) -> Iterator[Diagnostic]:
    published = {name: set(each.tools.values()) for name, each in catalogues.items()}
    named = entry.document.spec.match.catalogues
    idle = [name for name in named if published.get(name, set()).isdisjoint(chosen)]
    elsewhere = sorted(name for name, tools in published.items() if name not in named and not tools.isdisjoint(chosen))
    help = f"its tools are published by {', '.join(elsewhere)}" if elsewhere else "no catalogue publishes its tools"
    if len(idle) == len(named):
        message = "the rule matches no tool of its catalogues, so it never applies"
        yield entry.problem("idle-rule", message, (*_MATCH, "catalogues"), help=help, severity="warning")


def _idle_problem(entry: DocumentEntry[GateRuleDocument], match: Selector, tools: Sequence[GovernedTool]) -> Diagnostic:
    """Report a rule without tools at the criterion that no tool meets, or at `match` if each matches some tools."""
    given = [name for name in _CRITERIA if getattr(match, name)]
    counts = {name: sum(_with_only(match, name).matches(tool) for tool in tools) for name in given}
    idle = [name for name, count in counts.items() if not count]
    message, path, help = "the rule matches no tool", _MATCH, _GUARDS_NOTHING
    if idle and len(given) > 1:
        message, path = f"the rule matches no tool: no tool matches {idle[0]!r}", (*_MATCH, idle[0])
    elif not idle and len(given) > 1:
        listed = ", ".join(f"{name!r} matches {count}" for name, count in counts.items())
        message = f"the rule matches no tool: no tool matches all criteria ({listed})"
    if idle:
        help = _suggestion(match, idle[0], tools) or help
    return entry.problem("idle-rule", message, path, help=help, severity="warning")


def _with_only(match: Selector, criterion: str) -> Selector:
    return replace(Selector(), **{criterion: getattr(match, criterion)})


def _suggestion(match: Selector, criterion: str, tools: Sequence[GovernedTool]) -> str | None:
    if criterion == "labels":
        for key, value in match.labels.items():
            values = {tool.labels[key] for tool in tools if key in tool.labels}
            if not values:
                return suggest_name(key, {each for tool in tools for each in tool.labels})
            if value not in values:
                return suggest_name(value, values)
        return None
    names: set[Any] = {tool.name for tool in tools} if criterion == "tools" else set()
    if criterion == "upstreams":
        names = {_upstream(tool) for tool in tools}
    given = getattr(match, criterion)
    return next((help for each in given if (help := suggest_name(each.strip("*"), names - {""}))), None)


def _name(tool: GovernedTool) -> str:
    return tool.name


def _upstream(tool: GovernedTool) -> str:
    return tool.upstream or ""


def find_resettable_rules(
    entries: DocumentIndex,
    gates: Mapping[str, GateRule],
    tools: Mapping[str, DeclaredTool],
    catalogues: Mapping[str, Catalogue],
) -> Iterator[Diagnostic]:
    """Warn about rules on earlier calls of a turn that a caller can avoid with a new session or without a turn."""
    for name, entry in entries.of(GateRuleDocument).items():
        rule = gates.get(name)
        if rule is None or rule.mode == "disabled" or not rule.reads_turn_state:
            continue
        about = [each for each in catalogues.values() if _matches_tools_of(rule, each, tools)]
        for catalogue in about:
            if catalogue.implicit is None:
                message = f"the rule looks back, but calls without a turn handle have no history in {catalogue.name!r}"
                help = "remove turns.implicit: off from the catalogue, or use caller.saw or scope: caller in the rule"
                place = _find_turn_condition(entry) or ("spec", "check", "type")
                related = [("implicit turns are off here", catalogue.position)]
                yield entry.problem("memory-off", message, place, help=help, severity="warning", related=related)
        resets = _find_reset(entry)
        if about and resets is not None:
            place, help = resets
            message = "a caller can reset what the rule counts or has seen by opening a new session"
            yield entry.problem("memory-resets", message, place, help=help, severity="warning")


def _matches_tools_of(rule: GateRule, catalogue: Catalogue, tools: Mapping[str, DeclaredTool]) -> bool:
    chosen = (tools[identity] for identity in catalogue.tools.values() if identity in tools)
    return any(rule.matches(tool.to_governed, catalogue.name) for tool in chosen)


def _find_reset(entry: DocumentEntry[GateRuleDocument]) -> tuple[DocumentPath, str] | None:
    """Return where a rule uses only the turn, and what to write instead; `None` if `scope` is explicit."""
    check = entry.document.spec.check
    if isinstance(check, LoopCheckSpec | BudgetCheckSpec) and "scope" not in check.model_fields_set:
        return ("spec", "check", "type"), "write scope: caller, or scope: turn if one turn is intended"
    place = _find_turn_condition(entry)
    return None if place is None else (place, 'add caller.saw("FLAG", "1h"), which covers all turns of a caller')


def _find_turn_condition(entry: DocumentEntry[GateRuleDocument]) -> DocumentPath | None:
    """Return the path of a condition that reads the turn and not the caller."""
    for source, path in conditions_of(entry):
        condition, _ = compile_condition(source)
        if condition is not None and condition.reads_turn_state and not condition.watched_flags:
            return path
    return None


_ROLE: Final = "role:"
_MAX_SUGGESTIONS: Final = 20
_PARTS_OF_NAMES: Final = frozenset({"startsWith", "endsWith", "contains", "matches", "glob"})


def find_ungranted_roles(loaded: ConfigDocuments, policies: Iterable[str]) -> Iterator[Diagnostic]:
    """Warn about ungranted roles in audiences, approver lists, grant policies and conditions.

    `policies` are names in policy rows.
    """
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
            case GrantPolicyDocument() as policy:
                of_policy = DocumentEntry(policy.metadata.name, policy, checked.source)
                yield from _check_list(of_policy, policy.spec.roles, ("spec", "roles"), granted)
                yield from _check_list(of_policy, policy.spec.to, ("spec", "to"), granted)
                yield from _check_list(of_policy, policy.spec.approvers, ("spec", "approvers"), granted)


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


def find_known_callers(entries: DocumentIndex) -> tuple[frozenset[str], frozenset[str]]:
    """Return all roles that identity providers can grant, and all subjects that they name."""
    roles: set[str] = set()
    subjects: set[str] = set()
    for entry in entries.of(IdentityProviderDocument).values():
        match entry.document.spec:
            case JwtProviderSpec(roles=claim):
                roles |= set(claim.map.values()) if claim else set()
            case TokenProviderSpec(tokens=tokens):
                subjects |= {token.subject for token in tokens}
                roles |= {role for token in tokens for role in token.roles}
            case AnonymousProviderSpec(subject=subject, roles=given):
                subjects.add(subject)
                roles |= set(given)
    return frozenset(roles), frozenset(subjects)


def check_token_expiry(entries: DocumentIndex) -> Iterator[Diagnostic]:
    for entry in entries.of(IdentityProviderDocument).values():
        spec = entry.document.spec
        for index, token in enumerate(spec.tokens) if isinstance(spec, TokenProviderSpec) else ():
            if token.expires < entries.today:
                message = f"the token's last day was {token.expires}"
                place = ("spec", "tokens", index, "expires")
                yield entry.problem("token-expired", message, place, help="remove or renew it", severity="warning")
