"""SpooledEcmascriptArtifact: JavaScript and TypeScript source, queried by its declarations.

Syntax only and error tolerant: nothing is resolved, no types are checked, and a file that is cut short
still answers with what can be seen. How a syntax tree is read is described in `ecmascript_syntax`.
"""

from pathlib import PurePath
from typing import Any, ClassVar, Final, Literal, get_args

from gateway.core.artifacts import ToolMethod
from gateway.core.spool import SpoolReader
from gateway.formats.source import SourceArtifact, kind_argument, name_argument, source_query

ScriptKind = Literal["js", "jsx", "ts", "tsx"]

SYMBOL_KINDS: Final = ("function", "class", "interface", "type", "enum", "const", "let", "var")

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
    """JavaScript or TypeScript. The kind of script comes from the file name unless it is given; default `ts`.

    Lines count from 0 and `endLine` is the last line itself; columns count UTF-16 units. Symbols
    and signatures of a variable are those of its declarator; a default export without a name is
    called `default`.
    """

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        source_query(
            "es_symbols",
            "Lists the top-level declarations: kind, name, whether exported, first and last line (from 0).",
            kind=kind_argument(SYMBOL_KINDS),
        ),
        source_query("es_imports", "Lists its import statements: module and local names."),
        source_query("es_exports", "Lists its export statements: exported names, and the module if re-exported."),
        source_query("es_outline", "Lists its classes and interfaces with their members and lines (from 0)."),
        source_query(
            "es_signature",
            "Returns the text of a declaration without its body; empty if the name is not declared.",
            required="name",
            name=_DECLARED,
        ),
        source_query(
            "es_jsdoc",
            "Returns the doc comment of a declaration; empty if there is none.",
            required="name",
            name=_DECLARED,
        ),
        source_query(
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
            raise ValueError(f"script_kind is one of js, jsx, ts and tsx, not {script_kind!r}")
        extension = PurePath(file_name or "").suffix.lower()
        self.script_kind: ScriptKind = script_kind or _BY_EXTENSION.get(extension, "ts")

    @property
    def language(self) -> str:
        return self.script_kind

    async def es_symbols(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Top-level declarations, one for each name that is bound."""
        return await self._symbols(kind)

    async def es_imports(self) -> list[dict[str, Any]]:
        """Import statements; `named` are the local names, and `import x = require()` is a default."""
        return await self._list("imports")

    async def es_exports(self) -> list[dict[str, Any]]:
        """Export statements; `named` are the exported names, or the declared one of a default export."""
        return await self._list("exports")

    async def es_outline(self) -> list[dict[str, Any]]:
        return await self._list("outline")

    async def es_signature(self, name: str) -> str:
        """Declaration text without the body, overloads together; `""` if the name is unknown."""
        return await self._signature(name)

    async def es_jsdoc(self, name: str) -> str:
        return "\n".join(await self._docs(name))

    async def es_references(self, name: str) -> list[dict[str, int]]:
        """Every identifier of that name. Scopes are not looked at; strings and comments do not count."""
        return await self._references(name)
