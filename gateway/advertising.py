"""What clients are told about a declared tool. Whether they are told at all is not decided here.

Nothing an upstream says of its tools is passed on: title, description, schema and hints are those of our documents.
"""

from collections.abc import Mapping
from typing import Any

from gateway.snapshot import Catalogue, DeclaredTool


def described(name: str, tool: DeclaredTool, catalogue: Catalogue) -> dict[str, Any] | None:
    """The tool under its advertised name, as `definitions.shaped` takes it.

    `None` if only the upstream server knows its schema.
    """
    if tool.input_schema is None:
        return None
    found: dict[str, Any] = {
        "name": name,
        "description": _description(tool, catalogue),
        "input_schema": dict(tool.input_schema),
    }
    if tool.hints:  # a tool whose effects are unknown has none: clients assume the worst then
        found["annotations"] = {f"{hint}Hint": value for hint, value in tool.hints.items()}
    return {**found, "title": tool.title} if tool.title else found


def _description(tool: DeclaredTool, catalogue: Catalogue) -> str:
    if tool.lifecycle != "deprecated" or tool.deprecation is None:
        return tool.description
    replacement = _advertised(catalogue.tools, tool.deprecation.use)
    instead = f" Use {replacement} instead." if replacement else ""
    return f"{tool.description}\n\nDeprecated: goes away after {tool.deprecation.remove_after}.{instead}"


def _advertised(names: Mapping[str, str], identity: str | None) -> str | None:
    """The name a replacement has here; one that is not in the catalogue is not spoken of."""
    return next((name for name, tool in names.items() if tool == identity), None)
