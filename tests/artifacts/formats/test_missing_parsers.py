"""Without an optional parser everything still imports; code that needs the parser fails and names the package."""

import json
import subprocess
import sys
from typing import Any

import pytest

CHILD = """
import asyncio, importlib, json, pkgutil, sys

blocked = sys.argv[1]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == blocked:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Blocked())

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import GatewayError
from gateway.artifacts.formats.converter_tools import converter_tools
from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.toon_artifact import SpooledToonArtifact
from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact
from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact

assert len(converter_tools()) == 6

async def outcome(question):
    try:
        return await question
    except GatewayError as error:
        return [error.code, error.status, error.fatal, error.help]

async def main():
    text = InMemoryReader
    print(json.dumps({
        "json": await outcome(SpooledJsonArtifact(text("[1]")).json_length()),
        "path": await outcome(SpooledJsonArtifact(text("[1]")).json_get("$[0]")),
        "json5": await outcome(SpooledJsonArtifact(text("[1,]"), "json5").json_length()),
        "inferred": await outcome(SpooledJsonArtifact(text("[1,]")).json_length()),
        "yaml": await outcome(SpooledYamlArtifact(text("a: 1")).yaml_length()),
        "xml": await outcome(SpooledXmlArtifact(text("<a/>")).xml_length()),
        "toon": await outcome(SpooledToonArtifact(text("a: 1")).toon_length()),
    }))

asyncio.run(main())
"""
WITH_EVERYTHING = {"json": 1, "path": [1], "json5": 1, "inferred": 1, "yaml": 1, "xml": 1, "toon": 1}


@pytest.mark.parametrize(
    ("library", "missing"),
    [
        pytest.param("nothing", {}, id="everything is there"),
        pytest.param("yaml", {"yaml": ["E_YAML_PEER_MISSING", 500, False, "install pyyaml"]}, id="yaml"),
        pytest.param("lxml", {"xml": ["E_XML_PARSER_PEER_MISSING", 500, True, "install lxml"]}, id="xml"),
        pytest.param("toon_format", {"toon": ["E_TOON_PEER_MISSING", 500, False, "install toon-format"]}, id="toon"),
        pytest.param("jsonpath", {"path": ["E_PEER_MISSING", 500, False, "install python-jsonpath"]}, id="paths"),
        pytest.param(
            "json5",
            {
                "json5": ["E_PEER_MISSING", 500, False, "install json5"],
                "inferred": ["E_JSON_PARSE_ERROR", 422, False, None],
            },
            id="json5",
        ),
    ],
)
def test_missing_parser_is_named_where_it_is_needed(library: str, missing: dict[str, Any]) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, library], capture_output=True, text=True)

    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == WITH_EVERYTHING | missing
