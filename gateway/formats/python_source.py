"""SpooledPythonArtifact: Python source, queried by its declarations.

Syntax only and error tolerant, like its sibling for ECMAScript and with the same shapes of answers; the
source may be written for any version of Python. How a syntax tree is read is described in `python_syntax`.
"""

from inspect import cleandoc
from typing import Any, ClassVar, Final

from gateway.core.artifacts import ToolMethod
from gateway.formats.python_syntax import MODULE
from gateway.formats.source import SourceArtifact, kind_argument, name_argument, source_query

SYMBOL_KINDS: Final = ("function", "class", "variable", "type")

_DECLARED: Final = name_argument("A declared name, or Class.member for a member of one class.")
_DOCUMENTED: Final = {
    "type": "string",
    "description": "A declared name, or Class.member; the module itself if empty or not given.",
}


class SpooledPythonArtifact(SourceArtifact):
    """Python. Lines count from 0 and `endLine` is the last line itself; columns count UTF-16 units."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        source_query(
            "py_symbols",
            "Lists the module's declarations: kind, name, whether exported, first and last line (from 0).",
            kind=kind_argument(SYMBOL_KINDS),
        ),
        source_query("py_imports", "Lists the modules it imports, with local names; typeOnly if for type checkers."),
        source_query("py_exports", "Lists the names in __all__, else the public ones, with kind and line (from 0)."),
        source_query("py_outline", "Lists its classes with their methods, properties and attributes."),
        source_query(
            "py_signature",
            "Returns the text of a declaration without its body, decorators included; empty if not declared.",
            required="name",
            name=_DECLARED,
        ),
        source_query("py_docstring", "Returns a docstring; empty if there is none.", name=_DOCUMENTED),
        source_query(
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
        """Declarations of the module; of a variable that is assigned repeatedly, the first assignment."""
        return await self._symbols(kind)

    async def py_imports(self) -> list[dict[str, Any]]:
        """One entry per module; `named` are the local names of `from`, `namespace` is the local name of `import`."""
        return await self._list("imports")

    async def py_exports(self) -> list[dict[str, Any]]:
        """`{name, kind?, line}`; `kind` is absent for a name in `__all__` that nothing in the module binds."""
        return await self._list("exports")

    async def py_outline(self) -> list[dict[str, Any]]:
        """Classes, nested ones under dotted names; attributes include those set by `__init__`."""
        return await self._list("outline")

    async def py_signature(self, name: str) -> str:
        """Declaration text without the body, overloads together; `""` if the name is unknown."""
        return await self._signature(name)

    async def py_docstring(self, name: str = MODULE) -> str:
        """The docstring without its indentation; also the string right after an assignment."""
        return "\n\n".join(cleandoc(text) for text in await self._docs(name))

    async def py_references(self, name: str) -> list[dict[str, int]]:
        """Every identifier of that name. Scopes are not looked at; strings and comments do not count."""
        return await self._references(name)
