"""Statements and decision log in the dialect of PostgreSQL.

Statements are written once, for SQLite. What writes many rows becomes one statement here, whose only parameter has the
rows as JSON: a statement for each row, or a parameter for each value, takes a gateway many times as long.
"""

import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson
from sqlalchemy import BigInteger, Boolean, Integer, LargeBinary
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg
from sqlalchemy.dialects.postgresql.psycopg import dialect as _psycopg
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

from gateway.audit import ChainRow
from gateway.storage.sql.audit_log import AuditLog
from gateway.storage.sql.compiled_statement import CompiledStatement
from gateway.storage.sql.tables import audit


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


_EXACTLY: Final = "WITH changed AS ({} RETURNING 1) SELECT 1 / (count(*) = $2)::integer FROM changed"


class BatchStatement:
    """A statement that finds, inserts, changes or deletes a row for each of many sets of parameters."""

    __slots__ = ("_binary", "checked", "sql")

    def __init__(self, sql: str, types: Mapping[str, Any]) -> None:
        """`sql` has its parameters as `%(name)s`, and `{rows}` where it reads them from."""
        self._binary = [name for name, type in types.items() if isinstance(type, LargeBinary)]
        columns = ", ".join(f'"{name}" {_column_type(type)}' for name, type in types.items())
        values = _PARAMETER.sub(lambda found: _column(found[1], types[found[1]]), sql)
        self.sql = values.replace("{rows}", f"json_to_recordset($1) AS given ({columns})")
        self.checked = _EXACTLY.format(self.sql)
        """Divides by zero if it changes another number of rows than its second parameter."""

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the first parameter."""
        if self._binary:
            rows = [{**row, **{name: _base64(row[name]) for name in self._binary}} for row in rows]
        text = orjson.dumps(rows)
        if b"\\u0000" in text:
            text = orjson.dumps([{name: replace_nul(value) for name, value in row.items()} for row in rows])
        return text


_NAMED: Final = _Dialect(paramstyle="pyformat")  # type: ignore[no-untyped-call] # SQLAlchemy's
_PARAMETER: Final = re.compile(r"%\((\w+)\)s(?:::\w+)?")
_COLUMN_TYPES: Final = {BigInteger: "bigint", Integer: "integer", Boolean: "boolean"}


def _column_type(type: Any) -> str:
    return next((name for kind, name in _COLUMN_TYPES.items() if isinstance(type, kind)), "text")


def _column(name: str, type: Any) -> str:
    return f"decode(given.\"{name}\", 'base64')" if isinstance(type, LargeBinary) else f'given."{name}"'


def _read_rows(sql: str) -> str:
    """Return the statement with its values taken from rows. One that finds rows returns the number of each first."""
    sql = sql.partition(" RETURNING ")[0]
    if sql.startswith("INSERT"):
        into, _, values = sql.partition(") VALUES (")
        values, conflict, action = values.partition(") ON CONFLICT ")
        return f"{into}) SELECT {values if conflict else values[:-1]} FROM {{rows}}{conflict[1:]}{action}"  # noqa: S608 - our own
    if sql.startswith("SELECT"):
        columns, _, tables = sql.removeprefix("SELECT ").partition("FROM ")
        return f"SELECT %(number)s, {columns}FROM {{rows}}, {tables}"
    change, where, condition = sql.partition(" WHERE ")
    return f"{change} {'FROM' if sql.startswith('UPDATE') else 'USING'} {{rows}}{where}{condition}"


def _base64(value: bytes | None) -> str | None:
    return None if value is None else b2a_base64(value, newline=False).decode()


def replace_nul(value: Any) -> Any:
    """Replace NUL, the only character that PostgreSQL cannot store in a text, by its symbol."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if type(value) is str and "\0" in value else value


@lru_cache(maxsize=1024)
def compile_statement(prepared: CompiledStatement) -> PostgresStatement:
    return PostgresStatement(prepared)


@lru_cache(maxsize=256)
def compile_batch(prepared: CompiledStatement) -> BatchStatement:
    compiled: Any = prepared.statement.compile(dialect=_NAMED)
    types = {name: bind.type for name, bind in compiled.binds.items()}
    return BatchStatement(_read_rows(str(compiled)), {**types, "number": Integer()})


_INSERT_ENTRIES: Final = BatchStatement(
    """
INSERT INTO audit (shard, seq, prev, hash, body, at)
SELECT %(shard)s, %(seq)s, %(prev)s, %(hash)s, %(body)s, %(at)s FROM {rows}
WHERE NOT EXISTS (SELECT 1 FROM audit AS taken WHERE taken.shard = %(shard)s AND taken.seq = %(first)s OFFSET 0)
""",
    {**{column.name: column.type for column in audit.c}, "first": audit.c.seq.type},
)


class PostgresAuditLog(AuditLog):
    """In PostgreSQL a violated constraint would abort the whole transaction, so the insert checks before it writes."""

    def _insert(self, connection: Any, rows: Sequence[ChainRow]) -> bool:
        """The process that wrote the first place wrote the others, too, so only the first is checked."""
        entries = [{**row._asdict(), "first": rows[0].seq} for row in rows]
        inserted: bool = connection.change_batch(_INSERT_ENTRIES, entries)
        return inserted
