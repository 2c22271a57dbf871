"""JSONPath as in JavaScript: python-jsonpath's parser, changed to accept what JavaScript's jsonpath-plus accepts.

Added: the parent `^`, the property name `~`, `===` and `!==`, `.length`, `@property`, bare names in
brackets and `[(@.length-1)]`. Removed: extensions of python-jsonpath that have another meaning in
JavaScript. No code is evaluated: a filter is a tree of comparisons, and its regular expressions run
in linear time.

Truth, equality and order are JavaScript's; `UNDEFINED` is a missing value. One deliberate difference:
lists and objects are equal if their contents are, because parsed documents have no identity.

`document_artifact` imports this module on first use, so that other formats work without python-jsonpath.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError, JSONPathSyntaxError, NodeList
from jsonpath import token as kinds
from jsonpath.filter import UNDEFINED as ABSENT
from jsonpath.filter import BaseExpression, FilterExpressionLiteral, RelativeFilterQuery, RootFilterQuery
from jsonpath.function_extensions import Count, ExpressionType, FilterFunction, Length, Value
from jsonpath.lex import Lexer
from jsonpath.parse import Parser
from jsonpath.segments import JSONPathRecursiveDescentSegment, JSONPathSegment
from jsonpath.selectors import FilterContext, IndexSelector, JSONPathSelector, NameSelector, SliceSelector
from jsonpath.stream import TokenStream
from jsonpath.token import TOKEN_INT, TOKEN_NAME, TOKEN_RE_FLAGS, TOKEN_SELF, Token

from gateway.artifacts.formats.jsonpath_nodes import (
    DescentSegment,
    FilterNode,
    LengthSelector,
    ListSlice,
    ParentSegment,
    PathNode,
    PropertySegment,
    VisitBudget,
    iter_nodes,
)
from gateway.artifacts.javascript_regex import Pattern
from gateway.errors import JsonPathInvalid
from gateway.model import UNDEFINED

_NUMERIC: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def is_truthy(value: Any) -> bool:
    """Whether a value is true: lists and objects always are; 0, NaN, the empty text, null and `UNDEFINED` are not."""
    if isinstance(value, dict | list):
        return True
    return value is not UNDEFINED and value == value and bool(value)


def is_strictly_equal(left: Any, right: Any) -> bool:
    """`===`"""
    if left is UNDEFINED or right is UNDEFINED:
        return left is right
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def is_loosely_equal(left: Any, right: Any) -> bool:
    """`==`: null equals `UNDEFINED`, and a text is converted to a number to compare it with one."""
    if _is_nothing(left) or _is_nothing(right):
        return _is_nothing(left) and _is_nothing(right)
    if isinstance(left, dict | list) or isinstance(right, dict | list) or type(left) is type(right):
        return is_strictly_equal(left, right)
    return _number(left) == _number(right)


def _is_nothing(value: Any) -> bool:
    return value is None or value is UNDEFINED


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def decide(left: Any, right: Any) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return compare(left, right)
        return compare(_number(left), _number(right))

    return decide


def _number(value: Any) -> int | float:
    """Convert a value to a number as JavaScript does; to NaN if that is not possible."""
    if isinstance(value, int | float):
        return value
    if value is None:
        return 0
    if isinstance(value, str):
        text = value.strip()
        return float(text) if _NUMERIC.fullmatch(text) else math.nan if text else 0
    return math.nan


def _is_match(left: Any, right: Any) -> bool:
    return isinstance(left, str) and isinstance(right, Pattern) and right.matches(left)


COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": is_loosely_equal,
    "!=": lambda left, right: not is_loosely_equal(left, right),
    "===": is_strictly_equal,
    "!==": lambda left, right: not is_strictly_equal(left, right),
    "<": _comparison(operator.lt),
    "<=": _comparison(operator.le),
    ">": _comparison(operator.gt),
    ">=": _comparison(operator.ge),
    "=~": _is_match,
}

_PARENT: Final = "GATEWAY_PARENT"
_PROPERTY: Final = "GATEWAY_PROPERTY"
_SAME: Final = "GATEWAY_SAME"
_NOT_SAME: Final = "GATEWAY_NOT_SAME"
_AFTER_DOTS: Final = "GATEWAY_AFTER_DOTS"
_FROM_END: Final = "GATEWAY_FROM_END"

_HELP: Final = (
    "use $, .name, ['name'], [0], [1:3], [0,2], *, .., ^, ~ and filters such as [?(@.age > 18 && @.name == 'x')]; "
    "code is never run"
)


class PathRefused(JSONPathSyntaxError):
    """A path that this dialect refuses. The message does not repeat any part of the path."""


def compile_path(source: str) -> JSONPath:
    """Parse a path. Raises `JsonPathInvalid` with a message of one line."""
    try:
        path = JAVASCRIPT_JSONPATH.compile(source)
    except (JSONPathError, LookupError, ValueError, ArithmeticError, AssertionError) as error:
        raise JsonPathInvalid(f"the path cannot be read: {_reason(error)}", help=_HELP) from error
    assert isinstance(path, JSONPath)  # noqa: S101 - a compound path needs tokens this dialect does not have
    return path


def _reason(error: Exception) -> str:
    if not isinstance(error, JSONPathError):  # usually a number that the library cannot convert
        return "it contains something that is not part of a path"
    where = f" at character {error.token.index + 1}" if error.token and error.token.index >= 0 else ""
    # Messages of the library quote parts of the path; those of this dialect do not.
    problem = error.args[0] if isinstance(error, PathRefused) else "it is not well formed"
    return f"{problem}{where}"


def find_nodes(path: JSONPath, document: Any, *, budget: VisitBudget) -> Iterator[PathNode]:
    """Yield the nodes that `path` finds, in document order. A falsy document has none, as in jsonpath-plus."""
    if not is_truthy(document):
        return iter(())
    top = PathNode(document, key=None, parent=None, root=document, context={"budget": budget})
    return iter_nodes(path, top)


class _RelativeQuery(RelativeFilterQuery):
    """A path from `@`."""

    def evaluate(self, context: FilterContext) -> NodeList:
        return _evaluate(self.path, context, start=context.current)


class _RootQuery(RootFilterQuery):
    """A path from `$` inside a filter."""

    def evaluate(self, context: FilterContext) -> NodeList:
        return _evaluate(self.path, context, start=context.root)


def _evaluate(path: JSONPath, context: FilterContext, *, start: Any) -> NodeList:
    first = FilterNode(start, key=None, parent=None, root=context.root, context=context.extra_context)
    return NodeList(iter_nodes(path, first))


class _PatternLiteral(FilterExpressionLiteral[Pattern]):
    """The right side of `=~`."""


class _RegexFunction(FilterFunction):
    """`search(text, pattern)`, and `match(text, pattern)` for the whole text."""

    arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012 - the library's own declaration
    return_type = ExpressionType.LOGICAL

    def __init__(self, template: str) -> None:
        self._template = template

    def __call__(self, text: object, pattern: object) -> bool:
        if not isinstance(text, str) or not isinstance(pattern, str):
            return False
        return Pattern(self._template.format(pattern)).matches(text)


class _Lexer(Lexer):
    key_pattern = r"[$#_a-zA-Z\u0080-\U0010FFFF][$#_a-zA-Z0-9:\u0080-\U0010FFFF-]*"
    logical_not_pattern = "!"
    logical_and_pattern = "&&"
    logical_or_pattern = r"\|\|"

    def compile_rules(self) -> re.Pattern[str]:
        ours = {
            _SAME: "===",
            _NOT_SAME: "!==",
            _PARENT: r"\^",
            _PROPERTY: r"\.?~",
            # A name after `..` may start with `$` or be a keyword of the library, such as `in`.
            _AFTER_DOTS: rf"(?<=\.\.){self.key_pattern}",
            _FROM_END: r"(?<=\[)\(\s*@\.length\s*-\s*[1-9][0-9]*\s*\)",
        }
        rules = [f"(?P<{kind}>{pattern})" for kind, pattern in ours.items()]
        return re.compile("|".join((*rules, super().compile_rules().pattern)), re.DOTALL)

    def tokenize(self, path: str) -> Iterator[Token]:
        for token in super().tokenize(path):
            if token.kind == _AFTER_DOTS:
                yield Token(TOKEN_NAME, token.value, token.index, path)
            elif token.kind == _FROM_END:
                yield Token(TOKEN_INT, "-" + "".join(filter(str.isdigit, token.value)), token.index, path)
            else:
                yield token


class _PathParser(Parser):
    BINARY_OPERATORS = {  # noqa: RUF012 - the library's own declaration
        kinds.TOKEN_AND: "&&",
        kinds.TOKEN_OR: "||",
        kinds.TOKEN_EQ: "==",
        kinds.TOKEN_NE: "!=",
        kinds.TOKEN_LT: "<",
        kinds.TOKEN_LE: "<=",
        kinds.TOKEN_GT: ">",
        kinds.TOKEN_GE: ">=",
        kinds.TOKEN_RE: "=~",
        _SAME: "===",
        _NOT_SAME: "!==",
    }
    PRECEDENCES = Parser.PRECEDENCES | {
        _SAME: Parser.PRECEDENCE_RELATIONAL,
        _NOT_SAME: Parser.PRECEDENCE_RELATIONAL,
    }
    COMPARISON_OPERATORS = Parser.COMPARISON_OPERATORS | {"===", "!=="}
    INFIX_LITERAL_OPERATORS = Parser.INFIX_LITERAL_OPERATORS | {"===", "!=="}

    def parse_query(self, stream: TokenStream) -> Iterator[JSONPathSegment]:
        while True:
            for segment in super().parse_query(stream):
                if isinstance(segment, JSONPathRecursiveDescentSegment):
                    segment = DescentSegment(env=self.env, token=segment.token, selectors=segment.selectors)
                yield segment
            kind = stream.current().kind
            if kind == _PARENT:
                yield ParentSegment(self.env, stream.next())
            elif kind == _PROPERTY:
                yield PropertySegment(self.env, stream.next())
            else:
                return

    def parse_shorthand_selector(self, stream: TokenStream) -> JSONPathSelector:
        token = stream.current()
        if token.kind == TOKEN_INT:  # `.0` selects an item of a list as well as a key
            stream.next()
            return IndexSelector(env=self.env, token=token, index=int(token.value))
        if token.kind == TOKEN_NAME and token.value == "length":
            stream.next()
            return LengthSelector(env=self.env, token=token, name=token.value)
        return super().parse_shorthand_selector(stream)

    def parse_singular_query_selector(self, stream: TokenStream) -> Any:
        token = stream.next()
        if token.kind != TOKEN_NAME:
            raise PathRefused("a path inside brackets is not supported", token=token)
        return NameSelector(env=self.env, token=token, name=token.value)

    def parse_slice(self, stream: TokenStream) -> SliceSelector:
        token = stream.current()
        cut = super().parse_slice(stream).slice
        return ListSlice(env=self.env, token=token, start=cut.start, stop=cut.stop, step=cut.step)

    def parse_infix_expression(self, stream: TokenStream, left: BaseExpression) -> BaseExpression:
        token = stream.current()
        if token.kind not in self.BINARY_OPERATORS:  # the library would fail to look the operator up
            raise PathRefused("unexpected token", token=token)
        return super().parse_infix_expression(stream, left)

    def parse_relative_query(self, stream: TokenStream) -> BaseExpression:
        stream.eat(TOKEN_SELF)
        if stream.current().kind == TOKEN_NAME:  # such as `@parent`; the library would read it as `@.parent`
            raise PathRefused("a name right after @ is not supported", token=stream.current())
        return _RelativeQuery(JSONPath(env=self.env, segments=self.parse_query(stream)))

    def parse_absolute_query(self, stream: TokenStream) -> BaseExpression:
        stream.next()
        return _RootQuery(JSONPath(env=self.env, segments=self.parse_query(stream)))

    def parse_regex(self, stream: TokenStream) -> BaseExpression:
        source = stream.next().value
        stream.expect(TOKEN_RE_FLAGS)
        return _PatternLiteral(value=Pattern(source, stream.next().value))


class JavaScriptJsonPath(JSONPathEnvironment):
    """Compiles paths of this dialect and compares values for their filters."""

    lexer_class = _Lexer
    parser_class = _PathParser

    # An empty token disables an extension: these have another meaning in JavaScript, or none.
    pseudo_root_token = ""
    filter_context_token = ""
    intersection_token = ""
    union_token = ""
    keys_filter_token = ""
    key_token = "@property"  # noqa: S105 - a word of the path language

    def setup_function_extensions(self) -> None:
        self.function_extensions = {
            "count": Count(),
            "length": Length(),
            "match": _RegexFunction("^(?:{})$"),
            "search": _RegexFunction("{}"),
            "value": Value(),
        }

    def is_truthy(self, obj: object) -> bool:
        if isinstance(obj, NodeList):
            return len(obj) > 1 or (len(obj) == 1 and is_truthy(obj[0].obj))
        return is_truthy(_value(obj))

    def compare(self, left: object, operator: str, right: object) -> bool:
        if operator == "&&":
            return self.is_truthy(left) and self.is_truthy(right)
        if operator == "||":
            return self.is_truthy(left) or self.is_truthy(right)
        return COMPARISONS[operator](_value(left), _value(right))


def _value(operand: object) -> Any:
    is_missing = operand is ABSENT or (isinstance(operand, NodeList) and not operand)
    return UNDEFINED if is_missing else operand


JAVASCRIPT_JSONPATH: Final = JavaScriptJsonPath()
