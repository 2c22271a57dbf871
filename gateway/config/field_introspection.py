"""The fields of each YAML mapping and their types, read from the pydantic models.

Validation problems, the editor schema and the field documentation all use these shapes, so they agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import Tag
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.config.kinds.common_specs import SpecModel, drop_none
from gateway.config.kinds.scalars import TextScalar

Type = Literal["string", "boolean", "integer", "number", "any"]

_PLAIN: Final[Mapping[Any, tuple[str, Type]]] = {
    str: ("text", "string"),
    bool: ("true or false", "boolean"),
    int: ("a whole number", "integer"),
    float: ("a number", "number"),
    Any: ("anything", "any"),
}


@dataclass(frozen=True, slots=True)
class ScalarField:
    """One value. `choices` lists all values of a closed list; `pattern` is the regular expression of a text."""

    name: str
    type: Type = "string"
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    wanted: str | None = None
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class ObjectField:
    """A mapping with named fields."""

    model: type[SpecModel]


@dataclass(frozen=True, slots=True)
class ListField:
    """A list."""

    item: "FieldType"
    least: int = 0


@dataclass(frozen=True, slots=True)
class MapField:
    """A mapping with free keys."""

    key: "FieldType"
    value: "FieldType"
    least: int = 0


@dataclass(frozen=True, slots=True)
class UnionField:
    """One of several shapes. The field `tag` selects one; if it is `None`, the type of the value does."""

    tag: str | None
    shapes: tuple[tuple[str, "FieldType"], ...]


FieldType = ScalarField | ObjectField | ListField | MapField | UnionField


@dataclass(frozen=True, slots=True)
class FieldShape:
    """A field of an object by its YAML name. `default` is `None` if the field has no default."""

    name: str
    shape: FieldType
    description: str
    required: bool
    default: Any


@cache
def list_fields(model: type[SpecModel]) -> Mapping[str, FieldShape]:
    """Return the fields of a model by YAML name, in the order of the documentation."""
    parts = (_field_shape(field) for field in model.model_fields.values())
    return {part.name: part for part in parts}


def field_type(annotation: Any, metadata: tuple[Any, ...] = (), tag: str | None = None) -> FieldType:
    """Return the shape of a type annotation and its metadata."""
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        fields = [note for note in notes if isinstance(note, FieldInfo)]
        tags = [field.discriminator for field in fields if isinstance(field.discriminator, str)]
        limits = [limit for field in fields for limit in field.metadata]
        return field_type(inner, (*notes, *limits, *metadata), tags[0] if tags else tag)
    if text := next((note for note in metadata if isinstance(note, TextScalar)), None):
        return ScalarField(text.name, pattern=text.pattern, wanted=text.wanted)
    bare = drop_none(annotation)
    if bare is not annotation:
        return field_type(bare, metadata, tag)
    return _container(annotation, metadata, tag)


def describe_type(shape: FieldType) -> str:
    """Return a short description of a shape's type."""
    match shape:
        case ScalarField(choices=()):
            return shape.name + _range(shape)
        case ScalarField():
            return " | ".join(shape.choices)
        case ObjectField():
            return "a mapping"
        case ListField():
            return f"a list of: {describe_type(shape.item)}"
        case MapField(key=key, value=value):
            return f"a mapping from {describe_type(key)} to {describe_type(value)}"
        case UnionField(tag=None):
            return " or ".join(describe_type(each) for _, each in shape.shapes)
        case UnionField():
            return f"a mapping, by {shape.tag}: {' | '.join(name for name, _ in shape.shapes)}"


def _range(shape: ScalarField) -> str:
    bounds = [
        f"{words} {bound}"
        for words, bound in (("at least", shape.minimum), ("at most", shape.maximum))
        if bound is not None
    ]
    return f", {', '.join(bounds)}" if bounds else ""


def _field_shape(field: FieldInfo) -> FieldShape:
    tag = field.discriminator if isinstance(field.discriminator, str) else None
    return FieldShape(
        name=str(field.alias),
        shape=field_type(field.annotation, tuple(field.metadata), tag),
        description=field.description or "",
        required=field.is_required(),
        default=None if field.default is PydanticUndefined else field.default,
    )


def _container(annotation: Any, metadata: tuple[Any, ...], tag: str | None) -> FieldType:
    origin, arguments = get_origin(annotation), get_args(annotation)
    least = max(_limits("min_length", metadata), default=0)
    if origin is Literal:
        return (
            ScalarField("true", "boolean", ("true",))
            if arguments == (True,)
            else ScalarField("a word", choices=arguments)
        )
    if origin is tuple:
        return ListField(field_type(arguments[0]), least)
    if origin is dict:
        return MapField(field_type(arguments[0]), field_type(arguments[1]), least)
    if origin in (Union, UnionType):
        return _variants(arguments, tag)
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return ObjectField(annotation)
    return _number(ScalarField(*_PLAIN[annotation]), metadata)


def _number(scalar: ScalarField, metadata: tuple[Any, ...]) -> ScalarField:
    return replace(
        scalar,
        minimum=max(_limits("ge", metadata), default=None),
        maximum=min(_limits("le", metadata), default=None),
    )


def _limits(name: str, metadata: tuple[Any, ...]) -> list[int]:
    return [getattr(note, name) for note in metadata if hasattr(note, name)]


def _variants(members: tuple[Any, ...], tag: str | None) -> UnionField:
    if tag is not None:
        return UnionField(tag, tuple((_tag_value(member, tag), ObjectField(member)) for member in members))
    return UnionField(None, tuple((_tag_note(member), field_type(member)) for member in members))


def _tag_value(model: type[SpecModel], tag: str) -> str:
    return str(get_args(model.model_fields[tag].annotation)[0])


def _tag_note(member: Any) -> str:
    return next(note.tag for note in get_args(member) if isinstance(note, Tag))
