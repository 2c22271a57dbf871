"""The shape of the YAML, read from the models: which fields a spot has, and what stands under each.

Problems, the editor schema and the field documentation all walk these shapes, so they cannot disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import Tag
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.config.specs.base import Spec, without_none
from gateway.config.specs.scalars import Text

Type = Literal["string", "boolean", "integer", "number", "any"]

_PLAIN: Final[Mapping[Any, tuple[str, Type]]] = {
    str: ("text", "string"),
    bool: ("true or false", "boolean"),
    int: ("a whole number", "integer"),
    float: ("a number", "number"),
    Any: ("anything", "any"),
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. `choices` are all it can be, where that is a closed list; `pattern` is how a text looks."""

    name: str
    type: Type = "string"
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    wanted: str | None = None
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Object:
    """A mapping with named fields."""

    model: type[Spec]


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    item: "Shape"
    least: int = 0


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping with free keys."""

    key: "Shape"
    value: "Shape"
    least: int = 0


@dataclass(frozen=True, slots=True)
class Variants:
    """One of several shapes. `tag` is the field that tells which; without it, their form tells."""

    tag: str | None
    shapes: tuple[tuple[str, "Shape"], ...]


Shape = Scalar | Object | Items | Entries | Variants


@dataclass(frozen=True, slots=True)
class Part:
    """A field of an object as YAML sees it. `default` is `None` where a left-out field means nothing."""

    name: str
    shape: Shape
    description: str
    required: bool
    default: Any


@cache
def fields_of(model: type[Spec]) -> Mapping[str, Part]:
    """The fields of a model, by their YAML names, in the order they are documented."""
    parts = (_part(field) for field in model.model_fields.values())
    return {part.name: part for part in parts}


def shape_of(annotation: Any, metadata: tuple[Any, ...] = (), tag: str | None = None) -> Shape:
    """The shape behind a type annotation and what is written beside it."""
    if get_origin(annotation) is Annotated:
        inner, *beside = get_args(annotation)
        fields = [note for note in beside if isinstance(note, FieldInfo)]
        tags = [field.discriminator for field in fields if isinstance(field.discriminator, str)]
        limits = [limit for field in fields for limit in field.metadata]
        return shape_of(inner, (*beside, *limits, *metadata), tags[0] if tags else tag)
    if text := next((note for note in metadata if isinstance(note, Text)), None):
        return Scalar(text.name, pattern=text.pattern, wanted=text.wanted)
    bare = without_none(annotation)
    if bare is not annotation:
        return shape_of(bare, metadata, tag)
    return _container(annotation, metadata, tag)


def described(shape: Shape) -> str:
    """A shape's type in a few words."""
    match shape:
        case Scalar(choices=()):
            return shape.name + _range(shape)
        case Scalar():
            return " | ".join(shape.choices)
        case Object():
            return "a mapping"
        case Items():
            return f"a list of: {described(shape.item)}"
        case Entries(key=key, value=value):
            return f"a mapping from {described(key)} to {described(value)}"
        case Variants(tag=None):
            return " or ".join(described(each) for _, each in shape.shapes)
        case Variants():
            return f"a mapping, by {shape.tag}: {' | '.join(name for name, _ in shape.shapes)}"


def _range(shape: Scalar) -> str:
    bounds = [
        f"{words} {bound}"
        for words, bound in (("at least", shape.minimum), ("at most", shape.maximum))
        if bound is not None
    ]
    return f", {', '.join(bounds)}" if bounds else ""


def _part(field: FieldInfo) -> Part:
    tag = field.discriminator if isinstance(field.discriminator, str) else None
    return Part(
        name=str(field.alias),
        shape=shape_of(field.annotation, tuple(field.metadata), tag),
        description=field.description or "",
        required=field.is_required(),
        default=None if field.default is PydanticUndefined else field.default,
    )


def _container(annotation: Any, metadata: tuple[Any, ...], tag: str | None) -> Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    least = max(_limits("min_length", metadata), default=0)
    if origin is Literal:
        return Scalar("true", "boolean", ("true",)) if arguments == (True,) else Scalar("a word", choices=arguments)
    if origin is tuple:
        return Items(shape_of(arguments[0]), least)
    if origin is dict:
        return Entries(shape_of(arguments[0]), shape_of(arguments[1]), least)
    if origin in (Union, UnionType):
        return _variants(arguments, tag)
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return Object(annotation)
    return _number(Scalar(*_PLAIN[annotation]), metadata)


def _number(scalar: Scalar, metadata: tuple[Any, ...]) -> Scalar:
    return replace(
        scalar,
        minimum=max(_limits("ge", metadata), default=None),
        maximum=min(_limits("le", metadata), default=None),
    )


def _limits(name: str, metadata: tuple[Any, ...]) -> list[int]:
    return [getattr(note, name) for note in metadata if hasattr(note, name)]


def _variants(members: tuple[Any, ...], tag: str | None) -> Variants:
    if tag is not None:
        return Variants(tag, tuple((_tag_value(member, tag), Object(member)) for member in members))
    return Variants(None, tuple((_tag_note(member), shape_of(member)) for member in members))


def _tag_value(model: type[Spec], tag: str) -> str:
    return str(get_args(model.model_fields[tag].annotation)[0])


def _tag_note(member: Any) -> str:
    return next(note.tag for note in get_args(member) if isinstance(note, Tag))
