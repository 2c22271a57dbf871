"""The statements of the store in the words of PostgreSQL: they are written once, and two things differ there."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg
from sqlalchemy.dialects.postgresql.psycopg import dialect as _psycopg
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

from gateway.storage.prepared import Prepared


class _Compiler(PGCompiler_psycopg):
    # `ON CONFLICT` is PostgreSQL's own; the statements say it in SQLAlchemy's words for SQLite.
    _on_conflict_target = SQLiteCompiler._on_conflict_target
    visit_on_conflict_do_nothing = SQLiteCompiler.visit_on_conflict_do_nothing
    visit_on_conflict_do_update = SQLiteCompiler.visit_on_conflict_do_update

    def visit_json_each_func(self, function: Any, **kw: Any) -> str:
        """The values of an array, as texts."""
        return f"json_array_elements_text(CAST({self.process(function.clauses, **kw)} AS JSON))"


class _Dialect(_psycopg):
    statement_compiler = _Compiler
    supports_statement_cache = False


_DIALECT: Final = _Dialect(paramstyle="format", implicit_returning=False)  # type: ignore[no-untyped-call] # SQLAlchemy's


class Compiled:
    """A statement with its parameters in order."""

    __slots__ = ("_names", "_preset", "sql")

    def __init__(self, prepared: Prepared) -> None:
        compiled = prepared.statement.compile(dialect=_DIALECT)
        self.sql = str(compiled)
        self._names: tuple[str, ...] = tuple(getattr(compiled, "positiontup", None) or ())
        self._preset = {name: value for name, value in compiled.params.items() if value is not None}

    def values(self, parameters: Mapping[str, Any]) -> list[Any]:
        named = {**self._preset, **parameters} if self._preset else parameters
        return [plain(named[name]) for name in self._names]


def plain(value: Any) -> Any:
    """The only character that PostgreSQL cannot keep in a text is shown by its symbol."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if type(value) is str and "\0" in value else value


@lru_cache(maxsize=1024)
def compiled(prepared: Prepared) -> Compiled:
    return Compiled(prepared)
