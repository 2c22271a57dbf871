"""Gate rules with their conditions compiled, and what is odd about the calls they are meant for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from zoneinfo import ZoneInfo

from gateway.config.linking.entries import Entries, Entry
from gateway.config.linking.prospects import could_choose
from gateway.config.linking.queries import Schemas, chosen_queries
from gateway.config.linking.rule_conditions import ConditionCheck, conditions_of, token_inside
from gateway.config.linking.rule_matches import idle_matches
from gateway.config.nodes import Path
from gateway.config.specs import gates as specs
from gateway.config.specs.base import Spec
from gateway.config.specs.common import Selector as SelectorSpec
from gateway.config.specs.gates import GateRuleDocument
from gateway.governance.catalogues import GovernedTool, Selector
from gateway.governance.condition_checks import missing_everywhere
from gateway.governance.conditions import Condition, compile_condition
from gateway.governance.diagnostics import Diagnostic, Severity, did_you_mean
from gateway.governance.effects import EFFECT_FLAGS
from gateway.governance.expressions import flags_given_to_saw
from gateway.governance.rules import (
    Approval,
    Arguments,
    Budget,
    Check,
    Confirmation,
    GateRule,
    Loop,
    Opening,
    Permission,
    Quota,
    Rate,
    Window,
)
from gateway.governance.schema_views import SchemaView
from gateway.snapshot import DeclaredTool, Offer, Query


def link_gates(
    entries: Entries,
    tools: Mapping[str, DeclaredTool],
    *,
    offers: Mapping[str, Offer],
    queries: Mapping[str, Schemas],
    prospects: Sequence[GovernedTool],
) -> tuple[dict[str, GateRule], list[Diagnostic]]:
    """Rules whose conditions compile; what is wrong with the others has been told where they stand."""
    linked: dict[str, GateRule] = {}
    problems: list[Diagnostic] = []
    governed = [(tool, tool.governed) for tool in tools.values()]
    every = [*(seen for _, seen in governed), *(offer.governed for offer in offers.values())]
    flags, tiers = (entries.names.get(kind, frozenset()) for kind in ("TrustFlag", "TrustTier"))
    flags |= EFFECT_FLAGS
    conditions = ConditionCheck(flags=flags, tiers=tiers)
    for name, entry in entries.of(GateRuleDocument).items():
        problems += _unknown_flags(entry, flags)
        rule = _rule(entry)
        if rule is not None:
            linked[name] = rule
            chosen: list[DeclaredTool | Query] = [tool for tool, seen in governed if rule.match.chooses(seen)]
            named = list(chosen_queries(rule.match, tools.values(), queries))
            chosen += named
            read = [*(query.governed for query in named), *(each for each in every if each.kind != "tool")]
            problems += _forbidden(entry, chosen)
            is_known = not could_choose(rule.match, prospects)
            if is_known:
                problems += _unshown(entry, chosen)
            if entries.is_complete and is_known:
                problems += conditions.problems(entry, chosen)
                has_tools = bool(chosen) or any(rule.match.chooses(each) for each in read)
                problems += idle_matches(entry, rule.match, [*every, *read], has_tools=has_tools)
    return linked, problems


def selector_of(spec: SelectorSpec, *, max_rank: int | None = None) -> Selector:
    return Selector(
        tools=spec.tools,
        labels=dict(spec.labels),
        flags=spec.flags,
        upstreams=spec.upstreams,
        tiers=spec.tiers,
        artifacts=spec.artifacts,
        max_rank=max_rank,
    )


def _rule(entry: Entry[GateRuleDocument]) -> GateRule | None:
    spec = entry.document.spec
    when = _compiled(spec.when) if spec.when is not None else None
    check = _check(spec.check)
    if check is None or (when is None and spec.when is not None):
        return None
    return GateRule(
        entry.name,
        replace(selector_of(spec.match), prompts=spec.match.prompts, resources=spec.match.resources),
        check,
        entry.position,
        when=when,
        mode=spec.mode,
        catalogues=frozenset(spec.match.catalogues),
        hold_for=spec.hold_for,
        description=spec.description,
    )


def _compiled(source: str) -> Condition | None:
    return compile_condition(source)[0]


def _check(spec: specs.Check) -> Check | None:
    match spec:
        case specs.ApprovalCheck():
            return _approval(spec)
        case specs.ConfirmationCheck():
            return Confirmation(spec.reason, spec.show, spec.timeout)
        case specs.PermissionCheck():
            return Permission(spec.action, spec.object)
        case specs.WindowCheck():
            return _window(spec)
        case specs.ArgumentsCheck():
            condition = _compiled(spec.require)
            return Arguments(condition, spec.message) if condition is not None else None
        case specs.RateCheck():
            return Rate(spec.limit, spec.per, spec.burst, spec.by)
        case specs.QuotaCheck():
            approval = None if spec.approval is None else _approval(spec.approval)
            return Quota(spec.limit, spec.per, spec.by, spec.on_exhausted, spec.sum or (), approval)
        case specs.LoopCheck():
            return Loop(spec.same_call, spec.on_exceeded, _within(spec))
        case specs.BudgetCheck():
            return Budget(spec.calls, spec.bytes, spec.on_exhausted, _within(spec))


def _within(spec: specs.LoopCheck | specs.BudgetCheck) -> timedelta | None:
    return (spec.within or specs.WITHIN) if spec.scope == "caller" else None


def _approval(spec: specs.Approvers) -> Approval:
    reuse_for: timedelta | None = spec.reuse.for_ if spec.reuse else None
    return Approval(
        spec.from_,
        spec.reason,
        spec.count,
        timeout=spec.timeout,
        show=spec.show,
        resolution=spec.resolution,
        reuse_for=reuse_for,
    )


def _window(spec: specs.WindowCheck) -> Window:
    openings = tuple(Opening(frozenset(each.days), each.from_, each.to) for each in spec.open)
    return Window(ZoneInfo(spec.timezone), openings, frozenset(spec.closed), spec.outside)


def _unknown_flags(entry: Entry[GateRuleDocument], known: frozenset[str]) -> Iterator[Diagnostic]:
    """Flags that a condition waits for and no tool can have: such a rule would never apply."""
    for source, path in conditions_of(entry):
        for flag, start in flags_given_to_saw(source):
            if flag not in known:
                yield _unknown_flag(entry, flag, path, source=source, start=start, known=known)


def _unknown_flag(
    entry: Entry[GateRuleDocument], flag: str, path: Path, *, source: str, start: int, known: frozenset[str]
) -> Diagnostic:
    if path in entry.source.substituted:  # the flag may come from the environment, which is not repeated
        return entry.problem("unknown-reference", "the expression names a TrustFlag that is not there", path)
    message, help = f"there is no TrustFlag {flag!r}", did_you_mean(flag, known)
    found = entry.problem("unknown-reference", message, path, help=help)
    return token_inside(found, source, start, len(flag) + 2)


def _forbidden(entry: Entry[GateRuleDocument], chosen: Sequence[DeclaredTool | Query]) -> Iterator[Diagnostic]:
    """Tools of a tier whose calls somebody else has to look at."""
    if not isinstance(entry.document.spec.check, specs.ConfirmationCheck):
        return
    for tool in chosen:
        tier = tool.trust.tier
        if tier.forbids_confirmation:
            message = f"tier {tier.name!r} forbids that callers confirm their own calls, and {tool.name!r} is of it"
            help = "use type: approval, or let the rule match other tools"
            yield entry.problem("tier-forbids-confirmation", message, ("spec", "check", "type"), help=help)


def _unshown(entry: Entry[GateRuleDocument], chosen: Sequence[DeclaredTool | Query]) -> Iterator[Diagnostic]:
    """Arguments to show that no tool of the rule takes: approvers would decide without them."""
    check: Spec | None = entry.document.spec.check
    at: Path = ("spec", "check", "show")
    if isinstance(check, specs.QuotaCheck):
        yield from _unsummed(entry, check, chosen)
        check, at = check.approval, ("spec", "check", "approval", "show")
    if not isinstance(check, specs.Approvers | specs.ConfirmationCheck):
        return
    schemas = [tool.input_schema for tool in chosen]
    views = [None if schema is None else SchemaView(schema, schema) for schema in schemas]
    for index, name in enumerate(check.show):
        missing = missing_everywhere(name, views)
        if missing is not None:
            message = f"no tool of the rule takes an argument {name!r}"
            help = did_you_mean(name, missing.known)
            severity: Severity = "error" if missing.is_certain else "warning"
            yield entry.problem("unknown-argument", message, (*at, index), help=help, severity=severity)


def _unsummed(
    entry: Entry[GateRuleDocument], check: specs.QuotaCheck, chosen: Sequence[DeclaredTool | Query]
) -> Iterator[Diagnostic]:
    """An argument to add up that a tool of the rule does not take as a number: its calls are denied."""
    path: Path = ("spec", "check", "sum")
    for tool in chosen if check.sum else ():
        schema = tool.input_schema
        for name in check.sum or ():
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            schema = properties.get(name) if isinstance(properties, Mapping) else None
            if isinstance(properties, Mapping) and schema is None:
                message = f"{tool.name!r} takes no argument {name!r}, so the rule denies all of its calls"
                help = did_you_mean(name, properties)
                yield entry.problem("unknown-argument", message, path, help=help, severity="warning")
                break
        else:
            kind = schema.get("type") if isinstance(schema, Mapping) else None
            if kind is not None and kind not in ("number", "integer"):
                message = f"args.{'.'.join(check.sum or ())} of {tool.name!r} is no number: the rule denies its calls"
                yield entry.problem("argument-type", message, path, severity="warning")
