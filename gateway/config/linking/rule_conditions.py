"""Conditions of gate rules, compared with the tools that each rule is about."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.config.linking.entries import Entry
from gateway.config.nodes import Path
from gateway.config.programs import inside
from gateway.config.specs import gates as specs
from gateway.config.specs.gates import GateRuleDocument
from gateway.governance.condition_checks import ConditionMistake, Scope, find_mistakes
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.expressions import line_and_column
from gateway.governance.schema_views import SchemaView
from gateway.snapshot import DeclaredTool, Query


def conditions_of(entry: Entry[GateRuleDocument]) -> Iterator[tuple[str, Path]]:
    """Every expression of a rule, and where it stands."""
    spec = entry.document.spec
    if spec.when is not None:
        yield spec.when, ("spec", "when")
    if isinstance(spec.check, specs.ArgumentsCheck):
        yield spec.check.require, ("spec", "check", "require")


class ConditionCheck:
    """What is known of the variables of a condition, for each tool; made once for all rules."""

    def __init__(self, *, flags: frozenset[str], tiers: frozenset[str]) -> None:
        self._flags = flags
        self._turn = _turn(flags, tiers)
        self._scopes: dict[str, Scope] = {}

    def problems(self, entry: Entry[GateRuleDocument], chosen: Sequence[DeclaredTool | Query]) -> Iterator[Diagnostic]:
        """Arguments that no tool of the rule takes, values that they never have, conditions that are never true."""
        for source, path in conditions_of(entry):
            scopes = [self._scope(tool) for tool in chosen]
            for mistake in find_mistakes(source, scopes, is_requirement=path[-1] == "require"):
                yield _diagnostic(entry, mistake, source, path)

    def _scope(self, tool: DeclaredTool | Query) -> Scope:
        key = tool.name if isinstance(tool, DeclaredTool) else f"{tool.name} of {tool.maker.name}"
        if key not in self._scopes:
            self._scopes[key] = _scope(tool, self._turn, self._flags)
        return self._scopes[key]


def token_inside(found: Diagnostic, source: str, start: int, width: int) -> Diagnostic:
    """The same problem at a part of its expression; `start` counts from 0."""
    _, column = line_and_column(source, start)
    return replace(found, position=inside(found.position, source, column=column, width=width))


def _diagnostic(entry: Entry[GateRuleDocument], mistake: ConditionMistake, source: str, path: Path) -> Diagnostic:
    if path in entry.source.substituted:  # the message would repeat what the environment put there
        message = "the condition does not fit the tools of the rule; it comes from the environment, so it is not shown"
        return entry.problem(mistake.code, message, path, severity="warning")
    found = entry.problem(mistake.code, mistake.message, path, help=mistake.help, severity="warning")
    return token_inside(found, source, mistake.start, mistake.width)


def _scope(tool: DeclaredTool | Query, turn: SchemaView, flags: frozenset[str]) -> Scope:
    """The variables of a condition as schemas; for the tool itself, they list what it has."""
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
