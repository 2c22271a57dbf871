"""The part of a condition that decided, so that people see `args.amount > 500` instead of twenty lines.

An expression is split at `&&` and `||` outside brackets and texts, and the parts are evaluated with the same scope.
This is for display only: the result is always that of the whole expression, and where the parts disagree with it, the
whole is shown.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.policy.rules.conditions import Condition, ConditionScope, compile_condition
from gateway.policy.rules.expression_analysis import TOKEN

_MAX_LEVELS: Final = 32
"""Levels of `&&`, `||` and brackets that are searched; each costs as much as compiling the expression."""

_SHOWN: Final = 60
"""Characters of an argument that are shown."""

_MENTION: Final = re.compile(r"(?<![\w.])args((?:\s*\.\s*[A-Za-z_]\w*)+)")
_INDEXED: Final = re.compile(r"""(?<![\w.])args\s*\[\s*(?:"(\w+)"|'(\w+)')\s*\]""")

_Operator = Literal["&&", "||"]


@dataclass(frozen=True, slots=True)
class ConditionPart:
    """A part of a condition with its result for one call; `value` is `None` if it could not be evaluated."""

    source: str
    value: bool | None
    failure: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the call that the part mentions, by their path."""

    @property
    def text(self) -> str:
        """The part and its result, on one line and without values of the call."""
        source = " ".join(_without_comments(self.source).split())
        if self.value is None:
            return f"{source} cannot be evaluated: {self.failure}"
        return f"{source} is {str(self.value).lower()}"

    def __str__(self) -> str:
        """Return the text with the arguments it mentions."""
        given = ", ".join(f"{path} {_shorten(value)}" for path, value in self.values.items())
        return f"{self.text} for {given}" if given and self.value is not None else self.text


def find_deciding_part(condition: Condition, scope: ConditionScope) -> ConditionPart:
    """Return the smallest part that explains the result of the condition; the first of several."""
    whole = leaf = _evaluate(condition, scope)
    for _ in range(_MAX_LEVELS):
        operator, parts = _split(leaf.source)
        below = _decider([_leaf(condition, part, scope) for part in parts], operator, leaf.value)
        if below is None:
            break
        leaf = below
    return leaf if leaf.value is whole.value else whole


def _decider(parts: list[ConditionPart | None], operator: _Operator | None, value: bool | None) -> ConditionPart | None:
    """Return the first part with the result of the whole, unless all parts are needed for it."""
    needs_all = operator is None or (operator == "&&" and value is True)
    if needs_all or None in parts:
        return None
    return next((part for part in parts if part is not None and part.value is value), None)


def _leaf(whole: Condition, source: str, scope: ConditionScope) -> ConditionPart | None:
    if source not in whole.parts:
        whole.parts[source] = compile_condition(source)[0]
    condition = whole.parts[source]
    return _evaluate(condition, scope) if condition is not None else None


def _evaluate(condition: Condition, scope: ConditionScope) -> ConditionPart:
    answer = condition.evaluate_requirement(scope)
    value = None if answer.failure is not None else answer.value
    source = _strip_brackets(condition.source.strip())
    return ConditionPart(source, value, answer.failure, _find_mentioned(source, scope.args))


def _split(source: str) -> tuple[_Operator | None, list[str]]:
    """Return the loosest operator outside all brackets, and the texts between its occurrences.

    `a ? b : c` binds looser than both, so an expression with one outside brackets is not split.
    """
    outside = [token for depth, token in _tokens(source) if depth == 0]
    if any(token.group() == "?" for token in outside):
        return None, []
    operators: tuple[_Operator, ...] = ("||", "&&")
    for operator in operators:
        cuts = [token.span() for token in outside if token.group() == operator]
        if cuts:
            starts = [0, *(end for _, end in cuts)]
            ends = [*(start for start, _ in cuts), len(source)]
            return operator, [source[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return None, []


def _strip_brackets(source: str) -> str:
    """Return the expression without brackets around the whole of it."""
    while source.startswith("(") and source.endswith(")"):
        closing = next((token.start() for depth, token in _tokens(source) if depth == 0 and token.group() == ")"), -1)
        if closing != len(source) - 1:
            break
        source = source[1:-1].strip()
    return source


def _tokens(source: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield tokens that are neither text nor comment, with the number of open brackets around them."""
    depth = 0
    for token in TOKEN.finditer(source):
        if token.lastgroup in ("text", "comment"):
            continue
        depth -= token.group() in (")", "]", "}")
        yield depth, token
        depth += token.group() in ("(", "[", "{")


def _without_comments(source: str) -> str:
    return TOKEN.sub(lambda token: " " if token.lastgroup == "comment" else token.group(), source)


def _find_mentioned(source: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments whose path occurs outside texts and comments, each as deep as the path leads."""
    plain = TOKEN.sub(lambda token: " " if token.lastgroup in ("text", "comment") else token.group(), source)
    paths = [[name.strip() for name in found.split(".")[1:]] for found in _MENTION.findall(plain)]
    paths += [[double or single] for double, single in _INDEXED.findall(source)]
    found = (_follow(path, args) for path in paths)
    return {path: value for path, value in found if path}


def _follow(path: list[str], args: Mapping[str, Any]) -> tuple[str, Any]:
    value: Any = args
    names: list[str] = []
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            break
        value = value[name]
        names.append(name)
    return ".".join(names), value


def _shorten(value: Any) -> str:
    """Return the value as JSON on one line, shortened; nothing in it can reach a terminal as a command."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
