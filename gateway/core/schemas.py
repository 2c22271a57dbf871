"""JSON Schema 2020-12, compiled once: what a tool advertises and what its executor enforces.

One document serves both. It is closed when it is compiled (unknown keys are refused unless
it allows them), so the closed form is what models are shown. Validation never coerces;
defaults are filled in afterwards. The empty string is a string: a field that must not be
empty says `minLength: 1`, where models can read it.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import jsonschema_rs

from gateway.core.registry import copy_containers
from gateway.errors import ValidationException, problem

Document = dict[str, Any]
SchemaCheck = Callable[[Any], Awaitable[object] | object]
"""A rule JSON Schema cannot express; raises `ValidationException`, anything else passes through."""

# Keywords whose subschemas describe the same value as their parent …
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE_SINGLE: Final = ("if", "then", "else", "not")
# … and keywords whose subschemas describe a part of it.
_PART_MAPS: Final = ("properties", "patternProperties")
_PART_SINGLE: Final = ("additionalProperties", "items", "contains", "propertyNames", "unevaluatedItems")

_COMPOSERS: Final = frozenset((*_IN_PLACE_LISTS, *_IN_PLACE_SINGLE, "$ref", "$dynamicRef", "dependentSchemas"))
_OPENERS: Final = frozenset(("additionalProperties", "unevaluatedProperties"))


@runtime_checkable
class ModelClass(Protocol):
    """A validation library's model class, such as pydantic's."""

    def model_json_schema(self) -> Document: ...

    def model_validate(self, value: Any, *, strict: bool | None = None) -> Any: ...


class Schema:
    """A compiled schema. Raises `ValueError` for a document that is not a valid schema."""

    __slots__ = ("_checks", "_document", "_has_defaults", "_validator")

    def __init__(self, document: Document | bool, *, checks: Sequence[SchemaCheck] = (), closed: bool = True) -> None:
        if isinstance(document, bool):
            document = {} if document else {"not": {}}
        if not isinstance(document, dict):
            raise ValueError("a JSON Schema is an object or a boolean")
        own: Document = copy_containers(document)
        self._document = close(own) if closed else own
        self._checks = tuple(checks)
        self._validator = _compile(self._document)
        self._has_defaults = any("default" in node for node in _nodes(self._document))
        self._refuse_bad_defaults()

    @classmethod
    def of_model(cls, model: ModelClass) -> "Schema":
        """The schema of a pydantic-like model class, with the model's own validators run strictly."""
        return cls(model.model_json_schema(), checks=(_model_check(model),))

    @property
    def describes_object(self) -> bool:
        return self._document.get("type") == "object"

    def describe(self) -> Document:
        """A copy of the document as enforced."""
        copied: Document = copy_containers(self._document)
        return copied

    async def validate(self, value: Any) -> Any:
        """`value` with defaults filled in. Raises `ValidationException` with every problem found."""
        self._require_valid(value)
        for check in self._checks:
            answer = check(value)
            if inspect.isawaitable(answer):
                await answer
        return self._with_defaults(value)

    def coerce(self, value: Any) -> Any:
        """Like `validate`, after turning texts into the scalars the schema asks for. Custom checks do not run."""
        value = _coerced(value, self._document, self._document, 0)
        self._require_valid(value)
        return self._with_defaults(value)

    def is_valid(self, value: Any) -> bool:
        return self._validator.is_valid(value)

    def _require_valid(self, value: Any) -> None:
        try:
            if self._validator.is_valid(value):
                return
            found = [_detail(error) for error in self._validator.iter_errors(value)]
        except (ValueError, TypeError, RecursionError) as error:  # the value is outside the JSON grammar
            raise ValidationException([problem(f"not a JSON value: {error}", type="json")]) from error
        raise ValidationException(found)

    def _with_defaults(self, value: Any) -> Any:
        copied = copy_containers(value)  # the handler may change its arguments; the record must not follow
        return _fill(copied, self._document, self._document, 0) if self._has_defaults else copied

    def _refuse_bad_defaults(self) -> None:
        if not self._has_defaults:
            return
        for node in _nodes(self._document):
            if "default" not in node:
                continue
            own = {**node, "$defs": self._document.get("$defs", {})}
            if not _compile(own).is_valid(node["default"]):
                raise ValueError(f"the default {node['default']!r} does not satisfy its own schema")


def close(document: Document) -> Document:
    """The document with every object that lists `properties` closed, unless it says otherwise.

    Branches of `allOf`, `if` and the like describe a value together with their parent, so
    the parent is closed (by `unevaluatedProperties`) and the branches are left open.
    """
    shared = _composed_references(document)
    _close_node(document, document.get("type") == "object")
    for name, definition in document.get("$defs", {}).items():
        if isinstance(definition, dict) and f"#/$defs/{name}" not in shared:
            _close_node(definition, False)
    return document


def _close_node(node: Document, always: bool) -> None:
    for part in _parts(node):
        _close_node(part, False)
    for keyword in ("anyOf", "oneOf"):  # alternatives: closed one by one if the parent adds nothing
        if "properties" not in node:
            for branch in _dicts(node.get(keyword)):
                _close_node(branch, False)
    if _OPENERS.isdisjoint(node) and (always or "properties" in node):
        composed = not _COMPOSERS.isdisjoint(node)
        node["unevaluatedProperties" if composed else "additionalProperties"] = False


def _composed_references(document: Document) -> set[str]:
    """Targets of `$ref` that share their value with sibling keywords; closing those would break the sum."""
    shared: set[str] = set()
    for node in _nodes(document):
        siblings = [
            *_dicts(node.get("allOf")),
            *(node[key] for key in _IN_PLACE_SINGLE if isinstance(node.get(key), dict)),
        ]
        if "properties" in node:
            siblings += [node, *_dicts(node.get("anyOf")), *_dicts(node.get("oneOf"))]
        shared.update(sibling["$ref"] for sibling in siblings if isinstance(sibling.get("$ref"), str))
    return shared


def _nodes(document: Document) -> Iterator[Document]:
    """Every subschema, the document first."""
    pending = [document]
    while pending:
        node = pending.pop()
        yield node
        pending += _parts(node)
        for keyword in _IN_PLACE_LISTS:
            pending += _dicts(node.get(keyword))
        pending += [node[keyword] for keyword in _IN_PLACE_SINGLE if isinstance(node.get(keyword), dict)]
        for keyword in ("$defs", "definitions", "dependentSchemas"):
            pending += _dicts(node.get(keyword))


def _parts(node: Document) -> list[Document]:
    parts = _dicts(node.get("prefixItems"))
    for keyword in _PART_MAPS:
        parts += _dicts(node.get(keyword))
    return parts + [node[keyword] for keyword in _PART_SINGLE if isinstance(node.get(keyword), dict)]


def _dicts(value: Any) -> list[Document]:
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [member for member in members if isinstance(member, dict)]


def _compile(document: Document) -> jsonschema_rs.Draft202012Validator:
    try:
        # `offline`: a `$ref` never makes the gateway fetch; `mask`: no argument value in a message
        return jsonschema_rs.Draft202012Validator(document, offline=True, mask="value", validate_formats=False)
    except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
        headline = getattr(error, "message", None) or str(error)
        raise ValueError(f"not a valid JSON Schema: {headline}") from error


def _detail(error: jsonschema_rs.ValidationError) -> dict[str, Any]:
    path = list(error.instance_path)
    where = ".".join(str(part) for part in path)
    message = f"{where!r}: {error.message}" if where else error.message
    return problem(message, path, error.kind.name, schemaPath=list(error.schema_path))


def _model_check(model: ModelClass) -> SchemaCheck:
    def check(value: Any) -> None:
        try:
            model.model_validate(value, strict=True)
        except ValueError as error:
            errors = getattr(error, "errors", None)
            if errors is None:
                raise
            raise ValidationException(
                problem(_model_message(entry), entry["loc"], entry["type"]) for entry in errors()
            ) from error

    return check


def _model_message(entry: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in entry["loc"])
    return f"{where!r}: {entry['msg']}" if where else str(entry["msg"])


def _resolve(node: Document, root: Document) -> Document:
    """Follow local references; an unknown one was refused when the schema was compiled."""
    for _ in range(32):  # a cycle of bare references describes nothing
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        target: Any = root
        for step in reference[1:].split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            target = target[int(key)] if isinstance(target, list) else target.get(key, {})
        if not isinstance(target, dict):
            break
        node = {**target, **{key: item for key, item in node.items() if key != "$ref"}}
    return node


_MAX_FILL_DEPTH: Final = 64


def _fill(value: Any, node: Document, root: Document, depth: int) -> Any:
    """Add missing properties that have a default. `value` is ours to change."""
    if depth > _MAX_FILL_DEPTH:
        return value
    node = _resolve(node, root)
    for branch in _dicts(node.get("allOf")):
        value = _fill(value, branch, root, depth + 1)
    if isinstance(value, dict):
        for name, child in node.get("properties", {}).items():
            if not isinstance(child, dict):
                continue
            if name not in value:
                found = _resolve(child, root)
                if "default" not in found:
                    continue
                value[name] = copy_containers(found["default"])
            value[name] = _fill(value[name], child, root, depth + 1)
    elif isinstance(value, list) and isinstance(node.get("items"), dict):
        value = [_fill(item, node["items"], root, depth + 1) for item in value]
    return value


_TRUTH: Final = {"true": True, "false": False}


def _coerced(value: Any, node: Document, root: Document, depth: int) -> Any:
    if depth > _MAX_FILL_DEPTH:
        return value
    node = _resolve(node, root)
    if isinstance(value, str):
        return _coerced_text(value, node.get("type"))
    if isinstance(value, dict):
        properties = node.get("properties", {})
        return {
            key: _coerced(item, properties[key], root, depth + 1) if isinstance(properties.get(key), dict) else item
            for key, item in value.items()
        }
    if isinstance(value, list) and isinstance(node.get("items"), dict):
        return [_coerced(item, node["items"], root, depth + 1) for item in value]
    return value


def _coerced_text(text: str, wanted: Any) -> Any:
    if wanted == "boolean":
        return _TRUTH.get(text.strip().lower(), text)
    if wanted in ("integer", "number"):
        try:
            return int(text) if wanted == "integer" else float(text)
        except ValueError:
            return text
    return text
