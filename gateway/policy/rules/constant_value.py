"""The value of a condition that no call can change: `false`, or comparisons that contradict one another."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.policy.rules.cel_syntax_tree import (
    ConstantNode,
    FieldNode,
    IndexNode,
    ListNode,
    NameNode,
    Node,
    OperatorNode,
)

_RELATIONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def constant_value(node: Node) -> bool | None:
    """Return the result of a condition if no call can change it."""
    match node:
        case ConstantNode(value=bool(value)):
            return value
        case OperatorNode(operator="!", operands=(operand,)):
            answer = constant_value(operand)
            return None if answer is None else not answer
        case OperatorNode(operator="&&", operands=operands):
            values = [constant_value(each) for each in operands]
            if False in values or _contradict(operands):
                return False
            return True if all(values) else None
        case OperatorNode(operator="||", operands=operands):
            values = [constant_value(each) for each in operands]
            return True if True in values else False if not any(value is None for value in values) else None
        case OperatorNode(operator=operator, operands=(ConstantNode(value=left), ConstantNode(value=right))):
            return _compare(operator, left, right)
    return None


def path_text(node: Node) -> str | None:
    """Return a variable with its fields and entries, as people write it; `None` for anything else."""
    match node:
        case NameNode(name=name):
            return name
        case FieldNode(operand=operand, name=name):
            around = path_text(operand)
            return None if around is None else f"{around}.{name}"
        case IndexNode(operand=operand, index=ConstantNode(value=value)):
            around = path_text(operand)
            return None if around is None else f"{around}[{value}]"
    return None


def mirror(operator: str) -> str:
    """Return the operator for swapped operands."""
    return _MIRRORED.get(operator, operator)


def _contradict(operands: Sequence[Node]) -> bool:
    """Whether no value of some path satisfies all comparisons."""
    wanted: dict[str, list[tuple[str, Any]]] = {}
    for each in operands:
        for path, operator, value in _comparisons(each):
            wanted.setdefault(path, []).append((operator, value))
    return any(_is_empty(each) for each in wanted.values())


def _comparisons(node: Node) -> Iterator[tuple[str, str, Any]]:
    """Yield what a part of a conjunction requires of a path: an operator and a constant, or `in` and a list of them."""
    if not isinstance(node, OperatorNode):
        return
    if node.operator == "&&":
        for each in node.operands:
            yield from _comparisons(each)
    elif len(node.operands) == 2:
        left, right = node.operands
        path, mirrored = path_text(left), path_text(right)
        if node.operator == "in" and path and isinstance(right, ListNode):
            if all(isinstance(each, ConstantNode) for each in right.items):
                yield path, "in", [each.value for each in right.items if isinstance(each, ConstantNode)]
        elif node.operator in _RELATIONS and path and isinstance(right, ConstantNode):
            yield path, node.operator, right.value
        elif node.operator in _RELATIONS and mirrored and isinstance(left, ConstantNode):
            yield mirrored, mirror(node.operator), left.value


def _is_empty(wanted: Sequence[tuple[str, Any]]) -> bool:
    candidates = [[value] if operator == "==" else value for operator, value in wanted if operator in ("==", "in")]
    for values in candidates:
        if not any(all(_fulfils(value, *each) is not False for each in wanted) for value in values):
            return True
    lower = [(value, operator) for operator, value in wanted if operator in (">", ">=") and _is_number(value)]
    upper = [(value, operator) for operator, value in wanted if operator in ("<", "<=") and _is_number(value)]
    return any(
        low > high or (low == high and (of_low, of_high) != (">=", "<="))
        for low, of_low in lower
        for high, of_high in upper
    )


def _fulfils(value: Any, operator: str, wanted: Any) -> bool | None:
    if operator == "in":
        return any(_compare("==", value, each) for each in wanted)
    return _compare(operator, value, wanted)


def _compare(operator: str, left: Any, right: Any) -> bool | None:
    """Return the result of a comparison of constants; `None` where their types differ, which CEL may refuse."""
    if operator not in _RELATIONS or not ((_is_number(left) and _is_number(right)) or type(left) is type(right)):
        return None
    if operator in ("==", "!="):
        return bool(left == right) is (operator == "==")
    if left is None:
        return None
    if operator in ("<", ">="):
        return bool(left < right) is (operator == "<")
    return bool(left > right) is (operator == ">")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
