"""Documents and paths that try to exhaust, escape or crash the parser are refused at once, with flat memory.

All cases run in one child process with hard limits, so that a crash of a C parser or a runaway
allocation fails only these tests.
"""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

DEEP = 100_000
SECRET = "the secret of the file"
MOST_MEMORY = 32 << 20
"""Bytes by which the process may grow over all cases; the longest text here has 2 MB."""

CHILD = """
import asyncio, json, resource, sys

import json5, toon_format  # the parsers themselves do not count

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import GatewayError
from gateway.artifacts.formats import javascript_jsonpath
from gateway.artifacts.formats import xml_parser as xml_text
from gateway.artifacts.formats import yaml_parser as yaml_text
from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.toon_artifact import SpooledToonArtifact
from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact
from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact

CLASSES = {
    "json": SpooledJsonArtifact,
    "json5": lambda reader: SpooledJsonArtifact(reader, "json5"),
    "toon": SpooledToonArtifact,
    "xml": SpooledXmlArtifact,
    "yaml": SpooledYamlArtifact,
}

async def attempt(format, text, path):
    artifact = CLASSES[format](InMemoryReader(text))
    try:
        value = await (artifact._get(path) if path else artifact.value())
        return {"error": None, "value": repr(value)[:200]}
    except GatewayError as error:
        return {"error": type(error).__name__, "message": error.message}

def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

async def main():
    cases = json.load(sys.stdin)
    before = most_memory()
    for name, case in cases.items():
        outcome = await attempt(**case)
        print(json.dumps({"name": name, "grown": most_memory() - before} | outcome), flush=True)

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
asyncio.run(main())
"""


def laughs(anchor: str, reference: str, *, separator: str = "") -> list[str]:
    """Ten definitions, each ten times as large as the one before."""
    names = "abcdefghij"
    lines = [anchor.format(name=names[0], value="ha")]
    for before, name in pairwise(names):
        lines.append(anchor.format(name=name, value=separator.join([reference.format(name=before)] * 10)))
    return lines


def xml_entities(*declarations: str, use: str) -> str:
    return f'<?xml version="1.0"?>\n<!DOCTYPE r [\n{chr(10).join(declarations)}\n]>\n<r>{use}</r>'


def document(format: str, text: str, path: str | None = None) -> dict[str, Any]:
    return {"format": format, "text": text, "path": path}


BAD_XML = {
    "xml: an entity": xml_entities('<!ENTITY e "x">', use="&e;"),
    "xml: billion laughs": xml_entities(*laughs('<!ENTITY {name} "{value}">', "&{name};"), use="&j;"),
    "xml: one long entity, often": xml_entities(f'<!ENTITY e "{"x" * 100_000}">', use="&e;" * 10_000),
    "xml: parameter entities": xml_entities("<!ENTITY % p \"<!ENTITY e 'x'>\">", "%p;", use="&e;"),
    "xml: an external document type": '<!DOCTYPE r SYSTEM "http://127.0.0.1:9/evil.dtd"><r/>',
    "xml: a name without end": "<" + "x" * 40_000 + "></y>",
    "xml: nested": "<a>" * DEEP + "</a>" * DEEP,
    "xml: nested and never closed": "<a>" * DEEP,
    "xml: nested, with attributes": '<a b="c">' * DEEP,
}
BAD_YAML = {
    "yaml: alias bomb": "\n".join(laughs("{name}: &{name} [{value}]", "*{name}", separator=", ")),
    "yaml: merge bomb": "\n".join(
        ["z: &z {k: v}", *laughs("{name}: &{name} {{<<: [{value}]}}", "*{name}", separator=", ")]
    ).replace("[ha]", "*z"),
    "yaml: one long text, often": f"a: &a {'x' * 1_000_000}\nb: [{'*a, ' * 10_000}]",
    "yaml: python object": "!!python/object/apply:os.system ['id']",
    "yaml: python name": "a: !!python/name:os.system",
    "yaml: python tuple": "!!python/tuple [1]",
    "yaml: an alias without end": "*" + "x" * 40_000,
    "yaml: a tag without end": "!" + "x" * 40_000 + " 1",
    "yaml: nested lists": "[" * DEEP + "]" * DEEP,
    "yaml: nested objects": "{a: " * DEEP,
    "yaml: nested items": "- " * DEEP,
    "yaml: nested keys": "? " * DEEP,
    "yaml: a number in base 60": "1" + ":1" * DEEP,
}
BAD_JSON = {
    "json: nested lists": "[" * DEEP + "]" * DEEP,
    "json: nested objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "json: nested and never closed": "[" * DEEP,
    "json: nested in a line": '{"a": 1}\n' + "[" * DEEP + "]" * DEEP,
    "json: nested as JSON5": "{a:" * 40_000 + "1" + "}" * 4_000,
    "json: a number without end": "9" * 1_000_000,
    "json: large and nothing": "x" * 2_000_000,
}
BAD_TOON = {
    "toon: a key without end": ("k" * 40_000 + ": 1\n") * 2,
    "toon: nested fields": "[1]" + "{a" * DEEP + "}" * DEEP + ":\n  1",
    "toon: nested objects": "\n".join("  " * level + "a:" for level in range(1_500)),
    "toon: a number without end": "a: " + "9" * 1_000_000,
}
BAD_PATHS = {
    "path: a function's constructor": "$[?(@.constructor.constructor('return process')().exit())]",
    "path: a Python import": "$[?(__import__('os').system('id'))]",
    "path: a script": "$[(this.process.exit())]",
    "path: endless": "$" + ".a" * 1_000,
    "path: parentheses": "$[?" + "(" * 2_000,
    "path: everything, repeatedly": "$..*..*..*",
}
NESTED = '{"b": [1], "a":' * 200 + "1" + "}" * 200

CASES: dict[str, tuple[dict[str, Any], str]] = {
    **{name: (document("xml", text), "XmlParseFailed") for name, text in BAD_XML.items()},
    **{name: (document("yaml", text), "YamlParseError") for name, text in BAD_YAML.items()},
    **{name: (document("json", text), "JsonParseError") for name, text in BAD_JSON.items()},
    "json5: nested lists": (document("json5", "[" * 60_000 + "]" * 60_000), "JsonParseError"),
    "json5: nested objects": (document("json5", "{a:" * 40_000), "JsonParseError"),
    **{name: (document("toon", text), "ToonDecodeFailed") for name, text in BAD_TOON.items()},
    **{name: (document("json", NESTED, path), "JsonPathInvalid") for name, path in BAD_PATHS.items()},
}


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hostile") / "secret.txt"
    file.write_text(SECRET)
    return file


@pytest.fixture(scope="module")
def outcomes(secret_file: Path) -> dict[str, dict[str, Any]]:
    external = xml_entities(f'<!ENTITY e SYSTEM "{secret_file.as_uri()}">', use="&e;")
    cases = {name: case for name, (case, _) in CASES.items()} | {"external": document("xml", external)}
    child = subprocess.run([sys.executable, "-c", CHILD], input=json.dumps(cases), capture_output=True, text=True)
    found = {outcome["name"]: outcome for outcome in map(json.loads, child.stdout.splitlines())}
    assert child.returncode == 0, f"died after {list(found)[-1:]} with {child.returncode}: {child.stderr[-2000:]}"
    return found


@pytest.mark.parametrize("name", CASES)
def test_hostile_input_is_refused_with_flat_memory(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    outcome = outcomes[name]

    assert outcome["error"] == CASES[name][1], outcome
    assert outcome["grown"] < MOST_MEMORY
    assert len(outcome["message"]) < 400
    assert "\n" not in outcome["message"]


def test_external_entity_reads_no_file(outcomes: dict[str, dict[str, Any]]) -> None:
    assert outcomes["external"]["error"] == "XmlParseFailed"
    assert SECRET not in json.dumps(outcomes)


@pytest.mark.parametrize("name", [name for name in CASES if "nested" in name])
def test_nesting_is_named_as_the_reason(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    assert "nested" in outcomes[name]["message"]
