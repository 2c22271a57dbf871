"""The process in which source code is parsed: one request on stdin, one answer on stdout.

A parser written in C is a hazard to the process it runs in: nested text overflows its stack (300 KB of
`{a:` are enough), a tree takes up to 240 times the memory of its text, and it holds the interpreter's
lock all the while. Here that ends one short-lived process with limits of its own. The gateway's side
is `source`.
"""

import json
import resource
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from gateway.formats.ecmascript_syntax import IDENTIFIERS, ecmascript_facts
from gateway.formats.python_syntax import python_facts
from gateway.formats.syntax import GRAMMARS, MAX_SECONDS, Node, Source, TooManyEntries, references

MAX_MEMORY: Final = 2 << 30
_STACK: Final = 512 << 20
"""Reserved, not used: the parser recurses once per level of nesting in an ambiguous text."""


def main() -> None:
    _limit(resource.RLIMIT_CORE, 0)  # a crash must not leave the source in a file
    _limit(resource.RLIMIT_CPU, MAX_SECONDS)
    _limit(resource.RLIMIT_AS, MAX_MEMORY)
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def answer(request: dict[str, Any], data: bytes) -> dict[str, Any]:
    """`{"facts": …}` of a source, or `{"references": …}` to the name in the request, or why there are none."""
    try:
        root = parse(request["language"], data)
        if (name := request.get("name")) is not None:
            kinds = {"identifier"} if request["language"] == "py" else IDENTIFIERS
            return {"references": references(root, data, name=name, kinds=kinds)}
        facts = python_facts if request["language"] == "py" else ecmascript_facts
        return {"facts": vars(facts(root, Source(data)))}
    except ImportError as error:
        return {"missing": str(error)}
    except TooManyEntries as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": "the source needs too much memory to be parsed"}


def parse(language: str, data: bytes) -> Node:
    """The root of the syntax tree; there is always one, with ERROR nodes where the text makes no sense."""
    library = import_module("tree_sitter")
    module, function = GRAMMARS[language]
    grammar = library.Language(getattr(import_module(module), function)())
    root: Node = library.Parser(grammar).parse(data).root_node
    return root


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    with suppress(ValueError, OSError):  # some systems refuse some limits; the caller's time limit remains
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _serve() -> None:
    header, _, data = sys.stdin.buffer.read().partition(b"\n")
    sys.stdout.write(json.dumps(answer(json.loads(header), data)))
