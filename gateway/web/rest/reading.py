"""The API to read: the OpenAPI document for programs, and one page for people that needs nothing from elsewhere."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final

from gateway.web.problems import Response, bytes_response
from gateway.web.rest.answers import NO_STORE, wire_json
from gateway.web.rest.asking import Asked
from gateway.web.rest.openapi import openapi
from gateway.web.rest.operations import Operation, Rest, Run, Success

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


def reading_operations(others: Iterable[Operation]) -> tuple[Operation, ...]:
    """Both are open: they tell what can be asked, nothing of what there is."""
    content: dict[str, bytes] = {}
    described = (
        Operation(
            "getOpenApi",
            "GET",
            "/v1/openapi.json",
            "This document",
            _fixed(content, "document", type=b"application/json"),
            Success("OpenAPI 3.1.", "OpenApi"),
            "reading",
            is_open=True,
        ),
        Operation(
            "getDocs",
            "GET",
            "/v1/docs",
            "This document as a page",
            _fixed(content, "page", type=b"text/html; charset=utf-8"),
            Success("HTML.", type="text/html"),
            "reading",
            is_open=True,
        ),
    )
    document = openapi([*others, *described])
    content["document"] = wire_json(document)
    content["page"] = page(document).encode()
    return described


def page(document: Mapping[str, Any]) -> str:
    """The document as HTML. Every text in it is escaped."""
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
        f"<td>{escape(_allowed(each))}</td><td>{_prose(each['description'])}</td></tr>"
        for each in operation["parameters"]
    )
    table = (
        f"<table><tr><th>parameter</th><th>in</th><th>values</th><th>meaning</th></tr>{rows}</table>" if rows else ""
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    asked = f"<p>Body: {_link(body)}</p>" if body else ""
    answers = "".join(
        f"<tr><td>{escape(status)}</td><td>{_prose(each['description'])}</td><td>{_answer(each)}</td></tr>"
        for status, each in operation["responses"].items()
    )
    return (
        f'<h2 id="{escape(operation["operationId"])}"><code>{method} {escape(path)}</code></h2>'
        f"<p>{escape(operation['summary'])}</p>{table}{asked}"
        f"<table><tr><th>status</th><th>meaning</th><th>content</th></tr>{answers}</table>"
    )


def _answer(response: Mapping[str, Any]) -> str:
    content = response.get("content", {})
    return " ".join(f"{escape(type)} {_link(each.get('schema', {}))}" for type, each in content.items())


def _prose(text: str) -> str:
    """What stands between backticks is code, here as everywhere."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _allowed(parameter: Mapping[str, Any]) -> str:
    """Which values a parameter takes, and what it is if it is not given."""
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


def _fixed(content: Mapping[str, bytes], name: str, *, type: bytes) -> Run:
    headers = {
        **NO_STORE,
        b"cache-control": b"public, max-age=300",
        b"content-security-policy": _CSP.encode(),
        b"referrer-policy": b"no-referrer",
    }

    async def run(rest: Rest, asked: Asked) -> Response:
        return bytes_response(content[name], type=type, headers=headers)

    return run
