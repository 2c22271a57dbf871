"""All 102 promises are tested: each has a test of the library, and one over the wire or a reason against it."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.support.paths import ROOT

HERE = ROOT / "tests" / "promises"
PROMISES = range(1, 103)

NOT_ON_THE_WIRE: dict[int, str] = {
    12: "what cannot be encoded cannot be sent: JSON has no cycles and no objects that are not data",
    17: "a wrong class is refused before anything is served; `gateway check` and the start say so",
    18: "modules are imported before anything is served",
    19: "a Media class is refused before anything is served",
    58: "a query tool in place of an artifact class is refused before anything is served",
    75: "a name that is taken is refused before anything is served",
    76: "sources of tools are merged before anything is served",
}
"""Promises that a client cannot observe, and why; documents or the library show them instead."""

BY_CONFIGURATION = {16, 17, 19, 22, 55, 56, 58, 72, 75, 76, 77, 86, 87, 88, 89, 98, 99}
"""Promises that a configuration also keeps: they have a second test, with documents."""


def promises_tested(prefix: str = "test", folder: Path = HERE) -> Counter[int]:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("test_*.py"))]
    functions = [
        node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    numbers = [re.match(rf"{prefix}_promise_(\d{{3}})_[a-z]", function.name) for function in functions]
    return Counter(int(number[1]) for number in numbers if number)


def test_every_promise_has_one_test() -> None:
    tested = promises_tested()

    assert [number for number in PROMISES if tested[number] != 1] == []
    assert set(tested) == set(PROMISES)


def test_promises_of_the_configuration_have_a_test_with_documents() -> None:
    assert set(promises_tested("test_configured")) == BY_CONFIGURATION


def test_every_promise_is_shown_on_the_wire_or_has_a_reason_against_it() -> None:
    shown = set(promises_tested("test_wire", HERE / "transports"))

    assert shown | NOT_ON_THE_WIRE.keys() == set(PROMISES)
    assert shown & NOT_ON_THE_WIRE.keys() == set()
    assert all(NOT_ON_THE_WIRE.values())
