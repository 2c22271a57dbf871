"""Documentation of kinds and fields, derived from the models that the loader uses: plain text, and a JSON Schema.

The text is for paths such as `tool.spec.backend`. A path skips list entries and free keys. It may name a variant by its
tag (`tool.spec.backend.http.url`) or leave the tag out (`tool.spec.backend.url`).

Editors check documents with the schema. One root schema selects the kind with if/then, so an editor reports the
problems of that kind instead of "matches none of fifteen". It uses draft 7, which YAML editors support. The loader is
stricter; `STRICTER` lists where. A value from a closed list must be literal. Any other text may contain `${NAME}`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final

from gateway.config.field_introspection import (
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
from gateway.config.kinds.common_specs import API_VERSION, SpecModel
from gateway.config.kinds.scalars import ENV_REFERENCE
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


STRICTER: Final = (
    "names of other documents must exist",
    "names of fields that point into the same document must exist there: placeholders, waivers, duplicated entries",
    "days, moments, time zones, hosts and ports must exist, not only look right",
    "values must fit each other: from before to, rates over short times, count within approvers, ok apart from failed",
    "a selection must choose something, not only have a key",
    "a path must not belong to the gateway itself, a credential must not be a plain header",
    "a whole number has no decimal point",
    "expressions, schemas and stage options must be valid",
)
"""What an editor accepts and the loader refuses."""

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))


def build_editor_schema() -> dict[str, Any]:
    """Return the schema. The output is deterministic, so it can be written to a file and compared."""
    definitions = {model.__name__: _object(model) for model in sorted(_models(), key=lambda model: model.__name__)}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of the agent gateway",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"enum": [API_VERSION], "description": "Version of the format."},
            "kind": {"enum": list(KINDS), "description": _kinds_in_words()},
        },
        "allOf": [_branch("kind", kind.name, kind.model) for kind in KINDS.values()],
        "definitions": definitions,
    }


def default_to_yaml(value: Any) -> Any:
    """Return a default value as YAML data, or `None` if it is empty."""
    if isinstance(value, timedelta):
        milliseconds = value // timedelta(milliseconds=1)
        factor, unit = next((factor, unit) for factor, unit in _UNITS if milliseconds % factor == 0)
        return f"{milliseconds // factor}{unit}"
    if isinstance(value, tuple):
        return [default_to_yaml(each) for each in value] or None
    return None if value == {} else value


def _kinds_in_words() -> str:
    return "\n".join(f"{kind.name}: {kind.summary}" for kind in KINDS.values())


def _branch(tag: str, name: str, model: type[SpecModel]) -> dict[str, Any]:
    return {"if": {"properties": {tag: {"const": name}}, "required": [tag]}, "then": _reference(model)}


def _reference(model: type[SpecModel]) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{model.__name__}"}


def _object(model: type[SpecModel]) -> dict[str, Any]:
    parts = list_fields(model)
    extra = model.model_config.get("json_schema_extra") or {}
    schema: dict[str, Any] = {
        "type": "object",
        "description": (model.__doc__ or "").strip(),
        "additionalProperties": False,
        "properties": {name: _property(part) for name, part in parts.items()},
    }
    if required := [name for name, part in parts.items() if part.required]:
        schema["required"] = required
    return schema | extra if isinstance(extra, Mapping) else schema


def _property(part: FieldShape) -> dict[str, Any]:
    schema = _schema(part.shape)
    if "$ref" in schema:  # draft 7 ignores keywords next to a reference
        schema = {"allOf": [schema]}
    schema["description"] = part.description
    if (default := default_to_yaml(part.default)) is not None:
        schema["default"] = default
    return schema


def _schema(shape: FieldType) -> dict[str, Any]:
    match shape:
        case ScalarField():
            return _scalar(shape)
        case ObjectField(model=model):
            return _reference(model)
        case ListField(item=item, least=least):
            return {"type": "array", "items": _schema(item)} | ({"minItems": least} if least else {})
        case MapField():
            return _entries(shape)
        case UnionField(tag=None, shapes=shapes):
            return {"anyOf": [_schema(each) for _, each in shapes]}
        case UnionField():
            return _tagged_union(shape)


def _scalar(shape: ScalarField) -> dict[str, Any]:
    if shape.type == "boolean" and shape.choices:
        return {"enum": [True]}
    if shape.choices:
        return {"enum": list(shape.choices)}
    if shape.pattern is not None:
        pattern = f"^(?:{shape.pattern})$|{ENV_REFERENCE}"
        return {"type": "string", "pattern": pattern, "patternErrorMessage": shape.wanted}
    if shape.type == "any":
        return {}
    bounds = {"minimum": shape.minimum, "maximum": shape.maximum}
    return {"type": shape.type} | {name: bound for name, bound in bounds.items() if bound is not None}


def _entries(shape: MapField) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": _schema(shape.value) or True}
    if isinstance(shape.key, ScalarField) and shape.key.pattern is not None:
        schema["propertyNames"] = {"pattern": f"^(?:{shape.key.pattern})$"}
    if shape.least:
        schema["minProperties"] = shape.least
    return schema


def _tagged_union(shape: UnionField) -> dict[str, Any]:
    tag = str(shape.tag)
    return {
        "type": "object",
        "required": [tag],
        "properties": {tag: {"enum": [name for name, _ in shape.shapes]}},
        "allOf": [_branch(tag, name, each.model) for name, each in shape.shapes if isinstance(each, ObjectField)],
    }


def _models() -> set[type[SpecModel]]:
    found: set[type[SpecModel]] = set()
    waiting: list[type[SpecModel]] = [kind.model for kind in KINDS.values()]
    while waiting:
        model = waiting.pop()
        if model not in found:
            found.add(model)
            waiting += [inner for part in list_fields(model).values() for inner in _models_in(part.shape)]
    return found


def _models_in(shape: FieldType) -> Iterator[type[SpecModel]]:
    match shape:
        case ObjectField(model=model):
            yield model
        case ListField(item=item):
            yield from _models_in(item)
        case MapField(value=value):
            yield from _models_in(value)
        case UnionField(shapes=shapes):
            for _, each in shapes:
                yield from _models_in(each)
        case ScalarField():
            pass
