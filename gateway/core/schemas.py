"""JSON Schema 2020-12, compiled once: what a tool advertises and what its executor enforces.

One document serves both. It is closed when it is compiled (unknown keys are refused unless
it allows them), so the closed form is what models are shown. Validation never coerces;
defaults are filled in afterwards. The empty string is a string: a field that must not be
empty says `minLength: 1`, where models can read it.
"""

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final, Protocol, runtime_checkable
from urllib.parse import quote

import jsonschema_rs

from gateway.core.canonical import MAX_DEPTH, refuse_cycles
from gateway.core.registry import copy_containers
from gateway.core.schema_closing import close
from gateway.core.schema_coercion import coerced
from gateway.core.schema_document import Document, Subschemas, own_copy
from gateway.core.schema_filling import Filling
from gateway.core.schema_problems import (
    Problem,
    is_explainable,
    listed,
    masked,
    names_in,
    schema_defect,
    shell_of,
    unsatisfied,
)
from gateway.errors import ValidationException, problem

SchemaCheck = Callable[[Any], Awaitable[object] | object]
"""A rule JSON Schema cannot express; raises `ValidationException`, anything else passes through."""

# Generated schemas use look-around (for e-mail addresses, say), so patterns run on the engine that
# backtracks; past this many steps, well under a millisecond, the value counts as not matching.
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000, size_limit=1 << 20)
_BASE: Final = "urn:gateway:schema"
_SCALARS: Final = frozenset({str, int, bool, type(None)})


@runtime_checkable
class ModelClass(Protocol):
    """A validation library's model class, such as pydantic's."""

    def model_json_schema(self) -> Document: ...

    def model_validate_json(self, json_data: str, *, strict: bool | None = None) -> Any: ...


class Schema:
    """A compiled schema. Raises `ValueError` for a document that is not a valid schema."""

    __slots__ = ("_checks", "_document", "_filling", "_subschemas", "_validator", "_validators", "has_checks")

    def __init__(self, document: Document | bool, *, checks: Sequence[SchemaCheck] = (), closed: bool = True) -> None:
        if isinstance(document, bool):
            document = {} if document else {"not": {}}
        self._document = own_copy(document)
        _refuse_invalid(self._document)
        self._checks = tuple(checks)
        self.has_checks = bool(checks)
        """Whether anything but the document is asked about a value."""
        self._validators: dict[int, jsonschema_rs.Draft202012Validator] = {}
        self._subschemas = Subschemas(self._document)
        for node in self._subschemas.elsewhere:
            _refuse_invalid(node)
        if closed:
            close(self._subschemas)
        self._validator: jsonschema_rs.Draft202012Validator | None = _compile(self._document)
        self._filling = Filling(self._subschemas, self._satisfies)

    @classmethod
    def of_model(cls, model: ModelClass) -> "Schema":
        """The schema of a pydantic-like model class, with the model's own validators run strictly."""
        return cls(model.model_json_schema(), checks=(_model_check(model),))

    @property
    def describes_object(self) -> bool:
        node: Document | None = self._document
        while node is not None and "type" not in node:
            node = self._subschemas.target(node)
        return node is not None and node["type"] == "object"

    def describe(self) -> Document:
        """A copy of the document as enforced."""
        copied: Document = copy_containers(self._document)
        return copied

    def narrowed(self, name: str, choices: Sequence[str]) -> "Schema":
        """The same schema with one property limited to `choices`. Cheap: it is compiled when first used."""
        narrowed = object.__new__(Schema)
        properties = self._document["properties"]
        limited = {**properties, name: {**properties[name], "enum": list(choices)}}
        narrowed._document = {**self._document, "properties": limited}
        narrowed._validator = None
        narrowed._checks = self._checks
        narrowed.has_checks = self.has_checks
        narrowed._validators = {}
        narrowed._subschemas = self._subschemas
        narrowed._filling = self._filling
        return narrowed

    async def validate(self, value: Any) -> Any:
        """A copy of `value` with defaults filled in. Raises `ValidationException` with the problems found.

        A value that contains itself raises `TypeError`.
        """
        refuse_cycles(value)
        filled = self.accepted(value)
        for check in self._checks:
            answer = check(filled)
            if inspect.isawaitable(answer):
                await answer
        return filled

    def coerce(self, value: Any) -> Any:
        """Like `validate`, after turning texts into the scalars the schema asks for; checks that wait are refused."""
        refuse_cycles(value)
        try:
            filled = self.accepted(coerced(self._subschemas, value))
        except RecursionError as error:
            raise _not_json(error) from error
        for check in self._checks:
            answer = check(filled)
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise TypeError("a check that has to be awaited cannot run here")
        return filled

    def accepted(self, value: Any) -> Any:
        """What `validate` gives before custom checks are asked.

        It is a copy: a handler may change its arguments, and the record must not follow. The caller has hashed the
        value, or otherwise knows that it does not contain itself.
        """
        try:
            validator = self._validator or self._compiled
            if not validator.is_valid(value):
                raise ValidationException(self._problems(value))
            own = _own_json(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise _not_json(error) from error
        if self._filling.is_needed:
            self._filling.fill(own)
        return own

    def is_valid(self, value: Any) -> bool:
        """Whether the document accepts `value`; custom checks are not asked."""
        refuse_cycles(value)
        return self.accepts_parsed(value)

    def accepts_parsed(self, value: Any) -> bool:
        """The same for a value that a parser made, which cannot contain itself: nobody looks whether it does."""
        return self._compiled.is_valid(value)

    def __repr__(self) -> str:
        return f"Schema(properties={list(self._document.get('properties', ()))!r})"

    @property
    def _compiled(self) -> jsonschema_rs.Draft202012Validator:
        if self._validator is None:
            self._validator = _compile(self._document)
        return self._validator

    def _problems(self, value: Any) -> list[Problem]:
        if is_explainable(self._subschemas, value):
            return listed(list(self._compiled.iter_errors(value)), self._document)
        shell = shell_of(self._document)
        found = listed(list(_compile(shell).iter_errors(value)), shell)
        return found + self._unsatisfied_properties(value) or [unsatisfied()]

    def _unsatisfied_properties(self, value: Any) -> list[Problem]:
        properties = self._subschemas.root.get("properties", {}).items()
        described = [(name, child) for name, child in properties if isinstance(child, dict)]
        members = value if isinstance(value, dict) else {}
        return [
            unsatisfied(name)
            for name, child in described
            if name in members and not self._satisfies(child, members[name])
        ]

    def _satisfies(self, node: Document, value: Any) -> bool:
        """Whether a subschema accepts a part of a value."""
        if id(node) not in self._validators:
            base = self._document.get("$id", _BASE).removesuffix("#")
            reference = {"$ref": f"{base}#{quote(self._subschemas.pointer(node))}"}
            registry = jsonschema_rs.Registry([(base, self._document)])
            self._validators[id(node)] = _compile(reference, registry)
        return self._validators[id(node)].is_valid(value)


def _refuse_invalid(document: Document) -> None:
    try:
        jsonschema_rs.meta.validate(document)
    except ValueError as error:
        raise ValueError(schema_defect(error)) from error


def _compile(document: Document, registry: jsonschema_rs.Registry | None = None) -> jsonschema_rs.Draft202012Validator:
    try:
        return jsonschema_rs.Draft202012Validator(
            document,
            registry=registry,
            offline=True,  # a `$ref` never makes the gateway fetch
            mask="value",  # no argument's value in a message
            validate_formats=False,
            pattern_options=_PATTERNS,
        )
    except ValueError as error:
        raise ValueError(schema_defect(error)) from error


def _own_json(value: Any, depth: int = 0, *, whole_below: float = 2**53) -> Any:
    """A copy in which `5.0` is `5`: one number in JSON, one call id, so one value for the handler."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is float:
        return int(value) if value.is_integer() and abs(value) < whole_below else value
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    # Scalars are copied here, and no comprehension is used: a call or a frame per item would cost too much.
    if isinstance(value, dict):
        copied: Any = {}
        for key, item in value.items():
            copied[key] = item if type(item) in _SCALARS else _own_json(item, depth + 1, whole_below=whole_below)
        return copied
    if isinstance(value, list | tuple):
        copied = []
        for item in value:
            copied.append(item if type(item) in _SCALARS else _own_json(item, depth + 1, whole_below=whole_below))
        return copied
    return value


def _not_json(error: Exception) -> ValidationException:
    return ValidationException([problem(f"not a JSON value: {error}", type="json")])


def _model_check(model: ModelClass) -> SchemaCheck:
    known = names_in(model.model_json_schema())

    def problem_of(entry: dict[str, Any]) -> Problem:
        path = masked(entry["loc"], known)
        return problem(_model_message(path, str(entry["msg"])), path, entry["type"])

    def check(value: Any) -> None:
        try:
            # As JSON text: strictness then allows what JSON has no type for, such as moments and sets.
            model.model_validate_json(_json_text(value), strict=True)
        except ValueError as error:
            errors = getattr(error, "errors", None)
            if errors is None:
                raise
            raise ValidationException(map(problem_of, errors())) from error

    return check


def _json_text(value: Any) -> str:
    """Every number that is whole in JSON Schema is written as one: models tell `1e30` from an integer."""
    try:
        return json.dumps(_own_json(value, whole_below=inf))
    except TypeError as error:
        raise _not_json(error) from error


def _model_message(path: Sequence[str | int], words: str) -> str:
    where = ".".join(map(str, path))
    return f"{where!r}: {words}" if where else words
