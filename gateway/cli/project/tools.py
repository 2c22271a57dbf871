"""`gateway tools`: the tools of a catalogue, for all callers or for one, and as definitions for models.

Prompts and resources are listed after the tools.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, cast

import typer

from gateway.app import LoadedProject
from gateway.cli.call_input import parse_caller
from gateway.cli.options import (
    DEFAULT_FOLDER,
    CallerOption,
    DayOption,
    EnvironmentOption,
    PoliciesOption,
    ProjectOption,
    RolesOption,
)
from gateway.cli.output import fail, print_json, print_note, print_table, stdout
from gateway.cli.project_loader import find_project, load_with_environ, require_valid
from gateway.model import Principal, ProviderName, to_provider_definition
from gateway.policy import Access, GateRule
from gateway.registries import Catalogue, Snapshot, describe_tool, suggest_name
from gateway.review import (
    ResourceAccess,
    ToolAccess,
    list_resource_access,
    list_resource_access_for,
    list_tool_access,
    list_tool_access_for,
)

_COLOURS: Final = {"perhaps": "yellow", "deprecated": "yellow", "unknown": "yellow"}
_COLUMNS: Final = (
    "name",
    "title",
    "tier",
    "flags",
    "effects",
    "lifecycle",
    "backend",
    "owner",
    "gates",
    "hidden",
    "may call",
    "held",
)
_RESOURCE_COLUMNS: Final = ("kind", "name", "policy", "tier", "flags", "upstream")


@dataclass(frozen=True, slots=True)
class _Question:
    """The tools to list: for which caller, at what time, and whether hidden ones are included."""

    access: Access
    principal: Principal | None
    at: datetime
    with_hidden: bool

    @property
    def snapshot(self) -> Snapshot:
        return self.access.snapshot

    def offers(self, catalogue: Catalogue) -> list[ToolAccess]:
        if self.principal is None:
            found = list_tool_access(self.snapshot, catalogue)
        else:
            found = list_tool_access_for(self.access, self.principal, catalogue, at=self.at)
        return [offer for offer in found if self.with_hidden or not offer.is_hidden]

    def resources(self, catalogue: Catalogue) -> list[ResourceAccess]:
        if self.principal is None:
            return list_resource_access(self.snapshot, catalogue)
        return list_resource_access_for(self.access, self.principal, catalogue)


def list_tools(
    catalogue: Annotated[
        str | None, typer.Argument(help="The catalogue; without it, all catalogues are listed.", show_default=False)
    ] = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    subject: CallerOption = None,
    roles: RolesOption = None,
    with_hidden: Annotated[bool, typer.Option("--all", help="Include hidden tools.")] = False,
    collisions: Annotated[
        bool, typer.Option("--collisions", help="List definitions that compete for one name or one URI.")
    ] = False,
    output: Annotated[
        Literal["text", "json", "openai", "anthropic", "gemini", "mcp"],
        typer.Option(help="For people, for programs, or as definitions for a provider's models."),
    ] = "text",
) -> None:
    """List the tools, prompts and resources of a catalogue, or all catalogues; with --as, those of one caller."""
    principal = parse_caller(subject, roles)
    project = find_project(folder, policies)
    found = require_valid(load_with_environ(project, environment=environment, today=on), project)
    moment = datetime.now(UTC)
    at = moment if on is None else moment.replace(year=on.year, month=on.month, day=on.day)
    question = _Question(_access(found), principal, at, with_hidden)
    if collisions:
        _print_collisions(_choose_catalogues(question.snapshot, catalogue), as_json=output != "text")
        return
    chosen = _choose_catalogue(question.snapshot, catalogue)
    if chosen is None:
        _print_catalogues(question, output)
        return
    if principal is not None and not question.access.is_in_audience(principal, chosen.name):
        print_note(f"{principal.subject} is not in the audience of {chosen.name}: {', '.join(sorted(chosen.audience))}")
    if output in ("text", "json"):
        _print_offers(question.offers(chosen), question.resources(chosen), as_json=output == "json")
    else:
        _print_definitions(question, chosen, cast(ProviderName, output))


def _access(found: LoadedProject) -> Access:
    assert found.access is not None, "a valid project has one"  # noqa: S101 - `require_valid` checked it
    return found.access


def _choose_catalogue(snapshot: Snapshot, name: str | None) -> Catalogue | None:
    """Return the catalogue of that name, or the only one; `None` if there are several and none is named."""
    chosen = _choose_catalogues(snapshot, name)
    return chosen[0] if name is not None or len(chosen) == 1 else None


def _choose_catalogues(snapshot: Snapshot, name: str | None) -> list[Catalogue]:
    if name is None:
        return [snapshot.catalogues[each] for each in sorted(snapshot.catalogues)]
    if name not in snapshot.catalogues:
        known = ", ".join(sorted(snapshot.catalogues)) or "none"
        help = suggest_name(name, snapshot.catalogues) or f"there are: {known}; give a folder with --project"
        fail(f"there is no catalogue {name!r}", help)
    return [snapshot.catalogues[name]]


def _print_catalogues(question: _Question, output: str) -> None:
    catalogues = _choose_catalogues(question.snapshot, None)
    if output not in ("text", "json"):
        fail("definitions are printed for one catalogue", f"name one: {', '.join(each.name for each in catalogues)}")
    besides = {each.name: [found.offer.kind for found in question.resources(each)] for each in catalogues}
    rows = [
        {
            "name": each.name,
            "title": each.title or "",
            "tools": len(question.offers(each)),
            "prompts": besides[each.name].count("prompt"),
            "resources": besides[each.name].count("resource"),
            "hidden": len(each.hidden),
            "path": each.path,
            "pipeline": each.pipeline,
            "audience": sorted(each.audience),
            "owner": each.owner or "",
        }
        for each in catalogues
    ]
    if output == "json":
        _print_json(rows)
    else:
        print_table(
            stdout(),
            list(rows[0]) if rows else ["name"],
            [[_format_cell(cell) for cell in row.values()] for row in rows],
        )


def _print_offers(found: Sequence[ToolAccess], others: Sequence[ResourceAccess], *, as_json: bool) -> None:
    rows = [_tool_row(offer) for offer in found]
    resources = [_resource_row(each) for each in others]
    if as_json:
        tools = [{**row, "position": str(offer.tool.position)} for row, offer in zip(rows, found, strict=True)]
        _print_json([*({"kind": "tool", **each} for each in tools), *resources])
        return
    if not rows:
        print_note("there is no tool to show")
    else:
        # assumed flags of tools with unknown effects are left out: they would look like declared ones
        known = [sorted(offer.tool.trust.known_flags) for offer in found]
        shown = [{**row, "flags": flags} for row, flags in zip(rows, known, strict=True)]
        cells = [[_format_cell(cell) for cell in row.values()] for row in shown]
        print_table(stdout(), _COLUMNS, cells, colours=_COLOURS)
    if resources:
        stdout().print()
        cells = [[_format_cell(row[column]) for column in _RESOURCE_COLUMNS] for row in resources]
        print_table(stdout(), _RESOURCE_COLUMNS, cells)


def _resource_row(each: ResourceAccess) -> dict[str, Any]:
    offer = each.offer
    return {
        "kind": offer.kind,
        "name": each.name,
        "policy": offer.object,
        "tier": offer.trust.tier.name,
        "flags": sorted(offer.trust.flags),
        "upstream": offer.upstream,
        "position": str(offer.position),
    }


def _tool_row(offer: ToolAccess) -> dict[str, Any]:
    tool = offer.tool
    return {
        "name": offer.name,
        "title": tool.title or "",
        "tier": tool.trust.tier.name,
        "flags": sorted(tool.trust.flags),
        "effects": tool.trust.effects,
        "lifecycle": tool.lifecycle,
        "backend": f"{tool.backend} {tool.upstream}" if tool.upstream else tool.backend,
        "owner": tool.owner or "",
        "gates": [_format_gate(rule) for rule in offer.gates],
        "hidden": offer.is_hidden,
        "mayCall": offer.may_call,
        "held": offer.is_held,
    }


def _format_gate(rule: GateRule) -> str:
    return rule.name if rule.mode == "enforce" else f"{rule.name} ({rule.mode})"


def _print_definitions(question: _Question, catalogue: Catalogue, provider: ProviderName) -> None:
    definitions, unknown = [], []
    for offer in question.offers(catalogue):
        if not offer.tool.is_callable_on(question.at.date()):
            continue
        description = describe_tool(offer.name, offer.tool, catalogue)
        if description is None:
            unknown.append(offer.name)
        else:
            definitions.append(to_provider_definition(description, provider))
    _print_json(definitions)
    if unknown:
        print_note(f"left out, because only their upstream knows the schema: {', '.join(unknown)}")


def _print_collisions(catalogues: Sequence[Catalogue], *, as_json: bool) -> None:
    rows = [
        {
            "catalogue": catalogue.name,
            "kind": each.kind,
            "name": each.incoming.name,
            "outcome": each.outcome,
            "because": each.reason,
            "existing": f"{each.existing.source} {each.existing.position.file}:{each.existing.position.line}",
            "incoming": f"{each.incoming.source} {each.incoming.position.file}:{each.incoming.position.line}",
        }
        for catalogue in catalogues
        for each in catalogue.collisions
    ]
    if as_json:
        _print_json(rows)
    elif rows:
        print_table(stdout(), list(rows[0]), [list(row.values()) for row in rows])
    else:
        print_table(stdout(), ["there are no collisions"], [])


def _print_json(value: Any) -> None:
    print_json(value)


def _format_cell(value: Any) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return "yes"
        case list():
            return ", ".join(value)
    return str(value)
