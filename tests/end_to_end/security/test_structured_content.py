"""A catalogue sends the tool's JSON unchanged beside the envelope, or no JSON."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)
from tests.support.tools.json_tools import SLY

pytestmark = pytest.mark.anyio

JSON_TOOLS = "tests.support.tools.json_tools"
ANA = Person("ana", ("staff",))
PROMISE = {"type": "object", "properties": {"said": {"type": "string"}, "sly": {"type": "string"}}}


async def results(tmp_path: Path, **publish: str) -> dict[str, Any]:
    """Return each tool's definition and result under a catalogue with this setting."""
    backend = {"type": "python", "entrypoint": f"{JSON_TOOLS}:listed", "run": "loop"}
    documents = [
        *base_documents(["tokens"]),
        tokens_of([ANA]),
        http_tool("kept", 1, tier="community", backend=backend, output={"artifact": "json"}),
        http_tool("promised", 1, tier="community", backend=backend, output={"artifact": "json", "schema": PROMISE}),
        catalogue("desk", ["role:staff"], ["*"], publish=publish),
    ]
    write_project(tmp_path / "p", documents, policy="p, role:staff, *, tool:*, invoke, community, allow\n")
    async with start_gateway(tmp_path / "p", tmp_path / "data", people=[ANA], python_packages=(JSON_TOOLS,)) as gateway:
        caller = gateway.caller(ANA)
        listed = (await caller.modern("desk", "tools/list", {})).json["result"]["tools"]
        definitions = {each["name"]: each for each in listed}
        called = {
            name: (await caller.modern_call("desk", name, {"text": "hi"})).json["result"]
            for name in ("kept", "promised")
        }
    return {name: (definitions[name], result) for name, result in called.items()}


async def test_raw_json_is_sent_as_the_tool_gave_it(tmp_path: Path) -> None:
    for definition, result in (await results(tmp_path, structured="raw")).values():
        assert result["structuredContent"] == {"said": "hi", "sly": SLY}
        assert ("outputSchema" in definition) == (definition["name"] == "promised")


async def test_a_catalogue_without_json_sends_and_promises_none(tmp_path: Path) -> None:
    for definition, result in (await results(tmp_path, structured="off")).values():
        assert "structuredContent" not in result
        assert "outputSchema" not in definition
        assert not result["isError"]
        assert b"<system_instructions" not in orjson.dumps(result)
        assert "&lt;system_instructions>" in result["content"][0]["text"]
