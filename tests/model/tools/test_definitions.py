"""Provider definitions: four shapes of a tool's declaration, with nothing that it does not declare."""

from typing import Any

import pytest

from gateway.artifacts.query_tools import ToolMethod, build_query_tool
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.model.provider_formats import ProviderName, definition, definitions
from gateway.model.schema.schema import Schema
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_registry import ToolRegistry

PROVIDERS: list[ProviderName] = ["openai", "anthropic", "gemini", "mcp"]
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


def secret_handler(args: Any, ctx: Any, meta: Any) -> str:
    return "secret"


def a_tool(name: str = "look_up", schema: Any = None, **fields: Any) -> Tool:
    document = schema or {"type": "object"}
    return Tool(name=name, description="Looks up.", input_schema=Schema(document), handler=secret_handler, **fields)


@pytest.mark.parametrize(
    ("provider", "shape"),
    [
        (
            "openai",
            {"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": EMPTY}},
        ),
        ("anthropic", {"name": "look_up", "description": "Looks up.", "input_schema": EMPTY}),
        ("gemini", {"name": "look_up", "description": "Looks up.", "parametersJsonSchema": EMPTY}),
        ("mcp", {"name": "look_up", "description": "Looks up.", "inputSchema": EMPTY}),
    ],
)
def test_shape_of_a_definition(provider: ProviderName, shape: dict[str, Any]) -> None:
    assert definition(a_tool(), provider) == shape


def parameters(defined: dict[str, Any]) -> dict[str, Any]:
    """The schema, at the place where a provider expects it."""
    found = defined.get("function", defined)
    (schema,) = [value for value in found.values() if isinstance(value, dict)]
    return schema


ANNOTATED: dict[str, Any] = {
    "type": "object",
    "description": "What to look for.",
    "properties": {
        "q": {"type": "string", "description": "The words.", "examples": ["tea"]},
        "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
        "note": {"type": "string", "description": "May be empty."},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "required": ["q"],
    "$defs": {"item": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}},
    "additionalProperties": False,
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_schema_is_the_one_that_is_enforced(provider: ProviderName) -> None:
    tool = a_tool(schema=ANNOTATED)

    assert parameters(definition(tool, provider)) == tool.describe()["input_schema"] == ANNOTATED


@pytest.mark.parametrize("provider", PROVIDERS)
def test_schema_by_reference_still_has_type_object(provider: ProviderName) -> None:
    document = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"n": {}}}}}

    found = parameters(definition(a_tool(schema=document), provider))

    assert (found["type"], found["properties"], found["$ref"]) == ("object", {}, "#/$defs/a")
    assert Schema(found, closed=False).is_valid({"n": 1})
    assert not Schema(found, closed=False).is_valid({"z": 1})


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nothing_else_leaves_a_tool(provider: ProviderName) -> None:
    tool = a_tool(
        meta={"rbac": {"scopes": ["confidential"]}},
        trusted=True,
        ephemeral=True,
        on_collision="keep",
        artifact_constructor=lambda: SpooledArtifact,
    )

    assert definition(tool, provider) == definition(a_tool(), provider)
    assert "confidential" not in str(definition(tool, provider))
    assert "secret_handler" not in str(definition(tool, provider))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_only_visible_tools_of_a_registry_are_defined(provider: ProviderName) -> None:
    tools = ToolRegistry([a_tool("one"), a_tool("two"), a_tool("three")])
    tools.hide("two")

    defined = definitions(tools, provider)

    assert defined == [definition(a_tool("one"), provider), definition(a_tool("three"), provider)]
    assert definitions(tools.all(), provider)[1] == definition(a_tool("two"), provider)
    assert definitions(ToolRegistry(), provider) == []


def test_forged_tools_are_defined_like_any_other() -> None:
    forged = build_query_tool(ToolMethod("artifact_x", "head", "Queries."), ["c1", "c2"], SpooledArtifact)

    defined = definition(forged, "mcp")

    assert defined["inputSchema"]["properties"]["callId"]["enum"] == ["c1", "c2"]
    assert defined["inputSchema"]["required"] == ["callId"]


def test_definition_is_a_copy() -> None:
    tool = a_tool(schema=ANNOTATED)

    definition(tool, "mcp")["inputSchema"]["properties"].clear()

    assert definition(tool, "mcp")["inputSchema"] == ANNOTATED


def test_unknown_provider_is_refused() -> None:
    with pytest.raises(ValueError, match="'acme' is not one of openai, anthropic, gemini, mcp"):
        definition(a_tool(), "acme")  # type: ignore[arg-type]  # wrong on purpose
