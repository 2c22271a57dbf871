"""The JSON Schema that editors check documents with, drawn from the same shapes as the loader.

One root for all kinds: the `kind` decides, by if/then, so an editor reports what is wrong with that kind instead of
"matches none of fifteen". It is draft 7, which is what YAML editors speak.

The loader is stricter: `STRICTER` says where. A choice from a closed list is to be written out; everywhere else a text
may hold `${NAME}`.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from gateway.config.kinds import KINDS
from gateway.config.shapes import Entries, Items, Object, Part, Scalar, Shape, Variants, fields_of
from gateway.config.specs.base import Spec
from gateway.config.specs.common import API_VERSION
from gateway.config.specs.scalars import ENV_REFERENCE

STRICTER: Final = (
    "names of other documents must exist",
    "names of fields that point into the same document must exist there: placeholders, waivers, duplicated entries",
    "days, moments, time zones, hosts and ports must exist, not only look right",
    "values must fit each other: from before to, rates over short times, count within approvers, ok apart from failed",
    "a selection must choose something, not only have a key",
    "a path must not belong to the gateway itself, a credential must not be a plain header",
    "a whole number has no decimal point",
    "expressions, schemas and stage options must be right in their own language",
)
"""What an editor lets pass and the loader refuses."""

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))


def editor_schema() -> dict[str, Any]:
    """The same schema each time; safe to write to a file and compare."""
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


def written(value: Any) -> Any:
    """A default as YAML would write it; `None` where there is nothing to write."""
    if isinstance(value, timedelta):
        milliseconds = value // timedelta(milliseconds=1)
        factor, unit = next((factor, unit) for factor, unit in _UNITS if milliseconds % factor == 0)
        return f"{milliseconds // factor}{unit}"
    if isinstance(value, tuple):
        return [written(each) for each in value] or None
    return None if value == {} else value


def _kinds_in_words() -> str:
    return "\n".join(f"{kind.name}: {kind.summary}" for kind in KINDS.values())


def _branch(tag: str, name: str, model: type[Spec]) -> dict[str, Any]:
    return {"if": {"properties": {tag: {"const": name}}, "required": [tag]}, "then": _reference(model)}


def _reference(model: type[Spec]) -> dict[str, Any]:
    return {"$ref": f"#/definitions/{model.__name__}"}


def _object(model: type[Spec]) -> dict[str, Any]:
    parts = fields_of(model)
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


def _property(part: Part) -> dict[str, Any]:
    schema = _schema(part.shape)
    if "$ref" in schema:  # draft 7 ignores whatever stands beside a reference
        schema = {"allOf": [schema]}
    schema["description"] = part.description
    if (default := written(part.default)) is not None:
        schema["default"] = default
    return schema


def _schema(shape: Shape) -> dict[str, Any]:
    match shape:
        case Scalar():
            return _scalar(shape)
        case Object(model=model):
            return _reference(model)
        case Items(item=item, least=least):
            return {"type": "array", "items": _schema(item)} | ({"minItems": least} if least else {})
        case Entries():
            return _entries(shape)
        case Variants(tag=None, shapes=shapes):
            return {"anyOf": [_schema(each) for _, each in shapes]}
        case Variants():
            return _tagged(shape)


def _scalar(shape: Scalar) -> dict[str, Any]:
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


def _entries(shape: Entries) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": _schema(shape.value) or True}
    if isinstance(shape.key, Scalar) and shape.key.pattern is not None:
        schema["propertyNames"] = {"pattern": f"^(?:{shape.key.pattern})$"}
    if shape.least:
        schema["minProperties"] = shape.least
    return schema


def _tagged(shape: Variants) -> dict[str, Any]:
    tag = str(shape.tag)
    return {
        "type": "object",
        "required": [tag],
        "properties": {tag: {"enum": [name for name, _ in shape.shapes]}},
        "allOf": [_branch(tag, name, each.model) for name, each in shape.shapes if isinstance(each, Object)],
    }


def _models() -> set[type[Spec]]:
    found: set[type[Spec]] = set()
    waiting: list[type[Spec]] = [kind.model for kind in KINDS.values()]
    while waiting:
        model = waiting.pop()
        if model not in found:
            found.add(model)
            waiting += [inner for part in fields_of(model).values() for inner in _models_in(part.shape)]
    return found


def _models_in(shape: Shape) -> Iterator[type[Spec]]:
    match shape:
        case Object(model=model):
            yield model
        case Items(item=item):
            yield from _models_in(item)
        case Entries(value=value):
            yield from _models_in(value)
        case Variants(shapes=shapes):
            for _, each in shapes:
                yield from _models_in(each)
        case Scalar():
            pass
