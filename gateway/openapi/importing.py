"""From the bytes of a document to the definitions of the tools that were chosen, and what could not become one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gateway.core.schemas import Schema
from gateway.openapi.operations import MAX_OPERATIONS, Found, Operation, Operations, found_operations
from gateway.openapi.reading import Document, read
from gateway.openapi.refusals import OpenApiInvalid, Unusable
from gateway.openapi.schemas import without_patterns

REQUEST: Final = "gateway/request"
"""Where the `_meta` of a definition says what a call becomes."""

ANSWER: Final = "gateway/answer"
"""And where it says what answers are."""

Choice = Callable[[Found], bool]


@dataclass(frozen=True, slots=True)
class Skipped:
    """An operation that was chosen and cannot be a tool."""

    name: str
    method: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    operations: tuple[Operation, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    total: int = 0
    """Operations in the document, chosen or not."""
    wants: frozenset[str] = field(default=frozenset())
    """Kinds of credentials, of which some chosen operation wants one."""


def import_document(data: bytes, chosen: Choice) -> Imported:
    """Raises `OpenApiInvalid` for a document that cannot be used at all."""
    return import_operations(read(data), chosen)


def import_operations(document: Document, chosen: Choice) -> Imported:
    making = Operations(document)
    operations: list[Operation] = []
    skipped: list[Skipped] = []
    total = 0
    for found in found_operations(document):
        total += 1
        if total > MAX_OPERATIONS:
            raise OpenApiInvalid(
                f"the OpenAPI document has more than {MAX_OPERATIONS} operations", help="take a part of it"
            )
        if not chosen(found):
            continue
        try:
            operations.append(_enforceable(making.operation(found)))
        except Unusable as error:
            skipped.append(Skipped(found.name, found.method, found.path, str(error)))
    wants = frozenset(kind for each in operations for kind in each.wants)
    return Imported(tuple(operations), tuple(skipped), total, wants)


def definition(operation: Operation) -> dict[str, Any]:
    """The tool as an MCP server would define it; what a call becomes is part of it."""
    found: dict[str, Any] = {
        "name": operation.name,
        "description": operation.description,
        "inputSchema": operation.input_schema,
        "annotations": _hints(operation),
        "_meta": {REQUEST: operation.request.data(), ANSWER: _answer(operation)},
    }
    if operation.title is not None:
        found["title"] = operation.title
    if operation.output_schema is not None:
        found["outputSchema"] = operation.output_schema
    return found


def _hints(operation: Operation) -> dict[str, bool]:
    method = operation.request.method
    reads = method in ("GET", "HEAD")
    return {
        "readOnlyHint": reads,
        "destructiveHint": method == "DELETE",
        "idempotentHint": reads or method in ("PUT", "DELETE"),
    }


def _answer(operation: Operation) -> Mapping[str, Any]:
    return {"artifact": operation.artifact} | ({"media": operation.media} if operation.media else {})


def _enforceable(operation: Operation) -> Operation:
    """With the schema as it is enforced: closed, and without patterns if one of them is for another engine."""
    reason = ""
    for schema in (operation.input_schema, without_patterns(operation.input_schema)):
        try:
            closed = Schema(dict(schema)).describe()
        except (ValueError, RecursionError) as error:
            reason = str(error)
            continue
        return replace(operation, input_schema=closed)
    raise Unusable(f"its arguments cannot be checked: {' '.join(reason.split())[:200]}")
