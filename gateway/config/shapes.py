"""The shape of the YAML, read from the models: which fields a spot has, and what stands under each.

Problems, the editor schema and the field documentation all walk these shapes, so they cannot disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Tag
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.config.specs.base import Spec, without_none
from gateway.config.specs.scalars import Text

_PLAIN = {str: "text", bool: "true or false", int: "a whole number", float: "a number", Any: "anything"}


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value. `choices` are all it can be, where that is a closed list."""

    name: str
    choices: tuple[str, ...] = ()
    wanted: str | None = None


@dataclass(frozen=True, slots=True)
class Object:
    """A mapping with named fields."""

    model: type[Spec]


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    item: "Shape"


@dataclass(frozen=True, slots=True)
class Entries:
    """A mapping with free keys."""

    key: "Shape"
    value: "Shape"


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
        tags = [note.discriminator for note in beside if isinstance(note, FieldInfo)]
        return shape_of(inner, (*beside, *metadata), next((name for name in tags if isinstance(name, str)), tag))
    if text := next((note for note in metadata if isinstance(note, Text)), None):
        return Scalar(text.name, wanted=text.wanted)
    bare = without_none(annotation)
    if bare is not annotation:
        return shape_of(bare, metadata, tag)
    return _container(annotation, tag)


def described(shape: Shape) -> str:
    """A shape's type in a few words."""
    match shape:
        case Scalar(choices=()):
            return shape.name
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


def _part(field: FieldInfo) -> Part:
    tag = field.discriminator if isinstance(field.discriminator, str) else None
    return Part(
        name=str(field.alias),
        shape=shape_of(field.annotation, tuple(field.metadata), tag),
        description=field.description or "",
        required=field.is_required(),
        default=None if field.default is PydanticUndefined else field.default,
    )


def _container(annotation: Any, tag: str | None) -> Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return Scalar("one of", tuple("true" if choice is True else str(choice) for choice in arguments))
    if origin is tuple:
        return Items(shape_of(arguments[0]))
    if origin is dict:
        return Entries(shape_of(arguments[0]), shape_of(arguments[1]))
    if origin in (Union, UnionType):
        return _variants(arguments, tag)
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return Object(annotation)
    return Scalar(_PLAIN[annotation])


def _variants(members: tuple[Any, ...], tag: str | None) -> Variants:
    if tag is not None:
        return Variants(tag, tuple((_tag_value(member, tag), Object(member)) for member in members))
    return Variants(None, tuple((_tag_note(member), shape_of(member)) for member in members))


def _tag_value(model: type[Spec], tag: str) -> str:
    return str(get_args(model.model_fields[tag].annotation)[0])


def _tag_note(member: Any) -> str:
    return next(note.tag for note in get_args(member) if isinstance(note, Tag))
