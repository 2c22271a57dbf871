r"""Artifacts of source code, queried by declarations: SpooledEcmascriptArtifact and SpooledPythonArtifact.

A separate process (`worker`) parses the text, so that a crash, a hang or a lack of memory does not affect the
gateway. It returns facts and positions; these are cached, the text is not. Lines count from 0 and end at `\n`
only; columns count UTF-16 units, as JavaScript and editors do.

Parsing is syntax only and error tolerant: names are not resolved, types are not checked, and a truncated file
gives the declarations that were recognised. Python source may be of any version. `ecmascript_declarations` and
`python_declarations` describe how a syntax tree is read; their answers have the same shapes.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterable
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final, Literal, get_args
from weakref import WeakKeyDictionary

from gateway.artifacts.formats.source_code.python_declarations import MODULE
from gateway.artifacts.formats.source_code.source_facts import GRAMMARS, MAX_SECONDS, ByteSpan, Facts
from gateway.artifacts.indexed_reader import encode_utf8
from gateway.artifacts.query_tools import ToolMethod
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.errors import AnswerTooLarge, ArtifactError, TypescriptPeerMissing
from gateway.model import SpoolReader, deep_copy_containers

MAX_SOURCE: Final = 16 << 20
"""Bytes. A syntax tree needs up to 240 times the memory of its text, and seconds per megabyte."""

MAX_WORKERS: Final = 2
"""Concurrent parsing processes: each may need gigabytes, so further queries wait."""

_SLOTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = WeakKeyDictionary()
_OTHER_WAYS: Final = "read it with artifact_grep and artifact_cat"
_HERE: Final = Path(__file__).parent
# Packages without their `__init__`: its imports would treble the start time.
_START: Final = """\
import sys, types
names = ("gateway", "gateway.artifacts", "gateway.artifacts.formats", "gateway.artifacts.formats.source_code")
for name, folder in zip(names, sys.argv[1:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from gateway.artifacts.formats.source_code.parser_process import main
main()
"""
_DEEPEST_INDENT: Final = 256
_INHERITED: Final = ("LD_LIBRARY_PATH",)  # nothing else: the gateway's environment holds secrets


def source_tool_method(
    method: str, what: str, *, required: str | None = None, **arguments: dict[str, Any]
) -> ToolMethod:
    """Return the descriptor of one query; `required` is the mandatory argument."""
    schema = {"type": "object", "properties": arguments, "required": [required] if required else []}
    about = f"Queries source code of this turn, selected by callId. {what}"
    return ToolMethod(f"artifact_{method}", method, about, schema if arguments else None)


def kind_argument(kinds: Iterable[str]) -> dict[str, Any]:
    return {"type": "string", "enum": [*kinds, ""], "description": "Only this kind; all kinds if empty or not given."}


def name_argument(whose: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": whose}


class SourceArtifact(SpooledArtifact):
    """Source code. Subclasses define the language and the queries."""

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
            answer = await _request({"language": self.language}, await self._source(), seconds=self.time_limit)
            self._known = Facts(**answer["facts"])
        return self._known

    async def _symbols(self, kind: str | None) -> list[dict[str, Any]]:
        symbols = (await self._facts()).symbols
        return [dict(symbol) for symbol in symbols if not kind or symbol["kind"] == kind]

    async def _list(self, which: str) -> list[dict[str, Any]]:
        copied: list[dict[str, Any]] = deep_copy_containers(getattr(await self._facts(), which))
        return copied

    async def _signature(self, name: str) -> str:
        """Return every declaration of that name, one per line: overloads belong together."""
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
        source, wanted = await self._source(), encode_utf8(name)
        if wanted not in source:  # no need to parse
            return []
        answer = await _request({"language": self.language, "name": wanted.decode()}, source, seconds=self.time_limit)
        return [{"line": line, "column": column} for line, column in answer["references"]]

    async def _source(self) -> bytes:
        """Return the text for the parser: valid UTF-8 without a byte-order mark."""
        if await self.byte_length() <= MAX_SOURCE:
            source = encode_utf8(await self.as_string())
            if len(source) <= MAX_SOURCE:  # repairing invalid bytes makes a text longer
                return source
        raise AnswerTooLarge(f"source code of more than {MAX_SOURCE} bytes is not parsed", help=_OTHER_WAYS)


def _cut(source: bytes, spans: list[ByteSpan]) -> list[str]:
    return [_dedent(source, start, end).decode() for start, end in spans]


def _dedent(source: bytes, start: int, end: int) -> bytes:
    """Return a part of the source; the indentation of its first line is removed from the other lines."""
    before = source[max(start - _DEEPEST_INDENT, 0) : start]
    indent = before[before.rfind(b"\n") + 1 :]
    piece = source[start:end]
    return piece.replace(b"\n" + indent, b"\n") if indent.isspace() else piece


async def _request(request: dict[str, Any], source: bytes, *, seconds: float) -> dict[str, Any]:
    _require(request["language"])
    async with _SLOTS.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_WORKERS)):
        return await _request_worker(request, source, seconds=seconds)


async def _request_worker(request: dict[str, Any], source: bytes, *, seconds: float) -> dict[str, Any]:
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-PS",  # nothing from the working directory, and no start-up hooks
        "-c",
        _START,
        *map(str, (_HERE.parents[2], _HERE.parents[1], _HERE.parent, _HERE)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(seconds):
            output, stderr = await worker.communicate(json.dumps(request).encode() + b"\n" + source)
    except TimeoutError as error:
        raise AnswerTooLarge(f"parsing took more than {seconds:g} seconds", help=_OTHER_WAYS) from error
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    if (worker.returncode or 0) < 0:  # a signal: out of stack, memory or time
        raise AnswerTooLarge("the source is too large or too deeply nested to be parsed", help=_OTHER_WAYS)
    if not output:
        raise ArtifactError("the source code parser failed", cause=RuntimeError(stderr.decode("utf-8", "replace")))
    answer: dict[str, Any] = json.loads(output)
    if missing := answer.get("missing"):
        raise _missing(missing)
    if refusal := answer.get("refused"):
        raise AnswerTooLarge(refusal, help=_OTHER_WAYS)
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
    """Return the environment of the worker: the import path of this process, and almost nothing else."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


ScriptKind = Literal["js", "jsx", "ts", "tsx"]

ECMASCRIPT_SYMBOL_KINDS: Final = ("function", "class", "interface", "type", "enum", "const", "let", "var")

_BY_EXTENSION: Final[dict[str, ScriptKind]] = {
    ".cjs": "js",
    ".cts": "ts",
    ".js": "js",
    ".jsx": "jsx",
    ".mjs": "js",
    ".mts": "ts",
    ".ts": "ts",
    ".tsx": "tsx",
}
_DECLARED: Final = name_argument("A declared name, or Class.member for a member of one class.")


class SpooledEcmascriptArtifact(SourceArtifact):
    """JavaScript or TypeScript. Without `script_kind` the file name decides; the default is `ts`.

    Lines count from 0 and `endLine` is inclusive; columns count UTF-16 units. Symbols and signatures
    of a variable are those of its declarator; a default export without a name is called `default`.
    """

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        source_tool_method(
            "es_symbols",
            "Lists the top-level declarations: kind, name, whether exported, first and last line (from 0).",
            kind=kind_argument(ECMASCRIPT_SYMBOL_KINDS),
        ),
        source_tool_method("es_imports", "Lists its import statements: module and local names."),
        source_tool_method("es_exports", "Lists its export statements: exported names, and the module if re-exported."),
        source_tool_method("es_outline", "Lists its classes and interfaces with their members and lines (from 0)."),
        source_tool_method(
            "es_signature",
            "Returns the text of a declaration without its body; empty if the name is not declared.",
            required="name",
            name=_DECLARED,
        ),
        source_tool_method(
            "es_jsdoc",
            "Returns the doc comment of a declaration; empty if there is none.",
            required="name",
            name=_DECLARED,
        ),
        source_tool_method(
            "es_references",
            "Lists line and column (from 0, in UTF-16 units) of every identifier of a name, whatever it refers to.",
            required="name",
            name=name_argument("The identifier."),
        ),
    )

    def __init__(
        self, reader: SpoolReader, *, file_name: str | None = None, script_kind: ScriptKind | None = None
    ) -> None:
        super().__init__(reader, file_name=file_name)
        if script_kind is not None and script_kind not in get_args(ScriptKind):
            raise ValueError(f"script_kind must be one of js, jsx, ts and tsx, not {script_kind!r}")
        extension = PurePath(file_name or "").suffix.lower()
        self.script_kind: ScriptKind = script_kind or _BY_EXTENSION.get(extension, "ts")

    @property
    def language(self) -> str:
        return self.script_kind

    async def es_symbols(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return top-level declarations, one for each bound name."""
        return await self._symbols(kind)

    async def es_imports(self) -> list[dict[str, Any]]:
        """Return import statements; `named` has the local names, and `import x = require()` is a default."""
        return await self._list("imports")

    async def es_exports(self) -> list[dict[str, Any]]:
        """Return export statements; `named` has the exported names, or the declared one of a default export."""
        return await self._list("exports")

    async def es_outline(self) -> list[dict[str, Any]]:
        return await self._list("outline")

    async def es_signature(self, name: str) -> str:
        """Return declarations without body, overloads together; `""` if the name is unknown."""
        return await self._signature(name)

    async def es_jsdoc(self, name: str) -> str:
        return "\n".join(await self._docs(name))

    async def es_references(self, name: str) -> list[dict[str, int]]:
        """Return every identifier with that name in any scope, but not in strings and comments."""
        return await self._references(name)


PYTHON_SYMBOL_KINDS: Final = ("function", "class", "variable", "type")
_DOCUMENTED: Final = {
    "type": "string",
    "description": "A declared name, or Class.member; the module itself if empty or not given.",
}


class SpooledPythonArtifact(SourceArtifact):
    """Python. Lines count from 0 and `endLine` is inclusive; columns count UTF-16 units."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        source_tool_method(
            "py_symbols",
            "Lists the module's declarations: kind, name, whether exported, first and last line (from 0).",
            kind=kind_argument(PYTHON_SYMBOL_KINDS),
        ),
        source_tool_method(
            "py_imports", "Lists the modules it imports, with local names; typeOnly if for type checkers."
        ),
        source_tool_method(
            "py_exports", "Lists the names in __all__, else the public ones, with kind and line (from 0)."
        ),
        source_tool_method("py_outline", "Lists its classes with their methods, properties and attributes."),
        source_tool_method(
            "py_signature",
            "Returns the text of a declaration without its body, decorators included; empty if not declared.",
            required="name",
            name=_DECLARED,
        ),
        source_tool_method("py_docstring", "Returns a docstring; empty if there is none.", name=_DOCUMENTED),
        source_tool_method(
            "py_references",
            "Lists line and column (from 0, in UTF-16 units) of every identifier of a name, whatever it refers to.",
            required="name",
            name=name_argument("The identifier."),
        ),
    )

    @property
    def language(self) -> str:
        return "py"

    async def py_symbols(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return declarations of the module; for a variable, its first assignment."""
        return await self._symbols(kind)

    async def py_imports(self) -> list[dict[str, Any]]:
        """Return one entry per module; `named` has the local names of `from`, `namespace` that of `import`."""
        return await self._list("imports")

    async def py_exports(self) -> list[dict[str, Any]]:
        """Return `{name, kind?, line}`; `kind` is absent for a name in `__all__` that the module does not bind."""
        return await self._list("exports")

    async def py_outline(self) -> list[dict[str, Any]]:
        """Return classes, nested ones with dotted names; attributes include those set by `__init__`."""
        return await self._list("outline")

    async def py_signature(self, name: str) -> str:
        """Return declarations without body, overloads together; `""` if the name is unknown."""
        return await self._signature(name)

    async def py_docstring(self, name: str = MODULE) -> str:
        """Return the docstring without its indentation; for a variable, the string right after its assignment."""
        return "\n\n".join(cleandoc(text) for text in await self._docs(name))

    async def py_references(self, name: str) -> list[dict[str, int]]:
        """Return every identifier with that name in any scope, but not in strings and comments."""
        return await self._references(name)
