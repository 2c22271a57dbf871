"""Tool documents that publish an upstream's tool: whether they fit it, and what of it they change."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.config.linking.entries import Entry
from gateway.config.specs.backends import Arguments, UpstreamBackend
from gateway.config.specs.tools import ToolDocument
from gateway.core.schemas import Schema
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.narrowing import wider_parts
from gateway.governance.shaping import Shaping

_ARGUMENTS: Final = ("spec", "backend", "arguments")
_SCHEMA: Final = ("spec", "input", "schema")
_MAX_TOLD: Final = 20


def shaping_of(backend: UpstreamBackend) -> Shaping:
    given = backend.arguments or Arguments.model_construct()
    return Shaping(
        fixed=given.fixed,
        hidden=frozenset(given.hidden),
        defaults=given.defaults,
        renamed=given.renamed,
        described=given.described,
    )


def shaped_schema(backend: UpstreamBackend, theirs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What callers of a document without a schema of its own are shown; `None` if nothing sensible comes out."""
    try:
        return Schema(shaping_of(backend).schema(theirs)).describe()
    except (ValueError, RecursionError):
        return None


def misfits(
    entry: Entry[ToolDocument], backend: UpstreamBackend, theirs: Mapping[str, Any], *, ours: Mapping[str, Any] | None
) -> Iterator[Diagnostic]:
    """What a document says about arguments that its upstream's tool does not have, or does not take so.

    `ours` and `theirs` are schemas that compile: one with a malformed keyword cannot be compared.
    """
    shaping = shaping_of(backend)
    problems = list(shaping.problems(theirs))
    for problem in problems[:_MAX_TOLD]:
        path = (*_ARGUMENTS, *problem.path)
        yield entry.problem("upstream-argument", problem.message, path, help=problem.help)
    if entry.document.spec.input is None or ours is None or problems:
        return
    for number, (path, message) in enumerate(wider_parts(ours, theirs, shaping)):
        if number < _MAX_TOLD:
            help = "allow only what the upstream's tool takes"
            yield entry.problem("wider-schema", message, (*_SCHEMA, *path), help=help)


def wrong_upstream(
    entry: Entry[ToolDocument], backend: UpstreamBackend, *, transport: str | None, tools: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """A backend for another kind of upstream than the one it names, or for an operation that is not there."""
    if transport is None:
        return
    wanted = "openapi" if transport == "openapi" else "mcp"
    if backend.type != wanted:  # type: ignore[attr-defined]  # each kind of backend has its own
        what = "an OpenAPI document" if wanted == "openapi" else "an MCP server"
        message = f"the Upstream {backend.upstream!r} is {what}"
        yield entry.problem("wrong-value", message, ("spec", "backend", "type"), help=f"write type: {wanted}")
    elif wanted == "openapi" and tools and backend.tool not in tools:
        message = f"the Upstream {backend.upstream!r} has no operation {backend.tool!r}"
        help = did_you_mean(backend.tool, tools) or "run: gateway tools, to see those it has"
        yield entry.problem("unknown-reference", message, ("spec", "backend", "tool"), help=help)
