"""Find mistakes in a condition from the schemas of its rule's tools: unknown arguments, values of another type.

An expression is compared with the schemas of all tools that its rule matches. A mistake is reported only if it is one
for every tool; a tool with an unknown schema, or one that accepts unlisted arguments, may have the argument. Nothing is
evaluated here.

Conditions with the same result for every call are reported, too: `false`, or comparisons that contradict one another.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from gateway.policy.rules.cel_syntax_tree import (
    CallNode,
    ConstantNode,
    FieldNode,
    IndexNode,
    ListNode,
    NameNode,
    Node,
    OperatorNode,
    children,
    parse_expression,
)
from gateway.policy.rules.constant_value import constant_value, mirror, path_text
from gateway.policy.rules.expression_analysis import MACROS
from gateway.policy.rules.schema_lookup import NUMBERS, MissingField, SchemaView, Types, types_of
from gateway.registries import suggest_name

Scope = Mapping[str, SchemaView | MissingField | None]
"""What is known about each variable, for one tool."""

_BOOLEAN: Final[Types] = frozenset({"boolean"})
_TEXT: Final[Types] = frozenset({"string"})
_SIZED: Final[Types] = frozenset({"string", "array", "object"})
_LISTED: Final[Types] = frozenset({"array", "object"})
_UNORDERED: Final[Types] = frozenset({"null", "array", "object"})
_RESULTS: Final[Mapping[str, Types]] = {
    **dict.fromkeys(("has", "startsWith", "endsWith", "contains", "matches", "under", "glob", "saw"), _BOOLEAN),
    **dict.fromkeys(("all", "exists", "exists_one"), _BOOLEAN),
    **dict.fromkeys(("size", "int", "uint", "double"), NUMBERS),
    "string": _TEXT,
}
_WANTED: Final[Mapping[str, Types]] = {
    **dict.fromkeys(("startsWith", "endsWith", "contains", "matches"), _TEXT),
    **dict.fromkeys(("under", "glob"), _TEXT),
    "size": _SIZED,
    **dict.fromkeys(MACROS, _LISTED),
}
"""Types of the operand of a function: its target, or else its first argument."""

_WORDS: Final = {
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
    "number": "a number",
    "integer": "a number",
}
_MAX_LISTED: Final = 8
_CLOSE: Final = 0.75
"""How similar a name must be to a listed one to count as misspelt where other names are accepted, too."""


@dataclass(frozen=True, slots=True)
class ConditionMistake:
    """A part of an expression that cannot work as written; `start` counts from 0."""

    code: str
    message: str
    start: int
    width: int
    help: str | None = None


def find_mistakes(source: str, tools: Sequence[Scope], *, is_requirement: bool = False) -> list[ConditionMistake]:
    """Return the mistakes of an expression for these tools; none if it cannot be parsed here."""
    tree = parse_expression(source)
    if tree is None or not tools:
        return []
    try:
        found = list(dict.fromkeys(_Checker(source, tools).check(tree)))
    except RecursionError:  # the schema is nested too deeply
        return []
    return found or list(_constant(source, tree, is_requirement=is_requirement))


def _constant(source: str, tree: Node, *, is_requirement: bool) -> Iterator[ConditionMistake]:
    """Yield a mistake if the condition's result does not depend on the call."""
    value, width = constant_value(tree), len(source.strip().partition("\n")[0])
    start = len(source) - len(source.lstrip())
    if value is False:
        then = "every call is refused" if is_requirement else "the rule never applies"
        help = "correct the condition" if is_requirement else "correct the condition, or write mode: disabled"
        yield ConditionMistake("constant-condition", f"the condition is never true: {then}", start, width, help)
    elif value is True and is_requirement:
        message = "the condition is always true: the rule requires nothing"
        yield ConditionMistake("constant-condition", message, start, width, "correct the condition, or remove the rule")


class _Checker:
    def __init__(self, source: str, tools: Sequence[Scope]) -> None:
        self._source = source
        self._tools = tools

    def check(self, tree: Node) -> Iterator[ConditionMistake]:
        yield from self._truth(tree, {})
        yield from self._walk(tree, {})

    def _walk(self, node: Node, bound: Mapping[str, Node]) -> Iterator[ConditionMistake]:
        """Yield every mistake at or below a node. `bound` maps variables of macros to the collections they iterate."""
        if isinstance(node, CallNode) and node.function in MACROS and node.target is not None and node.arguments:
            yield from self._check_call(node, bound)
            yield from self._walk(node.target, bound)
            variable = node.arguments[0]
            inside = {**bound, variable.name: node.target} if isinstance(variable, NameNode) else bound
            for each in node.arguments[1:]:
                yield from self._walk(each, inside)
            return
        match node:
            case FieldNode():
                yield from self._missing(node, bound)
            case CallNode():
                yield from self._check_call(node, bound)
            case OperatorNode(operator="&&" | "||" | "!", operands=operands):
                for each in operands:
                    yield from self._truth(each, bound)
            case OperatorNode(operator="==" | "!=" | "<" | "<=" | ">" | ">=", operands=(left, right)):
                yield from self._check_comparison(node, left, right, bound)
            case OperatorNode(operator="in", operands=(left, right)):
                yield from self._check_containment(node, left, right, bound)
        for each in children(node):
            yield from self._walk(each, bound)

    def _view(self, node: Node, tool: Scope, bound: Mapping[str, Node]) -> SchemaView | MissingField | None:
        """Return what a tool's schemas define about the value of a node."""
        match node:
            case NameNode(name=name) if name in bound:
                around = self._view(bound[name], tool, {each: by for each, by in bound.items() if each != name})
                return around.item() if isinstance(around, SchemaView) else around
            case NameNode(name=name):
                return tool.get(name)
            case FieldNode(operand=operand, name=name):
                around = self._view(operand, tool, bound)
                return around.field(name) if isinstance(around, SchemaView) else around
            case IndexNode(operand=operand):
                around = self._view(operand, tool, bound)
                return around.item() if isinstance(around, SchemaView) else around
        return None

    def _missing(self, node: FieldNode, bound: Mapping[str, Node]) -> Iterator[ConditionMistake]:
        missing = missing_everywhere(node.name, (self._view(node.operand, tool, bound) for tool in self._tools))
        if missing is None:
            return
        known = missing.known
        path = path_text(node.operand)
        if path == "args":
            message = f"no tool of the rule takes an argument {node.name!r}"
        else:
            message = f"{path or 'the value'} has no {node.name!r} in any tool of the rule"
        listed = ", ".join(sorted(known)[:_MAX_LISTED]) + (", …" if len(known) > _MAX_LISTED else "")
        help = suggest_name(node.name, known) or (f"there are: {listed}" if known else f"{path} has no fields")
        yield ConditionMistake("unknown-argument", message, node.at, self._width(node), help)

    def _width(self, node: FieldNode) -> int:
        return len(node.name) + (2 if self._source[node.at] in "\"'" else 0)

    def _types(self, node: Node, tool: Scope, bound: Mapping[str, Node]) -> Types | None:
        match node:
            case ConstantNode(value=value):
                return types_of(value)
            case ListNode():
                return frozenset({"array"})
            case CallNode(function=function):
                return _RESULTS.get(function)
            case OperatorNode(operator="&&" | "||" | "!" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "in"):
                return _BOOLEAN
        view = self._view(node, tool, bound)
        return view.types if isinstance(view, SchemaView) else None

    def _tools_with(self, node: Node, bound: Mapping[str, Node]) -> Iterator[Scope]:
        """Yield the tools that may have the value at a path."""
        for tool in self._tools:
            view = self._view(node, tool, bound)
            if not isinstance(view, MissingField) or not view.is_certain:
                yield tool

    def _never(self, path: Node, bound: Mapping[str, Node], fits: Callable[[Scope], bool | None]) -> bool:
        """Whether `fits` is false for every tool that may have the path; `None` counts as a possible fit."""
        is_met = False
        for tool in self._tools_with(path, bound):
            if fits(tool) is not False:
                return False
            is_met = True
        return is_met

    def _unfit(self, node: Node, wanted: Types, bound: Mapping[str, Node]) -> str | None:
        """Return the types of a path, in words, if it has none of the wanted types in any tool."""
        if path_text(node) is None:
            return None
        met: Types = frozenset()
        for tool in self._tools_with(node, bound):
            types = self._types(node, tool, bound)
            if types is None or types & wanted:
                return None
            met |= types
        return _describe_types(met) if met else None

    def _truth(self, node: Node, bound: Mapping[str, Node]) -> Iterator[ConditionMistake]:
        if (found := self._unfit(node, _BOOLEAN, bound)) is not None:
            message = f"{path_text(node)} is {found}, not true or false"
            yield self._mistake("argument-type", message, node, "compare it with a value")

    def _check_call(self, node: CallNode, bound: Mapping[str, Node]) -> Iterator[ConditionMistake]:
        wanted = _WANTED.get(node.function)
        looked_at = node.target if node.target is not None else next(iter(node.arguments), None)
        if wanted is None or looked_at is None:
            return
        if (found := self._unfit(looked_at, wanted, bound)) is not None:
            message = f"{path_text(looked_at)} is {found}, and {node.function}() takes {_describe_types(wanted)}"
            yield self._mistake("argument-type", message, looked_at, "compare it in another way")

    def _check_comparison(
        self, node: OperatorNode, left: Node, right: Node, bound: Mapping[str, Node]
    ) -> Iterator[ConditionMistake]:
        is_ordered = node.operator not in ("==", "!=")

        def fits(tool: Scope) -> bool | None:
            ours, theirs = self._types(left, tool, bound), self._types(right, tool, bound)
            if ours is None or theirs is None:
                return None
            return bool((ours & theirs) - (_UNORDERED if is_ordered else frozenset()))

        path, other = (left, right) if path_text(left) else (right, left)
        if path_text(path) is None:
            return
        if self._never(path, bound, fits):
            yield self._type_mistake(node, path, other, bound)
        elif isinstance(other, ConstantNode):
            operator = node.operator if path is left else mirror(node.operator)
            yield from self._impossible(path, operator, other, bound)

    def _type_mistake(self, node: Node, path: Node, other: Node, bound: Mapping[str, Node]) -> ConditionMistake:
        tool = next(self._tools_with(path, bound))
        ours, theirs = self._types(path, tool, bound) or frozenset(), self._types(other, tool, bound) or frozenset()
        message = f"{_describe_path(path)} is {_describe_types(ours)}, and is compared with {_describe_types(theirs)}"
        return self._mistake("argument-type", message, node, _conversion(path_text(path) or "", ours, other))

    def _impossible(
        self, path: Node, operator: str, other: ConstantNode, bound: Mapping[str, Node]
    ) -> Iterator[ConditionMistake]:
        """Yield a value that no tool's schema allows, or a bound that none of them reaches."""
        listed: dict[Any, None] = {}

        def fits(tool: Scope) -> bool | None:
            view = self._view(path, tool, bound)
            if not isinstance(view, SchemaView):
                return None
            if operator in ("==", "!=") and view.values is not None:
                listed.update((each, None) for each in view.values if isinstance(each, str | int | float))
                return other.value in view.values
            return _is_reachable(view, operator, other.value)

        if self._never(path, bound, fits):
            verb = "is never" if operator in ("==", "!=") else f"is never {_ORDERED[operator]}"
            help = _choices(other.value, listed) or self._range(path, bound)
            yield self._mistake("argument-value", f"{_describe_path(path)} {verb} {_format(other.value)}", other, help)

    def _range(self, path: Node, bound: Mapping[str, Node]) -> str | None:
        """Return the range of numbers that the tools accept, in words."""
        views = [self._view(path, tool, bound) for tool in self._tools_with(path, bound)]
        bounds = [view.bounds for view in views if isinstance(view, SchemaView)]
        least, most = [low for low, _ in bounds if low is not None], [high for _, high in bounds if high is not None]
        words = [f"at least {min(least)}"] if least and len(least) == len(bounds) else []
        words += [f"at most {max(most)}"] if most and len(most) == len(bounds) else []
        return f"it is {' and '.join(words)}" if words else None

    def _check_containment(
        self, node: OperatorNode, left: Node, right: Node, bound: Mapping[str, Node]
    ) -> Iterator[ConditionMistake]:
        if (found := self._unfit(right, _LISTED, bound)) is not None:
            message = f"{path_text(right)} is {found}, but 'in' requires a list"
            yield self._mistake("argument-type", message, right, "compare them with ==")
        elif isinstance(right, ListNode) and path_text(left) is not None:
            for item in right.items:
                if isinstance(item, ConstantNode):
                    equal = OperatorNode(item.start, item.end, "==", (left, item))
                    yield from self._check_comparison(equal, left, item, bound)
        elif isinstance(left, ConstantNode) and path_text(right) is not None:
            entry = IndexNode(right.start, right.end, right, ConstantNode(right.start, right.start, 0))
            equal = OperatorNode(left.start, left.end, "==", (entry, left))
            yield from self._check_comparison(equal, entry, left, bound)

    def _mistake(self, code: str, message: str, node: Node, help: str | None) -> ConditionMistake:
        return ConditionMistake(code, message, node.start, node.end - node.start, help)


_ORDERED: Final = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}


def _describe_path(path: Node) -> str | None:
    """Return a path in words; an index without a width, which `in` creates, stands for any entry."""
    if isinstance(path, IndexNode) and path.index.start == path.index.end:
        return f"an entry of {path_text(path.operand)}"
    return path_text(path)


def _is_reachable(view: SchemaView, operator: str, value: Any) -> bool | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    least, most = view.bounds
    is_above = most is not None and (value > most or (value == most and operator == ">"))
    is_below = least is not None and (value < least or (value == least and operator == "<"))
    is_equal = operator in ("==", "!=")
    if (is_above and (is_equal or operator in (">", ">="))) or (is_below and (is_equal or operator in ("<", "<="))):
        return False
    return None


def missing_everywhere(name: str, views: Iterable[SchemaView | MissingField | None]) -> MissingField | None:
    """Return a field that no value has, or that is a misspelling of a listed one; `None` if some value may have it."""
    known: frozenset[str] = frozenset()
    is_certain, is_met = True, False
    for view in views:
        if isinstance(view, MissingField) and view.is_certain:
            continue
        found = view.field(name) if isinstance(view, SchemaView) else None
        if found is None or isinstance(found, SchemaView) or not (found.is_certain or _near(name, found.known)):
            return None
        known, is_certain, is_met = known | found.known, is_certain and found.is_certain, True
    return MissingField(known, is_certain) if is_met else None


def _near(name: str, known: frozenset[str]) -> bool:
    """Whether a name is probably a misspelling of a listed one."""
    folded = [each.casefold().replace("-", "").replace("_", "") for each in known]
    return bool(get_close_matches(name.casefold().replace("-", "").replace("_", ""), folded, n=1, cutoff=_CLOSE))


def _describe_types(types: Types) -> str:
    return " or ".join(dict.fromkeys(_WORDS[each] for each in sorted(types)))


def _conversion(path: str, types: Types, other: Node) -> str | None:
    """Return how to write the other value so that it has the right type."""
    value = other.value if isinstance(other, ConstantNode) else ...
    if value is None:
        return f"write has({path}) to test whether it is given"
    if isinstance(value, str) and types & NUMBERS and value.replace(".", "", 1).lstrip("-").isdecimal():
        return f"write {value} without quotes"
    if isinstance(value, str) and types == _BOOLEAN and value in ("true", "false"):
        return f"write {value} without quotes"
    if isinstance(value, int | float) and not isinstance(value, bool) and types == _TEXT:
        return f'write "{value}" in quotes'
    return f"compare it with {_describe_types(types)}"


def _choices(value: Any, listed: Mapping[Any, None]) -> str | None:
    texts = [each for each in listed if isinstance(each, str)]
    near = suggest_name(value, texts) if isinstance(value, str) else None
    if near or not listed:
        return near
    shown = ", ".join(_format(each) for each in list(listed)[:_MAX_LISTED])
    return f"it is one of: {shown}{', …' if len(listed) > _MAX_LISTED else ''}"


def _format(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
