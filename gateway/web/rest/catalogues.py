"""Catalogues and their tools, as this caller is shown them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from gateway.advertising import described
from gateway.core.definitions import shaped
from gateway.errors import UnknownCatalogue, UnknownTool
from gateway.governance.imports import plain
from gateway.governance.principals import Principal
from gateway.serving.content import output_schema
from gateway.serving.service import Listed, Service
from gateway.snapshot import Catalogue, DeclaredTool
from gateway.web.problems import Response
from gateway.web.rest.answers import tagged
from gateway.web.rest.asking import Asked
from gateway.web.rest.operations import Rest

FORMATS: Final = ("gateway", "mcp", "openai", "anthropic", "gemini")
PROTOCOL: Final = "http"
"""What `publish.as` calls this wire."""


async def list_catalogues(rest: Rest, asked: Asked) -> Response:
    """Only those that admit the caller; nothing tells that there are others."""
    published = rest.service.published
    names = sorted(name for name in published.snapshot.catalogues if _is_for(rest.service, asked.principal, name))
    found = [_catalogue(published.snapshot.catalogues[name], _revision(rest)) for name in names]
    return _tagged(rest, asked, {"catalogues": found, "revision": _revision(rest)})


async def get_catalogue(rest: Rest, asked: Asked) -> Response:
    return _tagged(rest, asked, _catalogue(_asked_for(rest, asked), _revision(rest)))


async def list_tools(rest: Rest, asked: Asked) -> Response:
    catalogue = _asked_for(rest, asked)
    return tools_answer(rest, asked, catalogue, rest.service.listed(asked.principal, catalogue.name))


async def get_tool(rest: Rest, asked: Asked) -> Response:
    catalogue = _asked_for(rest, asked)
    listed = {each.name: each for each in rest.service.listed(asked.principal, catalogue.name)}
    tool = listed.get(asked.path["name"])
    if tool is None:
        raise UnknownTool()
    return _tagged(rest, asked, _told(rest, tool, catalogue, listed, asked.query["format"]))


def tools_answer(rest: Rest, asked: Asked, catalogue: Catalogue, listed: Iterable[Listed]) -> Response:
    """Tools in the format that was asked for."""
    format, names = asked.query["format"], {each.name: each for each in listed}
    tools = [_told(rest, each, catalogue, names, format) for each in names.values()]
    return _tagged(rest, asked, {"tools": tools, "format": format, "revision": _revision(rest)})


def catalogue_for(service: Service, principal: Principal, name: str) -> Catalogue:
    """The catalogue. Unknown, not for this caller and not published over HTTP are one answer."""
    if not _is_for(service, principal, name):
        raise UnknownCatalogue()
    return service.published.snapshot.catalogues[name]


def _is_for(service: Service, principal: Principal, name: str) -> bool:
    found = service.published.snapshot.catalogues.get(name)
    return service.published.access.admits(principal, name) and found is not None and PROTOCOL in found.protocols


def _asked_for(rest: Rest, asked: Asked) -> Catalogue:
    return catalogue_for(rest.service, asked.principal, asked.path["catalogue"])


def _revision(rest: Rest) -> str:
    return rest.service.published.snapshot.short_revision


def _tagged(rest: Rest, asked: Asked, body: Mapping[str, Any]) -> Response:
    return tagged(body, revision=_revision(rest), known=asked.header(b"if-none-match"))


def _catalogue(catalogue: Catalogue, revision: str) -> dict[str, Any]:
    found = {
        "name": catalogue.name,
        "revision": revision,
        "path": catalogue.path,
        "tools": f"/v1/catalogues/{quote(catalogue.name, safe='')}/tools",
    }
    optional = {"title": catalogue.title, "instructions": catalogue.instructions}
    return found | {name: value for name, value in optional.items() if value}


def _told(rest: Rest, listed: Listed, catalogue: Catalogue, names: Mapping[str, Listed], format: str) -> dict[str, Any]:
    declared = listed.declared
    advertised = described(listed.name, declared, catalogue) if declared is not None else None
    told = listed.tool.describe() if advertised is None else advertised
    promised = _promised(rest, catalogue, declared)
    if format != "gateway":
        found = shaped(told, format)  # type: ignore[arg-type]  # one of the parameter's choices
        return found | promised if format == "mcp" else found
    found = {
        "name": listed.name,
        "description": told["description"],
        "inputSchema": told["input_schema"],
        "isQuery": declared is None,
        **promised,
    }
    return found if declared is None else found | _governed(declared, names)


def _promised(rest: Rest, catalogue: Catalogue, tool: DeclaredTool | None) -> dict[str, Any]:
    """What is promised of a tool's results, as clients of MCP are told it."""
    found = None if tool is None else output_schema(rest.service.published, catalogue.name, tool)
    return {} if found is None else {"outputSchema": plain(found)}


def _governed(tool: DeclaredTool, names: Mapping[str, Listed]) -> dict[str, Any]:
    """What our documents say of the tool. Nothing of where and how it runs."""
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
        use = _shown_name(tool.deprecation.use, names)
        found["deprecation"] = {
            "since": tool.deprecation.since.isoformat(),
            "removeAfter": tool.deprecation.remove_after.isoformat(),
            **({"use": use} if use else {}),
        }
    return found


def _shown_name(identity: str | None, names: Mapping[str, Listed]) -> str | None:
    """The name under which this caller is shown a replacement; one they are not shown is not spoken of."""
    shown = (name for name, each in names.items() if each.declared is not None and each.declared.name == identity)
    return next(shown, None) if identity else None
