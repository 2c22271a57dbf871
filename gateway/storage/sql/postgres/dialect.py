"""Statements and decision log in the dialect of PostgreSQL. Statements are written once, and two things differ here."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg
from sqlalchemy.dialects.postgresql.psycopg import dialect as _psycopg
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

from gateway.audit import ChainRow
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.dialect import CompiledStatement

_INSERT: Final = """
INSERT INTO audit (shard, seq, prev, hash, body, at)
SELECT * FROM unnest(?::text[], ?::bigint[], ?::bytea[], ?::bytea[], ?::bytea[], ?::bigint[])
WHERE NOT EXISTS (SELECT 1 FROM audit WHERE shard = ? AND seq = ?)
"""


class PostgresAuditLog(AuditLog):
    """In PostgreSQL a violated constraint would abort the whole transaction, so the insert checks before it writes."""

    def _insert(self, connection: Any, rows: Sequence[ChainRow]) -> bool:
        """The process that wrote the first place wrote the others, too, so only the first is checked."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        inserted: int = connection.execute(_INSERT, [*columns, rows[0].shard, rows[0].seq]).rowcount
        return inserted == len(rows)


class _Compiler(PGCompiler_psycopg):
    # Statements use `ON CONFLICT` of SQLAlchemy's SQLite dialect, which PostgreSQL has as well.
    _on_conflict_target = SQLiteCompiler._on_conflict_target
    visit_on_conflict_do_nothing = SQLiteCompiler.visit_on_conflict_do_nothing
    visit_on_conflict_do_update = SQLiteCompiler.visit_on_conflict_do_update

    def visit_json_each_func(self, function: Any, **kw: Any) -> str:
        """Return the values of an array as texts."""
        return f"json_array_elements_text(CAST({self.process(function.clauses, **kw)} AS JSON))"


class _Dialect(_psycopg):
    statement_compiler = _Compiler
    supports_statement_cache = False


_DIALECT: Final = _Dialect(paramstyle="format", implicit_returning=False)  # type: ignore[no-untyped-call] # SQLAlchemy's


class PostgresStatement(CompiledStatement):
    """A statement compiled for PostgreSQL."""

    __slots__ = ()

    def __init__(self, prepared: CompiledStatement) -> None:
        super().__init__(prepared.statement, _DIALECT)

    def values(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple([replace_nul(value) for value in super().values(parameters)])


def replace_nul(value: Any) -> Any:
    """Replace NUL, the only character that PostgreSQL cannot store in a text, by its symbol."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if type(value) is str and "\0" in value else value


@lru_cache(maxsize=1024)
def compile_statement(prepared: CompiledStatement) -> PostgresStatement:
    return PostgresStatement(prepared)
