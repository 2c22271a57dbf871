"""Check Tool documents that publish an upstream's tool: argument mapping, input and output schema.

The input schema of a document may allow less than the upstream accepts, never more. If the two schemas cannot be
compared, no problem is reported, and the upstream validates the call.

Output schemas of upstreams are published and enforced, unless the import ignores them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.config.kinds.tools import (
    ToolDocument,
    ToolOutputSpec,
    UpstreamArgumentsSpec,
    UpstreamBackendSpec,
)
from gateway.config.kinds.upstreams import UpstreamDocument
from gateway.config.linking.document_index import DocumentEntry
from gateway.model import OutputSchema, Schema
from gateway.registries import (
    ArgumentMapping,
    ArgumentPath,
    Diagnostic,
    UpstreamDefinition,
    schema_accepts,
    suggest_name,
    to_plain_data,
)


def select_output_schema(
    definition: UpstreamDefinition | None,
    upstream: DocumentEntry[UpstreamDocument] | None,
    declared: ToolOutputSpec | None = None,
) -> Mapping[str, Any] | None:
    """Return the output schema of a definition; `None` if the document declares its own output."""
    if definition is None or definition.output_schema is None or not _uses_output_schemas(upstream):
        return None
    if declared is not None and (declared.schema_ is not None or declared.media is not None):
        return None
    given: Mapping[str, Any] = to_plain_data(definition.output_schema)
    return given if _is_checkable(given) else None


def check_output_schemas(
    upstream: DocumentEntry[UpstreamDocument], definition: UpstreamDefinition
) -> Iterator[Diagnostic]:
    given = definition.output_schema
    if given is None or not _uses_output_schemas(upstream) or _is_checkable(to_plain_data(given)):
        return
    message = f"the output schema of {definition.identity} is left out: it cannot be enforced"
    help = "report it to the operator of the upstream, or write import: {outputSchemas: ignore}"
    yield Diagnostic(
        "bad-definition", message, definition.position or upstream.position_at("spec", "import"), "warning", help
    )


def _uses_output_schemas(upstream: DocumentEntry[UpstreamDocument] | None) -> bool:
    return upstream is not None and upstream.document.spec.import_.output_schemas == "promise"


def _is_checkable(schema: Mapping[str, Any]) -> bool:
    try:
        OutputSchema(schema)
    except (ValueError, RecursionError):
        return False
    return True


WideningProblem = tuple[ArgumentPath, str]
"""Path in the document's schema, and the message about what the upstream refuses there."""

_LOWER: Final = ("minimum", "minLength", "minItems")
_BOUNDS: Final = (*_LOWER, "maximum", "maxLength", "maxItems")
_MAX_DEPTH: Final = 12


def find_wider_parts(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], shaping: ArgumentMapping
) -> Iterator[WideningProblem]:
    """Yield every path where the document's schema allows arguments that the upstream's schema refuses."""
    names = {
        shaping.public_name(name): name for name in theirs.get("properties", {}) if name not in shaping.hidden_names
    }
    mine: Mapping[str, Any] = ours.get("properties", {})
    is_closed = theirs.get("additionalProperties") is False or theirs.get("unevaluatedProperties") is False
    for name, schema in mine.items():
        path: ArgumentPath = ("properties", name)
        if name in shaping.hidden_names and name not in names:
            yield path, f"{name!r} is fixed or hidden, so callers cannot set it"
        elif name in names:
            yield from _find_wider(schema, theirs["properties"][names[name]], path, roots=(ours, theirs), depth=0)
        elif is_closed:
            yield path, f"the upstream's tool has no argument {name!r}"
    for name, remote in names.items():
        needed = remote in theirs.get("required", ()) and remote not in shaping.defaults
        if needed and not _is_always_given(name, ours):
            yield ("required",) if "required" in ours else (), f"the upstream requires {name!r}, which callers may omit"


def _is_always_given(name: str, ours: Mapping[str, Any]) -> bool:
    schema = ours.get("properties", {}).get(name)
    return name in ours.get("required", ()) or (isinstance(schema, Mapping) and "default" in schema)


def _find_wider(
    ours: Any, theirs: Any, path: ArgumentPath, *, roots: tuple[Mapping[str, Any], Mapping[str, Any]], depth: int
) -> Iterator[WideningProblem]:
    ours, theirs = _resolve_reference(ours, roots[0]), _resolve_reference(theirs, roots[1])
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping) or depth > _MAX_DEPTH:
        return
    listed = _list_values(ours)
    if listed is not None:
        for path_to, value in listed:
            if not schema_accepts(theirs, value, root=roots[1]):
                yield (*path, *path_to), "the upstream's tool refuses this value"
        return
    if "enum" in theirs or "const" in theirs:
        yield path, "the upstream's tool accepts only listed values"
        return
    yield from _wider_types(ours, theirs, path)
    yield from _wider_bounds(ours, theirs, path)
    if "pattern" in theirs and "pattern" not in ours and _may_be("string", ours):
        yield path, "the upstream's tool requires a pattern"
    yield from _wider_below(ours, theirs, path, roots=roots, depth=depth)


def _wider_types(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: ArgumentPath) -> Iterator[WideningProblem]:
    if "type" not in theirs:
        return
    taken = _types(theirs)
    if "type" not in ours:
        if not any(key in ours for key in ("allOf", "anyOf", "oneOf")):
            yield path, f"the upstream's tool accepts only {_join_types(taken)}"
    elif further := _types(ours) - taken - ({"integer"} if "number" in taken else set()):
        yield (*path, "type"), f"the upstream's tool accepts {_join_types(taken)}, not {_join_types(further)}"


def _wider_bounds(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: ArgumentPath) -> Iterator[WideningProblem]:
    for keyword in _BOUNDS:
        bound, mine = theirs.get(keyword), ours.get(keyword)
        if not _is_number(bound) or _has_exclusive_bound(ours, keyword):
            continue
        if mine is None and (not _concerns(keyword, ours) or (keyword in _LOWER and bound == 0)):
            continue
        if mine is None or not _is_number(mine) or (mine < bound if keyword in _LOWER else mine > bound):
            yield path if mine is None else (*path, keyword), f"the upstream's tool requires {keyword} {bound}"


def _wider_below(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    path: ArgumentPath,
    *,
    roots: tuple[Mapping[str, Any], Mapping[str, Any]],
    depth: int,
) -> Iterator[WideningProblem]:
    if "items" in ours and "items" in theirs:
        yield from _find_wider(ours["items"], theirs["items"], (*path, "items"), roots=roots, depth=depth + 1)
    known = theirs.get("properties", {})
    for name, schema in ours.get("properties", {}).items():
        below: ArgumentPath = (*path, "properties", name)
        if name in known:
            yield from _find_wider(schema, known[name], below, roots=roots, depth=depth + 1)
        elif theirs.get("additionalProperties") is False:
            yield below, f"the upstream's tool has no property {name!r} here"


def _list_values(ours: Mapping[str, Any]) -> list[tuple[ArgumentPath, Any]] | None:
    if "const" in ours:
        return [(("const",), ours["const"])]
    if isinstance(ours.get("enum"), list | tuple):
        return [(("enum", index), value) for index, value in enumerate(ours["enum"])]
    return None


def _resolve_reference(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(32):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        found: Any = root
        for step in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        schema = found
    return None


def _types(schema: Mapping[str, Any]) -> set[str]:
    given = schema["type"]
    return {given} if isinstance(given, str) else set(given)


def _may_be(kind: str, schema: Mapping[str, Any]) -> bool:
    return "type" not in schema or kind in _types(schema)


def _concerns(keyword: str, ours: Mapping[str, Any]) -> bool:
    if "Length" in keyword:
        return _may_be("string", ours)
    if "Items" in keyword:
        return _may_be("array", ours)
    return _may_be("number", ours) or _may_be("integer", ours)


def _has_exclusive_bound(ours: Mapping[str, Any], keyword: str) -> bool:
    """Whether our schema has an exclusive bound, which is not compared."""
    return keyword in ("minimum", "maximum") and f"exclusive{keyword.capitalize()}" in ours


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _join_types(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds))


_ARGUMENTS: Final = ("spec", "backend", "arguments")
_SCHEMA: Final = ("spec", "input", "schema")
_MAX_PROBLEMS: Final = 20


def build_argument_mapping(backend: UpstreamBackendSpec) -> ArgumentMapping:
    given = backend.arguments or UpstreamArgumentsSpec.model_construct()
    return ArgumentMapping(
        fixed=given.fixed,
        hidden=frozenset(given.hidden),
        defaults=given.defaults,
        renamed=given.renamed,
        described=given.described,
    )


def map_schema(backend: UpstreamBackendSpec, theirs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the input schema for a document without one; `None` if the mapped schema does not compile."""
    try:
        return Schema(build_argument_mapping(backend).apply_to_schema(theirs)).describe()
    except (ValueError, RecursionError):
        return None


def check_argument_mapping(
    entry: DocumentEntry[ToolDocument],
    backend: UpstreamBackendSpec,
    theirs: Mapping[str, Any],
    *,
    ours: Mapping[str, Any] | None,
) -> Iterator[Diagnostic]:
    """Report mapped arguments and schemas that do not fit the upstream's tool.

    `ours` and `theirs` are schemas that compile.
    """
    shaping = build_argument_mapping(backend)
    problems = list(shaping.check(theirs))
    for problem in problems[:_MAX_PROBLEMS]:
        path = (*_ARGUMENTS, *problem.path)
        yield entry.problem("upstream-argument", problem.message, path, help=problem.help)
    if entry.document.spec.input is None or ours is None or problems:
        return
    for number, (path, message) in enumerate(find_wider_parts(ours, theirs, shaping)):
        if number < _MAX_PROBLEMS:
            help = "allow only what the upstream's tool accepts"
            yield entry.problem("wider-schema", message, (*_SCHEMA, *path), help=help)


def check_upstream_reference(
    entry: DocumentEntry[ToolDocument], backend: UpstreamBackendSpec, *, transport: str | None, tools: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Report a backend type that does not match its upstream, or an unknown operation."""
    if transport is None:
        return
    wanted = "openapi" if transport == "openapi" else "mcp"
    if backend.type != wanted:  # type: ignore[attr-defined]  # each kind of backend has its own
        what = "an OpenAPI document" if wanted == "openapi" else "an MCP server"
        message = f"the Upstream {backend.upstream!r} is {what}"
        yield entry.problem("wrong-value", message, ("spec", "backend", "type"), help=f"write type: {wanted}")
    elif wanted == "openapi" and tools and backend.tool not in tools:
        message = f"the Upstream {backend.upstream!r} has no operation {backend.tool!r}"
        help = suggest_name(backend.tool, tools) or "run: gateway tools, to list its operations"
        yield entry.problem("unknown-reference", message, ("spec", "backend", "tool"), help=help)
