"""Schemas with malformed keywords, anywhere a schema is allowed: a diagnostic at the schema, never a traceback."""

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.registries.imported_definition import UpstreamDefinition
from tests.config.linking.projects import catalogue, document, linked, tool, upstream
from tests.config.mutants import SCHEMA_KEYWORDS

VALUES: tuple[Any, ...] = (
    *(None, 5, -1, 1.5, True, False, "", "x", "(", [], {}, [5], ["string", 5], [None], {"a": 5}, {"a": None}),
    *({"type": None}, [{"type": 5}], {"a": {"type": ["string", None]}}, "#/nowhere", "#", [[]]),
)
THEIRS = {
    "type": "object",
    "properties": {"query": {"type": "string", "minLength": 1}, "deep": {"type": "object", "properties": {"x": {}}}},
    "required": ["query"],
}


def schemas(place: str) -> Iterator[dict[str, Any]]:
    """The upstream's schema with one changed keyword: at its top, in a property, or deeper."""
    for keyword in SCHEMA_KEYWORDS:
        for value in VALUES:
            match place:
                case "top":
                    yield {**THEIRS, keyword: value}
                case "property":
                    yield {
                        "type": "object",
                        "required": ["query"],
                        "properties": {"query": {"type": "string", keyword: value}},
                    }
                case _:
                    inner = {"type": "object", "properties": {"x": {keyword: value}}}
                    yield {**THEIRS, "properties": {"query": {"type": "string"}, "deep": inner}}


@pytest.mark.parametrize("place", ["top", "property", "below"])
def test_schema_of_a_tool_over_an_upstream(place: str) -> None:
    backend = {"type": "mcp", "upstream": "wiki", "tool": "search"}
    texts = [
        tool(f"made_{number}", trust={"tier": "middle"}, input={"schema": schema}, backend=backend)
        for number, schema in enumerate(schemas(place))
    ]
    known = [UpstreamDefinition("wiki", "search", {"name": "search", "inputSchema": THEIRS}, is_pinned=True)]
    rule = {"description": "A rule.", "match": {"tools": ["made_*"]}, "when": "args.qurey == 5 && args.deep.x > 1"}
    gate = document("GateRule", "rule", {**rule, "check": {"type": "rate", "limit": 5, "per": "1m"}})

    found = linked(*texts, upstream(), catalogue(), gate, imports=known)

    assert len(texts) > 700
    assert sum(each.code == "bad-schema" for each in found.diagnostics) > 100


@pytest.mark.parametrize("place", ["top", "property", "below"])
def test_schema_of_an_imported_definition(place: str) -> None:
    brought = [
        UpstreamDefinition("wiki", f"made_{number}", {"name": f"made_{number}", field: schema}, is_pinned=True)
        for field in ("inputSchema", "outputSchema")
        for number, schema in enumerate(schemas(place))
    ]
    shaped = [
        tool(f"ours_{number}", trust={"tier": "middle"}, input=None, backend=_shaped(f"made_{number}"))
        for number, _ in enumerate(schemas(place))
    ]

    found = linked(*shaped, upstream(), catalogue(), imports=brought)

    assert sum(each.code == "bad-definition" for each in found.diagnostics) > 100


def _shaped(name: str) -> dict[str, Any]:
    arguments = {"hidden": ["deep"], "renamed": {"query": "q"}, "described": {"query": "What."}}
    return {"type": "mcp", "upstream": "wiki", "tool": name, "arguments": arguments}


def test_schema_of_results_and_of_answers() -> None:
    texts = []
    for number, schema in enumerate(schemas("top")):
        texts.append(tool(f"made_{number}", output={"artifact": "json", "schema": schema}))
        check = {"type": "approval", "from": ["role:clerk"], "timeout": "5m", "reason": "x", "resolution": schema}
        texts.append(
            document(
                "GateRule", f"rule-{number}", {"description": "A rule.", "match": {"tools": ["made_1"]}, "check": check}
            )
        )

    found = linked(*texts, catalogue())

    assert sum(each.code == "bad-schema" for each in found.diagnostics) > 200
