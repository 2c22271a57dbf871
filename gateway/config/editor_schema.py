"""The JSON Schema with which editors check documents, derived from the models that the loader uses.

One root schema selects the kind with if/then, so an editor reports the problems of that kind instead of "matches none
of fifteen". It uses draft 7, which YAML editors support.

The loader is stricter; `STRICTER` lists where. A value from a closed list must be literal. Any other text may contain
`${NAME}`.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from gateway.config.field_shapes import (
    FieldShape,
    FieldType,
    ListField,
    MapField,
    ObjectField,
    ScalarField,
    UnionField,
    list_fields,
)
from gateway.config.kinds.base import API_VERSION, SpecModel
from gateway.config.kinds.scalars import ENV_REFERENCE
from gateway.config.kinds.validation import KINDS

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
