"""What documents carry in other languages: CEL expressions, JSON Schemas and orders of stages, judged where they stand.

Compiling happens again when documents are linked; here it only finds out what is wrong before anything starts.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from gateway.config.nodes import Document, Path
from gateway.core.schemas import Schema
from gateway.governance.conditions import ConditionProblem, compile_condition
from gateway.governance.diagnostics import Diagnostic, Position
from gateway.governance.stages import PHASES, check_phase

_EXPRESSIONS: Final[dict[str, tuple[Path, ...]]] = {"GateRule": (("spec", "when"), ("spec", "check", "require"))}
_SCHEMAS: Final[dict[str, tuple[Path, ...]]] = {
    "Tool": (("spec", "input", "schema"), ("spec", "output", "schema")),
    "GateRule": (("spec", "check", "resolution"),),
}


def check_programs(documents: Iterable[Document]) -> Iterator[Diagnostic]:
    """Every expression, schema and stage that cannot be used; wrong shapes are somebody else's problem."""
    for document in documents:
        kind = document.data.get("kind")
        if isinstance(kind, str):
            for path in _EXPRESSIONS.get(kind, ()):
                yield from _expression(document, path)
            for path in _SCHEMAS.get(kind, ()):
                yield from _schema(document, path)
            if kind == "Pipeline":
                yield from _stages(document)


def _expression(document: Document, path: Path) -> Iterator[Diagnostic]:
    source = _value_at(document.data, path)
    if not isinstance(source, str) or not source.strip() or path in document.substituted:
        return
    for problem in compile_condition(source)[1]:
        position = _inside(document.position(path), source, problem)
        yield Diagnostic("bad-condition", problem.message, position, help=problem.help)


def _inside(scalar: Position, source: str, problem: ConditionProblem) -> Position:
    """The token inside a scalar that stands on one line as written; otherwise the scalar."""
    quotes = scalar.width - len(source)
    if "\n" in source or quotes not in (0, 2):
        return scalar
    return Position(scalar.file, scalar.line, scalar.column + quotes // 2 + problem.column - 1, problem.width)


def _schema(document: Document, path: Path) -> Iterator[Diagnostic]:
    schema = _value_at(document.data, path)
    if not isinstance(schema, dict):
        return
    try:
        Schema(schema)
    except ValueError as error:
        yield Diagnostic("bad-schema", str(error), document.key_position(path))


def _stages(document: Document) -> Iterator[Diagnostic]:
    for phase in PHASES:
        listed = _value_at(document.data, ("spec", phase))
        names = [_value_at(stage, ("use",)) for stage in listed] if isinstance(listed, list) else []
        if all(isinstance(name, str) for name in names):
            for problem in check_phase(phase, names):
                position = document.position(("spec", phase, problem.index, "use"))
                yield Diagnostic(problem.code, problem.message, position, help=problem.help)


def _value_at(data: Any, path: Path) -> Any:
    for step in path:
        if not isinstance(data, dict):
            return None
        data = data.get(str(step))
    return data
