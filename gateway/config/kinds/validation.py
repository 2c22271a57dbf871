"""Validation of a document's shape, and the table of kinds.

This module converts the errors of pydantic to problems with a YAML path and a message that the author can act on. It
works on the plain data of one document; the caller maps paths to lines and columns. Messages quote a value only if it
is short and only a closed list of words is allowed there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config.field_introspection import (
    FieldShape,
    FieldType,
    ListField,
    MapField,
    ObjectField,
    ScalarField,
    UnionField,
    list_fields,
)
from gateway.config.kinds import common_specs
from gateway.config.kinds.attestations import AttestationDocument
from gateway.config.kinds.catalogues import CatalogueDocument, CollisionPolicyDocument
from gateway.config.kinds.classification import ArtifactClassDocument, TrustFlagDocument, TrustTierDocument
from gateway.config.kinds.common_specs import API_VERSION, DocumentModel, FieldPath, OwnedMetadata, RuleViolation
from gateway.config.kinds.gate_rules import GateRuleDocument
from gateway.config.kinds.grants import GrantPolicyDocument
from gateway.config.kinds.identity_providers import IdentityProviderDocument
from gateway.config.kinds.installation import (
    GatewayDocument,
    TelemetryDocument,
)
from gateway.config.kinds.pipelines import PipelineDocument
from gateway.config.kinds.policy_tests import PolicyTestDocument
from gateway.config.kinds.scalars import type_name
from gateway.config.kinds.storage import StorageDocument
from gateway.config.kinds.tools import ToolDocument
from gateway.config.kinds.upstreams import UpstreamDocument
from gateway.config.overlays import OverlayDocument
from gateway.registries import suggest_name

CODES: Final[Mapping[str, str]] = {
    "unknown-kind": "No document has this kind.",
    "unknown-version": "The format has no such version.",
    "unknown-field": "The mapping has no such field; unknown fields are refused at every depth.",
    "missing-field": "A required field is missing.",
    "wrong-type": "The value has the wrong type. Types are not converted: 5 is not text, and 1 is not true.",
    "wrong-value": "The value has the right type but is not allowed here, or contradicts other fields.",
    "bad-duration": "A duration is a number and a unit.",
    "bad-size": "A size is a number and a unit.",
    "bad-date": "A date does not exist, has another format, or is before or after a date that it must not be.",
    "bad-time": "A time of day has two digits for the hour and two for the minute.",
    "bad-version": "A version has three numbers.",
    "bad-name": "A name has characters that are not allowed, or lacks its prefix.",
    "bad-url": "A URL is incomplete, has a user name, or has a placeholder outside its path.",
    "bad-path": "A path has the wrong form.",
    "bad-entrypoint": "A Python object is named by its module, a colon and its name.",
    "secret-as-text": "The document contains a secret; write a reference instead.",
    "too-many-problems": "The document has too many problems; the rest is not reported.",
}
"""Codes of this module and their meaning."""

MAX_PROBLEMS: Final = 100
"""Maximum number of problems per document."""

_MAX_QUOTE: Final = 60
_FIELD_NAME_CODES: Final = frozenset({"unknown-field", "missing-field"})
"""Problems that quote field names only."""

_EXPECTED: Final = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True, slots=True)
class ShapeProblem:
    """One problem. If `at_key`, it is at the last key of `path` instead of the value.

    For a missing field, `path` is that of the mapping without it.
    """

    code: str
    path: FieldPath
    message: str
    help: str | None = None
    at_key: bool = False


@dataclass(frozen=True, slots=True)
class _Location:
    """The place of an error: its YAML path, the value there, and the expected shape."""

    path: FieldPath
    value: Any
    shape: FieldType
    is_key: bool = False


def find_shape_problems(errors: Iterable[ErrorDetails], data: Mapping[Any, Any], root: FieldType) -> list[ShapeProblem]:
    """Return each problem once, up to a limit."""
    every = (problem for error in errors for problem in _translate(error, data, root))
    found = list(dict.fromkeys(islice(every, MAX_PROBLEMS + 1)))
    problems = found[:MAX_PROBLEMS]
    if len(found) > MAX_PROBLEMS:
        help = "correct the problems above and check again"
        problems.append(ShapeProblem("too-many-problems", (), "the rest of the document is not checked", help, True))
    return problems


def redact(problem: ShapeProblem, hidden: Collection[FieldPath]) -> ShapeProblem:
    """Return the problem without quoted text if it is about a hidden value."""
    is_about = any(path[: len(problem.path)] == problem.path for path in hidden)
    if problem.code in _FIELD_NAME_CODES or not is_about or not set(problem.message) & set("'\""):
        return problem
    return replace(problem, message="the value is not valid here; it comes from the environment, so it is not shown")


def format_path(path: FieldPath) -> str:
    """Return a path as `spec.cases[2].as`, or `the document` for the root."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "the document"


def quote(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTE else f"{text[:_MAX_QUOTE]}…"


def _translate(error: ErrorDetails, data: Any, root: FieldType) -> Iterator[ShapeProblem]:
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "extra_forbidden" | "missing":
            parent = _locate(error["loc"][:-1], data, root)
            name = str(error["loc"][-1])
            yield _unknown_field(parent, name) if kind == "extra_forbidden" else _missing_field(parent, name)
        case "invalid_key":
            parent = _locate(error["loc"][:-1], data, root)
            key = _find_key(parent.value, error["loc"][-1])
            yield ShapeProblem("wrong-type", (*parent.path, key), "a field name must be text", "put it in quotes", True)
        case common_specs.BROKEN_RULES:
            yield from (_violation_problem(_locate(error["loc"], data, root), rule) for rule in context["broken"])
        case _:
            spot = _locate(error["loc"], data, root)
            if not _is_follow_up(kind, context, spot):
                yield _value_problem(error, spot)


def _is_follow_up(kind: str, context: Mapping[str, Any], spot: _Location) -> bool:
    """Whether a list is too short only because its invalid entries were not counted."""
    return kind == "too_short" and len(spot.value) >= context["min_length"]


def _value_problem(error: ErrorDetails, spot: _Location) -> ShapeProblem:
    kind, context = error["type"], error.get("ctx", {})
    path, at_key = spot.path, spot.is_key
    if kind in _EXPECTED:
        return ShapeProblem(
            "wrong-type", path, f"expected {_EXPECTED[kind]}, got {type_name(spot.value)}", _quote_hint(kind), at_key
        )
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(spot)
    if kind == "literal_error":
        return _not_a_choice(path, spot.value, _choices(spot.shape))
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return ShapeProblem("wrong-value", path, f"must be {words} {context[bound]}")
    if kind == "too_short":
        least = context["min_length"]
        return ShapeProblem("wrong-value", path, f"needs at least {least} {'entry' if least == 1 else 'entries'}")
    return ShapeProblem(kind, path, error["msg"], context.get("help"), at_key)


def _unknown_field(parent: _Location, name: str) -> ShapeProblem:
    known = _fields_at(parent)
    listed = f"fields here: {', '.join(known)}" if known else "this mapping has no fields"
    suggestion = suggest_name(name, known) or listed
    message = f"{quote(name)} is not a field of {format_path(parent.path)}"
    return ShapeProblem("unknown-field", (*parent.path, name), message, suggestion, True)


def _fields_at(spot: _Location) -> Mapping[str, FieldShape]:
    assert isinstance(spot.shape, ObjectField)  # noqa: S101 - only objects have fields to miss or not to know
    return list_fields(spot.shape.model)


def _missing_field(parent: _Location, name: str) -> ShapeProblem:
    help = _fields_at(parent)[name].description
    return ShapeProblem("missing-field", parent.path, f"{format_path(parent.path)} needs {name!r}", help, True)


def _wrong_tag(spot: _Location) -> ShapeProblem:
    assert isinstance(spot.shape, UnionField)  # noqa: S101 - only variants have tags
    assert spot.shape.tag is not None  # noqa: S101 - without a field for it, every value has a tag
    choices = tuple(name for name, _ in spot.shape.shapes)
    if spot.shape.tag not in spot.value:
        help = f"choose one of: {', '.join(choices)}"
        return ShapeProblem(
            "missing-field", spot.path, f"{format_path(spot.path)} needs {spot.shape.tag!r}", help, True
        )
    return _not_a_choice((*spot.path, spot.shape.tag), spot.value[spot.shape.tag], choices)


def _not_a_choice(path: FieldPath, value: object, choices: tuple[str, ...]) -> ShapeProblem:
    listed = ", ".join(choices)
    if not isinstance(value, str):
        return ShapeProblem("wrong-type", path, f"expected one of {listed}, got {type_name(value)}")
    return ShapeProblem("wrong-value", path, f"{quote(value)} is not one of: {listed}", suggest_name(value, choices))


def _choices(shape: FieldType) -> tuple[str, ...]:
    assert isinstance(shape, ScalarField)  # noqa: S101 - a closed list of words is a scalar
    return shape.choices


def _violation_problem(spot: _Location, rule: RuleViolation) -> ShapeProblem:
    return ShapeProblem(rule.code, (*spot.path, *rule.path), rule.message, rule.help, rule.at_key)


def _quote_hint(kind: str) -> str | None:
    return "put it in quotes" if kind == "string_type" else None


def _locate(location: tuple[str | int, ...], data: Any, root: FieldType) -> _Location:
    """Resolve a pydantic location to a YAML path. The location also has union tags, which the YAML does not."""
    path: FieldPath = ()
    value, shape, is_entry = data, root, False
    for part in location:
        if part == "[key]" and is_entry:
            return _Location(path, path[-1], shape, is_key=True)
        is_entry = isinstance(shape, MapField)
        match shape:
            case UnionField():
                shape = dict(shape.shapes)[str(part)]
                continue
            case ObjectField():
                shape = list_fields(shape.model)[str(part)].shape
            case ListField():
                shape = shape.item
            case MapField():
                shape = shape.value
                part = _find_key(value, part)
        path, value = (*path, part), value[part]
    return _Location(path, value, shape)


def _find_key(mapping: Mapping[Any, Any], part: str | int) -> Any:
    """Return the original key; pydantic locations have only texts and small numbers."""
    return part if part in mapping else next(key for key in mapping if str(key) == str(part))


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of document."""

    name: str
    plural: str
    model: type[DocumentModel]

    @property
    def needs_owner(self) -> bool:
        return list_fields(self.model)["metadata"].shape == ObjectField(OwnedMetadata)

    @property
    def summary(self) -> str:
        """One line about the kind."""
        return (self.model.__doc__ or "").strip()


KINDS: Final[Mapping[str, DocumentKind]] = {
    kind.name: kind
    for kind in (
        DocumentKind("Gateway", "gateways", GatewayDocument),
        DocumentKind("IdentityProvider", "identityproviders", IdentityProviderDocument),
        DocumentKind("Storage", "storages", StorageDocument),
        DocumentKind("Telemetry", "telemetries", TelemetryDocument),
        DocumentKind("TrustFlag", "trustflags", TrustFlagDocument),
        DocumentKind("TrustTier", "trusttiers", TrustTierDocument),
        DocumentKind("ArtifactClass", "artifactclasses", ArtifactClassDocument),
        DocumentKind("CollisionPolicy", "collisionpolicies", CollisionPolicyDocument),
        DocumentKind("GateRule", "gaterules", GateRuleDocument),
        DocumentKind("GrantPolicy", "grantpolicies", GrantPolicyDocument),
        DocumentKind("Pipeline", "pipelines", PipelineDocument),
        DocumentKind("Tool", "tools", ToolDocument),
        DocumentKind("Upstream", "upstreams", UpstreamDocument),
        DocumentKind("Catalogue", "catalogues", CatalogueDocument),
        DocumentKind("Overlay", "overlays", OverlayDocument),
        DocumentKind("PolicyTest", "policytests", PolicyTestDocument),
        DocumentKind("Attestation", "attestations", AttestationDocument),
    )
}
"""Every kind, in reading order."""


def validate_document(
    data: object, *, hidden: Collection[FieldPath] = ()
) -> tuple[DocumentModel | None, list[ShapeProblem]]:
    """Return the validated document, or all problems of its shape.

    Rules over several fields are checked only if each field is valid. Values at `hidden` paths, such as those from the
    environment, are never quoted.
    """
    if not isinstance(data, dict):
        return None, [ShapeProblem("wrong-type", (), f"a document must be a mapping, not {type_name(data)}")]
    document, problems = _read(data)
    return document, [redact(problem, hidden) for problem in problems]


def _read(data: dict[Any, Any]) -> tuple[DocumentModel | None, list[ShapeProblem]]:
    if problems := _check_envelope(data):
        return None, problems
    model = KINDS[data["kind"]].model
    try:
        return model.model_validate(data), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_input=False)
        return None, find_shape_problems(errors, data, ObjectField(model))


def _check_envelope(data: Mapping[Any, Any]) -> list[ShapeProblem]:
    """Report an unknown version or kind, without which the shape is unknown."""
    problems = []
    version, kind = data.get("apiVersion", API_VERSION), data.get("kind")
    if version != API_VERSION:
        problems.append(
            ShapeProblem(
                "unknown-version", ("apiVersion",), _describe_unknown("version", version), f"write {API_VERSION}"
            )
        )
    if "kind" not in data:
        help = f"choose one of: {', '.join(KINDS)}"
        problems.append(ShapeProblem("missing-field", (), "the document needs 'kind'", help, True))
    elif not isinstance(kind, str) or kind not in KINDS:
        help = (isinstance(kind, str) and suggest_name(kind, KINDS)) or f"choose one of: {', '.join(KINDS)}"
        problems.append(ShapeProblem("unknown-kind", ("kind",), _describe_unknown("kind", kind), help))
    return problems


def _describe_unknown(what: str, value: object) -> str:
    if isinstance(value, str):
        return f"there is no {what} {quote(value)}"
    return f"expected a {what}, got {type_name(value)}"
