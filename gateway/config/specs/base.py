"""What every YAML shape has in common: strict, closed, frozen, camelCase outside and snake_case inside.

It knows how a shape says that its fields do not fit together. It knows no single kind.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Strict,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function

Path = tuple[str | int, ...]

BROKEN_RULES: Final = "broken-rules"
"""The error type under which pydantic carries our list of `Broken` to whoever translates it."""


def yaml_name(field: str) -> str:
    """`on_collision` → `onCollision`; a trailing underscore (`class_`) only keeps Python's keywords away."""
    first, *rest = field.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule over several fields that does not hold. `path` starts at the shape that has the rule."""

    path: Path
    message: str
    help: str | None = None
    code: str = "wrong-value"
    at_key: bool = False


class Spec(BaseModel):
    """Base of every shape."""

    model_config = ConfigDict(
        alias_generator=yaml_name,
        extra="forbid",
        frozen=True,
        strict=True,
        hide_input_in_errors=True,  # a value may be a secret in the wrong place
        defer_build=True,  # a folder rarely uses all kinds
        protected_namespaces=(),
    )

    def broken_rules(self) -> Iterable[Broken]:
        """The rules over several fields that do not hold; asked once each field is right by itself."""
        return ()

    @model_validator(mode="after")
    def _fits_together(self) -> "Spec":
        if broken := tuple(self.broken_rules()):
            raise PydanticCustomError(BROKEN_RULES, "fields do not fit together", {"broken": broken})
        return self


T = TypeVar("T")

Many = Annotated[tuple[T, ...], Strict(False)]
"""A list. It is kept as a tuple, which strictness would not make from a list."""

Some = Annotated[tuple[T, ...], Strict(False), Field(min_length=1)]
"""A list with at least one entry."""


class _NeverNull:
    """Lets the field be left out, but refuses an explicit `null`: an empty value is usually a forgotten one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(without_none(source))


def without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    kept = tuple(part for part in get_args(annotation) if part is not type(None))
    return kept[0] if len(kept) == 1 else Union[kept]  # noqa: UP007 - the members are only known at run time


Maybe = Annotated[T | None, _NeverNull()]
"""An optional field; `None` means that it was left out."""


class _OnlyTrue:
    """`true` and nothing else; a plain literal would take 1 for it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def read(self, value: object) -> Literal[True]:
        if value is not True:
            raise PydanticCustomError("wrong-value", "the only value here is true")
        return True


OnlyTrue = Annotated[Literal[True], _OnlyTrue()]


def _word_or_list(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "word"


def _text_or_object(value: object) -> str:
    return "object" if isinstance(value, dict | BaseModel) else "text"


Word = TypeVar("Word")
Items = TypeVar("Items")
WordOrList = Annotated[Annotated[Word, Tag("word")] | Annotated[Items, Tag("list")], Discriminator(_word_or_list)]
TextOrObject = Annotated[Annotated[Word, Tag("text")] | Annotated[Items, Tag("object")], Discriminator(_text_or_object)]


def exactly_one(*names: str) -> dict[str, Any]:
    """The editor's half of an exactly-one rule; `broken_rules` holds the loader's."""
    return {"oneOf": [{"required": [name]} for name in names]}


def one_of_missing(given: dict[str, object | None], what: str) -> Iterator[Broken]:
    """Broken unless exactly one of the named values is there."""
    present = [name for name, value in given.items() if value is not None]
    names = " or ".join(f"'{name}'" for name in given)
    if not present:
        yield Broken((), f"{what} needs {names}", code="missing-field", at_key=True)
    for extra in present[1:]:
        yield Broken((extra,), f"{what} takes only one of {names}", help="remove one of them", at_key=True)
