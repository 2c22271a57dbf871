"""All 102 promises are accounted for: each has one test in this folder, or waits for a part that is not a library."""

import ast
import re
from collections import Counter
from pathlib import Path

PROMISES = range(1, 103)

WAITING_FOR_THE_WIRE: dict[int, str] = {
    1: "the ids in the event stream over HTTP",
    3: "a reload of the configuration between the two calls",
    15: "the collisions in the user's documentation",
    20: "the artifact kind at the records endpoint",
    21: "the media id at the records endpoint",
    24: "the records endpoint and the event stream while a call runs",
    25: "arguments as text and as an object over HTTP",
    27: "an imported or replayed record",
    29: "the loop guard of the configuration",
    31: "the result type at the records endpoint",
    33: "the record of a query at the records endpoint",
    34: "media records at the records endpoint",
    37: "a body of 5 MB over HTTP and MCP",
    38: "the switch per tool in the configuration",
    39: "the flag at the records endpoint",
    40: "the enum in tools/list",
    42: "the caller's id in an answer over HTTP",
    48: "the verification endpoint over records edited on disk",
    50: "the introspection endpoint per class",
    54: "the schema of the extension interface",
    57: "a plug-in loaded from the configuration",
    60: "query records at the records endpoint",
    63: "limits set by configured middleware",
    65: "redaction set in the configuration",
    66: "tools/list after a completed dispatch",
    67: "the same fuzz over HTTP and MCP",
    73: "the same over two turns of one session",
    74: "two parallel sessions",
    77: "a dump of the baseline over HTTP",
    78: "tools/list after a completed dispatch",
    79: "the debug endpoint after a nack",
    80: "the definitions endpoint",
    84: "an approval given over HTTP",
    86: "the definitions endpoint",
    89: "the definitions endpoint",
    93: "the error code in an answer over HTTP",
    95: "tools/list after a call",
    98: "authorisation that reads the scopes",
    101: "two turns of one session",
}
"""Promises whose check has a part that needs a server, a configuration loader or storage, and which part that is."""


BY_CONFIGURATION = {16, 17, 19, 22, 55, 56, 58, 72, 75, 76, 77, 86, 87, 88, 89, 98, 99}
"""Promises that a configuration keeps, too: they have a second test, with documents."""


def promises_tested(prefix: str = "test") -> Counter[int]:
    folder = Path(__file__).parent
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("test_*.py"))]
    functions = [
        node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    numbers = [re.match(rf"{prefix}_promise_(\d{{3}})_[a-z]", function.name) for function in functions]
    return Counter(int(number[1]) for number in numbers if number)


def test_every_promise_has_one_test_or_waits() -> None:
    tested = promises_tested()

    assert [number for number in PROMISES if tested[number] != 1 and number not in WAITING_FOR_THE_WIRE] == []
    assert [number for number, tests in tested.items() if tests != 1 or number not in PROMISES] == []


def test_promises_of_the_configuration_have_a_test_with_documents() -> None:
    assert set(promises_tested("test_configured")) == BY_CONFIGURATION


def test_every_wait_names_a_promise_and_what_is_missing() -> None:
    assert [number for number in WAITING_FOR_THE_WIRE if number not in PROMISES] == []
    assert all(WAITING_FOR_THE_WIRE.values())
