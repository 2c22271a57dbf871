"""Catalogues over REST, and those of their tools that the caller may see."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import orjson

from gateway.engine import SLICE, ListedTool, Service, ToolListing, advertised_output_schema
from gateway.errors import UnknownCatalogue, UnknownTool
from gateway.model import Principal, to_provider_definition
from gateway.registries import Catalogue, DeclaredTool, describe_tool, to_plain_data
from gateway.server.http.asgi import Response
from gateway.server.rest.operation import RestDependencies, RestRequest
from gateway.server.rest.responses import encode_json, etag_response

FORMATS: Final = ("gateway", "mcp", "openai", "anthropic", "gemini")
REST_PROTOCOL: Final = "http"
"""Name of the REST transport in `publish.as`."""


async def list_catalogues(rest: RestDependencies, request: RestRequest) -> Response:
    """List the catalogues that admit the caller; the response does not reveal that there are others."""
    published = rest.service.published
    names = sorted(name for name in published.snapshot.catalogues if _is_for(rest.service, request.principal, name))
    found = [_catalogue(published.snapshot.catalogues[name], _revision(rest)) for name in names]
    return _with_etag(rest, request, {"catalogues": found, "revision": _revision(rest)})


async def get_catalogue(rest: RestDependencies, request: RestRequest) -> Response:
    return _with_etag(rest, request, _catalogue(_find(rest, request), _revision(rest)))


async def list_tools(rest: RestDependencies, request: RestRequest) -> Response:
    catalogue = _find(rest, request)
    listing = rest.service.list_tools(request.principal, catalogue.name)
    return await tools_response(rest, request, catalogue, listing)


async def get_tool(rest: RestDependencies, request: RestRequest) -> Response:
    catalogue = _find(rest, request)
    listed = {each.name: each for each in await rest.service.list_tools(request.principal, catalogue.name).all()}
    tool = listed.get(request.path["name"])
    if tool is None:
        raise UnknownTool()
    return _with_etag(rest, request, _tool_data(rest, tool, catalogue, listed, request.query["format"]))


async def tools_response(
    rest: RestDependencies, request: RestRequest, catalogue: Catalogue, listing: ToolListing
) -> Response:
    """Return the tools in the requested format. They are described in slices: there may be thousands."""
    format, names = request.query["format"], {each.name: each for each in await listing.all()}
    tools: list[orjson.Fragment] = []
    for each in names.values():
        if len(tools) % SLICE == 0:
            await asyncio.sleep(0)
        tools.append(orjson.Fragment(encode_json(_tool_data(rest, each, catalogue, names, format))))
    return _with_etag(rest, request, {"tools": tools, "format": format, "revision": _revision(rest)})


def find_catalogue(service: Service, principal: Principal, name: str) -> Catalogue:
    """Return the catalogue. Raises `UnknownCatalogue` if it does not exist, is not for this caller or not on REST."""
    if not _is_for(service, principal, name):
        raise UnknownCatalogue()
    return service.published.snapshot.catalogues[name]


def _is_for(service: Service, principal: Principal, name: str) -> bool:
    found = service.published.snapshot.catalogues.get(name)
    return (
        service.published.access.is_in_audience(principal, name)
        and found is not None
        and REST_PROTOCOL in found.protocols
    )


def _find(rest: RestDependencies, request: RestRequest) -> Catalogue:
    return find_catalogue(rest.service, request.principal, request.path["catalogue"])


def _revision(rest: RestDependencies) -> str:
    return rest.service.published.snapshot.short_revision


def _with_etag(rest: RestDependencies, request: RestRequest, body: Mapping[str, Any]) -> Response:
    return etag_response(body, revision=_revision(rest), known=request.header(b"if-none-match"))


def _catalogue(catalogue: Catalogue, revision: str) -> dict[str, Any]:
    found = {
        "name": catalogue.name,
        "revision": revision,
        "path": catalogue.path,
        "tools": f"/v1/catalogues/{quote(catalogue.name, safe='')}/tools",
    }
    optional = {"title": catalogue.title, "instructions": catalogue.instructions}
    return found | {name: value for name, value in optional.items() if value}


def _tool_data(
    rest: RestDependencies, listed: ListedTool, catalogue: Catalogue, names: Mapping[str, ListedTool], format: str
) -> dict[str, Any]:
    declared = listed.declared
    advertised = describe_tool(listed.name, declared, catalogue) if declared is not None else None
    described = listed.tool.describe() if advertised is None else advertised
    output_schema = _output_schema(rest, catalogue, declared)
    if format != "gateway":
        found = to_provider_definition(described, format)  # type: ignore[arg-type]  # one of the parameter's choices
        return found | output_schema if format == "mcp" else found
    found = {
        "name": listed.name,
        "description": described["description"],
        "inputSchema": described["input_schema"],
        "isQuery": declared is None,
        **output_schema,
    }
    return found if declared is None else found | _governance_data(declared, names)


def _output_schema(rest: RestDependencies, catalogue: Catalogue, tool: DeclaredTool | None) -> dict[str, Any]:
    """Return the output schema of a tool, the same that MCP clients get."""
    found = None if tool is None else advertised_output_schema(rest.service.published, catalogue.name, tool)
    return {} if found is None else {"outputSchema": to_plain_data(found)}


def _governance_data(tool: DeclaredTool, names: Mapping[str, ListedTool]) -> dict[str, Any]:
    """Return tier, flags, lifecycle and hints of a tool; nothing about where and how it runs."""
    found: dict[str, Any] = {
        "tier": tool.trust.tier.name,
        "flags": sorted(tool.trust.flags),
        "effects": tool.trust.effects,
        "lifecycle": tool.lifecycle,
        "hints": dict(tool.hints),
        "artifact": tool.artifact,
    }
    if tool.title:
        found["title"] = tool.title
    if tool.lifecycle == "deprecated" and tool.deprecation is not None:
        use = _visible_name(tool.deprecation.use, names)
        found["deprecation"] = {
            "since": tool.deprecation.since.isoformat(),
            "removeAfter": tool.deprecation.remove_after.isoformat(),
            **({"use": use} if use else {}),
        }
    return found


def _visible_name(identity: str | None, names: Mapping[str, ListedTool]) -> str | None:
    """Return the name under which this caller sees a replacement; `None` if they may not see it."""
    visible = (name for name, each in names.items() if each.declared is not None and each.declared.name == identity)
    return next(visible, None) if identity else None
