"""What is wrong with a value, or with a schema, in words: one entry per problem, and nothing that the value says.

Neither values nor names that a caller chose are repeated: messages name the fields and rules of the schema.

The validator answers yes or no in time proportional to the value. Its list of errors is another
matter: it is made at once, and alternatives within alternatives multiply it without bound. So it is asked
for only where the number of checks is known to be small; else the places at fault are named.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import jsonschema_rs

from gateway.core.schema_document import Document, Subschemas
from gateway.errors import problem

Problem = dict[str, Any]

MAX_CHECKS: Final = 2_000
"""Pairs of a subschema and a value that may be visited to explain a refusal in full: tens of milliseconds."""

_MAX_LISTED: Final = 100
_MAX_TEXT: Final = 500
_MAX_NAMED: Final = 20
OF_CALLER: Final = "*"
"""Stands in a path for a name that the caller chose."""

_UNKNOWN: Final = (
    jsonschema_rs.ValidationErrorKind.AdditionalProperties,
    jsonschema_rs.ValidationErrorKind.UnevaluatedProperties,
)
_SHELL: Final = ("type", "required", "minProperties", "maxProperties", "dependentRequired")


def is_explainable(subschemas: Subschemas, value: Any) -> bool:
    """Whether every check of `value` fits into `MAX_CHECKS`, even if nothing stops early."""
    pending: list[tuple[Document, Any]] = [(subschemas.root, value)]
    checks = 0
    while pending:
        node, part = pending.pop()
        checks += 1
        if checks + len(pending) > MAX_CHECKS:
            return False
        pending += [(branch, part) for group in subschemas.branches(node) for branch in group]
        pending += [(node["not"], part)] if isinstance(node.get("not"), dict) else []
        for (keyword, name), child in subschemas.parts(node):
            pending += [(child, item) for item in _described(keyword, name, part)]
    return True


def _described(keyword: str, name: str, value: Any) -> list[Any]:
    """The parts of a value that a subschema may be applied to; rather too many than too few."""
    of_list = keyword in ("items", "prefixItems")
    if isinstance(value, dict) and keyword == "properties":
        return [value[name]] if name in value else []
    if isinstance(value, dict) and not of_list:
        return list(islice(value.values(), MAX_CHECKS + 1))
    if isinstance(value, list) and of_list:
        return value[int(name) : int(name) + 1] if name else value[: MAX_CHECKS + 1]
    return []


def shell_of(root: Document) -> Document:
    """The outermost rules of a schema, with nothing said about the parts."""
    shell: Document = {keyword: root[keyword] for keyword in _SHELL if keyword in root}
    shell["properties"] = dict.fromkeys(root.get("properties", {}), True)
    if root.get("additionalProperties") is False:
        shell["additionalProperties"] = False
    return shell


def listed(errors: list[jsonschema_rs.ValidationError], document: Document) -> list[Problem]:
    """One entry per error, up to a limit. `document` is the schema."""
    known = names_in(document)
    entries = [_entry(told, document, known) for error in errors for told in _told(error)]
    more = len(entries) - _MAX_LISTED
    return entries[:_MAX_LISTED] + ([problem(f"{more} more problems", type="more")] if more > 0 else [])


def unsatisfied(name: str | None = None) -> Problem:
    """For a value, or one property of it, that can only be said to be wrong."""
    if name is None:
        return problem("value does not satisfy the schema", type="schema")
    return problem(_shortened(f"{name!r}: value does not satisfy its schema"), [name], "schema")


def schema_defect(error: Exception) -> str:
    """Why a document is not a schema, and where."""
    where = ""
    text = str(error)
    if isinstance(error, jsonschema_rs.ValidationError):
        where = f"at {_dotted(error.instance_path)!r}: " if error.instance_path else ""
        text = _defect(error)
    return f"not a valid JSON Schema: {where}{_shortened(text)}"


def _defect(error: jsonschema_rs.ValidationError) -> str:
    path = error.instance_path
    if path and path[-1] == "type":
        return f"{error.instance!r} is not a type of JSON Schema"
    if path and path[-1] == "pattern":
        return "the pattern is not valid, or too large; limit lengths with maxLength instead of {1,200}"
    return error.message


def _told(error: jsonschema_rs.ValidationError) -> list[jsonschema_rs.ValidationError]:
    """The error, or what is wrong with the one alternative that is of the value's type."""
    kind = error.kind
    if not isinstance(kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
        return [error]
    depth = len(error.instance_path)
    fitting = [
        found
        for found in kind.context
        if not any(each.kind.name == "type" and len(each.instance_path) == depth for each in found)
    ]
    return [told for each in fitting[0] for told in _told(each)] if len(fitting) == 1 else [error]


def names_in(document: Document) -> frozenset[str]:
    """Every name that a schema gives a member, at any depth."""
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


def masked(path: Iterable[str | int], known: Collection[str]) -> list[str | int]:
    """A path in which names that are not the schema's are `*`."""
    return [part if isinstance(part, int) or part in known else OF_CALLER for part in path]


def _entry(error: jsonschema_rs.ValidationError, document: Document, known: Collection[str]) -> Problem:
    path = masked(error.instance_path, known)
    where = _dotted(path)
    words = _words(error, document)
    message = f"{where!r}: {words}" if where else words
    return problem(_shortened(message), path, error.kind.name, schemaPath=list(error.schema_path))


def _words(error: jsonschema_rs.ValidationError, document: Document) -> str:
    kind = error.kind
    if isinstance(kind, _UNKNOWN):
        count = len(kind.unexpected)
        unknown = "a member is not known" if count == 1 else f"{count} members are not known"
        takes = _taken(document, error.schema_path[:-1])
        return f"{unknown}; it takes {', '.join(takes)}" if takes else unknown
    if "propertyNames" in error.schema_path:
        return f"the name of a member does not satisfy {str(error.schema_path[-1])!r}"
    return error.message


def _taken(document: Document, path: Sequence[str | int]) -> list[str]:
    """The members that the subschema at a path names, some of many."""
    node: Any = document
    for part in path:
        is_there = part in node if isinstance(node, dict) else isinstance(node, list) and isinstance(part, int)
        node = node[part] if is_there else None
    properties = node.get("properties") if isinstance(node, dict) else None
    names = list(properties) if isinstance(properties, dict) else []
    return names if len(names) <= _MAX_NAMED else [*names[:_MAX_NAMED], "…"]


def _dotted(path: list[str | int]) -> str:
    return ".".join(map(str, path))


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
