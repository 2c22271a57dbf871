"""Conditions: CEL expressions, compiled and checked when they are declared, safe when they fail.

An expression may name `args`, `caller`, `tool`, `turn` and `now`, and call CEL's own functions, `under`,
`glob` and `turn.saw`; anything else is a problem at load, never a surprise at call time. An evaluation
that fails errs on the safe side: where it narrows a rule the rule applies, where it is a
requirement the requirement is not met. Nothing here knows what a rule then does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from posixpath import normpath
from typing import Any, Final

from gateway.governance.cel_extension import CEL
from gateway.governance.diagnostics import did_you_mean
from gateway.governance.globs import glob_matches

MAX_LENGTH: Final = 4_096
VARIABLES: Final = ("args", "caller", "tool", "turn", "now")

_OWN_FUNCTIONS: Final = ("under", "glob", "saw")
_STANDARD_FUNCTIONS: Final = (
    *("size", "contains", "startsWith", "endsWith", "matches", "has", "max", "min", "dyn", "type"),
    *("int", "uint", "double", "string", "bytes", "bool", "duration", "timestamp"),
    *("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfYear", "getDayOfWeek"),
    *("getHours", "getMinutes", "getSeconds", "getMilliseconds"),
)
_MACROS: Final = ("all", "exists", "exists_one", "map", "filter", "has")
_BOUND: Final = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
_SYNTAX: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): Syntax error: ([^\n]*)")


@dataclass(frozen=True, slots=True)
class ConditionProblem:
    """What is wrong with an expression; `line` and `column` count from 1 inside it."""

    message: str
    line: int = 1
    column: int = 1
    width: int = 1
    help: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression can see of one call."""

    args: Mapping[str, Any]
    caller: Mapping[str, Any]
    tool: Mapping[str, Any]
    turn: Mapping[str, Any]
    now: datetime

    def variables(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in VARIABLES}
        return {**named, "under": under, "glob": glob_matches, "saw": _saw}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an expression answered. `failure` says why it could not, and then `value` is the safe side."""

    value: bool
    failure: str | None = None


class Condition:
    """A checked expression; made by `compile_condition`."""

    __slots__ = ("_program", "source")

    def __init__(self, source: str, program: Any) -> None:
        self.source = source
        self._program = program

    def applies(self, scope: Scope) -> Evaluation:
        """Whether a rule narrowed by this condition is about the call; it is, if that cannot be told."""
        return self._evaluate(scope, safe=True)

    def is_met(self, scope: Scope) -> Evaluation:
        """Whether a requirement holds for the call; it does not, if that cannot be told."""
        return self._evaluate(scope, safe=False)

    def _evaluate(self, scope: Scope, *, safe: bool) -> Evaluation:
        try:
            answer = self._program.execute(scope.variables())
        except Exception as error:  # a missing argument, a type error: whatever it is, it must not decide
            return Evaluation(safe, _failure(error))
        if not isinstance(answer, bool):
            return Evaluation(safe, f"the expression gives {type(answer).__name__}, not true or false")
        return Evaluation(answer)

    def __repr__(self) -> str:
        return f"Condition({self.source!r})"


def compile_condition(source: str) -> tuple[Condition | None, list[ConditionProblem]]:
    """The condition, or every problem of the expression."""
    if len(source) > MAX_LENGTH:
        return None, [ConditionProblem(f"the expression is longer than {MAX_LENGTH} characters")]
    try:
        program = CEL.compile(source)
    except ValueError as error:
        return None, _syntax_problems(source, str(error))
    problems = [*_unknown_variables(source, program), *_unknown_functions(source, program)]
    return (None, problems) if problems else (Condition(source, program), [])


def under(path: Any, root: Any) -> bool:
    """Whether an absolute path lies under a folder, after `.` and `..` are resolved; the folder itself does."""
    if not isinstance(path, str) or not isinstance(root, str):
        return False
    if "\0" in path or not path.startswith("/") or not root.startswith("/"):
        return False
    folder = normpath(root).lstrip("/")
    inside = normpath(path).lstrip("/")
    return not folder or inside == folder or inside.startswith(f"{folder}/")


def _saw(turn: Mapping[str, Any], flag: str) -> bool:
    return flag in turn.get("seen", ())


def _syntax_problems(source: str, text: str) -> list[ConditionProblem]:
    found = [
        ConditionProblem(_readable(reason), int(line), int(column)) for line, column, reason in _SYNTAX.findall(text)
    ]
    return found[:1] or [ConditionProblem("the expression cannot be parsed")]


def _readable(reason: str) -> str:
    """The first half of the parser's sentence; the second lists the token classes of its grammar."""
    what = reason.partition(" expecting ")[0].replace("'<EOF>'", "the end of the expression")
    return what.replace("mismatched input", "unexpected").replace("extraneous input", "unexpected")


def _unknown_variables(source: str, program: Any) -> list[ConditionProblem]:
    bound = set(_BOUND.findall(source))
    unknown = [name for name in program.variables() if name not in VARIABLES and name not in bound]
    return [_unknown(source, name, "variable", VARIABLES) for name in unknown]


def _unknown_functions(source: str, program: Any) -> list[ConditionProblem]:
    known = {*_OWN_FUNCTIONS, *_STANDARD_FUNCTIONS, *_MACROS}
    unknown = [name for name in program.functions() if name not in known and name.isidentifier() and name[0] != "_"]
    return [_unknown(source, name, "function", sorted(known)) for name in unknown]


def _unknown(source: str, name: str, kind: str, known: Any) -> ConditionProblem:
    match = re.search(rf"\b{re.escape(name)}\b", source)
    before = source[: match.start()] if match else ""
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    suggestion = did_you_mean(name, known) or (
        f"known variables: {', '.join(VARIABLES)}" if kind == "variable" else None
    )
    return ConditionProblem(f"there is no {kind} {name!r}", line, column, len(name), suggestion)


def _failure(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"there is no {error.args[0]!r}"
    return str(error).partition(". ")[0] or type(error).__name__
