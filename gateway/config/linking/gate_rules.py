"""Link gate rules (conditions and checks), and the cases of policy tests."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.config.kinds import gate_rules as specs
from gateway.config.kinds.common_specs import SpecModel
from gateway.config.kinds.common_specs import ToolSelectorSpec as SelectorSpec
from gateway.config.kinds.gate_rules import GateRuleDocument
from gateway.config.kinds.policy_tests import ExpectedReasonSpec, PolicyCaseSpec, PolicyTestDocument
from gateway.config.linking.artifact_classes import Schemas, find_queries
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.config.linking.policy_checks import ConditionCheck, conditions_of, find_idle_matches, token_inside
from gateway.config.linking.tools import could_match
from gateway.config.yaml.document import DocumentPath
from gateway.model import Principal
from gateway.policy import Condition, GateRule, SchemaView, compile_condition, find_saw_flags, missing_everywhere
from gateway.registries import (
    EFFECT_FLAGS,
    DeclaredDefinition,
    DeclaredTool,
    Diagnostic,
    EarlierCall,
    ExpectedReason,
    GovernedTool,
    PolicyCase,
    Query,
    Selector,
    Severity,
    suggest_name,
)


def link_cases(entries: DocumentIndex) -> list[PolicyCase]:
    return [
        _build_case(entry, index, case)
        for entry in entries.of(PolicyTestDocument).values()
        for index, case in enumerate(entry.document.spec.cases)
    ]


def check_case_tools(
    entries: DocumentIndex, *, advertised: Collection[str], prefixes: Collection[str]
) -> Iterator[Diagnostic]:
    """Report case tools that no document declares, no catalogue advertises and no upstream could provide.

    `prefixes` are the prefixes of imported tools that are not known yet.
    """
    known = entries.names.get("Tool", frozenset()) | set(advertised)
    for entry in entries.of(PolicyTestDocument).values():
        for index, case in enumerate(entry.document.spec.cases):
            for name, place in _tools_in_case(case):
                if name not in known and not name.startswith(tuple(prefixes)):
                    message, path = f"there is no Tool {name!r}", ("spec", "cases", index, *place)
                    yield entry.problem("unknown-reference", message, path, help=suggest_name(name, known))


def _build_case(entry: DocumentEntry[PolicyTestDocument], index: int, case: PolicyCaseSpec) -> PolicyCase:
    given, caller = entry.document.spec.given, case.as_
    catalogue, at = case.in_ or (given and given.catalogue), case.at or (given and given.at)
    expected = case.expect.decision or frozenset(case.expect.tools or ())
    assert catalogue, "a case without a catalogue has the wrong shape"  # noqa: S101 - validation reports it
    assert at, "a case without a moment has the wrong shape"  # noqa: S101 - validation reports it
    return PolicyCase(
        entry.name,
        case.name,
        Principal(caller.subject, frozenset(caller.roles), caller.tenant),
        catalogue,
        at,
        entry.position_at("spec", "cases", index, "name"),
        expected,
        tool=case.call,
        args=case.with_ or {},
        saw=frozenset(case.turn.saw) if case.turn else frozenset(),
        read=frozenset(case.turn.read) if case.turn else frozenset(),
        calls=_earlier_calls(case),
        because=_because(case.expect.because),
        of=case.of,
    )


def _tools_in_case(case: PolicyCaseSpec) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    """Yield every tool that a case names, with its path."""
    if case.call is not None:
        yield case.call, ("call",)
    if case.of is not None:
        yield case.of, ("of",)
    for index, earlier in enumerate(case.turn.calls if case.turn else ()):
        yield earlier.tool, ("turn", "calls", index, "tool")


def _earlier_calls(case: PolicyCaseSpec) -> tuple[EarlierCall, ...]:
    return tuple(
        EarlierCall(each.tool, each.with_ or {}, each.times, each.ago, each.bytes or 0)
        for each in (case.turn.calls if case.turn else ())
    )


def _because(spec: ExpectedReasonSpec | None) -> ExpectedReason | None:
    if spec is None:
        return None
    if spec.policy is not None:
        return ExpectedReason("policy", spec.policy)
    if spec.class_ is not None:
        return ExpectedReason("class", spec.class_)
    return ExpectedReason("gate", spec.gate) if spec.gate is not None else ExpectedReason("tier", spec.tier or "")


def link_gate_rules(
    entries: DocumentIndex,
    tools: Mapping[str, DeclaredTool],
    *,
    offers: Mapping[str, DeclaredDefinition],
    queries: Mapping[str, Schemas],
    prospects: Sequence[GovernedTool],
) -> tuple[dict[str, GateRule], list[Diagnostic]]:
    """Link rules whose conditions compile. The check of embedded code reports the others."""
    linked: dict[str, GateRule] = {}
    problems: list[Diagnostic] = []
    governed = [(tool, tool.to_governed) for tool in tools.values()]
    every = [*(seen for _, seen in governed), *(offer.to_governed for offer in offers.values())]
    flags, tiers = (entries.names.get(kind, frozenset()) for kind in ("TrustFlag", "TrustTier"))
    flags |= EFFECT_FLAGS
    conditions = ConditionCheck(flags=flags, tiers=tiers)
    for name, entry in entries.of(GateRuleDocument).items():
        problems += _find_unknown_flags(entry, flags)
        rule = _link_rule(entry)
        if rule is not None:
            linked[name] = rule
            chosen: list[DeclaredTool | Query] = [tool for tool, seen in governed if rule.match.matches(seen)]
            named = list(find_queries(rule.match, tools.values(), queries))
            chosen += named
            read = [*(query.to_governed for query in named), *(each for each in every if each.kind != "tool")]
            problems += _check_tier(entry, chosen)
            is_known = not could_match(rule.match, prospects)
            if is_known:
                problems += _check_show(entry, chosen)
            if entries.is_complete and is_known:
                problems += conditions.problems(entry, chosen)
                has_tools = bool(chosen) or any(rule.match.matches(each) for each in read)
                problems += find_idle_matches(entry, rule.match, [*every, *read], has_tools=has_tools)
    return linked, problems


def build_selector(spec: SelectorSpec, *, max_rank: int | None = None) -> Selector:
    return Selector(
        tools=spec.tools,
        labels=dict(spec.labels),
        flags=spec.flags,
        upstreams=spec.upstreams,
        tiers=spec.tiers,
        artifacts=spec.artifacts,
        max_rank=max_rank,
    )


def _link_rule(entry: DocumentEntry[GateRuleDocument]) -> GateRule | None:
    spec = entry.document.spec
    when = _compile(spec.when) if spec.when is not None else None
    check = spec.check.to_check()
    if check is None or (when is None and spec.when is not None):
        return None
    return GateRule(
        entry.name,
        replace(build_selector(spec.match), prompts=spec.match.prompts, resources=spec.match.resources),
        check,
        entry.position,
        when=when,
        mode=spec.mode,
        catalogues=frozenset(spec.match.catalogues),
        hold_for=spec.hold_for,
        description=spec.description,
    )


def _compile(source: str) -> Condition | None:
    return compile_condition(source)[0]


def _find_unknown_flags(entry: DocumentEntry[GateRuleDocument], known: frozenset[str]) -> Iterator[Diagnostic]:
    """Report unknown flags in conditions: such a rule would never apply."""
    for source, path in conditions_of(entry):
        for flag, start in find_saw_flags(source):
            if flag not in known:
                yield _unknown_flag(entry, flag, path, source=source, start=start, known=known)


def _unknown_flag(
    entry: DocumentEntry[GateRuleDocument],
    flag: str,
    path: DocumentPath,
    *,
    source: str,
    start: int,
    known: frozenset[str],
) -> Diagnostic:
    if path in entry.source.substituted:  # the flag may come from the environment, so it is not shown
        return entry.problem("unknown-reference", "the expression names a TrustFlag that does not exist", path)
    message, help = f"there is no TrustFlag {flag!r}", suggest_name(flag, known)
    found = entry.problem("unknown-reference", message, path, help=help)
    return token_inside(found, source, start, len(flag) + 2)


def _check_tier(entry: DocumentEntry[GateRuleDocument], chosen: Sequence[DeclaredTool | Query]) -> Iterator[Diagnostic]:
    """Report tools whose tier forbids that callers confirm their own calls."""
    if not isinstance(entry.document.spec.check, specs.ConfirmationCheckSpec):
        return
    for tool in chosen:
        tier = tool.trust.tier
        if tier.forbids_confirmation:
            message = f"tier {tier.name!r} of {tool.name!r} does not let callers confirm their own calls"
            help = "use type: approval, or match other tools"
            yield entry.problem("tier-forbids-confirmation", message, ("spec", "check", "type"), help=help)


def _check_show(entry: DocumentEntry[GateRuleDocument], chosen: Sequence[DeclaredTool | Query]) -> Iterator[Diagnostic]:
    """Report arguments in `show` that no tool of the rule takes: approvers would decide without them."""
    check: SpecModel | None = entry.document.spec.check
    at: DocumentPath = ("spec", "check", "show")
    if isinstance(check, specs.QuotaCheckSpec):
        yield from _check_sum(entry, check, chosen)
        check, at = check.approval, ("spec", "check", "approval", "show")
    if not isinstance(check, specs.Approvers | specs.ConfirmationCheckSpec):
        return
    schemas = [tool.input_schema for tool in chosen]
    views = [None if schema is None else SchemaView(schema, schema) for schema in schemas]
    for index, name in enumerate(check.show):
        missing = missing_everywhere(name, views)
        if missing is not None:
            message = f"no tool of the rule takes an argument {name!r}"
            help = suggest_name(name, missing.known)
            severity: Severity = "error" if missing.is_certain else "warning"
            yield entry.problem("unknown-argument", message, (*at, index), help=help, severity=severity)


def _check_sum(
    entry: DocumentEntry[GateRuleDocument], check: specs.QuotaCheckSpec, chosen: Sequence[DeclaredTool | Query]
) -> Iterator[Diagnostic]:
    """Warn about tools without the summed argument as a number, because the rule denies all of their calls."""
    path: DocumentPath = ("spec", "check", "sum")
    for tool in chosen if check.sum else ():
        schema = tool.input_schema
        for name in check.sum or ():
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            schema = properties.get(name) if isinstance(properties, Mapping) else None
            if isinstance(properties, Mapping) and schema is None:
                message = f"{tool.name!r} has no argument {name!r}, so the rule denies all of its calls"
                help = suggest_name(name, properties)
                yield entry.problem("unknown-argument", message, path, help=help, severity="warning")
                break
        else:
            kind = schema.get("type") if isinstance(schema, Mapping) else None
            if kind is not None and kind not in ("number", "integer"):
                message = f"args.{'.'.join(check.sum or ())} of {tool.name!r} is no number: the rule denies its calls"
                yield entry.problem("argument-type", message, path, severity="warning")
