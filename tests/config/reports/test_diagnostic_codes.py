"""Diagnostic codes: every emitted code is documented, and every documented code can be emitted."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest

from gateway.config.kinds import validation as problems
from gateway.config.reports.diagnostic_codes import CODES, GROUPS
from tests.support.paths import ROOT

PACKAGE: Final = ROOT / "gateway"
LAYERS: Final = ("config", "policy", "registries", "review")
CODE: Final = re.compile(r"[a-z]+(?:-[a-z0-9]+)+")

# Calls that turn a code into a problem. Outside the layers above only diagnostics themselves are searched.
DIAGNOSTIC: Final = frozenset({"Diagnostic"})
MAKERS: Final = DIAGNOSTIC | {
    *(
        "ShapeProblem",
        "TrustProblem",
        "StageProblem",
        "RuleViolation",
        "UnusableObject",
        "PydanticCustomError",
        "_Unfilled",
    ),
    *("ConditionMistake", "_mistake"),
    *("problem", "_problem", "note", "_note", "_error", "_warn", "_warning", "_unreadable"),
}


def codes_in(module: ast.Module, *, makers: frozenset[str]) -> set[str]:
    """Literals passed to such a call, or to a parameter named `code`."""
    found: set[str] = set()
    for node in ast.walk(module):
        match node:
            case ast.Call() if _called(node) in makers:
                for argument in node.args:
                    found |= _literals(argument) if isinstance(argument, ast.Constant | ast.IfExp) else set()
                found |= _keyword(node)
            case ast.Call():
                found |= _keyword(node)
            case ast.Assign() if "code" in set(_names(node.targets)):
                found |= _literals(node.value)
            case ast.AnnAssign(target=ast.Name(id="code"), value=ast.expr() as value):
                found |= _literals(value)
    return found


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _keyword(call: ast.Call) -> set[str]:
    return {code for keyword in call.keywords if keyword.arg == "code" for code in _literals(keyword.value)}


def _names(targets: list[ast.expr]) -> Iterator[str]:
    return (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def _literals(node: ast.AST) -> set[str]:
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))
    return {text for text in texts if CODE.fullmatch(text)}


@cache
def emitted() -> dict[str, str]:
    """All codes, each with one of the modules that can emit it."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        makers = MAKERS if inside.parts[0] in LAYERS else DIAGNOSTIC
        module = ast.parse(path.read_text(encoding="utf-8"))
        found |= dict.fromkeys(codes_in(module, makers=makers), inside.as_posix())
    return found


def test_every_code_in_the_source_is_documented() -> None:
    assert {code: module for code, module in emitted().items() if code not in CODES} == {}


def test_every_documented_code_can_be_emitted() -> None:
    assert CODES.keys() - emitted().keys() == set()


def test_codes_of_shapes_are_among_them() -> None:
    assert problems.CODES.keys() <= CODES.keys()


def test_each_code_stands_in_one_group() -> None:
    assert sum(map(len, GROUPS.values())) == len(CODES)


@pytest.mark.parametrize("code", CODES)
def test_code_is_explained_in_a_sentence_or_two(code: str) -> None:
    text = CODES[code]

    assert CODE.fullmatch(code)
    assert text[0].isupper()
    assert text.endswith(".")
    assert 20 < len(text) < 200


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("Diagnostic('a-b', 'c-d e', p)", {"a-b"}),
        ("entry.problem('a-b', message, path)", {"a-b"}),
        ("RuleViolation((), 'words', None, 'a-b')", {"a-b"}),
        ("Text('x', pattern, code='a-b')", {"a-b"}),
        ("code, then = ('a-b', 1) if x else ('c-d', 2)", {"a-b", "c-d"}),
        ("class Text:\n    code: str = 'a-b'", {"a-b"}),
        ("other('a-b')", set()),
    ],
)
def test_codes_are_found_where_they_are_given(source: str, found: set[str]) -> None:
    assert codes_in(ast.parse(source), makers=MAKERS) == found
