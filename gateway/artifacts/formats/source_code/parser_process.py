"""The process that parses source code: one request on stdin, one answer on stdout.

A parser written in C endangers its process: nested text overflows its stack (300 KB of `{a:` are enough),
a tree needs up to 240 times the memory of its text, and the parser holds the interpreter's lock all the
time. Here it can only end a short-lived process that has its own limits. `source_artifact` starts this process.
"""

import json
import resource
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from gateway.artifacts.formats.source_code.ecmascript_declarations import IDENTIFIERS, extract_ecmascript_facts
from gateway.artifacts.formats.source_code.python_declarations import extract_python_facts
from gateway.artifacts.formats.source_code.source_facts import (
    GRAMMARS,
    MAX_SECONDS,
    SourceText,
    SyntaxNode,
    TooManyEntries,
    find_references,
)

MAX_MEMORY: Final = 2 << 30
_STACK: Final = 512 << 20
"""Reserved, hardly ever used: the parser recurses once per level of nesting in an ambiguous text."""


def main() -> None:
    _limit(resource.RLIMIT_CORE, 0)  # a crash must not leave the source in a file
    _limit(resource.RLIMIT_CPU, MAX_SECONDS)
    _limit(resource.RLIMIT_AS, MAX_MEMORY)
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def answer(request: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Return `{"facts": …}` of a source, `{"references": …}` to the name in the request, or the reason of a failure."""
    try:
        root = parse(request["language"], data)
        if (name := request.get("name")) is not None:
            kinds = {"identifier"} if request["language"] == "py" else IDENTIFIERS
            return {"references": find_references(root, data, name=name, kinds=kinds)}
        facts = extract_python_facts if request["language"] == "py" else extract_ecmascript_facts
        return {"facts": vars(facts(root, SourceText(data)))}
    except ImportError as error:
        return {"missing": str(error)}
    except TooManyEntries as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "the source needs too much memory to be parsed"}


def parse(language: str, data: bytes) -> SyntaxNode:
    """Return the root of the syntax tree; it has ERROR nodes where the text cannot be parsed."""
    library = import_module("tree_sitter")
    module, function = GRAMMARS[language]
    grammar = library.Language(getattr(import_module(module), function)())
    root: SyntaxNode = library.Parser(grammar).parse(data).root_node
    return root


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    with suppress(ValueError, OSError):  # some systems refuse some limits; the caller's time limit remains
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _serve() -> None:
    header, _, data = sys.stdin.buffer.read().partition(b"\n")
    sys.stdout.write(json.dumps(answer(json.loads(header), data)))
