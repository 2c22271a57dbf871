"""Gate rules that can never match a call: what in a matcher excludes every tool, and what was probably meant."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.config.linking.entries import Entries, Entry
from gateway.config.linking.prospects import could_choose
from gateway.config.nodes import Path
from gateway.config.specs.gates import GateRuleDocument
from gateway.governance.catalogues import GovernedTool, Selector
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.globs import glob_matches
from gateway.governance.rules import GateRule
from gateway.snapshot import Catalogue, DeclaredTool

_MATCH: Final[Path] = ("spec", "match")
_CRITERIA: Final = ("tools", "labels", "flags", "upstreams", "tiers", "artifacts", "prompts", "resources")
_GUARDS_NOTHING: Final = "correct what it matches, or remove the rule"


def idle_matches(
    entry: Entry[GateRuleDocument], match: Selector, tools: Sequence[GovernedTool], *, has_tools: bool
) -> Iterator[Diagnostic]:
    """A matcher that chooses none of the tools, or a pattern in it that does not."""
    if not has_tools:
        yield _idle(entry, match, tools)
        return
    for criterion, name_of in (("tools", _name), ("upstreams", _upstream)):
        for index, pattern in enumerate(getattr(match, criterion)):
            if "*" in pattern and not any(glob_matches(name_of(tool), pattern) for tool in tools):
                message = f"{pattern!r} fits no {criterion.removesuffix('s')}, so the rule guards none of that name"
                help = did_you_mean(pattern.strip("*"), {name_of(tool) for tool in tools}) or "correct or remove it"
                path = (*_MATCH, criterion, index)
                yield entry.problem("idle-rule", message, path, help=help, severity="warning")


def unreached_rules(
    entries: Entries,
    rules: Mapping[str, GateRule],
    tools: Mapping[str, DeclaredTool],
    catalogues: Mapping[str, Catalogue],
    prospects: Sequence[GovernedTool],
) -> Iterator[Diagnostic]:
    """Rules for some catalogues, none of which publishes a tool that the rule is about."""
    if not entries.is_complete:
        return
    for name, entry in entries.of(GateRuleDocument).items():
        rule = rules.get(name)
        if rule is None or not rule.catalogues or could_choose(rule.match, prospects):
            continue
        chosen = {tool.name for tool in tools.values() if rule.match.chooses(tool.governed)}
        if chosen and not any(tools[each].lifecycle == "draft" for each in chosen):
            yield from _unreached(entry, rule, chosen, catalogues)


def _unreached(
    entry: Entry[GateRuleDocument], rule: GateRule, chosen: Collection[str], catalogues: Mapping[str, Catalogue]
) -> Iterator[Diagnostic]:
    published = {name: set(each.tools.values()) for name, each in catalogues.items()}
    named = entry.document.spec.match.catalogues
    idle = [name for name in named if published.get(name, set()).isdisjoint(chosen)]
    elsewhere = sorted(name for name, tools in published.items() if name not in named and not tools.isdisjoint(chosen))
    help = f"its tools are published by {', '.join(elsewhere)}" if elsewhere else "no catalogue publishes its tools"
    if len(idle) == len(named):
        message = "the rule is about no tool of its catalogues, so it never applies"
        yield entry.problem("idle-rule", message, (*_MATCH, "catalogues"), help=help, severity="warning")


def _idle(entry: Entry[GateRuleDocument], match: Selector, tools: Sequence[GovernedTool]) -> Diagnostic:
    """Told at the criterion that no tool fulfils; where each has tools of its own, at the matcher."""
    given = [name for name in _CRITERIA if getattr(match, name)]
    counts = {name: sum(_only(match, name).chooses(tool) for tool in tools) for name in given}
    idle = [name for name, count in counts.items() if not count]
    message, path, help = "the rule is about no tool", _MATCH, _GUARDS_NOTHING
    if idle and len(given) > 1:
        message, path = f"the rule is about no tool: no tool fulfils {idle[0]!r}", (*_MATCH, idle[0])
    elif not idle and len(given) > 1:
        listed = ", ".join(f"{name!r} fits {count}" for name, count in counts.items())
        message = f"the rule is about no tool: no tool fulfils all criteria ({listed})"
    if idle:
        help = _suggestion(match, idle[0], tools) or help
    return entry.problem("idle-rule", message, path, help=help, severity="warning")


def _only(match: Selector, criterion: str) -> Selector:
    return replace(Selector(), **{criterion: getattr(match, criterion)})


def _suggestion(match: Selector, criterion: str, tools: Sequence[GovernedTool]) -> str | None:
    if criterion == "labels":
        for key, value in match.labels.items():
            values = {tool.labels[key] for tool in tools if key in tool.labels}
            if not values:
                return did_you_mean(key, {each for tool in tools for each in tool.labels})
            if value not in values:
                return did_you_mean(value, values)
        return None
    names: set[Any] = {tool.name for tool in tools} if criterion == "tools" else set()
    if criterion == "upstreams":
        names = {_upstream(tool) for tool in tools}
    given = getattr(match, criterion)
    return next((help for each in given if (help := did_you_mean(each.strip("*"), names - {""}))), None)


def _name(tool: GovernedTool) -> str:
    return tool.name


def _upstream(tool: GovernedTool) -> str:
    return tool.upstream or ""
