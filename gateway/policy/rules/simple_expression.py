"""Simple expressions as Python functions: comparisons of arguments, caller and tool with each other and with literals.

The CEL library copies values into its own types and back, which costs ten times as much as to compare two texts. A
simple expression is therefore compiled to closures, but only for values about which CEL and Python cannot disagree:
ASCII texts, booleans, integers of 64 bits and doubles, compared with values of the same type. For anything else, such
as a missing field, the closures raise `Unsure`, and the library evaluates the expression.
"""

import re
from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Final

from gateway.policy.rules.cel_syntax_tree import (
    CallNode,
    ConstantNode,
    FieldNode,
    ListNode,
    NameNode,
    Node,
    OperatorNode,
    parse_expression,
)

Values = list[Any]
Term = Callable[[Values], Any]
SimpleExpression = Callable[[tuple[Any, ...]], bool]
"""Evaluates a `ConditionScope`. Raises `Unsure`."""

_ROOTS: Final[Mapping[str, int]] = {"args": 0, "caller": 1, "tool": 2}
"""The place of each variable in a `ConditionScope`."""

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    **{"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
}
_ORDERED: Final = (str, int, float)
_METHODS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}
_LITERAL: Final = re.compile(r"""-?\d+(?:\.\d+)?|"[^"\\\n]*"|'[^'\\\n]*'|true|false""", re.ASCII)
_LARGEST: Final = 2**63
_LONGEST_LIST: Final = 32
"""All lists together are then shorter than what the library may copy, whatever their number."""

_MISSING: Final = object()


class Unsure(Exception):
    """The library has to evaluate the expression."""


class _NotSimple(Exception):
    pass


def compile_simple(source: str) -> SimpleExpression | None:
    """Return the expression as a function; `None` if it is not simple."""
    tree = parse_expression(source)
    try:
        return None if tree is None else _ClosureCompiler(source).compile(tree)
    except _NotSimple:
        return None


class _ClosureCompiler:
    def __init__(self, source: str) -> None:
        self._source = source
        self._fields: dict[tuple[int, str], int] = {}
        """The place of each field among the values."""

    def compile(self, tree: Node) -> SimpleExpression:
        decide = self._truth(tree)
        fields = tuple(self._fields)

        def evaluate(scope: tuple[Any, ...]) -> bool:
            # The library copies all values first, also those that it does not come to: each must be known to it.
            values = [scope[root].get(name, _MISSING) for root, name in fields]
            for value in values:
                if not _is_known(value):
                    raise Unsure
            answer: bool = decide(values)
            return answer

        return evaluate

    def _truth(self, node: Node) -> Term:
        """Return a term that is true or false, or raises."""
        match node:
            case OperatorNode(operator="&&", operands=operands):
                return _all([self._truth(each) for each in operands])
            case OperatorNode(operator="||", operands=operands):
                return _any([self._truth(each) for each in operands])
            case OperatorNode(operator="!", operands=(operand,)):
                return _negation(self._truth(operand))
            case OperatorNode(operator="in", operands=(item, items)):
                return self._membership(item, items)
            case OperatorNode(operator=operator, operands=(left, right)) if operator in _COMPARISONS:
                return _comparison(operator, self._value(left), self._value(right))
            case CallNode(function=function, target=Node() as target, arguments=(argument,)) if function in _METHODS:
                return _method(_METHODS[function], self._value(target), self._value(argument))
            case CallNode(function="has", target=None, arguments=(FieldNode() as field,)):
                return _presence(self._place(field))
        raise _NotSimple

    def _value(self, node: Node) -> Term:
        match node:
            case ConstantNode():
                return _constant(self._literal(node))
            case FieldNode():
                return _field(self._place(node))
            case CallNode(function="size", target=None, arguments=(argument,)):
                return _size(self._value(argument))
        raise _NotSimple

    def _membership(self, item: Node, items: Node) -> Term:
        if isinstance(items, FieldNode):
            return _membership_of_field(self._value(item), self._place(items))
        if not isinstance(items, ListNode) or not items.items:
            raise _NotSimple
        literals = [self._literal(each) for each in items.items]
        kind = type(literals[0])
        if any(type(each) is not kind for each in literals):
            raise _NotSimple
        return _membership_of_literals(self._value(item), kind, literals)

    def _literal(self, node: Node) -> Any:
        if not isinstance(node, ConstantNode) or not _LITERAL.fullmatch(self._source, node.start, node.end):
            raise _NotSimple
        if not _is_known(node.value):
            raise _NotSimple
        return node.value

    def _place(self, field: FieldNode) -> int:
        root = field.operand
        if not isinstance(root, NameNode) or root.name not in _ROOTS or not field.name.isascii():
            raise _NotSimple
        return self._fields.setdefault((_ROOTS[root.name], field.name), len(self._fields))


def _is_known(value: Any) -> bool:
    """Whether the library can copy the value, and texts in it are the same to both."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is int:
        return bool(-_LARGEST <= value < _LARGEST)
    if kind is list or kind is tuple:
        return len(value) <= _LONGEST_LIST and all(type(each) is str and each.isascii() for each in value)
    return value is None or kind is bool or kind is float or value is _MISSING


def _constant(value: Any) -> Term:
    return lambda values: value


def _field(place: int) -> Term:
    return lambda values: values[place]


def _presence(place: int) -> Term:
    return lambda values: values[place] is not _MISSING


def _all(terms: list[Term]) -> Term:
    def every(values: Values) -> bool:
        for term in terms:  # noqa: SIM110 - a generator takes longer than the comparisons
            if not term(values):
                return False
        return True

    return every


def _any(terms: list[Term]) -> Term:
    def some(values: Values) -> bool:
        for term in terms:  # noqa: SIM110 - likewise
            if term(values):
                return True
        return False

    return some


def _negation(term: Term) -> Term:
    return lambda values: not term(values)


def _comparison(operator: str, left: Term, right: Term) -> Term:
    compare = _COMPARISONS[operator]
    kinds = (*_ORDERED, bool) if operator in ("==", "!=") else _ORDERED

    def compared(values: Values) -> bool:
        one, other = left(values), right(values)
        kind = type(one)
        if kind is not type(other) or kind not in kinds:
            raise Unsure
        return compare(one, other)

    return compared


def _method(method: Callable[[str, str], bool], target: Term, argument: Term) -> Term:
    def called(values: Values) -> bool:
        one, other = target(values), argument(values)
        if type(one) is not str or type(other) is not str:
            raise Unsure
        return method(one, other)

    return called


def _size(term: Term) -> Term:
    def sized(values: Values) -> int:
        value = term(values)
        if type(value) not in (str, list, tuple):
            raise Unsure
        return len(value)

    return sized


def _membership_of_literals(item: Term, kind: type, literals: list[Any]) -> Term:
    def is_member(values: Values) -> bool:
        value = item(values)
        if type(value) is not kind:
            raise Unsure
        return value in literals

    return is_member


def _membership_of_field(item: Term, place: int) -> Term:
    """For fields that are lists of texts."""

    def is_member(values: Values) -> bool:
        value, items = item(values), values[place]
        if type(value) is not str or type(items) not in (list, tuple):
            raise Unsure
        return value in items

    return is_member
