"""Query tools that results have, by artifact class: what policies and gate rules can name besides declared tools."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.config.linking.artifacts import built_in, link_artifacts
from gateway.config.linking.entries import Entries
from gateway.config.references import BUILT_IN_ARTIFACTS
from gateway.config.specs.gates import GateRuleDocument
from gateway.governance.catalogues import QUERY_PREFIX, Selector
from gateway.governance.globs import glob_matches
from gateway.snapshot import CONTENT, ArtifactClass, DeclaredTool, Query

Schemas = Mapping[str, Mapping[str, Any]]
"""Input schemas by the name of the query tool."""


def link_queries(tools: Iterable[DeclaredTool], artifacts: Mapping[str, ArtifactClass]) -> dict[str, Schemas]:
    """For every class that a tool yields; a class with errors has none."""
    names = sorted({tool.artifact for tool in tools})
    return {name: schemas_of(name, artifacts) for name in names if name in artifacts or name in BUILT_IN_ARTIFACTS}


def schemas_of(name: str, artifacts: Mapping[str, ArtifactClass]) -> Schemas:
    declared = artifacts.get(name)
    constructor: Any = built_in(name, {}) if declared is None else declared.constructor
    offered = None if declared is None else declared.queries
    methods: Sequence[Any] = getattr(constructor, "effective_methods", tuple)()
    return {each.name: each.template.describe() for each in methods if offered is None or each.method in offered}


def conceivable_queries(entries: Entries, *, packages: Collection[str]) -> frozenset[str]:
    """Every name that a gate rule may give a query tool. Classes are looked at only if a rule gives one."""
    rules = entries.of(GateRuleDocument).values()
    named = [name for rule in rules for name in rule.document.spec.match.tools if name.startswith(QUERY_PREFIX)]
    if all("*" in name for name in named):
        return frozenset()
    artifacts, _ = link_artifacts(entries, packages=packages)
    return frozenset({CONTENT}.union(*(schemas_of(name, artifacts) for name in {*artifacts, *BUILT_IN_ARTIFACTS})))


def chosen_queries(match: Selector, tools: Iterable[DeclaredTool], queries: Mapping[str, Schemas]) -> Iterator[Query]:
    """The queries that a rule names."""
    patterns = [pattern for pattern in match.tools if pattern.startswith(QUERY_PREFIX)]
    if not patterns:
        return
    for tool in tools:
        known = queries.get(tool.artifact, {})
        for name in (*known, CONTENT):
            if any(glob_matches(name, pattern) for pattern in patterns):
                query = Query(name, tool, tool.artifact, known.get(name))
                if match.chooses(query.governed):
                    yield query
