"""Documents of real services with hundreds of operations: all become tools, and every call conforms to its document.

The service is a stub that answers anything. An independent check compares its requests with the document.
"""

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from gateway.backends.http.backend import HttpRequest
from gateway.backends.openapi.backend import OpenApiBackend, OpenApiOperation
from gateway.backends.openapi.document import OpenApiDocument, ReferenceResolver, read_document
from gateway.backends.openapi.request_template import parse_request
from gateway.backends.openapi.tool_definitions import (
    REQUEST_META,
    DocumentDefinitions,
    OperationEntry,
    find_operations,
    import_operations,
    to_definition,
)
from gateway.http_client.pool import HttpConnections
from gateway.model.schema.schema import Schema
from gateway.registries.imported_definition import UpstreamDefinition
from tests.backends.invocations import invocation
from tests.backends.openapi.real_documents import NotAvailable, real_document
from tests.backends.openapi.sample_arguments import arguments_for

pytestmark = pytest.mark.anyio

COUNTS = {"github": 1223, "stripe": 452, "kubernetes": 839}
NAMES = {
    "github": {"issues_create", "repos_get-content", "git_create-commit"},
    "stripe": {"GetCustomers", "PostCustomers", "DeleteCustomersCustomer"},
    "kubernetes": {"createCoreV1NamespacedPod", "listCoreV1Node", "patchAppsV1NamespacedDeployment"},
}
services = pytest.mark.parametrize("service", COUNTS)


@cache
def document(service: str) -> OpenApiDocument:
    try:
        return read_document(real_document(service).read_bytes())
    except NotAvailable as reason:
        pytest.skip(str(reason))


@cache
def imported(service: str) -> DocumentDefinitions:
    return import_operations(document(service), lambda found: True)


@services
def test_every_operation_becomes_a_tool(service: str) -> None:
    result = imported(service)

    assert (len(result.operations), result.total, result.skipped) == (COUNTS[service], COUNTS[service], ())
    names = [each.name for each in result.operations]
    assert NAMES[service] <= set(names)
    assert len({name.lower() for name in names}) == COUNTS[service]


@services
def test_every_definition_can_be_kept_in_a_lock(service: str) -> None:
    for operation in imported(service).operations:
        given = to_definition(operation)

        assert UpstreamDefinition.read(service, json.loads(json.dumps(given))).digest
        assert parse_request(given["_meta"][REQUEST_META]) == operation.request


@pytest.mark.parametrize("service", ["github", "stripe"])
async def test_every_call_keeps_to_the_document(service: str) -> None:
    found = {each.name: each for each in find_operations(document(service))}
    received: list[tuple[str, str, dict[str, str], bytes]] = []
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer_requests(reader, writer, received)
        await writer.wait_closed()
        ended.set()

    stub = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{stub.sockets[0].getsockname()[1]}/base"
    connections = HttpConnections()
    wrong: list[str] = []
    async with stub:
        try:
            for operation in imported(service).operations:
                args = arguments_for(dict(operation.input_schema), optional=True)
                wrong += [] if Schema(dict(operation.input_schema)).is_valid(args) else [f"{operation.name}: {args}"]
                backend = OpenApiBackend(OpenApiOperation(HttpRequest("GET", url), operation.request), connections)
                await backend.run(invocation(args))
                wrong += _differences(found[operation.name], args, received.pop(), document(service))
        finally:
            await connections.close()
            async with asyncio.timeout(5):
                await ended.wait()

    assert wrong == [], "\n".join(wrong)


def _differences(
    found: OperationEntry,
    args: dict[str, Any],
    received: tuple[str, str, dict[str, str], bytes],
    document: OpenApiDocument,
) -> Iterator[str]:
    """All parts of a request that the document does not declare, and declared parts that are missing."""
    method, target, headers, body = received
    address = urlsplit(target)
    if method != found.method:
        yield f"{found.name}: {method}"
    declared = _parameters(found, document)
    segments, template = address.path.split("/")[2:], found.path.split("/")[1:]
    if len(segments) != len(template):
        yield f"{found.name}: {address.path} is not {found.path}"
    for segment, expected in zip(segments, template, strict=False):
        if "{" not in expected and unquote(segment) != expected:
            yield f"{found.name}: {segment} instead of {expected}"
        if expected.startswith("{") and expected.endswith("}") and expected.count("{") == 1:
            given = args.get(expected.strip("{}"))
            if unquote(segment) != (given if isinstance(given, str) else json.dumps(given)):
                yield f"{found.name}: {segment} for {given!r}"
    names = {name.partition("[")[0] for name, _ in parse_qsl(address.query, keep_blank_values=True)}
    in_query = {name.partition("[")[0]: each for (place, name), each in declared.items() if place == "query"}
    if further := names - in_query.keys():
        yield f"{found.name}: {further} in the query"
    needed = {name for name, each in in_query.items() if each.get("required")}
    if missing := needed - names:
        yield f"{found.name}: {missing} missing"
    yield from _body_differences(found, args, headers, body, document)


def _body_differences(
    found: OperationEntry, args: dict[str, Any], headers: dict[str, str], body: bytes, document: OpenApiDocument
) -> Iterator[str]:
    declared = found.operation.get("requestBody")
    content = ReferenceResolver(document.root).resolve(declared).get("content", {}) if declared else {}
    if not body:
        if declared and ReferenceResolver(document.root).resolve(declared).get("required") and content:
            yield f"{found.name}: no body"
        return
    kind = headers["content-type"].partition(";")[0]
    if kind not in content and "*/*" not in content:
        yield f"{found.name}: {kind} is none of {list(content)}"
    if kind == "application/json":
        sent = json.loads(body)
        if isinstance(sent, dict) and not all(
            value in args.values() or sent in args.values() for value in sent.values()
        ):
            yield f"{found.name}: {sent} was not given"
    elif kind == "application/x-www-form-urlencoded":
        texts = {value for _, value in parse_qsl(body.decode(), keep_blank_values=True)}
        if not texts <= set(_texts(args)):
            yield f"{found.name}: {texts - set(_texts(args))} was not given"


def _texts(value: Any) -> Iterator[str]:
    match value:
        case dict():
            yield json.dumps(value, ensure_ascii=False)
            for item in value.values():
                yield from _texts(item)
        case list():
            yield json.dumps(value, ensure_ascii=False)
            for item in value:
                yield from _texts(item)
        case str():
            yield value
        case _:
            yield json.dumps(value)


def _parameters(found: OperationEntry, document: OpenApiDocument) -> dict[tuple[str, str], Any]:
    pointers = ReferenceResolver(document.root)
    listed = [*found.item.get("parameters", []), *found.operation.get("parameters", [])]
    followed = [pointers.resolve(each) for each in listed]
    return {(each["in"], each["name"]): each for each in followed}


async def _answer_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: list[tuple[str, str, dict[str, str], bytes]]
) -> None:
    while head := await _head(reader):
        line, *rest = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest if each)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = line.split(" ")
        received.append((method, target, headers, body))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
    writer.close()


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n")
    except asyncio.IncompleteReadError:
        return ""
