"""The OpenAPI document, written from the table of operations: what is described is what is served and checked."""

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from gateway.core.schemas import Schema
from gateway.web.problems import PROBLEM_TYPE
from gateway.web.rest.components import ref
from gateway.web.rest.documents import ANSWERS, PATH_PARAMETERS, REQUESTS
from gateway.web.rest.examples import problem_example
from gateway.web.rest.operations import Operation, Parameter, Success

VERSION: Final = "3.1.0"
API_VERSION: Final = "1"

_TEMPLATE: Final = re.compile(r"{(\w+)}")
_PROBLEMS: Final = {400: "The request is invalid.", 404: "There is no such thing, or not for this caller."}
_UNAVAILABLE: Final = {
    503: "Too much is asked at once, the store cannot be reached, or nobody can tell if the credential still counts; "
    "see Retry-After."
}
_ANY_OTHER: Final = (
    "Refused before it was looked at: an origin that may not call (403), a method that is not for the path (405), a "
    "host that is not served here (421), headers that are too large (431); or a fault of the gateway (500)."
)
_BODY_PROBLEMS: Final = {
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}


def openapi(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each)
    requests = {name: Schema(dict(document)).describe() for name, document in REQUESTS.items()}
    return {
        "openapi": VERSION,
        "info": {
            "title": "agent-gateway",
            "version": API_VERSION,
            "description": "Tools for agents: catalogues, calls, turns, records, artifacts and approvals.",
        },
        "paths": paths,
        "components": {
            "schemas": {**requests, **ANSWERS},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": _parameters(operation),
        "responses": _responses(operation),
    }
    if operation.is_open:
        found["security"] = []
    if operation.body:
        content = {"application/json": {"schema": ref(operation.body)}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    in_path = [
        _parameter(Parameter(name, PATH_PARAMETERS[name], {"type": "string"}, is_required=True), "path")
        for name in _TEMPLATE.findall(operation.path)
    ]
    in_query = [_parameter(each, "query") for each in operation.query]
    return [*in_path, *in_query, *(_parameter(each, "header") for each in operation.headers)]


def _parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _responses(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {str(each.status): _success(each) for each in (operation.success, *operation.instead)}
    problems = dict(_PROBLEMS)
    problems |= {} if operation.is_open else {401: "A credential is needed."}
    problems |= _BODY_PROBLEMS if operation.body else {}
    problems |= {} if operation.is_open else _UNAVAILABLE
    for status, description in sorted({**problems, **operation.also}.items()):
        _add(found, str(status), description, _problem(status, description))
    return {**found, "default": {"description": _ANY_OTHER, "content": _problem(HTTPStatus.BAD_REQUEST, _ANY_OTHER)}}


def _add(found: dict[str, Any], status: str, description: str, content: dict[str, Any]) -> None:
    """Add a problem, beside what else the status may be answered with."""
    other = found.get(status)
    if other is not None:
        description = f"{other['description']} Or a problem: {description}"
        content = {**other["content"], **content}
    found[status] = {**(other or {}), "description": description, **({"content": content} if content else {})}


def _success(success: Success) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": ref(success.schema)} if success.schema else {}
    if success.example is not None:
        content["example"] = success.example
    answer: dict[str, Any] = {"description": success.description, "content": {success.type: content}}
    if success.headers:
        answer["headers"] = {
            name: {"description": description, "schema": {"type": "string"}}
            for name, description in success.headers.items()
        }
    return answer


def _problem(status: int, description: str) -> dict[str, Any]:
    if status < HTTPStatus.BAD_REQUEST:
        return {}
    return {PROBLEM_TYPE.decode(): {"schema": ref("Problem"), "example": problem_example(status, description)}}
