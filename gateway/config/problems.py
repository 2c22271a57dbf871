"""What is wrong with a document's shape, in our words and with the path as it stands in the YAML.

The validator speaks of inputs, tags and patterns; this module turns that into problems that a person can act
on. It knows no file: who read the document maps paths to lines and columns. No message repeats a value, except
short ones in places where only a closed list of words is allowed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pydantic_core import ErrorDetails

from gateway.config.shapes import Entries, Items, Object, Part, Scalar, Shape, Variants, fields_of
from gateway.config.specs import base
from gateway.config.specs.base import Broken, Path
from gateway.config.specs.scalars import type_name
from gateway.governance.diagnostics import did_you_mean

CODES: Final[Mapping[str, str]] = {
    "unknown-kind": "No document has this kind.",
    "unknown-version": "The format has no such version.",
    "unknown-field": "The mapping has no such field; unknown fields are refused at every depth.",
    "missing-field": "A field that is needed here is not there.",
    "wrong-type": "The value is of another type; nothing is converted, so 5 is not text and 1 is not true.",
    "wrong-value": "The value has the right type, but cannot stand here or does not fit the fields around it.",
    "bad-duration": "A duration is a number and a unit.",
    "bad-size": "A size is a number and a unit.",
    "bad-date": "A day or a moment does not exist, is written in another way, or lies on the wrong side of another.",
    "bad-time": "A time of day has two digits for the hour and two for the minute.",
    "bad-version": "A version has three numbers.",
    "bad-name": "A name holds other characters than its kind of name allows, or lacks its prefix.",
    "bad-url": "An address is not a full one, carries a user name, or has a placeholder outside its path.",
    "bad-path": "A path is not of the kind that is needed here.",
    "bad-entrypoint": "A Python object is named by its module, a colon and its name.",
    "secret-as-text": "A secret stands in the document; write where it comes from instead.",
    "too-many-problems": "The document has more problems than are worth reading at once.",
}
"""Every code of this layer and what it means."""

MAX_PROBLEMS: Final = 100
"""Problems per document; whoever has more starts with the first hundred."""

_LONGEST_QUOTE: Final = 60
_ABOUT_NAMES: Final = frozenset({"unknown-field", "missing-field"})
"""Problems that quote field names only."""

_EXPECTED: Final = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One problem. `at_key` says that the last key of `path` is meant rather than its value.

    What is missing has no place of its own: `path` leads to the mapping that lacks it.
    """

    code: str
    path: Path
    message: str
    help: str | None = None
    at_key: bool = False


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where an error is: its path in the YAML, what stands there, and what should."""

    path: Path
    value: Any
    shape: Shape
    is_key: bool = False


def spec_problems(errors: Iterable[ErrorDetails], data: Mapping[Any, Any], root: Shape) -> list[SpecProblem]:
    """Each problem once, up to a limit."""
    every = (problem for error in errors for problem in _translated(error, data, root))
    found = list(dict.fromkeys(islice(every, MAX_PROBLEMS + 1)))
    problems = found[:MAX_PROBLEMS]
    if len(found) > MAX_PROBLEMS:
        help = "correct the problems above and check again"
        problems.append(SpecProblem("too-many-problems", (), "the rest of the document is not checked", help, True))
    return problems


def discreet(problem: SpecProblem, hidden: Collection[Path]) -> SpecProblem:
    """The problem without a quotation, if it is about a value that must not be printed."""
    is_about = any(path[: len(problem.path)] == problem.path for path in hidden)
    if problem.code in _ABOUT_NAMES or not is_about or not set(problem.message) & set("'\""):
        return problem
    return replace(problem, message="the value does not fit here; it comes from the environment, so it is not shown")


def place(path: Path) -> str:
    """`spec.cases[2].as`, or `the document` for its top."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "the document"


def quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def _translated(error: ErrorDetails, data: Any, root: Shape) -> Iterator[SpecProblem]:
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "extra_forbidden" | "missing":
            parent = _spot(error["loc"][:-1], data, root)
            name = str(error["loc"][-1])
            yield _unknown_field(parent, name) if kind == "extra_forbidden" else _missing_field(parent, name)
        case "invalid_key":
            parent = _spot(error["loc"][:-1], data, root)
            key = _written_key(parent.value, error["loc"][-1])
            yield SpecProblem("wrong-type", (*parent.path, key), "a field name is text", "put it in quotes", True)
        case base.BROKEN_RULES:
            yield from (_broken(_spot(error["loc"], data, root), rule) for rule in context["broken"])
        case _:
            spot = _spot(error["loc"], data, root)
            if not _is_an_echo(kind, context, spot):
                yield _at_value(error, spot)


def _is_an_echo(kind: str, context: Mapping[str, Any], spot: _Spot) -> bool:
    """Wrong entries are not counted, so a list of them is called too short as well."""
    return kind == "too_short" and len(spot.value) >= context["min_length"]


def _at_value(error: ErrorDetails, spot: _Spot) -> SpecProblem:
    kind, context = error["type"], error.get("ctx", {})
    path, at_key = spot.path, spot.is_key
    if kind in _EXPECTED:
        return SpecProblem(
            "wrong-type", path, f"expected {_EXPECTED[kind]}, got {type_name(spot.value)}", _quote_hint(kind), at_key
        )
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(spot)
    if kind == "literal_error":
        return _not_a_choice(path, spot.value, _choices(spot.shape))
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return SpecProblem("wrong-value", path, f"must be {words} {context[bound]}")
    if kind == "too_short":
        least = context["min_length"]
        return SpecProblem("wrong-value", path, f"needs at least {least} {'entry' if least == 1 else 'entries'}")
    return SpecProblem(kind, path, error["msg"], context.get("help"), at_key)


def _unknown_field(parent: _Spot, name: str) -> SpecProblem:
    known = _fields_at(parent)
    listed = f"fields here: {', '.join(known)}" if known else "there are no fields here"
    suggestion = did_you_mean(name, known) or listed
    message = f"{quoted(name)} is not a field of {place(parent.path)}"
    return SpecProblem("unknown-field", (*parent.path, name), message, suggestion, True)


def _fields_at(spot: _Spot) -> Mapping[str, Part]:
    assert isinstance(spot.shape, Object)  # noqa: S101 - only objects have fields to miss or not to know
    return fields_of(spot.shape.model)


def _missing_field(parent: _Spot, name: str) -> SpecProblem:
    help = _fields_at(parent)[name].description
    return SpecProblem("missing-field", parent.path, f"{place(parent.path)} needs {name!r}", help, True)


def _wrong_tag(spot: _Spot) -> SpecProblem:
    assert isinstance(spot.shape, Variants)  # noqa: S101 - only variants have tags
    assert spot.shape.tag is not None  # noqa: S101 - without a field for it, every value has a tag
    choices = tuple(name for name, _ in spot.shape.shapes)
    if spot.shape.tag not in spot.value:
        help = f"choose one of: {', '.join(choices)}"
        return SpecProblem("missing-field", spot.path, f"{place(spot.path)} needs {spot.shape.tag!r}", help, True)
    return _not_a_choice((*spot.path, spot.shape.tag), spot.value[spot.shape.tag], choices)


def _not_a_choice(path: Path, value: object, choices: tuple[str, ...]) -> SpecProblem:
    listed = ", ".join(choices)
    if not isinstance(value, str):
        return SpecProblem("wrong-type", path, f"expected one of {listed}, got {type_name(value)}")
    return SpecProblem("wrong-value", path, f"{quoted(value)} is not one of: {listed}", did_you_mean(value, choices))


def _choices(shape: Shape) -> tuple[str, ...]:
    assert isinstance(shape, Scalar)  # noqa: S101 - a closed list of words is a scalar
    return shape.choices


def _broken(spot: _Spot, rule: Broken) -> SpecProblem:
    return SpecProblem(rule.code, (*spot.path, *rule.path), rule.message, rule.help, rule.at_key)


def _quote_hint(kind: str) -> str | None:
    return "put it in quotes" if kind == "string_type" else None


def _spot(location: tuple[str | int, ...], data: Any, root: Shape) -> _Spot:
    """Follows a validator's location through data and shapes; the tags it contains are not in the YAML."""
    path: Path = ()
    value, shape, is_entry = data, root, False
    for part in location:
        if part == "[key]" and is_entry:
            return _Spot(path, path[-1], shape, is_key=True)
        is_entry = isinstance(shape, Entries)
        match shape:
            case Variants():
                shape = dict(shape.shapes)[str(part)]
                continue
            case Object():
                shape = fields_of(shape.model)[str(part)].shape
            case Items():
                shape = shape.item
            case Entries():
                shape = shape.value
                part = _written_key(value, part)
        path, value = (*path, part), value[part]
    return _Spot(path, value, shape)


def _written_key(mapping: Mapping[Any, Any], part: str | int) -> Any:
    """The key as it was read; locations hold texts and small numbers only."""
    return part if part in mapping else next(key for key in mapping if str(key) == str(part))
