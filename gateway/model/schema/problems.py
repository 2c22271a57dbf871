"""Messages about invalid values and invalid schemas: one entry per problem.

Messages name the fields and rules of the schema. They never repeat values or names that a caller chose.

The validator decides validity in time proportional to the value. Its list of errors has no such bound: it is built all
at once, and nested alternatives multiply it. So the list is requested only if the number of checks is known to be
small; otherwise the messages only name the failing properties.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import jsonschema_rs

from gateway.errors import problem
from gateway.model.schema.subschemas import SchemaDocument, Subschemas

SchemaProblem = dict[str, Any]

MAX_CHECKS: Final = 2_000
"""Pairs of subschema and value that may be visited to list all errors: tens of milliseconds."""

_MAX_LISTED: Final = 100
_MAX_TEXT: Final = 500
_MAX_NAMED: Final = 20
OF_CALLER: Final = "*"
"""Replaces a name that the caller chose, in a path."""

_UNKNOWN: Final = (
    jsonschema_rs.ValidationErrorKind.AdditionalProperties,
    jsonschema_rs.ValidationErrorKind.UnevaluatedProperties,
)
_SHELL: Final = ("type", "required", "minProperties", "maxProperties", "dependentRequired")


def has_bounded_errors(subschemas: Subschemas, value: Any) -> bool:
    """Whether checking `value` takes at most `MAX_CHECKS` checks, even if none of them stops early."""
    pending: list[tuple[SchemaDocument, Any]] = [(subschemas.root, value)]
    checks = 0
    while pending:
        node, part = pending.pop()
        checks += 1
        if checks + len(pending) > MAX_CHECKS:
            return False
        pending += [(branch, part) for group in subschemas.branches(node) for branch in group]
        pending += [(node["not"], part)] if isinstance(node.get("not"), dict) else []
        for (keyword, name), child in subschemas.parts(node):
            pending += [(child, item) for item in _matching_parts(keyword, name, part)]
    return True


def _matching_parts(keyword: str, name: str, value: Any) -> list[Any]:
    """Return the parts of a value that a subschema may apply to; may include too many, never too few."""
    of_list = keyword in ("items", "prefixItems")
    if isinstance(value, dict) and keyword == "properties":
        return [value[name]] if name in value else []
    if isinstance(value, dict) and not of_list:
        return list(islice(value.values(), MAX_CHECKS + 1))
    if isinstance(value, list) and of_list:
        return value[int(name) : int(name) + 1] if name else value[: MAX_CHECKS + 1]
    return []


def strip_subschemas(root: SchemaDocument) -> SchemaDocument:
    """Return the outermost rules of a schema, without those about its parts."""
    shell: SchemaDocument = {keyword: root[keyword] for keyword in _SHELL if keyword in root}
    shell["properties"] = dict.fromkeys(root.get("properties", {}), True)
    if root.get("additionalProperties") is False:
        shell["additionalProperties"] = False
    return shell


def list_problems(errors: list[jsonschema_rs.ValidationError], document: SchemaDocument) -> list[SchemaProblem]:
    """Return one entry per error, up to a limit. `document` is the schema."""
    known = names_in(document)
    entries = [_entry(each, document, known) for error in errors for each in _narrow_to_alternative(error)]
    more = len(entries) - _MAX_LISTED
    return entries[:_MAX_LISTED] + ([problem(f"{more} more problems", type="more")] if more > 0 else [])


def plain_problem(name: str | None = None) -> SchemaProblem:
    """Return a problem without a reason, for a value or one of its properties."""
    if name is None:
        return problem("value does not satisfy the schema", type="schema")
    return problem(_shorten(f"{name!r}: value does not satisfy its schema"), [name], "schema")


def describe_schema_error(error: Exception) -> str:
    """Return a message: why and where a document is not a schema."""
    where = ""
    text = str(error)
    if isinstance(error, jsonschema_rs.ValidationError):
        where = f"at {_join_path(error.instance_path)!r}: " if error.instance_path else ""
        text = _describe_error(error)
    return f"not a valid JSON Schema: {where}{_shorten(text)}"


def _describe_error(error: jsonschema_rs.ValidationError) -> str:
    path = error.instance_path
    if path and path[-1] == "type":
        return f"{error.instance!r} is not a JSON Schema type"
    if path and path[-1] == "pattern":
        return "the pattern is not valid, or too large; limit lengths with maxLength instead of {1,200}"
    return error.message


def _narrow_to_alternative(error: jsonschema_rs.ValidationError) -> list[jsonschema_rs.ValidationError]:
    """Return the error, or the errors of the only alternative that has the type of the value."""
    kind = error.kind
    if not isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        return [error]
    depth = len(error.instance_path)
    fitting = [
        found
        for found in kind.context
        if not any(each.kind.name == "type" and len(each.instance_path) == depth for each in found)
    ]
    return [found for each in fitting[0] for found in _narrow_to_alternative(each)] if len(fitting) == 1 else [error]


def names_in(document: SchemaDocument) -> frozenset[str]:
    """Return every property name of a schema, at any depth."""
    found: set[str] = set()
    waiting: list[Any] = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            found.update(properties if isinstance(properties, dict) else ())
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return frozenset(found)


def mask_path(path: Iterable[str | int], known: Collection[str]) -> list[str | int]:
    """Replace the names in a path that are not in the schema by `*`."""
    return [part if isinstance(part, int) or part in known else OF_CALLER for part in path]


def _entry(error: jsonschema_rs.ValidationError, document: SchemaDocument, known: Collection[str]) -> SchemaProblem:
    path = mask_path(error.instance_path, known)
    where = _join_path(path)
    text = _error_text(error, document)
    message = f"{where!r}: {text}" if where else text
    return problem(_shorten(message), path, error.kind.name, schemaPath=list(error.schema_path))


def _error_text(error: jsonschema_rs.ValidationError, document: SchemaDocument) -> str:
    kind = error.kind
    if isinstance(kind, _UNKNOWN):
        count = len(kind.unexpected)
        unknown = "a member is not known" if count == 1 else f"{count} members are not known"
        known = _property_names(document, error.schema_path[:-1])
        return f"{unknown}; it takes {', '.join(known)}" if known else unknown
    if "propertyNames" in error.schema_path:
        return f"the name of a member does not satisfy {str(error.schema_path[-1])!r}"
    return error.message


def _property_names(document: SchemaDocument, path: Sequence[str | int]) -> list[str]:
    """Return the property names of the subschema at a path, shortened if there are many."""
    node: Any = document
    for part in path:
        is_there = part in node if isinstance(node, dict) else isinstance(node, list) and isinstance(part, int)
        node = node[part] if is_there else None
    properties = node.get("properties") if isinstance(node, dict) else None
    names = list(properties) if isinstance(properties, dict) else []
    return names if len(names) <= _MAX_NAMED else [*names[:_MAX_NAMED], "…"]


def _join_path(path: list[str | int]) -> str:
    return ".".join(map(str, path))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
