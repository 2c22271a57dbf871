"""Documentation of kinds and fields as plain text, for paths such as `tool.spec.backend`.

A path skips list entries and free keys. It may name a variant by its tag (`tool.spec.backend.http.url`) or leave the
tag out (`tool.spec.backend.url`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from gateway.config.editor_schema import default_to_yaml
from gateway.config.field_shapes import (
    FieldShape,
    FieldType,
    ListField,
    MapField,
    ObjectField,
    ScalarField,
    UnionField,
    describe_type,
    list_fields,
)
from gateway.config.kinds.validation import KINDS
from gateway.errors import GatewayError
from gateway.registries import suggest_name

_INDENT = "  "


class UnknownField(GatewayError):
    """No kind or field has this name."""

    code = "E_UNKNOWN_FIELD"
    status = 404
    default_message: ClassVar[str] = "there is no such field"


@dataclass(frozen=True, slots=True)
class _Found:
    """The target of a path. Kinds and variants have no `part`, because they are not fields."""

    title: str
    summary: str
    shape: FieldType
    part: FieldShape | None = None


def explain_schema_field(path: str, recursive: bool = False) -> str:
    """Return the documentation of a kind or a field, or the list of kinds for an empty path.

    A field that differs between variants is documented once per variant. Raises `UnknownField`, which suggests the
    nearest name.
    """
    kind_name, *names = [name for name in path.replace("[]", "").split(".") if name] or [""]
    if not kind_name:
        return _all_kinds()
    found = [_find_kind(kind_name)]
    for name in names:
        found = [below for each in found for below in _find_field(each, name)] or _raise_unknown(found, name)
    return "\n\n".join("\n".join(_page(each, recursive)).rstrip() for each in found) + "\n"


def _all_kinds() -> str:
    width = max(map(len, KINDS))
    return "".join(f"{kind.name:{width}}  {kind.summary}\n" for kind in KINDS.values())


def _find_kind(name: str) -> _Found:
    folded = name.casefold()
    for kind in KINDS.values():
        if folded in (kind.name.casefold(), kind.plural):
            return _Found(kind.name, kind.summary, ObjectField(kind.model))
    known = ", ".join(KINDS)
    raise UnknownField(f"there is no kind {name[:60]!r}", help=suggest_name(name, KINDS) or f"kinds: {known}")


def _find_field(found: _Found, name: str) -> list[_Found]:
    match _inside(found.shape):
        case ObjectField(model=model) if name in list_fields(model):
            part = list_fields(model)[name]
            return [_Found(f"{found.title}.{name}", part.description, part.shape, part)]
        case UnionField(shapes=shapes) as variants:
            below = [_Found(_variant_title(found, variants, tag), _summary(each), each) for tag, each in shapes]
            if variants.tag and (chosen := [each for (tag, _), each in zip(shapes, below, strict=True) if tag == name]):
                return chosen
            return [deeper for each in below for deeper in _find_field(each, name)]
        case _:
            return []


def _variant_title(found: _Found, variants: UnionField, tag: str) -> str:
    return f"{found.title}.{tag}" if variants.tag else found.title


def _raise_unknown(found: list[_Found], name: str) -> list[_Found]:
    known = list(dict.fromkeys(field for each in found for field in _field_names(each.shape)))
    help = suggest_name(name, known) or (f"fields: {', '.join(known)}" if known else "it has no fields")
    raise UnknownField(f"{name[:60]!r} is not a field of {found[0].title}", help=help)


def _field_names(shape: FieldType) -> Iterator[str]:
    match _inside(shape):
        case ObjectField(model=model):
            yield from list_fields(model)
        case UnionField(tag=tag, shapes=shapes):
            yield from (name for name, _ in shapes if tag)
            for _, each in shapes:
                yield from _field_names(each)
        case _:
            return


def _inside(shape: FieldType) -> FieldType:
    """Return the shape inside lists and mappings with free keys."""
    match shape:
        case ListField(item=inner) | MapField(value=inner):
            return _inside(inner)
        case _:
            return shape


def _summary(shape: FieldType) -> str:
    match _inside(shape):
        case ObjectField(model=model):
            return (model.__doc__ or "").strip()
        case _:
            return ""


def _page(found: _Found, recursive: bool) -> Iterator[str]:
    yield found.title
    yield ""
    yield f"{_INDENT}{found.summary}"
    yield ""
    if found.part is not None:
        yield from _facts(found.part)
        yield ""
    yield from _contents(found.shape, recursive, depth=0)


def _facts(part: FieldShape) -> Iterator[str]:
    yield f"{_INDENT}type:     {describe_type(part.shape)}"
    yield f"{_INDENT}required: {'yes' if part.required else 'no'}"
    if (default := _default(part)) is not None:
        yield f"{_INDENT}default:  {default}"
    if (scalar := _inside(part.shape)) and isinstance(scalar, ScalarField) and scalar.wanted:
        yield f"{_INDENT}how:      {scalar.wanted}"


def _default(part: FieldShape) -> str | None:
    value: Any = default_to_yaml(part.default)
    return None if value is None else value if isinstance(value, str) else json.dumps(value)


def _contents(shape: FieldType, recursive: bool, depth: int) -> Iterator[str]:
    margin = _INDENT * depth
    match _inside(shape):
        case ObjectField(model=model):
            yield f"{margin}fields:"
            for part in list_fields(model).values():
                yield from _entry(part, recursive, depth + 1)
        case UnionField(tag=tag, shapes=shapes):
            yield f"{margin}one of, by {tag}:" if tag else f"{margin}one of:"
            for name, each in shapes:
                yield f"{margin}{_INDENT}{name if tag else describe_type(each)}: {_summary(each)}".removesuffix(": ")
                if recursive:
                    yield from _contents(each, recursive, depth + 2)
        case _:
            return


def _entry(part: FieldShape, recursive: bool, depth: int) -> Iterator[str]:
    margin = _INDENT * depth
    default = _default(part)
    state = "required" if part.required else f"default {default}" if default is not None else "optional"
    yield f"{margin}{part.name} <{describe_type(part.shape)}> {state}"
    yield f"{margin}{_INDENT}{part.description}"
    if recursive:
        yield from _contents(part.shape, recursive, depth + 1)
