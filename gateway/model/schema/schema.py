"""JSON Schema 2020-12, compiled once. The document that a tool advertises is the one that its executor enforces.

Compiling closes the document: it refuses unknown keys unless it allows them, and models are
shown this closed form. Validation never coerces; defaults are filled in afterwards. The empty
string is valid: a field that must not be empty needs `minLength: 1`, which models can read.

An output schema checks a structured result, or finds one in the text of a result.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote

import jsonschema_rs
import orjson

from gateway.errors import ValidationException, problem
from gateway.model.primitives.canonical_json import MAX_DEPTH, refuse_cycles
from gateway.model.primitives.containers import deep_copy_containers
from gateway.model.primitives.json_fingerprint import TooManyValues, read_json, reads_exactly
from gateway.model.schema.problems import (
    SchemaProblem,
    describe_schema_error,
    has_bounded_errors,
    list_problems,
    mask_path,
    names_in,
    plain_problem,
    strip_subschemas,
)
from gateway.model.schema.subschemas import SchemaDocument, Subschemas, close_schema, copy_bounded
from gateway.model.schema.value_normalisation import DefaultFiller, coerce

SchemaCheck = Callable[[Any], Awaitable[object] | object]
"""A rule that JSON Schema cannot express. It raises `ValidationException`; other exceptions are not caught."""

# Generated schemas use look-around, for e-mail addresses for example, so patterns run on the backtracking
# engine. A value that needs more steps than this, well under a millisecond, does not match.
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000, size_limit=1 << 20)
_BASE: Final = "urn:gateway:schema"
_SCALARS: Final = frozenset({str, int, bool, type(None)})
_LAZY_BELOW: Final = 8192
"""Bytes of a document that is compiled on first use, which then takes a few milliseconds at most."""


@runtime_checkable
class ModelClass(Protocol):
    """A model class of a validation library such as pydantic."""

    def model_json_schema(self) -> SchemaDocument: ...

    def model_validate_json(self, json_data: str, *, strict: bool | None = None) -> Any: ...


class Schema:
    """A compiled schema. Raises `ValueError` for a document that is not a valid schema."""

    __slots__ = ("_checks", "_document", "_is_plain", "_parts", "_validator", "has_checks")

    _parts: "_Parts | None"
    _validator: jsonschema_rs.Draft202012Validator | None

    def __init__(
        self, document: SchemaDocument | bool, *, checks: Sequence[SchemaCheck] = (), closed: bool = True
    ) -> None:
        if isinstance(document, bool):
            document = {} if document else {"not": {}}
        own = copy_bounded(document)
        _refuse_invalid(own)
        self._begin(own, checks)
        subschemas = Subschemas(own)
        for node in subschemas.elsewhere:
            _refuse_invalid(node)
        if closed:
            close_schema(subschemas)
        self._validator = _compile(own)
        self._parts = _Parts.of(subschemas)

    @classmethod
    def of_enforced(cls, document: Mapping[str, Any]) -> "Schema":
        """Return the schema of a document from `describe`, which may be frozen. It is compiled again on first use.

        A project may have thousands of tools, most of which are rarely called, and a compiled schema takes tens of
        kilobytes. A large one is compiled at once: on first use, that would stop the event loop.
        """
        schema = object.__new__(cls)
        schema._begin(document)
        schema._is_plain = False
        if len(orjson.dumps(document)) > _LAZY_BELOW:
            schema._validator, schema._parts = schema._compiled, schema._compiled_parts
        return schema

    def _begin(self, document: Mapping[str, Any], checks: Sequence[SchemaCheck] = ()) -> None:
        self._document: Any = document
        self._is_plain = True
        self._checks = tuple(checks)
        self.has_checks = bool(checks)
        """Whether custom checks run in addition to the document."""
        self._validator = None
        self._parts = None

    @classmethod
    def of_model(cls, model: ModelClass) -> "Schema":
        """Return the schema of a pydantic-like model class, which also runs the model's validators in strict mode."""
        return cls(model.model_json_schema(), checks=(_model_check(model),))

    @property
    def describes_object(self) -> bool:
        node: SchemaDocument | None = self._document
        while node is not None and "type" not in node:
            node = self._subschemas.target(node)
        return node is not None and node["type"] == "object"

    def describe(self) -> SchemaDocument:
        """Return a copy of the document as enforced."""
        copied: SchemaDocument = deep_copy_containers(self._document)
        return copied

    def with_enum(self, name: str, choices: Sequence[str]) -> "Schema":
        """Return the schema with one property limited to `choices`. Cheap: it is compiled on first use."""
        narrowed, document = object.__new__(Schema), self._plain_document
        properties = document["properties"]
        limited = {**properties, name: {**properties[name], "enum": list(choices)}}
        narrowed._begin({**document, "properties": limited}, self._checks)
        parts = self._compiled_parts
        narrowed._parts = parts._replace(is_valid=_SubschemaValidators(parts.subschemas, narrowed._document))
        return narrowed

    async def validate(self, value: Any) -> Any:
        """Return a copy of `value` with defaults filled in. Raises `ValidationException` with the problems found.

        Raises `TypeError` for a value that contains itself.
        """
        refuse_cycles(value)
        filled = self.check(value)
        for check in self._checks:
            answer = check(filled)
            if inspect.isawaitable(answer):
                await answer
        return filled

    def coerce(self, value: Any) -> Any:
        """Like `validate`, but first convert texts to the scalars that the schema wants. Async checks are refused."""
        refuse_cycles(value)
        try:
            filled = self.check(coerce(self._subschemas, value))
        except RecursionError as error:
            raise _not_json(error) from error
        for check in self._checks:
            answer = check(filled)
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise TypeError("a check that has to be awaited cannot run here")
        return filled

    def check(self, value: Any) -> Any:
        """Like `validate`, without custom checks.

        Returns a copy, so that a handler which changes its arguments does not change the record. The caller must know
        that the value does not contain itself, for example because it hashed the value.
        """
        try:
            validator = self._validator or self._compiled
            if not validator.is_valid(value):
                raise ValidationException(self._problems(value))
            own = _copy_json(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise _not_json(error) from error
        filling = (self._parts or self._compiled_parts).filling
        if filling.is_needed:
            filling.fill_defaults(own)
        return own

    def is_valid(self, value: Any) -> bool:
        """Whether the document accepts `value`; custom checks do not run."""
        refuse_cycles(value)
        return self.accepts_parsed(value)

    def accepts_parsed(self, value: Any) -> bool:
        """Like `is_valid`, for a value from a parser: it cannot contain itself, so cycles are not checked."""
        return self._compiled.is_valid(value)

    def __repr__(self) -> str:
        return f"Schema(properties={list(self._document.get('properties', ()))!r})"

    @property
    def _compiled_parts(self) -> "_Parts":
        if self._parts is None:
            self._parts = _Parts.of(Subschemas(self._plain_document))
        return self._parts

    @property
    def _subschemas(self) -> Subschemas:
        return self._compiled_parts.subschemas

    @property
    def _compiled(self) -> jsonschema_rs.Draft202012Validator:
        if self._validator is None:
            self._validator = _compile(self._plain_document)
        return self._validator

    @property
    def _plain_document(self) -> SchemaDocument:
        """The document in plain containers, which the validator needs: those of a snapshot are frozen."""
        if not self._is_plain:
            self._document, self._is_plain = to_plain_containers(self._document), True
        document: SchemaDocument = self._document
        return document

    def _problems(self, value: Any) -> list[SchemaProblem]:
        if has_bounded_errors(self._subschemas, value):
            return list_problems(list(self._compiled.iter_errors(value)), self._document)
        shell = strip_subschemas(self._document)
        found = list_problems(list(_compile(shell).iter_errors(value)), shell)
        return found + self._property_problems(value) or [plain_problem()]

    def _property_problems(self, value: Any) -> list[SchemaProblem]:
        properties = self._subschemas.root.get("properties", {}).items()
        described = [(name, child) for name, child in properties if isinstance(child, dict)]
        members = value if isinstance(value, dict) else {}
        return [
            plain_problem(name)
            for name, child in described
            if name in members and not self._compiled_parts.is_valid(child, members[name])
        ]


class _SubschemaValidators:
    """Tests parts of a value against single subschemas of a document, each compiled on first use.

    It does not refer to its `Schema`: a cycle would stay in memory until the next garbage collection.
    """

    def __init__(self, subschemas: Subschemas, document: SchemaDocument) -> None:
        self._subschemas = subschemas
        self._document = document
        self._validators: dict[int, jsonschema_rs.Draft202012Validator] = {}

    def __call__(self, node: SchemaDocument, value: Any) -> bool:
        """Whether a subschema accepts a part of a value."""
        if id(node) not in self._validators:
            base = self._document.get("$id", _BASE).removesuffix("#")
            reference = {"$ref": f"{base}#{quote(self._subschemas.pointer(node))}"}
            registry = jsonschema_rs.Registry([(base, self._document)])
            self._validators[id(node)] = _compile(reference, registry)
        return self._validators[id(node)].is_valid(value)


class _Parts(NamedTuple):
    """What a schema compiles besides the validator of the whole document."""

    subschemas: Subschemas
    is_valid: _SubschemaValidators
    filling: DefaultFiller

    @classmethod
    def of(cls, subschemas: Subschemas) -> "_Parts":
        is_valid = _SubschemaValidators(subschemas, subschemas.root)
        return cls(subschemas, is_valid, DefaultFiller(subschemas, is_valid))


def _refuse_invalid(document: SchemaDocument) -> None:
    try:
        jsonschema_rs.meta.validate(document)
    except ValueError as error:
        raise ValueError(describe_schema_error(error)) from error


def _compile(
    document: SchemaDocument, registry: jsonschema_rs.Registry | None = None
) -> jsonschema_rs.Draft202012Validator:
    try:
        return jsonschema_rs.Draft202012Validator(
            document,
            registry=registry,
            offline=True,  # never fetch the target of a `$ref`
            mask="value",  # keep values of arguments out of messages
            validate_formats=False,
            pattern_options=_PATTERNS,
        )
    except ValueError as error:
        raise ValueError(describe_schema_error(error)) from error


def _copy_json(value: Any, depth: int = 0, *, whole_below: float = 2**53) -> Any:
    """Return a copy in which `5.0` is `5`: the same number in JSON and call ids, so the same value for the handler."""
    kind = type(value)
    if kind is dict and _SCALARS.issuperset(map(type, value.values())):
        return value.copy()  # most arguments are flat
    if kind in _SCALARS:
        return value
    if kind is float:
        return int(value) if value.is_integer() and abs(value) < whole_below else value
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    # Scalars are copied inline and without a comprehension: a call or a frame per item would be slow.
    if isinstance(value, dict):
        copied: Any = {}
        for key, item in value.items():
            copied[key] = item if type(item) in _SCALARS else _copy_json(item, depth + 1, whole_below=whole_below)
        return copied
    if isinstance(value, list | tuple):
        copied = []
        for item in value:
            copied.append(item if type(item) in _SCALARS else _copy_json(item, depth + 1, whole_below=whole_below))
        return copied
    return value


def _not_json(error: Exception) -> ValidationException:
    return ValidationException([problem(f"not a JSON value: {error}", type="json")])


def _model_check(model: ModelClass) -> SchemaCheck:
    known = names_in(model.model_json_schema())

    def problem_of(entry: dict[str, Any]) -> SchemaProblem:
        path = mask_path(entry["loc"], known)
        return problem(_model_message(path, str(entry["msg"])), path, entry["type"])

    def check(value: Any) -> None:
        try:
            # As JSON text: strict mode then accepts types that JSON does not have, such as datetimes and sets.
            model.model_validate_json(_json_text(value), strict=True)
        except ValueError as error:
            errors = getattr(error, "errors", None)
            if errors is None:
                raise
            raise ValidationException(map(problem_of, errors())) from error

    return check


def _json_text(value: Any) -> str:
    """Write whole numbers as integers, as JSON Schema understands them: models do not accept `1e30` as an integer."""
    try:
        return json.dumps(_copy_json(value, whole_below=inf))
    except TypeError as error:
        raise _not_json(error) from error


def _model_message(path: Sequence[str | int], text: str) -> str:
    where = ".".join(map(str, path))
    return f"{where!r}: {text}" if where else text


NO_VALUE: Final[Any] = object()
"""Marks a missing value: `None` is JSON's null."""

MAX_STRUCTURED_SIZE: Final = 16 << 20
"""Largest result in bytes that is parsed and sent as structured content if the tool has an output schema."""

_WRAPPED: Final = "result"
"""Servers wrap a value that is not an object under this key: earlier versions of MCP allowed objects only."""


class OutputSchema:
    """A compiled output schema. Raises `ValueError` for an invalid schema."""

    __slots__ = ("_schema",)

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = Schema(to_plain_containers(schema), closed=False)

    def matches(self, value: Any) -> bool:
        try:
            return value is not NO_VALUE and self._schema.accepts_parsed(value)
        except (TypeError, ValueError, RecursionError):
            return False

    def mismatch(self, value: Any) -> str:
        """Return how a value violates the schema."""
        try:
            if value is not NO_VALUE:
                self._schema.check(value)
        except ValidationException as error:
            return error.message
        return "it is not JSON, or too large"

    def extract(self, text: str) -> Any:
        """Return the value of a text that satisfies the schema, wrapped if needed; `NO_VALUE` if there is none."""
        value = parse_output(text)
        for each in (value, {_WRAPPED: value}, {_WRAPPED: text}):
            if self.matches(each):
                return each
        return NO_VALUE


def parse_output(text: str | bytes) -> Any:
    """Parse a JSON document; `NO_VALUE` if it is invalid, has too many values, or has an integer past 64 bits."""
    try:
        value = read_json(text)
    except (orjson.JSONDecodeError, TooManyValues):
        return NO_VALUE
    return value if reads_exactly(text.encode() if isinstance(text, str) else text) else NO_VALUE


def to_plain_containers(value: Any) -> Any:
    """Copy a frozen document into plain dicts and lists, which schemas are compiled from."""
    if isinstance(value, Mapping):
        return {key: to_plain_containers(item) for key, item in value.items()}
    return [to_plain_containers(item) for item in value] if isinstance(value, list | tuple) else value
