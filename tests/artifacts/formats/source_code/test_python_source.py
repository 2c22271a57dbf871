"""Python source: the answer for each construct, and what remains readable in broken code."""

import argparse
import ast
import asyncio.tasks
import dataclasses
import enum
import inspect
import typing
from collections.abc import Iterator
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from gateway.artifacts.formats.source_code.parser_process import answer
from gateway.artifacts.formats.source_code.source_artifact import PYTHON_SYMBOL_KINDS, SpooledPythonArtifact
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import InvalidToolArgs
from tests.artifacts.formats.document_turns import ask, turn_with

pytestmark = pytest.mark.anyio


def python(text: str, **options: Any) -> SpooledPythonArtifact:
    return SpooledPythonArtifact(InMemoryReader(dedent(text)), **options)


def facts(text: str) -> dict[str, Any]:
    found: dict[str, Any] = answer({"language": "py"}, text.encode())["facts"]
    return found


SYMBOLS = {
    "function": ("def f(): ...", ["function f"]),
    "async function": ("async def f(): ...", ["function f"]),
    "decorated function": ("@a\n@b(1)\ndef f(): ...", ["function f"]),
    "overloads": (
        "@overload\ndef f(a: int): ...\n@overload\ndef f(a: str): ...\ndef f(a): ...",
        ["function f"] * 3,
    ),
    "class": ("class A[T](B, metaclass=M): ...", ["class A"]),
    "decorated class": ("@dataclass\nclass A:\n    a: int", ["class A"]),
    "assignment": ("a = 1", ["variable a"]),
    "chained assignment": ("a = b = c = 1", ["variable a", "variable b", "variable c"]),
    "nested targets": (
        "(a, [b, *c]), d = x",
        ["variable a", "variable b", "variable c", "variable d"],
    ),
    "attributes and items are no names": ("a.b, c[0], d = x", ["variable d"]),
    "annotated": ("a: int = 1\nb: str", ["variable a", "variable b"]),
    "assigned again": ("a = 1\na = 2\nb = 3", ["variable a", "variable b"]),
    "changed in place": ("a += 1", []),
    "type alias": ("type A = int", ["type A"]),
    "generic type alias": ("type A[T] = list[T]", ["type A"]),
    "several on a line": ("a = 1; b = 2", ["variable a", "variable b"]),
    "inside if": (
        "if x:\n    a = 1\nelif y:\n    b = 1\nelse:\n    def c(): ...",
        ["variable a", "variable b", "function c"],
    ),
    "inside try": (
        "try:\n    a = 1\nexcept E:\n    b = 1\nelse:\n    c = 1\nfinally:\n    d = 1",
        ["variable a", "variable b", "variable c", "variable d"],
    ),
    "inside except*": ("try:\n    a = 1\nexcept* E:\n    b = 1", ["variable a", "variable b"]),
    "inside with and loops": (
        "with x as y:\n    a = 1\nfor i in x:\n    b = 1\nwhile x:\n    c = 1",
        ["variable a", "variable b", "variable c"],
    ),
    "inside match": ("match x:\n    case [y]:\n        a = 1", ["variable a"]),
    "not inside functions and classes": ("def f():\n    a = 1\nclass A:\n    b = 1", ["function f", "class A"]),
    "nothing": ("", []),
    "expressions": ("f(a)\na.b = 1\nlambda: 1\nglobal g\ndel h", []),
}


@pytest.mark.parametrize(("text", "expected"), SYMBOLS.values(), ids=SYMBOLS)
def test_symbols_of(text: str, expected: list[str]) -> None:
    assert [f"{each['kind']} {each['name']}" for each in facts(text)["symbols"]] == expected


def test_symbols_carry_inclusive_lines_from_zero() -> None:
    text = "\n@dec\ndef f():\n    pass\n\n\na = [\n]\n"

    assert facts(text)["symbols"] == [
        {"kind": "function", "name": "f", "exported": True, "startLine": 1, "endLine": 3},
        {"kind": "variable", "name": "a", "exported": True, "startLine": 6, "endLine": 7},
    ]


def declared(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """The declarations that the compiler finds, by name and first line."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, min(part.lineno for part in (statement, *statement.decorator_list)) - 1
        else:
            for part in ("body", "orelse", "finalbody", "handlers"):
                yield from declared(getattr(statement, part, []))


@pytest.mark.parametrize(
    "module", [argparse, asyncio.tasks, dataclasses, enum, inspect, typing], ids=lambda m: m.__name__
)
def test_definitions_are_those_the_compiler_sees(module: ModuleType) -> None:
    text = inspect.getsource(module)

    found = [each for each in facts(text)["symbols"] if each["kind"] in ("function", "class")]

    assert [(each["name"], each["startLine"]) for each in found] == list(declared(ast.parse(text).body))


def entry(specifier: str, named: list[str], *, types: bool = False, line: int = 0, **names: str) -> dict[str, Any]:
    return {"moduleSpecifier": specifier, "named": named, **names, "typeOnly": types, "line": line}


IMPORTS = {
    "module": ("import a", [entry("a", [], namespace="a")]),
    "dotted module": ("import a.b.c", [entry("a.b.c", [], namespace="a")]),
    "renamed module": ("import a.b as c", [entry("a.b", [], namespace="c")]),
    "several modules": ("import a, b as c", [entry("a", [], namespace="a"), entry("b", [], namespace="c")]),
    "names": ("from a.b import c, d as e", [entry("a.b", ["c", "e"])]),
    "names in parentheses": ("from a import (\n    b,  # why\n    c,\n)", [entry("a", ["b", "c"])]),
    "everything": ("from a import *", [entry("a", ["*"])]),
    "relative": ("from . import a", [entry(".", ["a"])]),
    "relative with a name": ("from .. b.c import a", [entry("..b.c", ["a"])]),
    "future": ("from __future__ import annotations", [entry("__future__", ["annotations"])]),
    "for type checkers": (
        "if TYPE_CHECKING:\n    from a import b\n    import c\nelse:\n    import d\nimport e",
        [
            entry("a", ["b"], types=True, line=1),
            entry("c", [], types=True, line=2, namespace="c"),
            entry("d", [], line=4, namespace="d"),
            entry("e", [], line=5, namespace="e"),
        ],
    ),
    "for type checkers by module": (
        "if x:\n    import a\nelif typing.TYPE_CHECKING:\n    try:\n        import b\n    finally: ...",
        [entry("a", [], line=1, namespace="a"), entry("b", [], types=True, line=4, namespace="b")],
    ),
    "not for type checkers": ("if not TYPE_CHECKING:\n    import a", [entry("a", [], line=1, namespace="a")]),
    "with a fallback": (
        "try:\n    import a\nexcept ImportError:\n    import b as a",
        [entry("a", [], line=1, namespace="a"), entry("b", [], line=3, namespace="a")],
    ),
    "inside a function": ("def f():\n    import a", []),
}


@pytest.mark.parametrize(("text", "expected"), IMPORTS.values(), ids=IMPORTS)
def test_imports_of(text: str, expected: list[dict[str, Any]]) -> None:
    found = facts(text)["imports"]

    assert found == expected
    assert [list(each) for each in found] == [list(each) for each in expected]


EXPORTS = {
    "public names": ("a = 1\n_b = 2\ndef c(): ...\nclass _D: ...", ["a variable 0", "c function 2"]),
    "each name once": ("def f(): ...\ndef f(): ...", ["f function 0"]),
    "imports are not public": ("import a\nfrom b import c", []),
    "listed names": ("def a(): ...\ndef b(): ...\n__all__ = ['b']", ["b function 1"]),
    "listed private name": ("_a = 1\n__all__ = ('_a',)", ["_a variable 0"]),
    "listed import": ("from a import b\n__all__ = ['b']", ["b import 0"]),
    "listed stranger": ("\n__all__ = [\n    'a',\n]", ["a 2"]),
    "annotated list": ("__all__: list[str] = ['a']", ["a 0"]),
    "list that grows": (
        "__all__ = ['a']\n__all__ += ['b']\n__all__.extend(['c'])\n__all__.append('d')",
        ["a 0", "b 1", "c 2", "d 3"],
    ),
    "sum of lists": ("__all__ = ['a'] + other.__all__ + (['b'])", ["a 0", "b 0"]),
    "empty list": ("a = 1\n__all__ = []", []),
    "computed list": (
        "a = 1\n__all__ = other.__all__",
        [
            "a variable 0",
        ],
    ),
    "texts that are no names": ("__all__ = [f'{a}', b'c', 'd' 'e', 'f']", ["f 0"]),
    "something else called": ("a = 1\nb.extend(['c'])\nb = ['d']", ["a variable 0", "b variable 2"]),
}


@pytest.mark.parametrize(("text", "expected"), EXPORTS.values(), ids=EXPORTS)
def test_exports_of(text: str, expected: list[str]) -> None:
    found = facts(text)["exports"]

    assert [" ".join(str(value) for value in each.values()) for each in found] == expected
    assert all(list(each) in (["name", "kind", "line"], ["name", "line"]) for each in found)


def test_symbols_know_whether_they_are_exported() -> None:
    listed = facts("def a(): ...\ndef b(): ...\n__all__ = ['b']")["symbols"]
    unlisted = facts("def a(): ...\ndef _b(): ...")["symbols"]

    assert [(each["name"], each["exported"]) for each in listed] == [("a", False), ("b", True), ("__all__", False)]
    assert [(each["name"], each["exported"]) for each in unlisted] == [("a", True), ("_b", False)]


MEMBERS = {
    "methods": (
        "def a(self): ...\nasync def b(self): ...\n@staticmethod\ndef c(): ...",
        ["a method", "b method", "c method"],
    ),
    "property": ("@property\ndef a(self): ...\n@a.setter\ndef a(self, v): ...", ["a property", "a property"]),
    "cached property": ("@functools.cached_property\ndef a(self): ...", ["a property"]),
    "decorator with arguments": ("@cache(property)\ndef a(self): ...", ["a method"]),
    "attributes": ("a: int = 1\nb = c = 2\nd: str", ["a attribute", "b attribute", "c attribute", "d attribute"]),
    "type alias": ("type A = int", ["A attribute"]),
    "in a condition": ("if x:\n    def a(self): ...\nelse:\n    b = 1", ["a method", "b attribute"]),
    "nested class": ("class B:\n    def c(self): ...", ["B class"]),
    "set by the initialiser": (
        "a = 1\ndef __init__(self, x):\n    self.b = x\n    if x:\n        self.c: int = 1\n    self.a = self.b = 2\n"
        "    self.d, other.e, f = x\ndef g(self):\n    self.h = 1",
        ["a attribute", "__init__ method", "b attribute", "c attribute", "d attribute", "g method"],
    ),
    "whatever self is called": ("def __post_init__(this):\n    this.a = 1", ["__post_init__ method", "a attribute"]),
    "no self at all": ("def __init__():\n    self.a = 1", ["__init__ method"]),
    "docstring only": ('"""Doc."""', []),
}


@pytest.mark.parametrize(("body", "expected"), MEMBERS.values(), ids=MEMBERS)
def test_members_of(body: str, expected: list[str]) -> None:
    outlined = facts("class A:\n" + "".join(f"    {line}\n" for line in body.splitlines()))["outline"][0]

    assert [f"{each['name']} {each['kind']}" for each in outlined["members"]] == expected


def test_outline_lists_classes_and_nested_classes_with_lines() -> None:
    text = "class A:\n    class B:\n        class C: ...\n    x = 1\n\n\n"
    text += "class D:\n    @dec\n    def m(self):\n        pass\n"

    assert facts(text)["outline"] == [
        {
            "kind": "class",
            "name": "A",
            "startLine": 0,
            "endLine": 3,
            "members": [
                {"name": "B", "kind": "class", "startLine": 1, "endLine": 2},
                {"name": "x", "kind": "attribute", "startLine": 3, "endLine": 3},
            ],
        },
        {
            "kind": "class",
            "name": "A.B",
            "startLine": 1,
            "endLine": 2,
            "members": [{"name": "C", "kind": "class", "startLine": 2, "endLine": 2}],
        },
        {"kind": "class", "name": "A.B.C", "startLine": 2, "endLine": 2, "members": []},
        {
            "kind": "class",
            "name": "D",
            "startLine": 6,
            "endLine": 9,
            "members": [{"name": "m", "kind": "method", "startLine": 7, "endLine": 9}],
        },
    ]


SAMPLE = python(
    '''\
    #!/usr/bin/env python
    """The module.

        An example.
    """

    LIMIT: Final = 10
    """How much."""

    TABLE = {
        1: 2,
    }
    # a comment
    "Not for the table."
    """Nor this."""

    async def fetch(url: str, *, retries: int = 3) -> bytes:
        """Fetch it.

        And return it.
        """

    @overload
    def parse(a: int) -> int:
        """Of a number."""
    @overload
    def parse(a: str) -> str:
        """Of a text."""
    def parse(a): return a

    @dataclass(frozen=True)
    class Shape[T](Base, metaclass=Meta):
        r"""A \\shape."""

        size: int = 1
        """How big."""

        @property
        def area(
            self,
        ) -> int:  # why
            # not a docstring
            """How much of it."""
            return 1

        def fetch(self): f"""No {docstring}."""
        def other(self): b"Nor this."
        def third(self): "This" "counts not."

        class Inner:
            def deep(self): "Deep."

    type Pair[T] = tuple[T, T]
    left, (right, *rest) = load()
    square = lambda x: x * x
    def empty(): ...
    '''
)

SIGNATURES = {
    "function": ("fetch", "async def fetch(url: str, *, retries: int = 3) -> bytes"),
    "overloads": (
        "parse",
        "@overload\ndef parse(a: int) -> int\n@overload\ndef parse(a: str) -> str\ndef parse(a)",
    ),
    "class": ("Shape", "@dataclass(frozen=True)\nclass Shape[T](Base, metaclass=Meta)"),
    "attribute": ("size", "size: int = 1"),
    "property over several lines": ("area", "@property\ndef area(\n    self,\n) -> int"),
    "member that a function hides": ("Shape.fetch", "def fetch(self)"),
    "member of a nested class": ("Shape.Inner.deep", "def deep(self)"),
    "member without its class": ("deep", "def deep(self)"),
    "constant": ("LIMIT", "LIMIT: Final = 10"),
    "long value": ("TABLE", "TABLE"),
    "type": ("Pair", "type Pair[T] = tuple[T, T]"),
    "nested target": ("rest", "left, (right, *rest) = load()"),
    "lambda": ("square", "square = lambda x: x * x"),
    "unknown": ("missing", ""),
    "the module": ("", ""),
}


@pytest.mark.parametrize(("name", "expected"), SIGNATURES.values(), ids=SIGNATURES)
async def test_signature_of(name: str, expected: str) -> None:
    assert await SAMPLE.py_signature(name) == expected


DOCSTRINGS = {
    "module": ("", "The module.\n\nAn example."),
    "function": ("fetch", "Fetch it.\n\nAnd return it."),
    "overloads": ("parse", "Of a number.\n\nOf a text."),
    "raw": ("Shape", "A \\shape."),
    "constant": ("LIMIT", "How much."),
    "comments may stand between": ("TABLE", "Not for the table."),
    "attribute": ("Shape.size", "How big."),
    "property": ("area", "How much of it."),
    "nested": ("Shape.Inner.deep", "Deep."),
    "interpolated text is none": ("Shape.fetch", ""),
    "bytes are none": ("Shape.other", ""),
    "joined texts are not read": ("Shape.third", ""),
    "none": ("empty", ""),
    "unknown": ("missing", ""),
}


@pytest.mark.parametrize(("name", "expected"), DOCSTRINGS.values(), ids=DOCSTRINGS)
async def test_docstring_of(name: str, expected: str) -> None:
    assert await SAMPLE.py_docstring(name) == expected


def test_string_behind_an_assignment_documents_every_name() -> None:
    text = "a = b = 1\n# why\n'Both.'\n'Neither.'\nc = 2\n"

    both = [(text.index("Both."), text.index("Both.") + 5)]
    assert facts(text)["docs"] == {"a": both, "b": both, "c": [], "": []}


async def test_docstring_of_the_module_needs_no_name() -> None:
    assert await SAMPLE.py_docstring() == "The module.\n\nAn example."
    assert await python("a = 1").py_docstring() == ""
    assert await python("").py_docstring() == ""


REFERENCES = {
    "every role": ("import a.b as c\nc.a(a=a)\ndef a(a: a) -> a: ...", "a", [7, 2, 4, 6, 4, 6, 9, 15]),
    "only whole names": ("a + aa + _a + a1 + ä + aä + a", "a", [0, 28]),
    "not in strings and comments": ("'a'  # a\nb'a'", "a", []),
    "in f-strings": ("f'a {a} {b!r:{a}}'", "a", [5, 14]),
    "soft keywords": ("match = type = 1\nprint(match)", "match", [0, 6]),
    "in broken code": ("def a(:\n  a = (a", "a", [4, 2, 7]),
    "keywords are no names": ("if a: ...", "if", []),
}


@pytest.mark.parametrize(("text", "name", "columns"), REFERENCES.values(), ids=REFERENCES)
def test_references_in(text: str, name: str, columns: list[int]) -> None:
    found = answer({"language": "py", "name": name}, text.encode())["references"]

    assert [column for _, column in found] == columns


async def test_references_count_lines_from_zero_and_columns_in_utf16() -> None:
    artifact = python("s = '😀é'; b = s\r\nif b:\n\tb")

    assert await artifact.py_references("b") == [
        {"line": 0, "column": 11},
        {"line": 1, "column": 3},
        {"line": 2, "column": 1},
    ]


BROKEN = {
    "bad heading": ("import a\ndef f(x:\n    return 1\ndef g(): pass", ["function f", "function g"]),
    "heading alone": ("async def f(\n", ["function f"]),
    "class alone": ("class A(", ["class A"]),
    "one heading behind the other": ("async def a([\nasync def b(\n", ["function a", "function b"]),
    "unclosed call": ("def f():\n    return g(\ndef h(): pass", ["function f", "function h"]),
    "unclosed list in a function": ("def f(a, b):\n    x = [1, 2,", ["function f"]),
    "unclosed everything": (
        "import os\ndef f(): pass\nclass D(B):\n    def a(self):\n        if x:\n            y = {'a': [",
        ["function f", "class D"],
    ),
    "missing value": ("x =\ny = 2\n", ["variable x", "variable y"]),
    "unclosed text": ('x = """a\ndef f(): pass', ["variable x", "function f"]),
    "old print": ('print "a"\ndef f(): pass', ["function f"]),
    "decorator alone": ("@dec\n", []),
    "nothing has a name": ("def (): pass\nclass : pass\n= 3\na = 1", ["variable a"]),
    "indentation that fits nothing": ("def f():\n\treturn 1\n  def g(): pass", ["function f", "function g"]),
}


@pytest.mark.parametrize(("text", "expected"), BROKEN.values(), ids=BROKEN)
def test_broken_code_still_shows(text: str, expected: list[str]) -> None:
    assert [f"{each['kind']} {each['name']}" for each in facts(text)["symbols"]] == expected


REMAINS = {
    "class without structure": (
        "import os\nclass D(B):\n    @dec\n    def a(self):\n        return 1\n    def b(self):\n        def inner():\n"
        "            y = {'a': [",
        ["a method", "b method"],
    ),
    "member without structure": ("class D:\n    def a(self): pass\n    def b(self, ", ["a method", "b method"]),
    "class behind a class": ("class A: pass\nclass D(B):\n    def b(self):\n        y = {'a': [", ["b method"]),
}


@pytest.mark.parametrize(("text", "expected"), REMAINS.values(), ids=REMAINS)
def test_class_that_is_cut_short_keeps_what_was_read(text: str, expected: list[str]) -> None:
    found = facts(text)

    assert found["outline"][-1]["name"] == "D"
    assert [f"{each['name']} {each['kind']}" for each in found["outline"][-1]["members"]] == expected


async def test_signature_of_what_is_cut_short() -> None:
    artifact = python("class D(Base):\n    def b(self):\n        if x:\n            y = {'a': [")

    assert await artifact.py_signature("D") == "class D(Base)"
    assert await artifact.py_signature("D.b") == "def b(self)"


async def test_symbols_are_narrowed_by_kind() -> None:
    artifact = python("class A: ...\na = 1\n", file_name="a.py")

    assert artifact.file_name == "a.py"
    assert [each["name"] for each in await artifact.py_symbols("class")] == ["A"]
    assert [each["name"] for each in await artifact.py_symbols("")] == ["A", "a"]


ASKED = {
    "symbols": ("symbols", {"kind": "class"}, "[\n  {"),
    "imports": ("imports", {}, '[\n  {\n    "moduleSpecifier": "os"'),
    "exports": ("exports", {}, '[\n  {\n    "name": "A",\n    "kind": "class",\n    "line": 2\n  }\n]'),
    "outline": ("outline", {}, '[\n  {\n    "kind": "class"'),
    "signature": ("signature", {"name": "A.m"}, "def m(self)"),
    "docstring": ("docstring", {"name": "A"}, "A class."),
    "docstring of the module": ("docstring", {}, "A module."),
    "docstring of the module, name empty": ("docstring", {"name": ""}, "A module."),
    "references": ("references", {"name": "os"}, '[\n  {\n    "line": 1'),
}


@pytest.mark.parametrize(("query", "args", "expected"), ASKED.values(), ids=ASKED)
async def test_model_asks_for(query: str, args: dict[str, Any], expected: str) -> None:
    artifact = python('"""A module."""\nimport os\nclass A:\n    """A class."""\n    def m(self): ...\n')

    assert (await ask(artifact, f"artifact_py_{query}", **args)).startswith(expected)


@pytest.mark.parametrize(
    ("query", "args"),
    [("symbols", {"kind": "method"}), ("signature", {}), ("references", {"name": ""})],
    ids=["unknown kind", "no name", "empty name"],
)
async def test_wrong_arguments_are_refused(query: str, args: dict[str, Any]) -> None:
    with pytest.raises(InvalidToolArgs):
        await ask(python("a = 1"), f"artifact_py_{query}", **args)


def test_forged_tools_are_the_base_seven_and_these_seven() -> None:
    forged = SpooledPythonArtifact.forge_tools(turn_with(c1=python("")))
    own = [method.name for method in SpooledPythonArtifact.tool_methods]

    assert own == [
        f"artifact_py_{query}"
        for query in ("symbols", "imports", "exports", "outline", "signature", "docstring", "references")
    ]
    assert [tool.name for tool in forged.all()][-7:] == own
    assert len(forged.all()) == 14


def test_kind_argument_offers_every_kind_and_the_empty_text() -> None:
    tool = SpooledPythonArtifact.forge_tools(turn_with(c1=python(""))).get("artifact_py_symbols")

    assert tool is not None
    assert tool.describe()["input_schema"]["properties"]["kind"]["enum"] == [*PYTHON_SYMBOL_KINDS, ""]
