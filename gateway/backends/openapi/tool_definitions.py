"""Tool definitions of the chosen operations of an OpenAPI document, and the operations that cannot become tools.

The definition of an operation has its name, description, schemas, request template and required credentials. The
Upstream document supplies credentials; arguments never do.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Final

from gateway.backends.openapi.document import (
    OpenApiDocument,
    OpenApiInvalid,
    ReferenceResolver,
    UnusableOperation,
    clean_text,
    escape_text,
    read_document,
    slug,
)
from gateway.backends.openapi.operation_signature import (
    ArgumentSet,
    Key,
    build_arguments,
    build_output_schema,
    choose_artifact,
    choose_response,
)
from gateway.backends.openapi.request_builder import find_placeholders
from gateway.backends.openapi.request_template import METHODS, Method, RequestTemplate
from gateway.backends.openapi.schema_converter import SchemaConverter, strip_patterns
from gateway.model import Schema

_PLACES: Final = ("header", "query", "cookie")


@dataclass(frozen=True, slots=True)
class SecurityScheme:
    """`kind` is the name for `auth.scheme` of an Upstream; `parameter` is where a key goes, headers in lower case."""

    kind: str
    parameter: tuple[str, str] | None = None


def read_security_schemes(root: Mapping[str, Any], pointers: ReferenceResolver) -> dict[str, SecurityScheme]:
    """Return the supported schemes by name."""
    components = root.get("components")
    declared = components.get("securitySchemes") if isinstance(components, dict) else None
    found: dict[str, SecurityScheme] = {}
    for name, each in declared.items() if isinstance(declared, dict) else ():
        try:
            scheme = _parse_scheme(pointers.resolve(each))
        except UnusableOperation:
            continue
        if scheme is not None:
            found[str(name)] = scheme
    return found


def find_required_schemes(
    operation: Mapping[str, Any], root: Mapping[str, Any], schemes: Mapping[str, SecurityScheme]
) -> tuple[str, ...]:
    """Return the schemes of which an operation needs one; empty if it can be called without credentials."""
    wanted = operation.get("security", root.get("security"))
    if not isinstance(wanted, list) or any(not each for each in wanted):
        return ()
    kinds = [
        schemes[name].kind if name in schemes else str(name)[:80]
        for each in wanted
        if isinstance(each, dict)
        for name in each
    ]
    return tuple(dict.fromkeys(kinds))


def _parse_scheme(data: Mapping[str, Any]) -> SecurityScheme | None:
    match data.get("type"):
        case "http":
            scheme = str(data.get("scheme", "")).lower()
            return SecurityScheme(scheme) if scheme in ("bearer", "basic") else None
        case "apiKey":
            place, name = data.get("in"), data.get("name")
            if place not in _PLACES or not isinstance(name, str) or not name:
                return None
            return SecurityScheme(str(place), (str(place), name.lower() if place == "header" else name))
        case "oauth2" | "openIdConnect":
            return SecurityScheme("oauth2")
        case _:
            return None


MAX_OPERATIONS: Final = 10_000
_INPUT_BUDGET: Final = 8_000
_OUTPUT_BUDGET: Final = 500
_PATH: Final = re.compile(r"/(?!/)[^?#\s\\\x00-\x1f\x7f]{0,500}")
_DOTS: Final = re.compile(r"(?:^|/)\.{1,2}(?:/|$)")


@dataclass(frozen=True, slots=True)
class OperationEntry:
    """An operation and its location in the document, not validated yet."""

    name: str
    method: Method
    path: str
    tags: tuple[str, ...]
    operation: Mapping[str, Any] = field(repr=False)
    item: Any = field(repr=False)

    @property
    def operation_id(self) -> str | None:
        """The id as the document spells it."""
        found = self.operation.get("operationId")
        return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class OperationDefinition:
    """An operation as a tool. `artifact` reads its responses; `media` is their type if they are images or sound."""

    name: str
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    request: RequestTemplate
    artifact: str
    media: str | None = None
    deprecated: bool = False
    wants: tuple[str, ...] = ()
    """Security schemes; the call needs one of them."""


def find_operations(document: OpenApiDocument) -> Iterator[OperationEntry]:
    """Yield every operation with a unique name, in the order of the document."""
    pointers = ReferenceResolver(document.root)
    used_names: set[str] = set()
    for path, reference in document.paths.items():
        try:
            item = pointers.resolve(reference)
        except UnusableOperation:
            yield OperationEntry(
                _choose_name({}, "GET", path, used_names), "GET", path, (), {}, reference
            )  # `build` reports the reference as unusable
            continue
        for method in METHODS:
            operation = item.get(method.lower())
            if isinstance(operation, dict):
                name = _choose_name(operation, method, path, used_names)
                used_names.add(name.lower())
                yield OperationEntry(name, method, path, _read_tags(operation), operation, item)


class DefinitionBuilder:
    """Builds definitions that share converted schemas."""

    def __init__(self, document: OpenApiDocument) -> None:
        self._document = document
        self._pointers = ReferenceResolver(document.root)
        self._inputs = SchemaConverter(self._pointers, document.version, "input")
        self._outputs = SchemaConverter(self._pointers, document.version, "output")
        self._schemes = read_security_schemes(document.root, self._pointers)

    @property
    def schemes(self) -> Mapping[str, SecurityScheme]:
        return self._schemes

    def build(self, found: OperationEntry) -> OperationDefinition:
        """Build the definition. Raise `UnusableOperation`."""
        if not _PATH.fullmatch(found.path) or _DOTS.search(found.path):
            raise UnusableOperation("its path is not a plain path from the root")
        item = self._pointers.resolve(found.item)
        arguments = build_arguments(
            found.operation, item, pointers=self._pointers, schemas=self._inputs, credentials=self._auth_parameters()
        )
        _check_placeholders(found.path, arguments)
        responses = found.operation.get("responses")
        content = choose_response(responses, self._pointers)
        artifact, media = choose_artifact(content)
        request = RequestTemplate(found.method, found.path, tuple(arguments.parameters), arguments.body, content.accept)
        return OperationDefinition(
            found.name,
            clean_text(found.operation.get("summary"), limit=200).replace("\n", " ") or None,
            _build_description(found),
            self._inputs.complete(arguments.schema(), budget=_INPUT_BUDGET),
            build_output_schema(content, self._outputs, budget=_OUTPUT_BUDGET),
            request,
            artifact,
            media,
            deprecated=found.operation.get("deprecated") is True,
            wants=find_required_schemes(found.operation, self._document.root, self._schemes),
        )

    def _auth_parameters(self) -> Collection[Key]:
        return {each.parameter for each in self._schemes.values() if each.parameter is not None}


def _choose_name(operation: Mapping[str, Any], method: Method, path: str, used_names: Collection[str]) -> str:
    """Return the operation's id as a name; without one, or if it is taken, a name of method and path."""
    declared = operation.get("operationId")
    by_place = slug(f"{method.lower()} {path}")
    numbered = (slug(f"{by_place}_{number}") for number in count(2))
    candidates = chain([slug(declared)] if isinstance(declared, str) else [], [by_place], numbered)
    return next(each for each in candidates if each and each.lower() not in used_names)


def _read_tags(operation: Mapping[str, Any]) -> tuple[str, ...]:
    tags = operation.get("tags")
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


def _build_description(found: OperationEntry) -> str:
    summary, description = (clean_text(found.operation.get(key)) for key in ("summary", "description"))
    texts: Sequence[str] = [summary, "" if description == summary else description]
    text = "\n\n".join(filter(None, texts)) or f"{found.method} {clean_text(found.path, limit=200)}"
    return f"Deprecated. {text}" if found.operation.get("deprecated") is True else text


def _check_placeholders(path: str, arguments: ArgumentSet) -> None:
    declared = {each.name for each in arguments.parameters if each.place == "path"}
    named = find_placeholders(path)
    for name in named:
        if name not in declared:
            raise UnusableOperation(f"the path has a placeholder {escape_text(name)} without a parameter")
    if unused := declared - set(named):
        raise UnusableOperation(f"the path has no placeholder for its parameter {escape_text(min(unused))}")
    if re.search(r"[{}]", re.sub(r"\{[^{}/]+\}", "", path)):
        raise UnusableOperation("the path has a brace that is not part of a placeholder")


REQUEST_META: Final = "gateway/request"
"""Key of the request template in the `_meta` of a definition."""

ANSWER_META: Final = "gateway/answer"
"""Key of the response's artifact and media type in the `_meta` of a definition."""

Choice = Callable[[OperationEntry], bool]


@dataclass(frozen=True, slots=True)
class SkippedOperation:
    """A chosen operation that cannot become a tool."""

    name: str
    method: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class DocumentDefinitions:
    operations: tuple[OperationDefinition, ...] = ()
    skipped: tuple[SkippedOperation, ...] = ()
    total: int = 0
    """Number of operations in the document, chosen or not."""
    wants: frozenset[str] = field(default=frozenset())
    """Kinds of credentials that chosen operations accept."""


def import_document(data: bytes, chosen: Choice) -> DocumentDefinitions:
    """Raise `OpenApiInvalid` for a document that cannot be used at all."""
    return import_operations(read_document(data), chosen)


def import_operations(document: OpenApiDocument, chosen: Choice) -> DocumentDefinitions:
    builder = DefinitionBuilder(document)
    operations: list[OperationDefinition] = []
    skipped: list[SkippedOperation] = []
    total = 0
    for found in find_operations(document):
        total += 1
        if total > MAX_OPERATIONS:
            raise OpenApiInvalid(
                f"the OpenAPI document has more than {MAX_OPERATIONS} operations", help="take a part of it"
            )
        if not chosen(found):
            continue
        try:
            operations.append(_with_enforced_schema(builder.build(found)))
        except UnusableOperation as error:
            skipped.append(SkippedOperation(found.name, found.method, found.path, str(error)))
    wants = frozenset(kind for each in operations for kind in each.wants)
    return DocumentDefinitions(tuple(operations), tuple(skipped), total, wants)


def to_definition(operation: OperationDefinition) -> dict[str, Any]:
    """Return the tool as an MCP server would define it, with its request template in `_meta`."""
    found: dict[str, Any] = {
        "name": operation.name,
        "description": operation.description,
        "inputSchema": operation.input_schema,
        "annotations": _build_hints(operation),
        "_meta": {REQUEST_META: operation.request.to_data(), ANSWER_META: _response_meta(operation)},
    }
    if operation.title is not None:
        found["title"] = operation.title
    if operation.output_schema is not None:
        found["outputSchema"] = operation.output_schema
    return found


def _build_hints(operation: OperationDefinition) -> dict[str, bool]:
    method = operation.request.method
    reads = method in ("GET", "HEAD")
    return {
        "readOnlyHint": reads,
        "destructiveHint": method == "DELETE",
        "idempotentHint": reads or method in ("PUT", "DELETE"),
    }


def _response_meta(operation: OperationDefinition) -> Mapping[str, Any]:
    return {"artifact": operation.artifact} | ({"media": operation.media} if operation.media else {})


def _with_enforced_schema(operation: OperationDefinition) -> OperationDefinition:
    """Return it with the enforced schema: closed, and without patterns if one of them cannot be compiled."""
    reason = ""
    for schema in (operation.input_schema, strip_patterns(operation.input_schema)):
        try:
            closed = Schema(dict(schema)).describe()
        except (ValueError, RecursionError) as error:
            reason = str(error)
            continue
        return replace(operation, input_schema=closed)
    raise UnusableOperation(f"its arguments cannot be checked: {' '.join(reason.split())[:200]}")
