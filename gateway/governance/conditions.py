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
from functools import partial
from posixpath import normpath
from typing import Any, Final, NamedTuple

from gateway.core.moments import microseconds
from gateway.governance.cel_extension import CEL
from gateway.governance.expression_checks import (
    CALL_FIELDS,
    FIELDS,
    MAX_LENGTH,
    MAX_STEPS,
    OWN_FUNCTIONS,
    VARIABLES,
    ConditionProblem,
    problems_of,
    syntax_problems,
)
from gateway.governance.expressions import Text, flags_given_to_caller, looked_at, looked_at_in_calls
from gateway.governance.globs import glob_matches
from gateway.governance.memory import TurnMemory
from gateway.governance.sightings import is_recent

MAX_VALUES: Final = 20_000
"""Values of arguments that an expression is shown, at about two microseconds each."""

MAX_NESTING: Final = 128
"""Values inside one another: CEL follows them on the stack of the process."""

_FUNCTION_FAILED: Final = re.compile(r"Function '(\w+)' error")
_BY_TYPE: Final[Mapping[type[Exception], str]] = {
    OverflowError: "a number is out of range",
    ZeroDivisionError: "something is divided by zero",
    IndexError: "an index is out of bounds",
}


class Scope(NamedTuple):
    """What an expression, or a check, can see of one call. `fingerprint` tells it from other calls of its turn."""

    args: Mapping[str, Any]
    caller: Mapping[str, Any]
    tool: Mapping[str, Any]
    turn: TurnMemory
    now: datetime
    fingerprint: str = ""
    sightings: Mapping[str, int] = {}
    """When the caller saw each flag last, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an expression answered. `failure` says why it could not, and then `value` is the safe side."""

    value: bool
    failure: str | None = None


class Condition:
    """A checked expression; made by `compile_condition`. `parts` keeps the conditions that it was taken apart into."""

    __slots__ = ("_needs", "_program", "parts", "source")

    def __init__(self, source: str, program: Any, needs: "_Needs") -> None:
        self.source = source
        self._program = program
        self._needs = needs
        self.parts: dict[str, Condition | None] = {}

    @property
    def looks_back(self) -> bool:
        """Whether it looks at what the turn has seen and done."""
        return "turn" in self._needs.variables

    @property
    def watched_flags(self) -> frozenset[str]:
        """Flags that it asks whether the caller has seen, in whichever turn."""
        return self._needs.watched

    @property
    def looks_at_arguments(self) -> bool:
        return "args" in self._needs.variables

    def applies(self, scope: Scope) -> Evaluation:
        """Whether a rule narrowed by this condition is about the call; it is, if that cannot be told."""
        return self._evaluate(scope, safe=True)

    def is_met(self, scope: Scope) -> Evaluation:
        """Whether a requirement holds for the call; it does not, if that cannot be told."""
        return self._evaluate(scope, safe=False)

    def _evaluate(self, scope: Scope, *, safe: bool) -> Evaluation:
        try:
            answer = self._program.execute(self._needs.shown(scope))
        except Exception as error:  # a missing argument, a type error: whatever it is, it must not decide
            return Evaluation(safe, _failure(error, self.source))
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
        return None, syntax_problems(str(error))
    text = Text.of(source)
    problems = problems_of(text, program)
    return (None, problems) if problems else (Condition(source, program, _needs(text, program)), [])


def under(path: Any, root: Any) -> bool:
    """Whether an absolute path lies under a folder, after `.` and `..` are resolved; the folder itself does."""
    if not isinstance(path, str) or not isinstance(root, str):
        return False
    if "\0" in path or not path.startswith("/") or not root.startswith("/"):
        return False
    folder = normpath(root).lstrip("/")
    inside = normpath(path).lstrip("/")
    return not folder or inside == folder or inside.startswith(f"{folder}/")


class _TooMuch(Exception):
    """Evaluating would take too long; the text says of what there is too much."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """What an expression is shown: no more than it looks at, because CEL copies whatever it is given.

    `fields` are those of each variable and `call_fields` those of the turn's calls; `None` stands for all. `power` says
    how the work grows with the largest collection, `literals` how large those are that the expression itself holds.
    """

    variables: frozenset[str]
    functions: frozenset[str]
    fields: Mapping[str, frozenset[str] | None]
    call_fields: frozenset[str]
    literals: int
    power: int
    watched: frozenset[str]

    def shown(self, scope: Scope) -> dict[str, Any]:
        """Raises `_TooMuch` for what could keep the evaluation busy for long."""
        found: dict[str, Any] = {}
        largest = self.literals
        if "args" in self.variables:
            found["args"] = args = _only(scope.args, self.fields["args"])
            largest = max(largest, _largest(args))
        if "caller" in self.variables:
            found["caller"] = _only(scope.caller, self.fields["caller"])
        if "tool" in self.variables:
            found["tool"] = _only(scope.tool, self.fields["tool"])
        if "turn" in self.variables:
            found["turn"] = self._turn(scope)
            largest = max(largest, len(scope.turn.newest))
        if "now" in self.variables:
            found["now"] = scope.now
        if largest**self.power > MAX_STEPS:
            raise _TooMuch("there is more to go through than one evaluation may")
        if self.functions:
            functions = {"under": under, "glob": glob_matches, "saw": partial(_saw, scope)}
            found.update((name, functions[name]) for name in self.functions)
        return found

    def _turn(self, scope: Scope) -> dict[str, Any]:
        turn, wanted = scope.turn, self.fields["turn"]
        found: dict[str, Any] = {}
        for name, seen in (("seen", turn.flags), ("tiers", turn.tiers), ("classes", turn.classes)):
            if wanted is None or name in wanted:
                found[name] = sorted(seen)
        if wanted is None or "calls" in wanted:
            found["calls"] = [
                {
                    name: call.age(scope.now) if name == "age" else _listed(getattr(call, name))
                    for name in self.call_fields
                }
                for call in turn.newest
            ]
        return found


def _needs(text: Text, program: Any) -> _Needs:
    variables = frozenset(VARIABLES).intersection(program.variables())
    fields = {name: looked_at(name, text) for name in ("args", *FIELDS)}
    if fields["turn"] is None and "saw" in program.functions():  # a method of the turn: nothing else is looked at
        fields["turn"] = _besides_saw(text)
    in_calls = looked_at_in_calls(text)
    return _Needs(
        variables,
        frozenset(OWN_FUNCTIONS).intersection(program.functions()),
        fields,
        frozenset(CALL_FIELDS) if in_calls is None else in_calls.intersection(CALL_FIELDS),
        text.literals,
        text.power,
        frozenset(flags_given_to_caller(text)),
    )


def _saw(scope: Scope, _: Any, flag: Any, within: str | None = None) -> bool:
    """`turn.saw(flag)`, or with a duration `caller.saw(flag, within)`."""
    if within is None:
        return flag in scope.turn.flags
    return is_recent(scope.sightings.get(flag), microseconds(scope.now), within)


def _besides_saw(text: Text) -> frozenset[str] | None:
    plain = re.sub(r"(?<![\w.])turn(?=\s*\.\s*saw\s*\()", "    ", text.plain)
    return looked_at("turn", Text(text.source, plain, text.comprehensions))


def _only(value: Mapping[str, Any], names: frozenset[str] | None) -> Mapping[str, Any]:
    return value if names is None else {name: value[name] for name in names if name in value}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _largest(value: Any) -> int:
    """The length of the largest collection. Raises `_TooMuch` for values that are too many or too deep."""
    largest = count = 0
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if isinstance(each, Mapping):
            below = list(each.values())
        elif isinstance(each, list | tuple):
            below = list(each)
        else:
            continue
        largest = max(largest, len(below))
        count += len(below)
        if count > MAX_VALUES or depth > MAX_NESTING:
            raise _TooMuch("the arguments are too many, or too deep, to be looked at")
        waiting += [(inner, depth + 1) for inner in below if not isinstance(inner, str)]
    return largest


def _failure(error: Exception, source: str) -> str:
    """Why it failed, without a value of the call: where this is told, arguments are not."""
    if isinstance(error, _TooMuch):
        return str(error)
    if isinstance(error, KeyError):
        name = str(error.args[0]) if error.args else ""
        return f"there is no {name!r}" if name in source else "something that is looked up is not there"
    known = next((words for kind, words in _BY_TYPE.items() if isinstance(error, kind)), None)
    if known is not None:
        return known
    told = str(error).partition(". ")[0]
    failed = _FUNCTION_FAILED.match(told)
    if failed is not None:
        return f"{failed[1]}() fails"
    return told if isinstance(error, TypeError) else f"it cannot be evaluated ({type(error).__name__})"
