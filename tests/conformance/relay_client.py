"""A client with a gateway in the middle, as the conformance suite starts it: `python relay_client.py URL`.

The suite plays the server. A gateway runs in front of it, and a client of the reference SDK sends the gateway the
requests of the scenario; all requests to the suite's server come from the gateway.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client

from tests.conformance.serve import HERE, endpoint, server

SUM = [("add_numbers", {"a": 5, "b": 3})]
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "tools_call": SUM,
    "request-metadata": SUM,
    "http-standard-headers": SUM,
    "sse-retry": [("test_reconnection", {})],
    "elicitation-sep1034-client-defaults": [("test_client_elicitation_defaults", {})],
    "sep-2322-client-request-state": [
        (f"test_mrtr_{name}", {}) for name in ("echo_state", "unrelated", "no_state", "no_result_type")
    ],
}
EXAMPLES = {"string": "x", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}


async def accept_elicitation(context: Any, params: Any) -> types.ElicitResult:
    """Accept everything as proposed."""
    properties = getattr(params, "requested_schema", {}).get("properties", {})
    proposed = {name: each["default"] for name, each in properties.items() if "default" in each}
    return types.ElicitResult(action="accept", content=proposed or dict.fromkeys(properties, True))


async def answer_sampling(context: Any, params: Any) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text="hi")
    return types.CreateMessageResult(role="assistant", content=content, model="none")


async def list_roots(context: Any) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[])


def calls(scenario: str, tools: list[types.Tool]) -> list[tuple[str, dict[str, Any]]]:
    named = {tool.name: tool for tool in tools}
    if scenario == "http-custom-headers":
        given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls", [])
        return [(each["name"], drop_nulls(each.get("arguments") or {})) for each in given if each["name"] in named]
    if scenario == "http-invalid-tool-headers":
        return [(name, example(tool.input_schema)) for name, tool in named.items() if not name.startswith("artifact_")]
    if scenario == "json-schema-2020-12-preservation":
        return [("json_schema_echo", {"schema": named["json_schema_2020_12_tool"].input_schema})]
    return [(name, arguments) for name, arguments in CALLS.get(scenario, []) if name in named]


def drop_nulls(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove null values: a string schema refuses them before anything is sent, and omitting them means the same."""
    return {name: value for name, value in arguments.items() if value is not None}


def example(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: EXAMPLES.get(properties.get(name, {}).get("type"), "x") for name in schema.get("required", [])}


async def run_scenario(url: str, scenario: str) -> None:
    callbacks: dict[str, Any] = {
        "elicitation_callback": accept_elicitation,
        "sampling_callback": answer_sampling,
        "list_roots_callback": list_roots,
    }
    async with Client(url, **callbacks) as client:
        tools = (await client.list_tools()).tools
        for name, arguments in calls(scenario, tools):
            result = await client.call_tool(name, arguments)
            print(name, result.content, file=sys.stderr)


async def main(upstream: str, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with endpoint(HERE / "relay", folder, {"EVERYTHING_URL": upstream}) as app:
        serving = server(app, port)
        task = asyncio.create_task(serving.serve())
        while not serving.started:
            await asyncio.sleep(0.01)
        try:
            await run_scenario(f"http://127.0.0.1:{port}/mcp", os.environ.get("MCP_CONFORMANCE_SCENARIO", ""))
        finally:
            serving.should_exit = True
            await task


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1], Path(folder)))
