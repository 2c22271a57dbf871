"""Conditions: CEL expressions, compiled and checked when they are declared, and safe when they fail.

An expression may use `args`, `caller`, `tool`, `turn` and `now`, and call CEL's own functions, `under`, `glob`,
`turn.saw` and `caller.saw`; anything else is reported at load, not at call time. A failed evaluation takes the safe
side: a failed `when` applies its rule, a failed requirement is not met. What a rule then does is not known here.

Only the compiled extension of the CEL package is loaded: importing the whole package would load a terminal application,
a quarter of a second.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from posixpath import normpath
from typing import Any, Final, NamedTuple, Protocol

from gateway.model import Principal, glob_matches, to_microseconds
from gateway.policy.rules.expression_analysis import (
    CALL_FIELDS,
    FIELDS,
    MAX_LENGTH,
    MAX_STEPS,
    OWN_FUNCTIONS,
    VARIABLES,
    ConditionProblem,
    ExpressionText,
    check_expression,
    check_syntax,
    find_caller_flags,
    find_read_call_fields,
    find_read_fields,
    parse_duration,
)
from gateway.policy.rules.simple_expression import Unsure, compile_simple
from gateway.policy.rules.turn_state import TurnState


def _extension() -> Any:
    package = find_spec("cel")
    found = PathFinder.find_spec("cel.cel", package.submodule_search_locations if package else None)
    if found is None or found.loader is None:
        raise ImportError("common-expression-language is not installed")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


CEL: Final[Any] = _extension()

MAX_VALUES: Final = 20_000
"""Number of argument values that an expression may read, at about two microseconds each."""

MAX_NESTING: Final = 128
"""Nesting of values: CEL follows them on the stack of the process."""

_FUNCTION_FAILED: Final = re.compile(r"Function '(\w+)' error")
_BY_TYPE: Final[Mapping[type[Exception], str]] = {
    OverflowError: "a number is out of range",
    ZeroDivisionError: "something is divided by zero",
    IndexError: "an index is out of bounds",
}


class Sightings(Protocol):
    """When callers last saw results with a flag. Shared by all processes of a gateway. Raises `StoreUnavailable`."""

    async def of(self, principal: Principal) -> Mapping[str, int]:
        """Return when the caller last saw each flag, in microseconds since 1970."""
        ...

    async def note(self, principal: Principal, flags: Iterable[str]) -> None:
        """Record that the caller is about to see these flags. Durable when this returns."""
        ...


class ConditionScope(NamedTuple):
    """What an expression or a check can read about one call. `fingerprint` identifies the call within its turn."""

    args: Mapping[str, Any]
    caller: Mapping[str, Any]
    tool: Mapping[str, Any]
    turn: TurnState
    now: datetime
    fingerprint: str = ""
    sightings: Mapping[str, int] = {}
    """When the caller last saw each flag, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an expression. If it failed, `failure` is the reason and `value` the safe side."""

    value: bool
    failure: str | None = None


_TRUE: Final = Evaluation(True)
_FALSE: Final = Evaluation(False)


class Condition:
    """A checked expression; created by `compile_condition`. `parts` caches the conditions of its parts."""

    __slots__ = ("_needs", "_program", "_simple", "parts", "source")

    def __init__(self, source: str, program: Any, needs: "_Needs") -> None:
        self.source = source
        self._program = program
        self._needs = needs
        self._simple = compile_simple(source)
        self.parts: dict[str, Condition | None] = {}

    @property
    def reads_turn_state(self) -> bool:
        """Whether it reads what the turn has seen and done."""
        return "turn" in self._needs.variables

    @property
    def reads_turn_calls(self) -> bool:
        fields = self._needs.fields["turn"]
        return self.reads_turn_state and (fields is None or "calls" in fields)

    @property
    def watched_flags(self) -> frozenset[str]:
        """Flags that it looks up in the caller's sightings, in whichever turn."""
        return self._needs.watched

    @property
    def looks_at_arguments(self) -> bool:
        return "args" in self._needs.variables

    @property
    def argument_names(self) -> frozenset[str] | None:
        """The arguments that it reads; `None` if it reads all of them."""
        return self._needs.fields["args"] if self.looks_at_arguments else frozenset()

    def evaluate(self, scope: ConditionScope) -> Evaluation:
        """Whether a rule narrowed by this condition applies to the call; true if the evaluation fails."""
        return self._evaluate(scope, safe=True)

    def evaluate_requirement(self, scope: ConditionScope) -> Evaluation:
        """Whether the call meets a requirement; false if the evaluation fails."""
        return self._evaluate(scope, safe=False)

    def _evaluate(self, scope: ConditionScope, *, safe: bool) -> Evaluation:
        if self._simple is not None:
            with suppress(Unsure):
                return _TRUE if self._simple(scope) else _FALSE
        try:
            answer = self._program.execute(self._needs.select_values(scope))
        except Exception as error:  # such as a missing argument or a type error: take the safe side
            return Evaluation(safe, _failure(error, self.source))
        if not isinstance(answer, bool):
            return Evaluation(safe, f"the expression gives {type(answer).__name__}, not true or false")
        return _TRUE if answer else _FALSE

    def __repr__(self) -> str:
        return f"Condition({self.source!r})"


def compile_condition(source: str) -> tuple[Condition | None, list[ConditionProblem]]:
    """Return the condition, or every problem of the expression."""
    if len(source) > MAX_LENGTH:
        return None, [ConditionProblem(f"the expression is longer than {MAX_LENGTH} characters")]
    try:
        program = CEL.compile(source)
    except ValueError as error:
        return None, check_syntax(str(error))
    text = ExpressionText.of(source)
    problems = check_expression(text, program)
    return (None, problems) if problems else (Condition(source, program, _needs(text, program)), [])


def is_path_under(path: Any, root: Any) -> bool:
    """Whether an absolute path is a folder or lies under it, after `.` and `..` are resolved."""
    if not isinstance(path, str) or not isinstance(root, str):
        return False
    if "\0" in path or not path.startswith("/") or not root.startswith("/"):
        return False
    folder = normpath(root).lstrip("/")
    inside = normpath(path).lstrip("/")
    return not folder or inside == folder or inside.startswith(f"{folder}/")


class _TooMuch(Exception):
    """Evaluating would take too long; the text names what there is too much of."""


@dataclass(frozen=True, slots=True)
class _Needs:
    """The values an expression needs: no more than it reads, because CEL copies all values it is given.

    `fields` are those of each variable and `call_fields` those of the turn's calls; `None` stands for all. `power` is
    how the work grows with the largest collection, `literals` the size of the collections in the expression itself.
    """

    variables: frozenset[str]
    functions: frozenset[str]
    fields: Mapping[str, frozenset[str] | None]
    call_fields: frozenset[str]
    literals: int
    power: int
    watched: frozenset[str]

    def select_values(self, scope: ConditionScope) -> dict[str, Any]:
        """Return the values by name. Raise `_TooMuch` if the evaluation could take too long."""
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
            raise _TooMuch("there are too many elements to evaluate")
        if self.functions:
            functions = {"under": is_path_under, "glob": glob_matches, "saw": partial(_saw, scope)}
            found.update((name, functions[name]) for name in self.functions)
        return found

    def _turn(self, scope: ConditionScope) -> dict[str, Any]:
        turn, wanted = scope.turn, self.fields["turn"]
        found: dict[str, Any] = {}
        for name, seen in (("seen", turn.flags), ("tiers", turn.tiers), ("classes", turn.classes)):
            if wanted is None or name in wanted:
                found[name] = sorted(seen)
        if wanted is None or "calls" in wanted:
            found["calls"] = [
                {
                    name: call.age(scope.now) if name == "age" else _to_list(getattr(call, name))
                    for name in self.call_fields
                }
                for call in turn.newest
            ]
        return found


def _needs(text: ExpressionText, program: Any) -> _Needs:
    variables = frozenset(VARIABLES).intersection(program.variables())
    fields = {name: find_read_fields(name, text) for name in ("args", *FIELDS)}
    if fields["turn"] is None and "saw" in program.functions():  # a method of the turn, not a read of all its fields
        fields["turn"] = _besides_saw(text)
    in_calls = find_read_call_fields(text)
    return _Needs(
        variables,
        frozenset(OWN_FUNCTIONS).intersection(program.functions()),
        fields,
        frozenset(CALL_FIELDS) if in_calls is None else in_calls.intersection(CALL_FIELDS),
        text.literals,
        text.power,
        frozenset(find_caller_flags(text)),
    )


def _saw(scope: ConditionScope, _: Any, flag: Any, within: str | None = None) -> bool:
    """`turn.saw(flag)`, or with a duration `caller.saw(flag, within)`."""
    if within is None:
        return flag in scope.turn.flags
    return is_recent(scope.sightings.get(flag), to_microseconds(scope.now), within)


def is_recent(seen: int | None, now: int, within: str) -> bool:
    """Whether `seen` is at most `within` ago; times are microseconds. A clock that was set back makes it recent."""
    span = parse_duration(within)
    if span is None:
        raise ValueError("not a duration")
    return seen is not None and now - seen <= span // timedelta(microseconds=1)


def _besides_saw(text: ExpressionText) -> frozenset[str] | None:
    plain = re.sub(r"(?<![\w.])turn(?=\s*\.\s*saw\s*\()", "    ", text.plain)
    return find_read_fields("turn", ExpressionText(text.source, plain, text.comprehensions))


def _only(value: Mapping[str, Any], names: frozenset[str] | None) -> Mapping[str, Any]:
    return value if names is None else {name: value[name] for name in names if name in value}


def _to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _largest(value: Any) -> int:
    """Return the length of the largest collection. Raise `_TooMuch` for too many or too deeply nested values."""
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
            raise _TooMuch("the arguments are too many, or nested too deeply, to evaluate")
        waiting += [(inner, depth + 1) for inner in below if not isinstance(inner, str)]
    return largest


def _failure(error: Exception, source: str) -> str:
    """Return why it failed, without values of the call: readers of this text may not see arguments."""
    if isinstance(error, _TooMuch):
        return str(error)
    if isinstance(error, KeyError):
        name = str(error.args[0]) if error.args else ""
        return f"there is no {name!r}" if name in source else "a key that the expression looks up is missing"
    known = next((words for kind, words in _BY_TYPE.items() if isinstance(error, kind)), None)
    if known is not None:
        return known
    message = str(error).partition(". ")[0]
    failed = _FUNCTION_FAILED.match(message)
    if failed is not None:
        return f"{failed[1]}() fails"
    return message if isinstance(error, TypeError) else f"it cannot be evaluated ({type(error).__name__})"
