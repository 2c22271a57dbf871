"""Gate rules that look back, and how callers could make them forget."""

from collections.abc import Iterator, Mapping

from gateway.config.linking.entries import Entries, Entry
from gateway.config.linking.rule_conditions import conditions_of
from gateway.config.nodes import Path
from gateway.config.specs.gates import BudgetCheck, GateRuleDocument, LoopCheck
from gateway.governance.conditions import compile_condition
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.rules import GateRule
from gateway.snapshot import Catalogue, DeclaredTool


def forgetful_rules(
    entries: Entries,
    gates: Mapping[str, GateRule],
    tools: Mapping[str, DeclaredTool],
    catalogues: Mapping[str, Catalogue],
) -> Iterator[Diagnostic]:
    """Rules about what a turn remembers: a new session has a new turn, and without implicit turns so has each call."""
    for name, entry in entries.of(GateRuleDocument).items():
        rule = gates.get(name)
        if rule is None or rule.mode == "disabled" or not rule.looks_back:
            continue
        about = [each for each in catalogues.values() if _is_about(rule, each, tools)]
        for catalogue in about:
            if catalogue.implicit is None:
                message = f"calls without a handle remember nothing in {catalogue.name!r}, and the rule looks back"
                help = "remove turns.implicit: off from the catalogue, or let the rule look at the caller"
                place = _looks(entry) or ("spec", "check", "type")
                related = [("implicit turns are off here", catalogue.position)]
                yield entry.problem("memory-off", message, place, help=help, severity="warning", related=related)
        resets = _resets(entry)
        if about and resets is not None:
            place, help = resets
            message = "a caller resets what the rule remembers by opening a new session"
            yield entry.problem("memory-resets", message, place, help=help, severity="warning")


def _is_about(rule: GateRule, catalogue: Catalogue, tools: Mapping[str, DeclaredTool]) -> bool:
    chosen = (tools[identity] for identity in catalogue.tools.values() if identity in tools)
    return any(rule.is_about(tool.governed, catalogue.name) for tool in chosen)


def _resets(entry: Entry[GateRuleDocument]) -> tuple[Path, str] | None:
    """Where a rule remembers a turn only, and what to write instead. A scope that is written down is meant."""
    check = entry.document.spec.check
    if isinstance(check, LoopCheck | BudgetCheck) and "scope" not in check.model_fields_set:
        return ("spec", "check", "type"), "write scope: caller, or scope: turn if one turn is meant"
    place = _looks(entry)
    return None if place is None else (place, 'add caller.saw("FLAG", "1h"), which looks at all turns of a caller')


def _looks(entry: Entry[GateRuleDocument]) -> Path | None:
    """Where a condition asks the turn, and not the caller."""
    for source, path in conditions_of(entry):
        condition, _ = compile_condition(source)
        if condition is not None and condition.looks_back and not condition.watched_flags:
            return path
    return None
