"""OpenAPI documents of a few lines, and the operations read from them."""

import json
from typing import Any

from gateway.backends.openapi.tool_definitions import DocumentDefinitions, OperationDefinition, import_document

Data = dict[str, Any]


def document(paths: Data, *, version: str = "3.1.0", **rest: Any) -> bytes:
    return json.dumps({"openapi": version, "info": {"title": "Small", "version": "1"}, "paths": paths, **rest}).encode()


def imported(paths: Data, **rest: Any) -> DocumentDefinitions:
    return import_document(document(paths, **rest), lambda found: True)


def operation(described: Data, *, path: str = "/things", method: str = "get", **rest: Any) -> OperationDefinition:
    """The only operation of a document."""
    result = imported({path: {method: {"operationId": "thing", **described}}}, **rest)
    assert result.skipped == ()
    return result.operations[0]


def skipped(described: Data, *, path: str = "/things", method: str = "get", **rest: Any) -> str:
    """The reason why the only operation of a document is not a tool."""
    result = imported({path: {method: {"operationId": "thing", **described}}}, **rest)
    assert result.operations == ()
    return result.skipped[0].reason


def parameter(name: str, place: str = "query", **rest: Any) -> Data:
    return {"name": name, "in": place, "schema": {"type": "string"}, **rest}


def json_body(schema: Data, *, required: bool = True) -> Data:
    return {"required": required, "content": {"application/json": {"schema": schema}}}
