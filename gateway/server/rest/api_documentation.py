"""The documentation of the REST API: an OpenAPI document, and a self-contained HTML page.

Both are built from the table of operations, which also defines what is served and validated.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from http import HTTPStatus
from typing import Any, Final

from gateway.model import Schema
from gateway.server.http.asgi import PROBLEM_TYPE, Response, build_problem, bytes_response
from gateway.server.rest import approvals, grants
from gateway.server.rest import schemas as components
from gateway.server.rest.calls_and_turns import Outcome
from gateway.server.rest.operation import (
    OperationHandler,
    OperationParameter,
    RestDependencies,
    RestOperation,
    RestRequest,
    SuccessResponse,
)
from gateway.server.rest.responses import NO_STORE, encode_json
from gateway.server.rest.schemas import Document, ref

_HREF: Final = "/v1/{}/call_5b1c?turn=turn_Zk3v"
_ARTIFACT: Final = {
    "callId": "call_5b1c",
    "kind": "SpooledArtifact",
    "type": "text",
    "byteLength": 17,
    "lineCount": 1,
    "href": _HREF.format("artifacts"),
    "contentHref": "/v1/artifacts/call_5b1c/content?turn=turn_Zk3v",
}
_TEXTS: Final[Mapping[Outcome, str]] = {
    "pending": "this call waits for approval (a refund over 100: 1 more approval is needed)",
    "denied": "the policy does not permit this call",
    "missing": "there is no tool named 'refund_order'",
    "invalid": "the arguments do not satisfy the tool's input schema: 'order' is required",
    "failed": "the tool failed while running: no answer within 10s",
    "limited": "the rate 'few refunds' lets 5 calls through per 1m; try again in 42 s",
    "unavailable": "the call was not made: the backend keeps failing and is not asked for a while",
}
_BESIDE: Final[Mapping[Outcome, Mapping[str, Any]]] = {
    "pending": {
        "pending": {
            "status": "pending",
            "retryAfter": 5,
            "approvals": [
                {
                    "id": "apr_9fQ2",
                    "rule": "large-refunds",
                    "reason": "a refund over 100",
                    "expiresAt": "2026-01-05T10:15:00Z",
                    "href": "/v1/approvals/apr_9fQ2",
                }
            ],
        }
    },
    "limited": {"limited": {"status": "limited", "kind": "rate", "rule": "few refunds", "retryAfter": 42}},
}


def call_example(outcome: Outcome) -> dict[str, Any]:
    """Return the record of a call with that outcome, in the form of the component `Called`."""
    text = _TEXTS.get(outcome, "refunded order 17")
    is_error = outcome in _TEXTS
    result = {"kind": "text", "text": text} if is_error else {"kind": "artifact", "artifact": _ARTIFACT, "text": text}
    return {
        "callId": "call_5b1c",
        "turn": "turn_Zk3v",
        "tool": "refund_order",
        "checksum": "6f1ed002ab5595859014ebf0951522d9",
        "isError": is_error,
        "inline": True,
        "trusted": False,
        "result": result,
        "rendered": text,
        "startedAt": "2026-01-05T10:00:00Z",
        "completedAt": "2026-01-05T10:00:01Z",
        **_BESIDE.get(outcome, {}),
    }


def problem_example(status: int, description: str) -> dict[str, Any]:
    """Return a problem document with that status."""
    return build_problem(HTTPStatus(status), description)


REQUESTS: Final[Mapping[str, Document]] = {**components.REQUESTS, **approvals.REQUESTS, **grants.REQUESTS}
ANSWERS: Final[Mapping[str, Document]] = {**components.ANSWERS, **approvals.ANSWERS, **grants.ANSWERS}
PATH_PARAMETERS: Final[Mapping[str, str]] = {
    "catalogue": "The name of a catalogue.",
    "name": "The name of the tool in the catalogue.",
    "turn": "The id of a turn.",
    "callId": "The id of a call.",
    **approvals.PATH_PARAMETERS,
    **grants.PATH_PARAMETERS,
}

VERSION: Final = "3.1.0"
API_VERSION: Final = "1"

_TEMPLATE: Final = re.compile(r"{(\w+)}")
_PROBLEMS: Final = {400: "The request is invalid.", 404: "It does not exist, or not for this caller."}
_UNAVAILABLE: Final = {
    503: "The gateway is overloaded, the store cannot be reached, or the gateway cannot check whether the credential "
    "was revoked; see Retry-After."
}
_ANY_OTHER: Final = (
    "The request was refused before it was processed: origin not allowed (403), method not allowed (405), host not "
    "served here (421), headers too large (431); or the gateway failed (500)."
)
_BODY_PROBLEMS: Final = {
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}


def build_openapi(operations: Iterable[RestOperation]) -> dict[str, Any]:
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


def _operation(operation: RestOperation) -> dict[str, Any]:
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


def _parameters(operation: RestOperation) -> list[dict[str, Any]]:
    in_path = [
        _parameter(OperationParameter(name, PATH_PARAMETERS[name], {"type": "string"}, is_required=True), "path")
        for name in _TEMPLATE.findall(operation.path)
    ]
    in_query = [_parameter(each, "query") for each in operation.query]
    return [*in_path, *in_query, *(_parameter(each, "header") for each in operation.headers)]


def _parameter(parameter: OperationParameter, place: str) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _responses(operation: RestOperation) -> dict[str, Any]:
    found: dict[str, Any] = {str(each.status): _success(each) for each in (operation.success, *operation.instead)}
    problems = dict(_PROBLEMS)
    problems |= {} if operation.is_open else {401: "A credential is needed."}
    problems |= _BODY_PROBLEMS if operation.body else {}
    problems |= {} if operation.is_open else _UNAVAILABLE
    for status, description in sorted({**problems, **operation.also}.items()):
        _add(found, str(status), description, _problem(status, description))
    return {**found, "default": {"description": _ANY_OTHER, "content": _problem(HTTPStatus.BAD_REQUEST, _ANY_OTHER)}}


def _add(found: dict[str, Any], status: str, description: str, content: dict[str, Any]) -> None:
    """Add a problem to the other responses with that status."""
    other = found.get(status)
    if other is not None:
        description = f"{other['description']} Or a problem: {description}"
        content = {**other["content"], **content}
    found[status] = {**(other or {}), "description": description, **({"content": content} if content else {})}


def _success(success: SuccessResponse) -> dict[str, Any]:
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


_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1b1f24; }
h2 { border-top: 1px solid #d0d7de; margin-top: 2.5rem; padding-top: 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f3f5f7; border-radius: 4px; }
code { padding: 0 .25rem; overflow-wrap: anywhere; } pre { overflow: auto; padding: .75rem; }
table { border-collapse: collapse; width: 100%; } td, th { border-bottom: 1px solid #d0d7de; padding: .35rem .5rem; }
td, th { text-align: left; vertical-align: top; } td:last-child { overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3; } code, pre { background: #161b22; }
  a { color: #6cb6ff; } h2, td, th { border-color: #30363d; }
}
"""
_STYLE_HASH: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_CSP: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def documentation_operations(others: Iterable[RestOperation]) -> tuple[RestOperation, ...]:
    """Return the operations for the document and the page. They need no credential: they describe only the API."""
    content: dict[str, bytes] = {}
    described = (
        RestOperation(
            "getOpenApi",
            "GET",
            "/v1/openapi.json",
            "Get this document",
            _static_handler(content, "document", type=b"application/json"),
            SuccessResponse("OpenAPI 3.1.", "OpenApi"),
            "reading",
            is_open=True,
        ),
        RestOperation(
            "getDocs",
            "GET",
            "/v1/docs",
            "Get this document as an HTML page",
            _static_handler(content, "page", type=b"text/html; charset=utf-8"),
            SuccessResponse("HTML.", type="text/html"),
            "reading",
            is_open=True,
        ),
    )
    document = build_openapi([*others, *described])
    content["document"] = encode_json(document)
    content["page"] = render_page(document).encode()
    return described


def render_page(document: Mapping[str, Any]) -> str:
    """Return the document as HTML. Every text in it is escaped."""
    info = document["info"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    contents = "".join(
        f'<li><a href="#{escape(each["operationId"])}"><code>{method} {escape(path)}</code></a> '
        f"{escape(each['summary'])}</li>"
        for method, path, each in operations
    )
    schemas = "".join(
        f'<h3 id="{escape(name)}">{escape(name)}</h3><pre>{_json(schema)}</pre>'
        for name, schema in document["components"]["schemas"].items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>"
        '<p>The same for programs: <a href="/v1/openapi.json">openapi.json</a>.</p>'
        f"<ul>{contents}</ul>{''.join(_section(*each) for each in operations)}<h2>Schemas</h2>{schemas}</body></html>"
    )


def _section(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['in'])}</td>"
        f"<td>{escape(_allowed_values(each))}</td><td>{_prose(each['description'])}</td></tr>"
        for each in operation["parameters"]
    )
    table = (
        f"<table><tr><th>parameter</th><th>in</th><th>values</th><th>meaning</th></tr>{rows}</table>" if rows else ""
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    request = f"<p>Body: {_link(body)}</p>" if body else ""
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{_prose(each['description'])}</td><td>{_answer(each)}</td></tr>"
        for status, each in operation["responses"].items()
    )
    return (
        f'<h2 id="{escape(operation["operationId"])}"><code>{method} {escape(path)}</code></h2>'
        f"<p>{escape(operation['summary'])}</p>{table}{request}"
        f"<table><tr><th>status</th><th>meaning</th><th>content</th></tr>{answers}</table>"
    )


def _answer(response: Mapping[str, Any]) -> str:
    content = response.get("content", {})
    return " ".join(f"{escape(type)} {_link(each.get('schema', {}))}" for type, each in content.items())


def _prose(text: str) -> str:
    """Return a text as HTML, with code for text between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _allowed_values(parameter: Mapping[str, Any]) -> str:
    """Return the values that a parameter takes, and its default."""
    schema = parameter["schema"]
    *others, last = [str(each) for each in schema.get("enum", [schema.get("type", "")])]
    values = f"{', '.join(others)} or {last}" if others else last
    if "maximum" in schema:
        values += f", {schema['minimum']} to {schema['maximum']}"
    values += ", needed" if parameter["required"] else ""
    return f"{values}; {schema['default']} if not given" if "default" in schema else values


def _link(schema: Mapping[str, Any]) -> str:
    name = schema.get("$ref", "").rpartition("/")[2]
    return f'<a href="#{escape(name)}">{escape(name)}</a>' if name else ""


def _json(value: Any) -> str:
    return escape(json.dumps(value, indent=2, ensure_ascii=False))


def _static_handler(content: Mapping[str, bytes], name: str, *, type: bytes) -> OperationHandler:
    headers = {
        **NO_STORE,
        b"cache-control": b"public, max-age=300",
        b"content-security-policy": _CSP.encode(),
        b"referrer-policy": b"no-referrer",
    }

    async def run(rest: RestDependencies, request: RestRequest) -> Response:
        return bytes_response(content[name], type=type, headers=headers)

    return run
