"""Hostile source code (huge, nested, broken, binary) gives an answer or a clear error, and never kills the gateway."""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.artifacts.formats.source_code.parser_process import answer
from gateway.artifacts.formats.source_code.source_artifact import (
    MAX_SOURCE,
    SpooledEcmascriptArtifact,
    SpooledPythonArtifact,
)
from gateway.artifacts.formats.source_code.source_facts import MAX_ENTRIES
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import AnswerTooLarge, ArtifactError, NotASpoolReader, ToolDownstreamError, TypescriptPeerMissing
from tests.artifacts.formats.document_turns import ask

pytestmark = pytest.mark.anyio

DEEP = 100_000
CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")
NOISE = random.Random(7)


def ecmascript(content: str | bytes) -> SpooledEcmascriptArtifact:
    return SpooledEcmascriptArtifact(InMemoryReader(content))


def python(content: str | bytes) -> SpooledPythonArtifact:
    return SpooledPythonArtifact(InMemoryReader(content))


NESTED_SCRIPTS = {
    "open parentheses": "(" * DEEP,
    "parentheses": "(" * DEEP + "1" + ")" * DEEP,
    "open braces": "{" * DEEP,
    "open arrays": "[" * DEEP,
    "arrays": "[" * DEEP + "]" * DEEP,
    "objects that overflow the stack of the parser": "{a:" * DEEP,
    "comparisons or type arguments": "a<" * DEEP,
    "templates": "`${" * DEEP,
    "classes": "class A{" * DEEP,
    "namespaces": "namespace A{" * DEEP,
    "array patterns": "let " + "[" * DEEP + "a" + "]" * DEEP + " = 1",
    "object patterns": "let " + "{a:" * DEEP + "a" + "}" * DEEP + " = 1",
}


@pytest.mark.parametrize("text", NESTED_SCRIPTS.values(), ids=NESTED_SCRIPTS)
async def test_nested_script_is_answered_or_refused(text: str) -> None:
    try:
        found = await ecmascript(text + "\n;export const after = 1").es_symbols()
    except AnswerTooLarge:
        return
    assert {each["name"] for each in found} <= {"A", "a", "after"}


NESTED_PYTHON = {
    "open parentheses": "(" * DEEP,
    "lists": "x = " + "[" * DEEP + "]" * DEEP,
    "targets": "(" * DEEP + "a" + ",)" * DEEP + " = 1",
    "chained assignments": "a = " * DEEP + "1",
    "f-strings": 'f"{' * DEEP,
    "sums in __all__": "__all__ = " + "['a'] + " * 10_000 + "['b']",
    "blocks": "".join(" " * level + "if x:\n" for level in range(1_000)),
    "classes": "".join(" " * level + "class A:\n" for level in range(1_000)),
    "decorators": "@a\n" * DEEP,
}


@pytest.mark.parametrize("text", NESTED_PYTHON.values(), ids=NESTED_PYTHON)
async def test_nested_python_is_answered_or_refused(text: str) -> None:
    try:
        found = await python(text + "\nafter = 1").py_symbols()
    except AnswerTooLarge:
        return
    assert {each["name"] for each in found} <= {"A", "a", "x", "__all__", "after"}


async def test_nested_targets_are_found_at_any_depth() -> None:
    script = await ecmascript(NESTED_SCRIPTS["array patterns"]).es_symbols()
    module = await python(NESTED_PYTHON["targets"]).py_symbols()

    assert [each["name"] for each in script] == ["a"]
    assert [each["name"] for each in module] == ["a"]


async def test_parser_that_crashes_is_a_clear_error() -> None:
    with pytest.raises(AnswerTooLarge, match="too large or too deeply nested"):
        await ecmascript("{a:" * 4_000_000).es_symbols()


async def test_minified_megabytes_on_one_line_are_answered() -> None:
    line = "!function(){" + "var a=[1,2,{b:c(d)}];" * 50_000 + "}();class Last{}"
    artifact = ecmascript(line)

    assert [each["name"] for each in await artifact.es_symbols()] == ["Last"]
    assert await artifact.es_references("Last") == [{"line": 0, "column": line.index("Last")}]


@pytest.mark.parametrize("make", [ecmascript, python])
async def test_source_past_the_limit_is_refused_unread(make: Callable[[bytes], Any]) -> None:
    artifact = make(b"#" * (MAX_SOURCE + 1))

    with pytest.raises(AnswerTooLarge, match="not parsed") as refused:
        await artifact._facts()
    assert refused.value.help == "read it with artifact_grep and artifact_cat"


async def test_source_that_grows_past_the_limit_when_decoded_is_refused() -> None:
    with pytest.raises(AnswerTooLarge):
        await ecmascript(b"\xff" * (MAX_SOURCE // 2)).es_symbols()


TOO_MANY = {
    "bindings": ("ts", "let " + "a," * MAX_ENTRIES + "b"),
    "members": ("ts", "class A {" + "a;" * MAX_ENTRIES + "}"),
    "imported names": ("ts", "import {" + "a," * (MAX_ENTRIES + 1) + '} from "m"'),
    "exported names": ("ts", "export {" + "a," * (MAX_ENTRIES + 1) + "}"),
    "python imports": ("py", "from a import " + "b," * MAX_ENTRIES + "c"),
    "names in __all__": ("py", "__all__ = [" + "".join(f"'{n}'," for n in range(MAX_ENTRIES + 1)) + "]"),
}


@pytest.mark.parametrize(("language", "text"), TOO_MANY.values(), ids=TOO_MANY)
def test_more_names_than_an_answer_carries_are_refused(language: str, text: str) -> None:
    assert answer({"language": language}, text.encode()) == {
        "refused": f"the source declares more than {MAX_ENTRIES} names"
    }


def test_more_references_than_an_answer_carries_are_refused() -> None:
    text = "a;" * (MAX_ENTRIES + 1)

    assert answer({"language": "js", "name": "a"}, text.encode()) == {
        "refused": f"the source mentions the name more than {MAX_ENTRIES} times"
    }


async def test_parsing_that_takes_too_long_is_stopped() -> None:
    class Hurried(SpooledEcmascriptArtifact):
        time_limit = 0.01

    with pytest.raises(AnswerTooLarge, match=r"parsing took more than 0\.01 seconds"):
        await Hurried(InMemoryReader("a<" * DEEP)).es_symbols()


async def test_refusal_reaches_the_model_as_a_failed_call() -> None:
    with pytest.raises(ToolDownstreamError) as failed:
        await ask(ecmascript("a;" * (MAX_ENTRIES + 1)), "artifact_es_references", name="a")
    assert isinstance(failed.value.cause, AnswerTooLarge)


ODD_BYTES: dict[str, tuple[bytes, list[tuple[str, int]]]] = {
    "empty": (b"", []),
    "blank": (b" \r\n\t\n", []),
    "byte-order mark": (b"\xef\xbb\xbflet a", [("a", 0)]),
    "carriage returns": (b"let a\r\nlet b\r\n", [("a", 0), ("b", 1)]),
    "only carriage returns": (b"let a\rlet b\r", [("a", 0), ("b", 0)]),
    "invalid text": (b"let a = '\xff\xfe';\nlet b", [("a", 0), ("b", 1)]),
    "cut character": (b"let a\nlet b = '\xe2\x82", [("a", 0), ("b", 1)]),
    "NUL": (b"let a\0 = 1;\0\nlet b", [("a", 0), ("b", 1)]),
    "nothing but NUL": (b"\0" * 1_000, []),
    "hash-bang": (b"#!/usr/bin/env node\nlet a", [("a", 1)]),
    "noise": (NOISE.randbytes(50_000), []),
}


@pytest.mark.parametrize(("content", "expected"), ODD_BYTES.values(), ids=ODD_BYTES)
async def test_odd_bytes_in_a_script(content: bytes, expected: list[tuple[str, int]]) -> None:
    found = await ecmascript(content).es_symbols()

    assert [(each["name"], each["startLine"]) for each in found] == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\xef\xbb\xbfa = 1\r\nb = 2\r\n", [("a", 0), ("b", 1)]),
        (b"a = '\xff'\n\0\nb = 1", [("a", 0), ("b", 2)]),
        (NOISE.randbytes(50_000), []),
    ],
    ids=["empty", "mark and carriage returns", "invalid text and NUL", "noise"],
)
async def test_odd_bytes_in_python(content: bytes, expected: list[tuple[str, int]]) -> None:
    found = await python(content).py_symbols()

    assert [(each["name"], each["startLine"]) for each in found] == expected


FRAGMENTS = st.sampled_from(
    [
        *("export", "default", "class", "function", "const", "import", "interface", "type", "enum", "async", "from"),
        *(
            "def",
            "if",
            "else:",
            "try:",
            "@a",
            "lambda",
            "__all__",
            "TYPE_CHECKING",
            "'s'",
            '"""',
            "`",
            "${",
            "/**",
            "*/",
        ),
        *("a", "b", "Ä", "😀", "1", "=", "=>", ":", ",", ";", ".", "*", "<", ">", "{", "}", "(", ")", "[", "]"),
        *("\n", "\n    ", "\r\n", "\t", " ", "#", "//", "\0"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(FRAGMENTS, max_size=60).map(" ".join), st.sampled_from(["js", "ts", "tsx", "py"]))
def test_any_text_gets_facts_that_lie_inside_it(text: str, language: str) -> None:
    data = text.encode()
    last = data.count(b"\n")

    facts = answer({"language": language}, data)["facts"]

    listed = [*facts["symbols"], *facts["outline"], *(each for one in facts["outline"] for each in one["members"])]
    assert all(0 <= each["startLine"] <= each["endLine"] <= last for each in listed)
    places = [span for pieces in facts["signatures"].values() for spans in pieces for span in spans]
    places += [span for spans in facts["docs"].values() for span in spans]
    assert all(0 <= start <= end <= len(data) and data[start:end].decode() is not None for start, end in places)
    assert all(each["name"] for each in listed)
    assert {each["name"] for each in facts["symbols"]} <= facts["signatures"].keys()


@settings(max_examples=100, deadline=None)
@given(st.lists(FRAGMENTS, max_size=60).map(" ".join), st.sampled_from(["js", "ts", "tsx", "py"]))
def test_every_reference_is_where_the_name_is(text: str, language: str) -> None:
    lines = [line.encode("utf-16-le") for line in text.split("\n")]

    for line, column in answer({"language": language, "name": "Ä"}, text.encode())["references"]:
        assert lines[line][2 * column : 2 * column + 2].decode("utf-16-le") == "Ä"


def test_an_artifact_needs_a_reader() -> None:
    with pytest.raises(NotASpoolReader):
        SpooledPythonArtifact("a = 1")  # type: ignore[arg-type]  # that is the point


async def test_a_reader_may_be_asynchronous() -> None:
    class Slow(InMemoryReader):
        async def read_all(self) -> str:  # type: ignore[override]  # readers may be sync or async
            return "let \ud800a; let b"

    assert [each["name"] for each in await SpooledEcmascriptArtifact(Slow("?")).es_symbols()][-1:] == ["b"]


async def test_name_with_half_a_character_is_no_identifier() -> None:
    assert await ecmascript("let a = '\ufffd'").es_references("\ud800") == []


async def test_queries_may_run_side_by_side() -> None:
    artifact = ecmascript("let a; function f() {}")

    answers = await asyncio.gather(*(artifact.es_symbols("let") for _ in range(4)), artifact.es_references("a"))

    assert all(len(each) == 1 for each in answers)


@pytest.mark.skipif(not CHILDREN.exists(), reason="this system does not list a process's children")
async def test_cancelled_query_ends_its_process() -> None:
    before = CHILDREN.read_text()
    query = asyncio.ensure_future(ecmascript("a<" * DEEP + "b").es_references("b"))

    with anyio.fail_after(60):
        while CHILDREN.read_text() == before:
            await asyncio.sleep(0)
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query
    assert CHILDREN.read_text() == before


BLOCKED = """
import asyncio, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            {how}

sys.meta_path.insert(0, Block())

from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import TypescriptPeerMissing
from gateway.artifacts.formats.source_code.source_artifact import SpooledEcmascriptArtifact
from gateway.artifacts.formats.source_code.source_artifact import SpooledPythonArtifact

async def main():
    text = InMemoryReader("a = 1")
    for query in (SpooledEcmascriptArtifact(text).es_symbols, SpooledPythonArtifact(text).py_symbols):
        try:
            await query()
            print("answered")
        except TypescriptPeerMissing as error:
            print(error.code, "|", error.message, "|", error.help)

asyncio.run(main())
"""


def missing(module: str, how: str) -> list[str]:
    script = BLOCKED.replace("{how}", how)
    run = subprocess.run([sys.executable, "-c", script, module], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_missing_parser_is_named_with_what_to_install() -> None:
    lines = missing("tree_sitter", "raise ModuleNotFoundError(f'no module named {name!r}')")

    assert (
        lines
        == [
            "E_TYPESCRIPT_PEER_MISSING | the source code parser cannot be loaded: no module named 'tree_sitter' | "
            "install tree-sitter, tree-sitter-javascript, tree-sitter-typescript and tree-sitter-python"
        ]
        * 2
    )


def test_missing_grammar_concerns_its_language_alone() -> None:
    typescript, python = missing("tree_sitter_typescript", "raise ImportError('no such grammar')")

    assert typescript.startswith("E_TYPESCRIPT_PEER_MISSING | the source code parser cannot be loaded: no such grammar")
    assert python == "answered"


def test_uninstalled_parser_is_missing_as_well() -> None:
    hidden = "sys.meta_path[:] = [self]\n            return None"

    assert all("no module named 'tree_sitter'" in line for line in missing("tree_sitter", hidden))


async def test_parser_that_does_not_load_in_the_worker_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree_sitter_python.py").write_text("raise ImportError('wrong architecture')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(TypescriptPeerMissing, match="wrong architecture"):
        await python("a = 1").py_symbols()


def test_worker_reports_a_grammar_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_javascript", None)

    assert list(answer({"language": "js"}, b"")) == ["missing"]


def test_worker_reports_that_memory_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def language() -> object:
        raise MemoryError

    monkeypatch.setitem(sys.modules, "tree_sitter_javascript", SimpleNamespace(language=language))

    assert answer({"language": "js"}, b"") == {"refused": "the source needs too much memory to be parsed"}


async def test_worker_that_fails_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree_sitter_python.py").write_text("raise RuntimeError('a bug')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ArtifactError, match="the source code parser failed") as failed:
        await python("a = 1").py_symbols()
    assert "a bug" in str(failed.value.cause)


async def test_worker_that_runs_out_of_memory_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree_sitter_python.py").write_text("def language(): raise MemoryError")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(AnswerTooLarge, match="too much memory"):
        await python("a = 1").py_symbols()


async def test_worker_does_not_inherit_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree_sitter_python.py").write_text("import os\nraise ImportError(' '.join(sorted(os.environ)))")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("UPSTREAM_TOKEN", "s3cret")

    with pytest.raises(TypescriptPeerMissing) as missing:
        await python("a = 1").py_symbols()
    assert "PYTHONPATH" in missing.value.message
    assert "UPSTREAM_TOKEN" not in missing.value.message


def test_worker_limits_itself_and_answers_one_request() -> None:
    script = (
        "import resource\nfrom gateway.artifacts.formats.source_code.parser_process import main\nmain()\n"
        "print()\nprint(*(resource.getrlimit(which)[0] for which in "
        "(resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_AS)))"
    )

    run = subprocess.run(
        [sys.executable, "-c", script], input=b'{"language": "py", "name": "a"}\na = a', capture_output=True, check=True
    )

    answered, limits = run.stdout.splitlines()
    assert json.loads(answered) == {"references": [[0, 0], [0, 4]]}
    assert limits == b"0 30 2147483648"


async def test_many_queries_at_once_share_a_few_parsing_processes() -> None:
    """A parser may take gigabytes, so only a few run at once; the other queries wait, and all are answered."""
    artifacts = [SpooledPythonArtifact(InMemoryReader(f"def f{n}(): pass\n")) for n in range(6)]

    symbols = await asyncio.gather(*(artifact.py_symbols() for artifact in artifacts))

    assert [found[0]["name"] for found in symbols] == [f"f{n}" for n in range(6)]
