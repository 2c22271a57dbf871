"""SourceArtifact: what the artifacts for source code share, whatever the language.

The text is parsed in a process of its own (`source_worker`), which may crash, hang or run out of memory
without consequence here. What comes back are facts and places; those are kept, the text is not. Lines
count from 0 and end at `\\n` alone; columns count UTF-16 units, as JavaScript and editors do.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

from gateway.core.artifacts import SpooledArtifact, ToolMethod
from gateway.core.lines import encode
from gateway.core.registry import copy_containers
from gateway.core.spool import SpoolReader
from gateway.errors import AnswerTooLarge, ArtifactError, TypescriptPeerMissing
from gateway.formats.syntax import GRAMMARS, MAX_SECONDS, Facts, Span

MAX_SOURCE: Final = 16 << 20
"""Bytes. A syntax tree takes up to 240 times the memory of its text, and seconds per megabyte."""

MAX_WORKERS: Final = 2
"""Parsing processes at a time: each may take gigabytes, so further queries wait their turn."""

_SLOTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()
_OTHER_WAYS: Final = "read it with artifact_grep and artifact_cat"
_HERE: Final = Path(__file__).parent
# Our packages as bare folders: what they import on their own would treble the time to start.
_START: Final = """\
import sys, types
for name, folder in zip(("gateway", "gateway.formats"), sys.argv[1:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from gateway.formats.source_worker import main
main()
"""
_DEEPEST_INDENT: Final = 256
_INHERITED: Final = ("LD_LIBRARY_PATH",)  # nothing else: the gateway's environment holds secrets


def source_query(method: str, what: str, *, required: str | None = None, **arguments: dict[str, Any]) -> ToolMethod:
    """The descriptor of one query; `required` is the argument that has to be given."""
    schema = {"type": "object", "properties": arguments, "required": [required] if required else []}
    about = f"Queries source code of this turn, selected by callId. {what}"
    return ToolMethod(f"artifact_{method}", method, about, schema if arguments else None)


def kind_argument(kinds: Iterable[str]) -> dict[str, Any]:
    return {"type": "string", "enum": [*kinds, ""], "description": "Only this kind; all kinds if empty or not given."}


def name_argument(whose: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": whose}


class SourceArtifact(SpooledArtifact):
    """Source code. Subclasses say which language it is in and name the queries."""

    time_limit: ClassVar[float] = MAX_SECONDS

    def __init__(self, reader: SpoolReader, *, file_name: str | None = None) -> None:
        super().__init__(reader)
        self.file_name = file_name
        self._known: Facts | None = None

    @property
    def language(self) -> str:
        """A key of `GRAMMARS`."""
        raise NotImplementedError

    async def _facts(self) -> Facts:
        if self._known is None:
            answer = await _ask({"language": self.language}, await self._source(), seconds=self.time_limit)
            self._known = Facts(**answer["facts"])
        return self._known

    async def _symbols(self, kind: str | None) -> list[dict[str, Any]]:
        symbols = (await self._facts()).symbols
        return [dict(symbol) for symbol in symbols if not kind or symbol["kind"] == kind]

    async def _list(self, which: str) -> list[dict[str, Any]]:
        copied: list[dict[str, Any]] = copy_containers(getattr(await self._facts(), which))
        return copied

    async def _signature(self, name: str) -> str:
        """Every declaration of that name, one after the other: overloads belong together."""
        declarations = (await self._facts()).signatures.get(name, [])
        if not declarations:
            return ""
        source = await self._source()
        return "\n".join("".join(_cut(source, pieces)) for pieces in declarations)

    async def _docs(self, name: str) -> list[str]:
        places = (await self._facts()).docs.get(name, [])
        return _cut(await self._source(), places) if places else []

    async def _references(self, name: str) -> list[dict[str, int]]:
        if not name:
            return []
        source, wanted = await self._source(), encode(name)
        if wanted not in source:  # no need to parse
            return []
        answer = await _ask({"language": self.language, "name": wanted.decode()}, source, seconds=self.time_limit)
        return [{"line": line, "column": column} for line, column in answer["references"]]

    async def _source(self) -> bytes:
        """The text as it is parsed: without a byte-order mark, and valid UTF-8."""
        if await self.byte_length() <= MAX_SOURCE:
            source = encode(await self.as_string())
            if len(source) <= MAX_SOURCE:  # repairing invalid bytes makes a text longer
                return source
        raise AnswerTooLarge(f"source code of more than {MAX_SOURCE} bytes is not parsed", help=_OTHER_WAYS)


def _cut(source: bytes, spans: list[Span]) -> list[str]:
    return [_dedented(source, start, end).decode() for start, end in spans]


def _dedented(source: bytes, start: int, end: int) -> bytes:
    """A piece of the source with its first line's indentation taken off the others."""
    before = source[max(start - _DEEPEST_INDENT, 0) : start]
    indent = before[before.rfind(b"\n") + 1 :]
    piece = source[start:end]
    return piece.replace(b"\n" + indent, b"\n") if indent.isspace() else piece


async def _ask(request: dict[str, Any], source: bytes, *, seconds: float) -> dict[str, Any]:
    _require(request["language"])
    async with _SLOTS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_WORKERS)):
        return await _ask_worker(request, source, seconds=seconds)


async def _ask_worker(request: dict[str, Any], source: bytes, *, seconds: float) -> dict[str, Any]:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-PS",  # nothing from the working directory, and no start-up hooks
        "-c",
        _START,
        *map(str, (_HERE.parent, _HERE)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(seconds):
            output, complaint = await worker.communicate(json.dumps(request).encode() + b"\n" + source)
    except TimeoutError as error:
        raise AnswerTooLarge(f"parsing took more than {seconds:g} seconds", help=_OTHER_WAYS) from error
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    if (worker.returncode or 0) < 0:  # a signal: out of stack, memory or time
        raise AnswerTooLarge("the source is too large or too deeply nested to be parsed", help=_OTHER_WAYS)
    if not output:
        raise ArtifactError("the source code parser failed", cause=RuntimeError(complaint.decode("utf-8", "replace")))
    answer: dict[str, Any] = json.loads(output)
    if missing := answer.get("missing"):
        raise _missing(missing)
    if refused := answer.get("refused"):
        raise AnswerTooLarge(refused, help=_OTHER_WAYS)
    return answer


def _require(language: str) -> None:
    for module in ("tree_sitter", GRAMMARS[language][0]):
        try:
            found = find_spec(module)
        except ImportError as error:
            raise _missing(str(error)) from error
        if found is None:
            raise _missing(f"no module named {module!r}")


def _missing(reason: str) -> TypescriptPeerMissing:
    return TypescriptPeerMissing(
        f"the source code parser cannot be loaded: {reason}",
        help="install tree-sitter, tree-sitter-javascript, tree-sitter-typescript and tree-sitter-python",
    )


def _environment() -> dict[str, str]:
    """The worker imports what this process would, and inherits next to nothing else."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
