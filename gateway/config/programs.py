"""What documents carry in other languages: CEL expressions, JSON Schemas, JSONPaths, stages; judged where they stand.

Compiling happens again when documents are linked; here it only finds out what is wrong before anything starts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.nodes import Document, Path
from gateway.config.problems import SpecProblem, discreet, spec_problems
from gateway.config.references import EACH
from gateway.config.shapes import Entries, Object, Scalar, Shape
from gateway.config.specs.stages import STAGE_OPTIONS, stage_options
from gateway.core.schemas import Schema
from gateway.errors import JsonPathInvalid
from gateway.formats.paths import Path as JsonPath
from gateway.governance.conditions import compile_condition
from gateway.governance.diagnostics import Diagnostic, Position
from gateway.governance.stages import BUILT_IN, PHASES, Stage, check_phase, plug_in_group, with_plug_ins

_EXPRESSIONS: Final[dict[str, tuple[Path, ...]]] = {"GateRule": (("spec", "when"), ("spec", "check", "require"))}
_SCHEMAS: Final[dict[str, tuple[Path, ...]]] = {
    "Tool": (("spec", "input", "schema"), ("spec", "output", "schema")),
    "GateRule": (("spec", "check", "resolution"),),
}
_PATHS: Final[dict[str, tuple[Path, ...]]] = {
    "Tool": (("spec", "backend", "pick"),),
    "ArtifactClass": (("spec", "redact", EACH),),
}
_KEY: Final = Scalar("a key")
_PLAIN_PATH: Final = re.compile(r"\$(?:\.(?:[A-Za-z_][A-Za-z0-9_]{0,63}|\*)|\[(?:[0-9]{1,6}|\*)\]){0,16}")


def check_programs(documents: Iterable[Document]) -> Iterator[Diagnostic]:
    """Every expression, schema, path and stage that cannot be used; wrong shapes are somebody else's problem."""
    for document in documents:
        kind = document.data.get("kind")
        if isinstance(kind, str):
            for path in _EXPRESSIONS.get(kind, ()):
                yield from _expression(document, path)
            for path in _SCHEMAS.get(kind, ()):
                yield from _schema(document, path)
            for path in _PATHS.get(kind, ()):
                for each in _each(document, path):
                    yield from _path(document, each)
            if kind == "Pipeline":
                yield from _stages(document)
                yield from _options(document)


def _expression(document: Document, path: Path) -> Iterator[Diagnostic]:
    source = _value_at(document.data, path)
    if not isinstance(source, str) or not source.strip():
        return
    for problem in compile_condition(source)[1]:
        if path in document.substituted:  # the parser's words quote the text
            message = "the expression cannot be used with what the environment puts into it"
            yield Diagnostic("bad-condition", message, document.position(path))
            return
        position = inside(document.position(path), source, column=problem.column, width=problem.width)
        yield Diagnostic("bad-condition", problem.message, position, help=problem.help)


def inside(scalar: Position, source: str, *, column: int, width: int) -> Position:
    """The token inside a scalar that stands on one line as written; otherwise the scalar."""
    quotes = scalar.width - len(source)
    if "\n" in source or quotes not in (0, 2):
        return scalar
    return Position(scalar.file, scalar.line, scalar.column + quotes // 2 + column - 1, width)


def _schema(document: Document, path: Path) -> Iterator[Diagnostic]:
    schema = _value_at(document.data, path)
    if not isinstance(schema, dict):
        return
    try:
        Schema(schema)
    except ValueError as error:
        is_shown = not any(each[: len(path)] == path for each in document.substituted)
        hidden = "not a valid JSON Schema; a part of it comes from the environment, so no more is shown"
        yield Diagnostic("bad-schema", str(error) if is_shown else hidden, _defect(document, path, error))


def _defect(document: Document, path: Path, error: ValueError) -> Position:
    """The token inside the schema that its meta-schema refuses, where there is one; otherwise the schema."""
    place = (*path, *getattr(error.__cause__, "instance_path", ()))
    return document.position(place) if place != path and place in document.positions else document.key_position(path)


def _path(document: Document, path: Path) -> Iterator[Diagnostic]:
    source = _value_at(document.data, path)
    if not isinstance(source, str) or not source.startswith("$") or "\n" in source or "\r" in source:
        return
    if _PLAIN_PATH.fullmatch(source):  # right at a glance: no reason to wait for the library
        return
    try:
        JsonPath(source)
    except JsonPathInvalid as error:
        hidden = "the path cannot be read; it comes from the environment, so it is not shown"
        message = hidden if path in document.substituted else error.message
        yield Diagnostic("bad-path", message, document.position(path), help=error.help)


def _options(document: Document) -> Iterator[Diagnostic]:
    for path in (each for phase in PHASES for each in _each(document, ("spec", phase, EACH))):
        stage = _value_at(document.data, path)
        name, given = (stage.get("use"), stage.get("with", {})) if isinstance(stage, dict) else (None, None)
        if isinstance(name, str) and name in STAGE_OPTIONS and isinstance(given, dict):
            for problem in _option_problems(name, given, path=(*path, "with")):
                yield _at(document, discreet(problem, document.substituted))


def _option_problems(name: str, given: dict[Any, Any], *, path: Path) -> list[SpecProblem]:
    try:
        stage_options(name, given)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_input=False)
        for error in errors:
            error["loc"] = (*path, *error["loc"])
        data, shape = _placed(given, Object(STAGE_OPTIONS[name]), path=path)
        return spec_problems(errors, data, shape)
    return []


def _placed(value: Any, shape: Shape, *, path: Path) -> tuple[dict[Any, Any], Shape]:
    """The value and its shape as a document that has nothing but them, so that problems name the whole path."""
    for step in reversed(path):
        value, shape = {step: value}, Entries(_KEY, shape)
    return value, shape


def _at(document: Document, problem: SpecProblem) -> Diagnostic:
    position = document.key_position(problem.path) if problem.at_key else document.position(problem.path)
    return Diagnostic(problem.code, problem.message, position, help=problem.help)


def _stages(document: Document) -> Iterator[Diagnostic]:
    for phase in PHASES:
        listed = _value_at(document.data, ("spec", phase))
        names = [_value_at(stage, ("use",)) for stage in listed] if isinstance(listed, list) else []
        if all(isinstance(name, str) for name in names):
            for problem in check_phase(phase, names, _known_stages(names)):
                place = ("spec", phase, problem.index, "use")
                is_hidden = place in document.substituted
                message = "the stage comes from the environment, so it is not shown" if is_hidden else problem.message
                yield Diagnostic(problem.code, message, document.position(place), help=problem.help)


def _known_stages(names: Iterable[str]) -> Mapping[str, Stage]:
    if all(name in BUILT_IN for name in names):  # looking through installed packages takes a while
        return BUILT_IN
    return with_plug_ins({phase: entry_points(group=plug_in_group(phase)).names for phase in PHASES})


def _each(document: Document, path: Path) -> list[Path]:
    """The path itself; where it ends in `EACH`, that of every entry of the list."""
    if path[-1] != EACH:
        return [path]
    listed = _value_at(document.data, path[:-1])
    return [(*path[:-1], index) for index in range(len(listed))] if isinstance(listed, list) else []


def _value_at(data: Any, path: Path) -> Any:
    for step in path:
        if isinstance(data, list) and isinstance(step, int):
            data = data[step]
        elif isinstance(data, dict):
            data = data.get(step)
        else:
            return None
    return data
