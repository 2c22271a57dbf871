"""Provider tool definitions: four shapes of one `describe()`, so what is told and what is enforced cannot drift."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from gateway.core.tool_registry import ToolRegistry
from gateway.core.tools import Tool

Provider = Literal["openai", "anthropic", "gemini", "mcp"]


def definition(tool: Tool, provider: Provider) -> dict[str, Any]:
    """What one provider is told about one tool. Raises `ValueError` for a provider that is not known."""
    return shaped(tool.describe(), provider)


def shaped(described: dict[str, Any], provider: Provider) -> dict[str, Any]:
    """The same for a tool that is there as a description only: `name`, `description` and `input_schema`.

    `title` and `annotations` are told to clients of MCP; other providers have no place for them.
    """
    if provider not in _SHAPES:
        raise ValueError(f"the provider {provider!r} is not one of {', '.join(_SHAPES)}")
    return _SHAPES[provider](described)


def definitions(tools: ToolRegistry | Iterable[Tool], provider: Provider) -> list[dict[str, Any]]:
    """One definition per tool; of a registry, only the visible ones."""
    listed = tools.visible() if isinstance(tools, ToolRegistry) else tools
    return [definition(tool, provider) for tool in listed]


def _parameters(described: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {}, **described["input_schema"]}


def _openai(described: dict[str, Any]) -> dict[str, Any]:
    function = {
        "name": described["name"],
        "description": described["description"],
        "parameters": _parameters(described),
    }
    return {"type": "function", "function": function}


def _anthropic(described: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": described["name"],
        "description": described["description"],
        "input_schema": _parameters(described),
    }


def _gemini(described: dict[str, Any]) -> dict[str, Any]:
    # `parameters` takes a subset of OpenAPI only; this field takes JSON Schema as it is.
    return {
        "name": described["name"],
        "description": described["description"],
        "parametersJsonSchema": _parameters(described),
    }


def _mcp(described: dict[str, Any]) -> dict[str, Any]:
    found = {
        "name": described["name"],
        "description": described["description"],
        "inputSchema": _parameters(described),
    }
    return found | {key: described[key] for key in ("title", "annotations") if key in described}


_SHAPES: Final[dict[Provider, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}
